"""Formats, questions and flags, as a user sees them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from .conftest import tree_bytes

APPLY = ("apply", "--rules", "bi100")


def test_github_annotations(muhmod, enginex):
    ran = muhmod(*APPLY, "--check", "--output-format", "github", enginex)
    assert ran.code == 1
    lines = ran.out.splitlines()
    told = (
        "::warning file=vllm/_custom_ops.py,line=27,title=muhmod shared-memory::"
        "pending: return 32 * 1024 -> 49152, dead: stopped: "
    )
    assert any(line.startswith(told) for line in lines)
    assert any(line.startswith("::notice file=vllm/attention/ops/paged_attn.py,line=25") for line in lines)
    assert all(line.startswith("::") for line in lines)


def test_github_errors(muhmod, enginex):
    (enginex / "_custom_ops.py").unlink()
    ran = muhmod(*APPLY, "--check", "--output-format", "github", enginex)
    assert ran.code == 3
    assert "::error title=muhmod shared-memory::lost: no shared-memory in" in ran.out


def test_json_of_a_refusal_lists_every_reason(muhmod, enginex):
    (enginex / "_custom_ops.py").unlink()
    (enginex / "model_executor" / "x.py").write_text("def get_default_config(: 'BLOCK_SIZE_M'\n")
    ran = muhmod(*APPLY, "--output-format", "json", enginex)
    report = json.loads(ran.out)
    assert report["exit"]["code"] == ran.code == 4
    assert [reason.partition(":")[0] for reason in report["exit"]["reasons"]] == [
        "moe-config",
        "shared-memory",
    ]
    assert {row["site"]: row["state"] for row in report["sites"]}["prefill-tile"] == "pending"


def test_json_row_has_the_contracts_keys(muhmod, enginex):
    report = json.loads(muhmod(*APPLY, "--output-format", "json", enginex).out)
    assert report.keys() == {"schema", "command", "rules", "tree", "exit", "sites"}
    assert (report["schema"], report["command"], report["rules"], report["tree"]) == (
        "muhmod/report/1", "apply", "bi100", "vllm",
    )  # fmt: skip
    row = next(row for row in report["sites"] if row["site"] == "shared-memory")
    assert (row["file"], row["scope"], row["form"]) == (
        "_custom_ops.py", "get_max_shared_memory_per_block_device_attribute", "literal",
    )  # fmt: skip
    (slot,) = row["slots"]
    assert (slot["name"], slot["old"], slot["new"], slot["kind"]) == ("return", "32 * 1024", "49152", "limit")
    (fact,) = slot["facts"]
    assert fact["status"] == "documented"
    assert fact["rivals"][0]["value"] == 32768
    assert str(fact["chosen"])


def test_output_is_the_same_every_time_and_names_no_path_of_the_machine(muhmod, enginex):
    for form in ("text", "json", "github"):
        first = muhmod(*APPLY, "--check", "--output-format", form, enginex)
        assert first.raw == muhmod(*APPLY, "--check", "--output-format", form, enginex).raw
        assert str(enginex.parent) not in first.out


def test_stdout_of_diff_is_the_patch_alone(muhmod, enginex):
    ran = muhmod(*APPLY, "--diff", enginex)
    head, _, patch = ran.out.partition("diff --git ")
    assert all(line.startswith("# ") for line in head.splitlines())
    assert "BLOCK: 64 -> 32 (limit)" in head
    assert "33,024 B, fits" in head
    assert "v1-override: held" in ran.err
    muhmod(*APPLY, enginex)
    done = muhmod(*APPLY, "--diff", enginex)
    assert (done.code, done.out) == (0, "")
    assert patch


def test_output_file(muhmod, enginex, tmp_path):
    ran = muhmod(*APPLY, "--check", "--output-format", "json", "-o", tmp_path / "r.json", enginex)
    assert ran.out == ""
    assert json.loads((tmp_path / "r.json").read_text())["tree"] == "vllm"
    ran = muhmod(*APPLY, "--check", "-o", tmp_path / "no" / "r.json", enginex)
    assert ran.code == 4
    assert "cannot write" in ran.err


def test_quiet_verbose_and_colour(muhmod, enginex):
    quiet = muhmod(*APPLY, "--check", "-q", enginex)
    assert (quiet.code, quiet.out, quiet.err) == (1, "", "")
    loud = muhmod(*APPLY, "--check", "-v", enginex)
    assert "4. 32 x 32: (32*256 + 256*32)*2 + 32*8 = 33,024 B, fits" in loud.out
    assert "\x1b[" not in loud.out
    assert "\x1b[" in muhmod(*APPLY, "--check", "--color", "always", enginex).out
    assert "\x1b[" not in muhmod(*APPLY, "--diff", "--color", "always", enginex).out


def test_colour_by_environment(muhmod, enginex, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in muhmod(*APPLY, "--check", enginex).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in muhmod(*APPLY, "--check", enginex).out


def test_exit_non_zero_on_fix(muhmod, enginex):
    assert muhmod(*APPLY, "--exit-non-zero-on-fix", enginex).code == 1
    assert muhmod(*APPLY, "--exit-non-zero-on-fix", enginex).code == 0


def test_select_and_ignore(muhmod, enginex):
    before = tree_bytes(enginex)
    assert muhmod(*APPLY, "--select", "shared-memory", enginex).code == 0
    changed = tree_bytes(enginex)
    assert [name for name in changed if changed[name] != before[name]] == ["_custom_ops.py"]
    ran = muhmod(*APPLY, "--ignore", "moe-config", "--ignore", "prefill-tile", "--check",
                 "--output-format", "json", enginex)  # fmt: skip
    states = {row["site"]: row["state"] for row in json.loads(ran.out)["sites"]}
    assert states["moe-config"] == states["prefill-tile"] == "skipped"
    assert states["autotune-configs"] == "pending"


def test_lock_elsewhere(muhmod, enginex, tmp_path):
    lock = tmp_path / "locks" / "mine.lock"
    lock.parent.mkdir()
    before = tree_bytes(enginex)
    assert muhmod(*APPLY, "--lock", lock, enginex).code == 0
    assert lock.is_file()
    assert not (enginex.parent / "muhmod.lock").exists()
    assert muhmod("revert", "--lock", lock, enginex).code == 0
    assert tree_bytes(enginex) == before
    assert not lock.exists()


def test_the_lock_is_a_line_a_site_sorted(muhmod, enginex):
    muhmod(*APPLY, enginex)
    lines = (enginex.parent / "muhmod.lock").read_text().splitlines()
    head, *rows = map(json.loads, lines)
    assert head["schema"] == "muhmod/lock/2"
    sites = [row["site"] for row in rows if "site" in row]
    assert sites == sorted(sites)
    assert {*sites} == {"autotune-configs", "moe-config", "partition-size", "prefill-tile",
                        "shared-memory", "v1-override"}  # fmt: skip
    written = [row["site"] for row in rows if row.get("splices")]
    assert written == ["autotune-configs", "moe-config", "prefill-tile", "shared-memory"]


# -i -------------------------------------------------------------------------------------------


def changed(before, enginex):
    return sorted(name for name, data in tree_bytes(enginex).items() if data != before[name])


@pytest.mark.parametrize(
    ("answers", "files"),
    [
        ("a\n", 4),
        ("n\n" * 9, 0),
        ("q\n", 0),
        ("", 0),
        ("y\ny\nq\n", 1),  # BLOCK and NUM_WARPS are asked first
        ("n\nn\na\n", 3),
        ("e\nwhat\ny\nq\n", 1),
    ],
)
def test_questions(muhmod, enginex, answers, files):
    before = tree_bytes(enginex)
    ran = muhmod(*APPLY, "-i", enginex, stdin=answers)
    assert ran.code == 0, ran.err
    assert len(changed(before, enginex)) == files
    if answers.startswith("e"):
        assert "33,024 B, fits" in ran.err
    if files:
        assert muhmod("revert", enginex).code == 0
    assert tree_bytes(enginex) == before


def test_a_declined_edit_is_skipped_and_pending_next_time(muhmod, enginex):
    ran = muhmod(*APPLY, "-i", enginex, "--output-format", "json", stdin="y\nn\nq\n")
    states = {row["site"]: row["state"] for row in json.loads(ran.out)["sites"]}
    assert states["prefill-tile"] == "applied"
    assert states["moe-config"] == "skipped"
    text = (enginex / "attention/ops/prefix_prefill.py").read_text()
    assert "else 32" in text
    assert "NUM_WARPS = 8" in text
    assert muhmod(*APPLY, "--check", enginex).code == 1


# The other commands ---------------------------------------------------------------------------


def test_explain_by_file_and_line(muhmod, enginex):
    ran = muhmod("explain", "--rules", "bi100", f"{enginex}/attention/ops/prefix_prefill.py:28")
    assert ran.code == 0
    assert "NUM_WARPS (line 28): 8 -> 4  (literal)" in ran.out
    assert "BLOCK" not in ran.out
    whole = muhmod("explain", "--rules", "bi100", "prefill-tile")
    assert "prefill-tile BLOCK = 32" in whole.out


def test_derive_needs_no_tree(muhmod):
    ran = muhmod("derive", "--rules", "bi100", "--output-format", "json")
    values = {(v["site"], v["slot"], v["case"]): v["value"] for v in json.loads(ran.out)["values"]}
    assert values == {
        ("partition-size", "_PARTITION_SIZE", ""): 512,
        ("prefill-tile", "BLOCK", ""): 32,
        ("prefill-tile", "NUM_WARPS", ""): 4,
        ("moe-config", "BLOCK_SIZE_M", "numel <= 64"): 16,
        ("moe-config", "BLOCK_SIZE_M", "numel <= 1024"): 16,
        ("moe-config", "BLOCK_SIZE_M", "no bound"): 128,
        ("shared-memory", "return", ""): 49152,
        ("autotune-configs", "configs", ""): 15,
    }
    less = muhmod("derive", "--rules", "bi100", "--set", "smem_per_block=32KiB", "--select", "prefill-tile")
    assert "prefill-tile BLOCK = 16  [limit]" in less.out
    assert "rival: 32768 [documented]" in muhmod("derive", "--rules", "bi100").out


def test_rules(muhmod):
    listed = muhmod("rules")
    assert listed.code == 0
    assert "bi100" in listed.out
    assert "qwen3.6-35b-a3b" in listed.out
    assert "AMD ROCm" in listed.out
    shown = muhmod("rules", "show", "bi100")
    assert "PagedAttention.forward_decode" in shown.out
    assert "warpSize read inside a kernel" in " ".join(shown.out.split())
    assert muhmod("rules", "validate", "bi100").out == "bi100: valid, 6 sites, 28 facts\n"


def test_sites_reports_form_value_and_what_cannot_be_edited(muhmod, enginex):
    rows = json.loads(muhmod("sites", "--output-format", "json", enginex).out)["sites"]
    by_place = {(row["site"], row["file"]): row for row in rows}
    flag = by_place["triton-flag", "triton_utils/importing.py"]
    assert (flag["line"], flag["form"], flag["slots"][0]["value"]) == (4, "module-literal", "False")
    call = by_place["shared-memory", "utils.py"]
    assert call["state"] == "unrewritable"
    assert "is no literal" in call["reason"]
    one = muhmod("sites", "--select", "triton-flag", "--output-format", "github", enginex)
    assert one.out.startswith("::notice file=vllm/triton_utils/importing.py,line=4,")


def test_sites_leaves_out_tests_and_vendored_code_unless_asked(muhmod, package):
    tree = package(a="_PARTITION_SIZE = 1\n", tests__b="_PARTITION_SIZE = 2\n",
                   third_party__c="_PARTITION_SIZE = 3\n", test_d="_PARTITION_SIZE = 4\n",
                   e="# @generated by a tool\n_PARTITION_SIZE = 5\n")  # fmt: skip

    def files(*more):
        rows = json.loads(muhmod("sites", "--output-format", "json", *more, tree).out)["sites"]
        return [row["file"] for row in rows]

    assert files() == ["a.py"]
    assert files("--all") == ["a.py", "e.py", "test_d.py", "tests/b.py", "third_party/c.py"]


def test_closed_pipe_is_no_error(enginex):
    ran = subprocess.run(
        f"{sys.executable} -m muhmod sites {enginex} | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True,
    )  # fmt: skip
    assert ran.stdout.splitlines()[-1] in ("0", "141")
    assert ran.stderr.count("Traceback") == 0


def test_a_fault_of_muhmods_own_is_70_and_says_how_to_report_it(muhmod, enginex, monkeypatch):
    from muhmod import engine

    def broken(*_):
        raise KeyError("oops")

    monkeypatch.setattr(engine, "search", broken)
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 70
    assert "MUHMOD_DEBUG=1" in ran.err
    assert "Traceback" not in ran.err


def test_version_and_help(muhmod):
    assert muhmod("--version").out.startswith("muhmod, version ")
    for command in ("apply", "sites", "explain", "derive", "rules", "revert"):
        ran = muhmod(command, "--help")
        assert (ran.code, "Usage: muhmod" in ran.out) == (0, True)


def test_rules_show_as_json(muhmod):
    shown = json.loads(muhmod("rules", "show", "bi100", "--output-format", "json").out)
    assert shown["schema"] == "muhmod/pack/1"
    assert [c["value"] for c in shown["facts"]["smem_per_block"]["candidates"]] == [49152, 32768]
    assert shown["chosen"]["smem_per_block"]["value"] == 49152
    assert shown["sites"]["prefill-tile"]["slots"]["NUM_WARPS"]["value"] == 4


def test_explain_finds_the_tree_that_is_here(muhmod, enginex, monkeypatch):
    monkeypatch.chdir(enginex.parent)
    ran = muhmod("explain", "--rules", "bi100", "prefill-tile")
    assert ran.code == 0
    assert "attention/ops/prefix_prefill.py:27" in ran.out


def test_without_a_pack_those_that_ship_are_offered(muhmod):
    for command in (("apply", "vllm"), ("derive",), ("explain", "prefill-tile")):
        ran = muhmod(*command)
        assert ran.code == 2
        assert "no rule pack: give --rules PACK" in ran.err and "bi100, h200" in ran.err


def test_several_trees_are_written_all_or_none(muhmod, enginex, tmp_path):
    other = shutil.copytree(enginex, tmp_path / "second" / "vllm")
    before = tree_bytes(enginex)
    (other / "_custom_ops.py").chmod(0o444)
    ran = muhmod(*APPLY, enginex, other)
    assert ran.code == 4
    assert "read-only" in ran.err
    assert tree_bytes(enginex) == tree_bytes(other) == before
    (other / "_custom_ops.py").chmod(0o644)
    assert muhmod(*APPLY, enginex, other).code == 0
    assert tree_bytes(enginex) == tree_bytes(other) != before
    assert muhmod("revert", enginex).code == muhmod("revert", other).code == 0
    assert tree_bytes(enginex) == tree_bytes(other) == before


def test_two_trees_do_not_share_a_lock(muhmod, enginex, tmp_path):
    other = shutil.copytree(enginex, tmp_path / "second" / "vllm")
    before = tree_bytes(enginex)
    ran = muhmod(*APPLY, "--lock", tmp_path / "one.lock", enginex, other)
    assert ran.code == 2
    assert "two trees would share one.lock" in ran.err
    assert tree_bytes(enginex) == before
