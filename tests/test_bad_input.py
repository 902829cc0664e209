"""What a user can get wrong: one clear sentence, the right exit code, no traceback, nothing written."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from .conftest import tree_bytes

APPLY = ("apply", "--rules", "bi100")


def refused(ran, code, *says):
    assert ran.code == code, (ran.code, ran.err)
    for words in says:
        assert words in ran.err, ran.err
    assert "Traceback" not in ran.err + ran.out
    assert "muhmod itself" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*APPLY, "not/there"), "no such path: not/there"),
        (("apply", "--rules", "bi10", "."), "did you mean 'bi100'?"),
        (("apply", "."), "no rule pack: give --rules PACK"),
        (("apply", "--rules", "bi100"), "no TREE"),
        (("apply", "--rules", "./none.toml", "."), "no rule pack file at ./none.toml"),
        (("aply", "--rules", "bi100", "."), "did you mean 'apply'?"),
        (("apply", "--ruels", "bi100", "."), "--rules"),
        ((*APPLY, "--select", "moe-confg", "{tree}"), "did you mean 'moe-config'?"),
        ((*APPLY, "--ignore", "shared", "{tree}"), "did you mean 'shared-memory'?"),
        ((*APPLY, "--set", "smem_per_blok=1", "{tree}"), "did you mean 'smem_per_block'?"),
        ((*APPLY, "--set", "smem_per_block=48parsec", "{tree}"), "unit 'parsec' is wrong"),
        ((*APPLY, "--set", "smem_per_block=48KB", "{tree}"), "did you mean 'KiB'?"),
        ((*APPLY, "--set", "smem_per_block=-1", "{tree}"), "out of range"),
        ((*APPLY, "--set", "smem_per_block", "{tree}"), "write FACT=VALUE"),
        ((*APPLY, "--set", "warp_size=32.5", "{tree}"), "no whole number"),
        ((*APPLY, "--set", "dtype=float61", "{tree}"), "none of float16"),
        ((*APPLY, "--hardware", "bi1000", "{tree}"), "did you mean 'bi100'?"),
        ((*APPLY, "--model", "qwen", "{tree}"), "unknown model"),
        ((*APPLY, "{tree}/_custom_ops.py"), "is a file; TREE is a package folder"),
        ((*APPLY, "{tree}", "{tree}"), "given twice"),
        ((*APPLY, "-i", "--diff", "{tree}"), "does not go with --diff"),
        ((*APPLY, "-j", "0", "{tree}"), "-j"),
        (("explain", "--rules", "bi100", "moe-confg", "{tree}"), "did you mean 'moe-config'?"),
        (("explain", "--rules", "bi100", "{tree}/_custom_ops.py:1"), "no site of bi100 stands at"),
        (("explain", "--rules", "bi100", "{tree}/nothing.py:1"), "no such file"),
        (("explain", "--rules", "bi100", "nothing.py"), "write FILE:LINE"),
        (("sites", "--select", "moe", "{tree}"), "unknown site 'moe'"),
        (("rules", "show"), "needs a pack's name"),
        (("rules", "show", "bi10"), "did you mean 'bi100'?"),
        (("rules", "sho"), "sho"),
        (("derive", "--rules", "bi100", "--select", "x"), "has no site 'x'"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else None,
)
def test_wrong_usage(muhmod, enginex, arguments, says):
    before = tree_bytes(enginex.parent)
    ran = muhmod(*(word.format(tree=enginex) for word in arguments))
    refused(ran, 2, says)
    assert tree_bytes(enginex.parent) == before


def test_an_empty_folder(muhmod, tmp_path):
    (tmp_path / "vllm").mkdir()
    refused(muhmod(*APPLY, tmp_path / "vllm"), 2, "no Python package")
    refused(muhmod(*APPLY, tmp_path), 2, "no Python package")
    refused(muhmod("sites", tmp_path / "vllm"), 2, "no Python package")


def test_a_tree_without_vllm(muhmod, tmp_path):
    other = tmp_path / "requests"
    other.mkdir()
    (other / "__init__.py").write_text("x = 1\n")
    refused(muhmod(*APPLY, other), 2, "no site of bi100 is in requests/")


PACK = """schema = "muhmod/rules/1"
hardware = "bi100"
model = "qwen3.6-35b-a3b"
"""
RULE = '[sites.shared-memory]\nscope = "get_max_shared_memory_per_block_device_attribute"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema = [", "broken TOML"),
        ("schema = 1\n", "own.toml:1: [schema] schema must be"),
        (PACK + "titel = 'x'\n", "own.toml:4: [titel] unknown key 'titel'; did you mean 'title'?"),
        (PACK + RULE.replace("shared-memory", "moe-confg") + "slots.X = { value = 1, reason = 'r' }\n",
         "did you mean 'moe-config'?"),
        (PACK + "[sites.moe-config]\n", "own.toml:4: [sites.moe-config] scope is missing"),
        (PACK + RULE + "exepct = 2\n", "own.toml:6: [sites.shared-memory.exepct] unknown key"),
        (PACK + RULE + "slots.return = {}\n", "neither a derive nor a value"),
        (PACK + RULE + "slots.return = { derive = 'shared_mem' }\n", "did you mean 'shared_memory'?"),
        (PACK + RULE + "slots.return = { value = 1 }\n", "a literal value needs a reason"),
        (PACK, "own.toml: [sites] the pack has no [sites]"),
        (PACK + "sites = 3\n", "the pack has no [sites]"),
        (PACK + RULE, "the rule sets nothing"),
        (PACK + RULE + "remove = 1\n", "remove must be true or false"),
        (PACK + RULE + "guards = 3\n", "guards must be a list"),
        (PACK + RULE + "expect = 0\n", "expect must be"),
        (PACK + RULE + "when_absent = 'okay'\n", "when_absent must be one of"),
        (PACK + RULE + "slots.BLOCK = { value = 1, reason = 'r', when_absent = 1 }\n", "when_absent must be"),
        (PACK + RULE + "emit = 'leaf'\nslots.X = { derive = 'moe_block_m' }\n", "ladder-or-leaves"),
        (PACK + RULE + "guards = [{ guard = 'implementd', symbol = 'x' }]\n", "did you mean 'implemented'?"),
        (PACK + "[choose]\nsmem_per_block = { value = 1024 }\n", "a choice needs a reason"),
        (PACK + "[choose]\nsmem_per_blok = { value = 1024, reason = 'x' }\n", "smem_per_block"),
        (PACK + "[choose]\nsmem_per_block = { value = '3 ns', reason = 'x' }\n", "unit 'ns' is wrong"),
        (PACK.replace('"bi100"', '"none"'), "unknown hardware 'none'"),
        ('schema = "muhmod/rules/1"\n', "hardware is missing"),
    ],
)  # fmt: skip
def test_a_wrong_pack(muhmod, enginex, tmp_path, text, says):
    pack = tmp_path / "own.toml"
    pack.write_text(text)
    refused(muhmod("apply", "--rules", pack, enginex), 2, says)
    refused(muhmod("rules", "validate", pack), 2, says)


@pytest.mark.parametrize(
    ("fact", "says"),
    [
        ('[smem_per_block]\nvalue = 48\nunit = "GB/s"\nstatus = "measured"\nsource = "x"\n',
         "own_hw.toml:1: [smem_per_block] unit 'GB/s' is wrong"),
        ('[smem_per_block]\nvalue = 0\nstatus = "measured"\nsource = "x"\n', "out of range"),
        ('[smem_per_block]\nvalue = 1024\nstatus = "guessed"\nsource = "x"\n', "status 'guessed' is unknown"),
        ('[smem_per_block]\nvalue = 1024\nstatus = "measured"\n', "lacks 'source'"),
        ('[smem]\nvalue = 1024\nstatus = "measured"\nsource = "x"\n', "did you mean"),
        ("[smem_per_block]\ncandidates = []\n", "candidates must be a list"),
        ('[async_copy]\nvalue = 3\nstatus = "measured"\nsource = "x"\n', "neither true nor false"),
    ],
)  # fmt: skip
def test_wrong_facts(muhmod, enginex, tmp_path, fact, says):
    hardware = tmp_path / "own_hw.toml"
    hardware.write_text(fact)
    refused(muhmod(*APPLY, "--hardware", hardware, enginex), 2, says)


def test_a_missing_fact_is_a_refused_derivation(muhmod, enginex, tmp_path):
    hardware = tmp_path / "own_hw.toml"
    hardware.write_text('[smem_per_block]\nvalue = 48\nunit = "KiB"\nstatus = "measured"\nsource = "x"\n')
    before = tree_bytes(enginex)
    refused(muhmod(*APPLY, "--hardware", hardware, enginex), 5, "the fact 'warp_size' is not stated")
    assert tree_bytes(enginex) == before


def test_a_disputed_fact_without_a_choice_is_refused_with_both_sources(muhmod, enginex, tmp_path):
    from muhmod import rulebook

    text = rulebook.builtin("")["bi100"].read_text()
    start, end = text.index("[choose]"), text.index("[sites.partition")
    pack = tmp_path / "own.toml"
    pack.write_text(text[:start] + text[end:])
    ran = muhmod("apply", "--rules", pack, enginex)
    refused(ran, 5, "smem_per_block is disputed", "49152", "32768", "[choose] smem_per_block")


def test_a_literal_over_a_limit_is_refused(muhmod, enginex, tmp_path):
    from muhmod import rulebook

    text = rulebook.builtin("")["bi100"].read_text().replace("value = 4, reason", "value = 32, reason")
    pack = tmp_path / "own.toml"
    pack.write_text(text)
    refused(muhmod("apply", "--rules", pack, enginex), 5, "2,048 threads, over 1,024")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"def get_default_config(:\n    'BLOCK_SIZE_M'\n", "does not parse: line 1"),
        (b"def get_default_config(): 'BLOCK_SIZE_M'\n\x00\x01", "is a binary file"),
        (b"def get_default_config(): 'BLOCK_SIZE_M'  # \xff\n", "is not utf-8 text"),
        (b"# coding: klingon\ndef get_default_config(): 'BLOCK_SIZE_M'\n", "klingon"),
        (b"def get_default_config(): 'BLOCK_SIZE_M'\n" + b"#" * 50_000_000, "is 48 MiB"),
        (b"def get_default_config(): 'BLOCK_SIZE_M'\nx = " + b"(" * 5000, "does not parse"),
    ],
    ids=["syntax", "binary", "encoding", "cookie", "large", "deep"],
)
def test_a_file_in_reach_that_cannot_be_read(muhmod, enginex, data, says):
    path = enginex / "model_executor" / "broken.py"
    path.write_bytes(data)
    before = tree_bytes(enginex)
    ran = muhmod(*APPLY, enginex)
    refused(ran, 4, "model_executor/broken.py", says)
    assert tree_bytes(enginex) == before
    refused(muhmod("sites", enginex), 4, "model_executor/broken.py", says)


def test_a_broken_file_out_of_reach_does_not_matter(muhmod, enginex):
    (enginex / "broken.py").write_bytes(b"def (:\n\x00\xff")
    (enginex / "large.py").write_bytes(b"#" * 50_000_000)
    assert muhmod(*APPLY, enginex).code == 0


@pytest.mark.parametrize("mode", [0o444, 0o000])
def test_a_read_only_file(muhmod, enginex, mode):
    before = tree_bytes(enginex)
    (enginex / "_custom_ops.py").chmod(mode)
    ran = muhmod(*APPLY, enginex)
    (enginex / "_custom_ops.py").chmod(0o644)
    refused(ran, 4, "_custom_ops.py")
    assert tree_bytes(enginex) == before


def test_a_folder_that_may_not_be_written(muhmod, enginex, monkeypatch):
    """Told by the system, so that root, who may write anywhere, sees it too."""
    before = tree_bytes(enginex)
    folder, real = enginex / "attention" / "ops", os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and real(path, mode))
    refused(muhmod(*APPLY, enginex), 4, "the folder of vllm/attention/ops/prefix_prefill.py is not writable")
    assert tree_bytes(enginex) == before


def test_two_rules_that_change_the_same_text_are_both_refused(muhmod, enginex, tmp_path):
    from muhmod import rulebook

    text = rulebook.builtin("")["bi100"].read_text()
    text += '\n[sites.again]\nsite = "shared-memory"\n' + RULE.partition("\n")[2]
    text += "slots.return = { derive = 'shared_memory' }\n"
    pack = tmp_path / "own.toml"
    pack.write_text(text)
    before = tree_bytes(enginex)
    ran = muhmod("apply", "--rules", pack, enginex)
    refused(ran, 3, "overlaps with the rule again", "overlaps with the rule shared-memory")
    assert tree_bytes(enginex) == before


# git and the lock -----------------------------------------------------------------------------


@pytest.fixture
def repository(enginex):
    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
        subprocess.run(["git", *identity, *arguments], cwd=enginex.parent, check=True, capture_output=True)

    git("init", "-q")
    git("add", "vllm")
    git("commit", "-qm", "start")
    return git


def test_uncommitted_changes_are_refused_unless_allowed(muhmod, enginex, repository):
    path = enginex / "_custom_ops.py"
    path.write_text(path.read_text() + "\n# mine\n")
    before = tree_bytes(enginex)
    refused(muhmod(*APPLY, enginex), 3, "uncommitted changes in vllm/_custom_ops.py", "--allow-dirty")
    assert tree_bytes(enginex) == before
    assert muhmod(*APPLY, "--diff", enginex).code == 1
    assert muhmod(*APPLY, "--allow-dirty", enginex).code == 0


def test_staged_changes_are_refused_unless_they_are_allowed(muhmod, enginex, repository):
    """git's index holds them, so nothing is lost: not so what is staged in part, or not at all."""
    path = enginex / "_custom_ops.py"
    path.write_text(path.read_text() + "\n# mine\n")
    repository("add", "vllm")
    refused(muhmod(*APPLY, enginex), 3, "uncommitted changes in vllm/_custom_ops.py", "--allow-staged")
    path.write_text(path.read_text() + "\n# not staged\n")
    before = tree_bytes(enginex)
    refused(muhmod(*APPLY, "--allow-staged", enginex), 3, "vllm/_custom_ops.py", "--allow-dirty")
    repository("add", "vllm")
    repository("rm", "-q", "--cached", "vllm/_custom_ops.py")
    refused(muhmod(*APPLY, "--allow-staged", enginex), 3, "vllm/_custom_ops.py", "--allow-dirty")
    assert tree_bytes(enginex) == before
    repository("add", "vllm")
    assert muhmod(*APPLY, "--allow-staged", enginex).code == 0
    assert path.read_text().endswith("# not staged\n")


