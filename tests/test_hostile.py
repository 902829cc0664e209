"""What a hostile reader of the lock and of the short way of `check` found."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from .conftest import ROOT, tree_bytes
from .test_check import APPLY, FLASH, MOE, OPS, PAGED, PREFILL, awake, check, edit, fresh

SHARED = "get_max_shared_memory_per_block_device_attribute"


def both_ways(muhmod, *arguments):
    """The exit codes of the whole command, and of the process, which may take the short way."""
    ran = subprocess.run([sys.executable, "-m", "muhmod", "check", *map(str, arguments)], capture_output=True)
    return muhmod("check", *arguments).code, ran.returncode


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["--select", "moe-config"], ""),
        (["--ignore", "moe-config"], ""),
        (["-i"], "y\nq\n"),
        (["-i"], "n\ny\ny\ny\ny\ny\n"),
    ],
)
def test_what_was_left_out_is_never_well(muhmod, enginex, arguments, stdin):
    assert muhmod("apply", "--rules", "bi100", *arguments, enginex, stdin=stdin).code == 0
    assert both_ways(muhmod, "--rules", "bi100", enginex) == (1, 1)


def test_ours_needs_no_second_yes(muhmod, enginex):
    muhmod(*APPLY, enginex)
    fresh(enginex)
    edit(enginex, PREFILL, "NUM_WARPS = 8", "NUM_WARPS = 16")
    narrow = ("--select", "prefill-tile")
    assert muhmod("apply", "--rules", "bi100", "-i", *narrow, enginex, stdin="ours\n").code == 0
    assert "NUM_WARPS = 4\n" in (enginex / PREFILL).read_text()


def test_packs_of_one_name_are_told_apart(muhmod, enginex, tmp_path, monkeypatch):
    text = (ROOT / "rules" / "bi100.toml").read_text()
    for name, warps in (("one", 4), ("two", 2)):
        (tmp_path / name).mkdir()
        pack = tmp_path / name / "my.toml"
        pack.write_text(text.replace("value = 4, reason", f"value = {warps}, reason"))
    monkeypatch.chdir(tmp_path / "one")
    assert muhmod("apply", "--rules", "my.toml", "-q", enginex).code == 0
    assert both_ways(muhmod, "--rules", "my.toml", enginex) == (0, 0)
    monkeypatch.chdir(tmp_path / "two")
    assert both_ways(muhmod, "--rules", "my.toml", enginex) == (1, 1)
    assert '"rules": "./' in (enginex.parent / "muhmod.lock").read_text()


@pytest.mark.parametrize("more", [["--lock"], ["--rules"], ["--rules", "bi10"]])
def test_wrong_arguments_are_wrong_on_the_short_way_too(muhmod, enginex, more):
    muhmod(*APPLY, enginex)
    assert both_ways(muhmod, enginex, *more) == (2, 2)


def without(enginex, site):
    lock = enginex.parent / "muhmod.lock"
    lines = lock.read_text().splitlines(keepends=True)
    lock.write_text("".join(line for line in lines if f'"site": "{site}"' not in line))


def test_a_lock_without_a_line_is_damaged(muhmod, enginex):
    muhmod(*APPLY, enginex)
    without(enginex, "moe-config")
    ran = muhmod("check", "--rules", "bi100", enginex)
    assert (ran.code, "its line of moe-config is missing" in ran.err) == (3, True)
    assert both_ways(muhmod, enginex) == (3, 3)


def test_relock_of_a_damaged_lock_says_what_is_lost_and_takes_nothing(muhmod, enginex):
    muhmod(*APPLY, enginex)
    edit(enginex, MOE, "    numel = M * topk\n", "    numel = M * topk\n    log(numel)\n")
    without(enginex, "moe-config")
    ran = muhmod("relock", "--rules", "bi100", enginex)
    assert ran.code == 3
    assert "moe-config: its line is lost, and with it how it was pinned and the way back" in ran.err
    code, rows = check(muhmod, enginex)
    assert (code, "not in the lock yet" in rows["moe-config"]["reason"]) == (1, True)
    assert muhmod("accept", "moe-config", enginex, "--reason", "seen").code == 0
    assert check(muhmod, enginex)[0] == 0


@pytest.mark.parametrize("content", ["", "\x00\xff", "[" * 100_000 + "\n", "{}\n"])
def test_relock_of_nothing_is_refused(muhmod, enginex, content):
    lock = enginex.parent / "muhmod.lock"
    lock.write_text(content, encoding="latin-1")
    before = tree_bytes(enginex.parent)
    for command in (["relock", "--rules", "bi100"], ["check", "--rules", "bi100"], ["revert"]):
        assert muhmod(*command, enginex).code == 3
    assert tree_bytes(enginex.parent) == before


@pytest.mark.parametrize("value", ['"nowhere/x.py"', '"\\ud800"', '"a\\u0000b"', "Infinity", "[]", "null"])
@pytest.mark.parametrize("key", ["file", "line"])
def test_an_edited_line_is_no_line_of_muhmods(muhmod, enginex, key, value):
    muhmod(*APPLY, enginex)
    lock = enginex.parent / "muhmod.lock"
    rows = lock.read_text().splitlines(keepends=True)
    old = f'"{key}": {json.dumps(json.loads(rows[-1])[key])}'
    assert old in rows[-1]
    lock.write_text("".join(rows[:-1]) + rows[-1].replace(old, f'"{key}": {value}'))
    assert both_ways(muhmod, enginex) == (3, 3)
    assert muhmod("revert", enginex).code == 3


AGAIN = {
    "for": f"for {SHARED} in [1]:\n    pass\n",
    "walrus": f"print({SHARED} := 3)\n",
    "with": f"with open(__file__) as {SHARED}:\n    pass\n",
    "except": f"try:\n    pass\nexcept OSError as {SHARED}:\n    pass\n",
    "match": f"match 1:\n    case {SHARED}:\n        pass\n",
    "global": f"def _p():\n    global {SHARED}\n    {SHARED} = None\n",
    "a star": "from vllm.utils import *\n",
    "again": f"def {SHARED}(device):\n    return 1\n",
    "augmented": f"{SHARED} += 1\n",
}


@pytest.mark.parametrize("how", AGAIN)
def test_whatever_binds_the_name_again_is_refused(muhmod, enginex, how):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    with (enginex / OPS).open("a") as stream:
        stream.write(f"\n\n{AGAIN[how]}")
    assert check(muhmod, enginex)[1]["shared-memory"]["state"] == "ambiguous"


@pytest.mark.parametrize(
    ("file", "old", "new", "site"),
    [
        (PAGED, "class PagedAttention:", "class PagedAttention(Base):", "v1-override"),
        (PAGED, "class PagedAttention:", "class PagedAttention(metaclass=M):", "v1-override"),
        (PAGED, "class PagedAttention:", "@swap\nclass PagedAttention:", "v1-override"),
        (PREFILL, "from vllm.platforms import current", "from vllm.others import current", "prefill-tile"),
        (PREFILL, "import triton\n", "import triton\ntriton = Fake()\n", "prefill-tile"),
        (FLASH, "import triton\n", "import triton\n\n\nclass triton:\n    pass\n", "autotune-configs"),
    ],
)
def test_what_a_test_or_a_class_means_is_pinned_too(muhmod, enginex, file, old, new, site):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    edit(enginex, file, old, new)
    assert check(muhmod, enginex)[1][site]["state"] == "drifted"


def test_a_class_or_a_list_that_is_replaced_below(muhmod, enginex):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    with (enginex / PAGED).open("a") as stream:
        stream.write("\n\nclass PagedAttention(PagedAttention):\n    pass\n")
    with (enginex / FLASH).open("a") as stream:
        stream.write("\n\nattn_fwd.configs = []\n")
    rows = check(muhmod, enginex)[1]
    assert (rows["v1-override"]["state"], rows["autotune-configs"]["state"]) == ("ambiguous", "ambiguous")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (PREFILL, "            return\n", "            return None\n"),
        (PREFILL, "num_warps=NUM_WARPS,\n            num_stages=1", "num_stages=1, num_warps=NUM_WARPS"),
        (PREFILL, "NUM_WARPS = 8", "NUM_WARPS: int = 8"),
        (PREFILL, "NUM_WARPS = 8", "NUM_WARPS = 0x8"),
        (PREFILL, "an fp8 cache is stored as bytes", "an fp8 cache is kept as bytes"),
        (PREFILL, "            BLOCK = BLOCK // 2", "            pass\n            BLOCK = BLOCK // 2"),
        (MOE, "def get_default_config(M,", "def get_default_config(M: int,"),
        (OPS, "return 32 * 1024", "return 32768"),
    ],
)
def test_another_spelling_is_no_drift(muhmod, enginex, file, old, new):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    edit(enginex, file, old, new)
    states = {row["state"] for row in check(muhmod, enginex)[1].values()}
    assert states == {"pending", "already", "held"}


def test_a_pipe_is_no_source(muhmod, enginex):
    os.mkfifo(enginex / "pipe.py")
    assert muhmod("check", "--rules", "bi100", enginex).code == 1


def test_a_module_behind_a_link_in_the_tree(muhmod, enginex):
    (enginex / "x").mkdir()
    (enginex / OPS).rename(enginex / "x" / "_co.py")
    (enginex / OPS).symlink_to("x/_co.py")
    _, rows = check(muhmod, enginex)
    assert "only raises NotImplementedError" in rows["v1-override"]["reason"]


def test_a_lock_that_leads_nowhere_is_left_alone(muhmod, enginex):
    lock = enginex.parent / "muhmod.lock"
    lock.symlink_to("gone")
    assert muhmod("pin", "--rules", "bi100", enginex).code == 3
    assert lock.is_symlink()


@pytest.mark.parametrize(
    "text", ['[tool."muhmod"]\nrulez = 1\n', "[tool]\nmuhmod = { rulez = 1 }\n", "tool.muhmod.rulez = 1\n"]
)
def test_settings_in_another_spelling_are_read(muhmod, enginex, text, tmp_path):
    muhmod(*APPLY, enginex)
    (tmp_path / "cwd" / "pyproject.toml").write_text(text)
    ran = muhmod("check", "--rules", "bi100", enginex)
    assert (ran.code, "rulez" in ran.err) == (2, True)
    assert both_ways(muhmod, enginex) == (2, 2)


def test_a_project_that_only_names_muhmod_is_no_setting(muhmod, enginex, tmp_path):
    muhmod(*APPLY, enginex)
    text = '[project]\nname = "muhmod"\n[tool.ruff]\nmuhmod = 1\n'
    (tmp_path / "cwd" / "pyproject.toml").write_text(text)
    assert awake("check", enginex)[::2] == (0, set())