def test_a_staged_rename_is_allowed_as_any_staged_change(muhmod, enginex, repository):
    repository("mv", "vllm/_custom_ops.py", "vllm/_other_ops.py")
    refused(muhmod(*APPLY, "--select", "shared-memory", enginex), 3, "changes in vllm/_other_ops.py\n")
    assert muhmod(*APPLY, "--select", "shared-memory", "--allow-staged", enginex).code == 0


def test_uncommitted_changes_elsewhere_do_not_matter(muhmod, enginex, repository):
    (enginex / "utils.py").write_text("# mine\n")
    assert muhmod(*APPLY, enginex).code == 0


def test_what_muhmod_wrote_itself_is_not_in_its_own_way(muhmod, enginex, repository):
    pristine = tree_bytes(enginex)
    assert muhmod(*APPLY, enginex).code == 0
    assert muhmod(*APPLY, "--set", "smem_per_block=32KiB", enginex).code == 0
    assert muhmod("revert", enginex).code == 0
    assert tree_bytes(enginex) == pristine


def test_revert_refuses_a_site_edited_since(muhmod, enginex):
    assert muhmod(*APPLY, enginex).code == 0
    path = enginex / "_custom_ops.py"
    path.write_text(path.read_text().replace("49152", "40000"))
    before = tree_bytes(enginex)
    refused(muhmod("revert", enginex), 3, "shared-memory was edited since it was written")
    assert tree_bytes(enginex) == before
    assert muhmod("revert", "--ignore", "shared-memory", enginex).code == 0


def test_revert_minds_only_its_own_sites(muhmod, enginex):
    pristine = tree_bytes(enginex)
    assert muhmod(*APPLY, enginex).code == 0
    for path in enginex.rglob("*.py"):
        path.write_text("# new above\n\n" + path.read_text() + "\n# new below\n")
    assert muhmod("revert", enginex).code == 0
    for name, data in pristine.items():
        assert (enginex / name).read_bytes() == b"# new above\n\n" + data + b"\n# new below\n"


def test_revert_in_parts(muhmod, enginex):
    pristine = tree_bytes(enginex)
    assert muhmod(*APPLY, enginex).code == 0
    assert muhmod("revert", "--select", "moe-config", enginex).code == 0
    assert (enginex.parent / "muhmod.lock").is_file()
    assert muhmod("revert", enginex).code == 0
    assert tree_bytes(enginex) == pristine


def test_applied_in_parts_and_with_other_facts_reverts_to_the_first(muhmod, enginex):
    pristine = tree_bytes(enginex)
    assert muhmod(*APPLY, "--select", "prefill-tile", enginex).code == 0
    assert muhmod(*APPLY, enginex).code == 0
    assert muhmod(*APPLY, "--set", "smem_per_block=32KiB", enginex).code == 0
    assert muhmod(*APPLY, enginex).code == 0
    assert muhmod("revert", enginex).code == 0
    assert tree_bytes(enginex) == pristine


def test_revert_without_a_lock(muhmod, enginex):
    refused(muhmod("revert", enginex), 3, "there is no muhmod.lock")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: t[: len(t) // 2], "it is damaged"),
        (lambda t: t.replace('"site"', '"sight"'), "it is damaged"),
        (lambda t: t.replace("\n", "\n<<<<<<< ours\n", 1), "muhmod.lock:2: it holds merge markers"),
        (lambda t: t.replace("muhmod/lock/2", "muhmod/lock/1"), "is no muhmod/lock/2"),
        (lambda t: t.replace('"tree": "vllm"', '"tree": "other"'), "belongs to the tree other/"),
        (lambda t: "", "muhmod.lock:1: it is damaged"),
    ],
)
def test_a_foreign_or_damaged_lock(muhmod, enginex, damage, says):
    assert muhmod(*APPLY, enginex).code == 0
    lock = enginex.parent / "muhmod.lock"
    lock.write_text(damage(lock.read_text()))
    before = tree_bytes(enginex.parent)
    refused(muhmod("revert", enginex), 3, says)
    refused(muhmod(*APPLY, "--set", "smem_per_block=32KiB", enginex), 3, says)
    assert tree_bytes(enginex.parent) == before


def test_another_muhmod_at_work(muhmod, enginex):
    import fcntl

    handle = os.open(enginex.parent, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        refused(muhmod(*APPLY, enginex), 3, "another muhmod is writing")
        assert muhmod(*APPLY, "--check", enginex).code == 1
    finally:
        os.close(handle)


# Configuration --------------------------------------------------------------------------------


def test_configuration_file(muhmod, enginex, tmp_path, monkeypatch):
    there = tmp_path / "project"
    there.mkdir()
    monkeypatch.chdir(there)
    (there / "muhmod.toml").write_text(f'rules = "bi100"\ntree = "{enginex}"\nignore = ["moe-config"]\n')
    ran = muhmod("apply", "--check", "--output-format", "json")
    states = {row["site"]: row["state"] for row in json.loads(ran.out)["sites"]}
    assert (states["moe-config"], states["shared-memory"]) == ("skipped", "pending")
    (there / "muhmod.toml").unlink()
    (there / "pyproject.toml").write_text(f'[tool.muhmod]\nrules = "bi100"\ntree = ["{enginex}"]\n')
    (there / "below").mkdir()
    monkeypatch.chdir(there / "below")
    assert muhmod("apply", "--check").code == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [("ruls = 'bi100'\n", "muhmod.toml:1: [ruls] unknown key 'ruls'; did you mean 'rules'?"),
     ("rules =\n", "broken TOML"), ("output-format = 'xml'\nrules = 'bi100'\n", "output-format 'xml'")],
)  # fmt: skip
def test_wrong_configuration(muhmod, enginex, tmp_path, monkeypatch, text, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "muhmod.toml").write_text(text)
    refused(muhmod(*APPLY, "--check", enginex), 2, says)
