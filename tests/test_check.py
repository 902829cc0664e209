"""`check`, `pin`, `relock`, `accept`: what a fork's maintainer sees at a bump and in CI."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import FIXTURES, ROOT, tree_bytes

APPLY = ("apply", "--rules", "bi100", "-q")
PREFILL = "attention/ops/prefix_prefill.py"
MOE = "model_executor/layers/fused_moe/fused_moe.py"
PAGED = "attention/ops/paged_attn.py"
OPS = "_custom_ops.py"
FLASH = "attention/ops/triton_flash_attention.py"


def edit(folder, file, old, new, count=1):
    path = folder / file
    text = path.read_text()
    assert text.count(old) >= 1, old
    path.write_text(text.replace(old, new, count))


def check(muhmod, tree, *more):
    """(exit code, rows by site) of `check`."""
    ran = muhmod("check", "--rules", "bi100", "--output-format", "json", *more, tree)
    report = json.loads(ran.out)
    assert report["exit"]["code"] == ran.code
    return ran.code, {row["site"]: row for row in report["sites"]}


def kinds(row):
    return [one["kind"] for one in row.get("differences", [])]


def fresh(tree):
    """The tree as upstream's next release would bring it: nothing of ours in it."""
    shutil.rmtree(tree)
    shutil.copytree(FIXTURES / "enginex" / "vllm", tree)


# Without and with a lock ------------------------------------------------------------------------


def test_without_a_lock_the_rules_alone_decide(muhmod, enginex):
    code, rows = check(muhmod, enginex)
    assert code == 1
    assert {site: row["state"] for site, row in rows.items()} == {
        "autotune-configs": "pending", "moe-config": "pending", "partition-size": "already",
        "prefill-tile": "pending", "shared-memory": "pending", "v1-override": "held",
    }  # fmt: skip
    ran = muhmod("check", "--rules", "bi100", enginex)
    assert "no lock beside vllm/" in ran.err
    assert "BLOCK 64 -> 32" in ran.out
    assert not (enginex.parent / "muhmod.lock").exists()


def test_applied_and_checked_is_clean(muhmod, enginex):
    assert muhmod(*APPLY, enginex).code == 0
    before = tree_bytes(enginex.parent)
    code, rows = check(muhmod, enginex)
    assert code == 0
    assert {row["state"] for row in rows.values()} == {"already", "held"}
    assert tree_bytes(enginex.parent) == before


def test_the_lock_names_its_pack(muhmod, enginex):
    muhmod(*APPLY, enginex)
    ran = muhmod("check", enginex)
    assert (ran.code, "vllm/ is as bi100 wants it" in ran.err) == (0, True)


def test_a_pack_by_path_is_found_from_the_lock(muhmod, enginex, tmp_path):
    pack = tmp_path / "packs" / "mine.toml"
    pack.parent.mkdir()
    pack.write_text((ROOT / "rules" / "bi100.toml").read_text())
    assert muhmod("apply", "--rules", pack, "-q", enginex).code == 0
    assert str(tmp_path) not in (enginex.parent / "muhmod.lock").read_text()
    assert muhmod("check", enginex).code == 0


def test_check_without_rules_and_lock_says_what_to_give(muhmod, enginex):
    ran = muhmod("check", enginex)
    assert ran.code == 2
    assert "--rules PACK" in ran.err


def test_pin_writes_the_lock_and_nothing_else(muhmod, enginex):
    before = tree_bytes(enginex)
    ran = muhmod("pin", "--rules", "bi100", enginex)
    assert (ran.code, tree_bytes(enginex)) == (0, before)
    code, rows = check(muhmod, enginex)
    assert code == 1
    assert rows["prefill-tile"]["state"] == "pending"
    assert muhmod(*APPLY, enginex).code == 0
    assert check(muhmod, enginex)[0] == 0
    assert muhmod("revert", "-q", enginex).code == 0
    assert tree_bytes(enginex) == before
    assert check(muhmod, enginex)[0] == 1, "a pin outlives a revert"


def test_pin_is_refused_over_what_was_written(muhmod, enginex):
    muhmod(*APPLY, enginex)
    ran = muhmod("pin", "--rules", "bi100", enginex)
    assert ran.code == 3
    assert "holds what was written" in ran.err


def test_pin_is_refused_where_a_site_is_lost(muhmod, enginex):
    edit(enginex, PREFILL, "def context_attention_fwd", "def context_attention_forward")
    ran = muhmod("pin", "--rules", "bi100", enginex)
    assert ran.code == 3
    assert "prefill-tile: lost" in ran.err
    assert not (enginex.parent / "muhmod.lock").exists()


# What upstream does -----------------------------------------------------------------------------

UPSTREAM = {
    "a literal": (MOE, "config['BLOCK_SIZE_M'] = 256", "config['BLOCK_SIZE_M'] = 512",
                  "moe-config", ["literal"]),
    "a literal in a list": (FLASH, '"BLOCK_M": 128', '"BLOCK_M": 64', "autotune-configs", ["literal"]),
    "a guard turned round": (PREFILL, 'if triton.__version__ >= "2.1.0":', 'if triton.__version__ < "2.1.0":',
                             "prefill-tile", ["guard"]),
    "a guard in an arm": (PREFILL, "has_device_capability(80)", "has_device_capability(90)",
                          "prefill-tile", ["guard"]),
    "a rung's bound": (MOE, "numel <= 1024", "numel <= 2048", "moe-config", ["guard"]),
    "the body around": (PREFILL, "BLOCK = BLOCK // 2", "BLOCK = BLOCK // 4", "prefill-tile", ["body"]),
    "a new statement": (MOE, "    numel = M * topk\n", "    numel = M * topk\n    assert numel\n",
                        "moe-config", ["body"]),
    "the signature": (PREFILL, "slopes=None):", "slopes=None, window=0):", "prefill-tile", ["body"]),
    "a new rung": (MOE, "    else:\n        config", "    elif numel <= 9999:\n"
                   "        config['BLOCK_SIZE_M'] = 128\n    else:\n        config",
                   "moe-config", ["shape", "guard"]),
    "its vanishing": (PAGED, "        use_v1 = True\n", "", "v1-override", ["vanished"]),
}  # fmt: skip


@pytest.mark.parametrize("change", UPSTREAM)
@pytest.mark.parametrize("written", [False, True])
def test_each_of_upstreams_changes_is_told_by_name(muhmod, enginex, change, written):
    """On a pinned tree, and on a fresh one under the lock of an applied one."""
    file, old, new, site, expected = UPSTREAM[change]
    assert muhmod(*(APPLY if written else ("pin", "--rules", "bi100", "-q")), enginex).code == 0
    fresh(enginex)
    edit(enginex, file, old, new)
    before = tree_bytes(enginex.parent)
    code, rows = check(muhmod, enginex)
    row = rows[site]
    assert (code, row["state"], row["cause"]) == (3, "drifted", "upstream moved"), row
    assert [kind for kind in kinds(row) if kind != "moved"][: len(expected)] == expected
    assert {r["state"] for s, r in rows.items() if s != site} <= {"pending", "already", "held"}
    assert muhmod(*APPLY, enginex).code == 3
    assert tree_bytes(enginex.parent) == before


def test_the_first_difference_has_its_line_and_text(muhmod, enginex):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    edit(enginex, PREFILL, "BLOCK = BLOCK // 2", "BLOCK = BLOCK // 4")
    _, rows = check(muhmod, enginex)
    (difference,) = rows["prefill-tile"]["differences"]
    line = (enginex / PREFILL).read_text().splitlines()[difference["line"] - 1]
    assert line.strip() == "BLOCK = BLOCK // 4"
    assert difference["text"] == "the assignment of BLOCK changed: `BLOCK = BLOCK // 4`"


@pytest.mark.parametrize(
    "change",
    [
        ("BLOCK = BLOCK // 2", "BLOCK = (BLOCK  //\n                     2)  # halved"),
        ("    Lk = k.shape[-1]", "\n\n    # the padded one\n        Lk = k.shape[-1]"[4:]),
        ('"""Prefill of new tokens', '"""Changed: prefill of new tokens'),
        ("        BLOCK = 128 if", '        """Not so."""\n        BLOCK = 128 if'),
        ("128 if current", "(128) if current"),
    ],
)
def test_layout_comments_and_docstrings_do_not_count(muhmod, enginex, change):
    muhmod(*APPLY, enginex)
    edit(enginex, PREFILL, *change)
    code, rows = check(muhmod, enginex)
    assert (code, rows["prefill-tile"]["state"]) == (0, "already"), rows["prefill-tile"]
    assert muhmod("revert", "-q", enginex).code == 0
    assert "else 64" in (enginex / PREFILL).read_text()


def test_moved_to_another_line_or_file_is_fine_and_said(muhmod, enginex):
    muhmod(*APPLY, enginex)
    edit(enginex, MOE, "from vllm import", "\n\nfrom vllm import")
    (enginex / PREFILL).rename(enginex / "attention/ops/prefill_with_prefix.py")
    ran = muhmod("check", enginex)
    assert ran.code == 0, ran.out
    assert f"moved from {PREFILL}:27, otherwise unchanged" in ran.out
    assert f"moved from {MOE}:7, otherwise unchanged" in ran.out
    assert muhmod("relock", "-q", enginex).code == 0
    assert "moved" not in muhmod("check", enginex).out
    assert muhmod("revert", "-q", enginex).code == 0
    assert "NUM_WARPS = 8" in (enginex / "attention/ops/prefill_with_prefix.py").read_text()


def test_a_renamed_function_is_lost_with_its_candidate(muhmod, enginex):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    edit(enginex, MOE, "def get_default_config(", "def default_tile(")
    edit(enginex, PREFILL, "def context_attention_fwd(", "def context_attn_fwd(")
    code, rows = check(muhmod, enginex)
    assert code == 3
    for site, name in (("moe-config", "default_tile"), ("prefill-tile", "context_attn_fwd")):
        assert rows[site]["state"] == "lost"
        assert kinds(rows[site]) == ["renamed"]
        assert name in rows[site]["candidates"][0]
        assert "score" in rows[site]["candidates"][0]
    assert muhmod(*APPLY, enginex).code == 3


def test_a_vanished_site_is_lost_with_three_candidates_at_most(muhmod, enginex):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    text = (enginex / MOE).read_text()
    start, end = text.index("def get_default_config"), text.index("def fused_experts")
    tile = "def {}(M):\n    return {{'BLOCK_SIZE_M': {}}}\n\n\n"
    names = ("get_config", "small", "large", "another")
    others = "".join(tile.format(name, 16 * number) for number, name in enumerate(names, 1))
    (enginex / MOE).write_text(text[:start] + others + text[end:])
    code, rows = check(muhmod, enginex)
    assert (code, rows["moe-config"]["state"], kinds(rows["moe-config"])) == (3, "lost", ["vanished"])
    assert 1 <= len(rows["moe-config"]["candidates"]) <= 3
    assert "first difference" in rows["moe-config"]["candidates"][0]


def test_a_twin_of_the_same_name_is_ambiguous_and_the_pinned_one_is_named(muhmod, enginex):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    twin = enginex / "attention/ops/another.py"
    twin.write_text((enginex / PREFILL).read_text().replace("NUM_WARPS = 8", "NUM_WARPS = 2"))
    code, rows = check(muhmod, enginex)
    row = rows["prefill-tile"]
    assert (code, row["state"], kinds(row)) == (3, "ambiguous", ["twin"])
    assert f"as pinned is {PREFILL}:27" in row["reason"]


def test_a_twin_of_another_name_changes_nothing(muhmod, enginex):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    text = (enginex / MOE).read_text()
    twin = text[text.index("def get_default_config") : text.index("def fused_experts")]
    (enginex / MOE).write_text(
        text.replace("def get_default", twin.replace("default", "other") + "def get_default")
    )
    assert check(muhmod, enginex)[1]["moe-config"]["state"] == "pending"
    assert muhmod(*APPLY, enginex).code == 0
    other = (enginex / MOE).read_text()
    assert other[: other.index("def get_default")].count("config['BLOCK_SIZE_M'] = 256") == 1


def test_a_site_that_was_absent_and_has_come_is_pending(muhmod, package, tmp_path):
    pack = tmp_path / "one.toml"
    pack.write_text(
        'schema = "muhmod/rules/1"\nhardware = "bi100"\nmodel = "qwen3.6-35b-a3b"\n[sites.q-chunk]\n'
        'scope = "<module>"\nwhen_absent = "ok"\nslots._Q_CHUNK = { value = 128, reason = "r" }\n'
    )
    tree = package(a="x = 1\n")
    assert muhmod("pin", "--rules", pack, "-q", tree).code == 0
    assert muhmod("check", tree).code == 0
    (tree / "a.py").write_text("_Q_CHUNK = 256\n")
    ran = muhmod("check", tree)
    assert (ran.code, "pending            q-chunk" in ran.out) == (1, True)
    assert muhmod("apply", "--rules", pack, "-q", tree).code == 0
    assert muhmod("check", tree).code == 0
    (tree / "a.py").write_text("x = 1\n")
    ran = muhmod("check", tree)
    assert (ran.code, "lost               q-chunk" in ran.out) == (3, True)


def test_a_suppressed_site_is_left_alone_whatever_changed(muhmod, enginex):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    edit(enginex, PREFILL, "NUM_WARPS = 8", "NUM_WARPS = 16  # muhmod: skip[prefill-tile] ours")
    assert check(muhmod, enginex)[1]["prefill-tile"]["state"] == "skipped"


# What somebody does -----------------------------------------------------------------------------


def test_an_edit_of_the_result_is_somebodys(muhmod, enginex):
    muhmod(*APPLY, enginex)
    edit(enginex, PREFILL, "NUM_WARPS = 4", "NUM_WARPS = 2")
    code, rows = check(muhmod, enginex)
    row = rows["prefill-tile"]
    assert (code, row["state"], row["cause"]) == (3, "drifted", "somebody edited")
    assert row["literals"] == [{"slot": "NUM_WARPS", "base": "8", "ours": "4", "theirs": "2"}]
    assert muhmod(*APPLY, enginex).code == 3


def test_an_edit_of_a_site_that_was_only_pinned(muhmod, enginex):
    """In a tree that holds our values elsewhere, it is no release of upstream's."""
    muhmod(*APPLY, enginex)
    edit(enginex, PAGED, "_PARTITION_SIZE = 512", "_PARTITION_SIZE = 1024")
    row = check(muhmod, enginex)[1]["partition-size"]
    assert (row["state"], row["cause"]) == ("drifted", "somebody edited")


def test_both(muhmod, enginex):
    muhmod(*APPLY, enginex)
    edit(enginex, PREFILL, "NUM_WARPS = 4", "NUM_WARPS = 2")
    edit(enginex, PREFILL, "BLOCK = BLOCK // 2", "BLOCK = BLOCK // 4")
    row = check(muhmod, enginex)[1]["prefill-tile"]
    assert (row["state"], row["cause"]) == ("drifted", "both")


def test_the_only_site_of_a_pack_edited_or_moved_upstream(muhmod, package, tmp_path):
    """With one literal and nothing else written, the rest of the file is the witness."""
    pack = tmp_path / "one.toml"
    pack.write_text(
        'schema = "muhmod/rules/1"\nhardware = "bi100"\nmodel = "qwen3.6-35b-a3b"\n[sites.q-chunk]\n'
        'scope = "<module>"\nslots._Q_CHUNK = { value = 128, reason = "r" }\n'
    )
    tree = package(a="_Q_CHUNK = 256\n\n\ndef f():\n    return _Q_CHUNK\n")
    assert muhmod("apply", "--rules", pack, "-q", tree).code == 0
    (tree / "a.py").write_text("_Q_CHUNK = 64\n\n\ndef f():\n    return _Q_CHUNK\n")
    ran = muhmod("check", tree)
    assert (ran.code, "somebody edited" in ran.out) == (3, True)
    (tree / "a.py").write_text("_Q_CHUNK = 64\n\n\ndef f():\n    return _Q_CHUNK + 1\n")
    ran = muhmod("check", tree)
    assert (ran.code, "upstream moved" in ran.out) == (3, True)


def test_a_value_taken_back_by_hand_is_pending_again(muhmod, enginex):
    muhmod(*APPLY, enginex)
    edit(enginex, OPS, "return 49152", "return 32 * 1024")
    code, rows = check(muhmod, enginex)
    assert (code, rows["shared-memory"]["state"]) == (1, "pending")
    assert muhmod(*APPLY, enginex).code == 0
    assert check(muhmod, enginex)[0] == 0


@pytest.mark.parametrize("written", [False, True])
def test_upstream_came_to_the_same_value(muhmod, enginex, written):
    """Proven by equality: nothing but the literal changed, and to what the rule derives."""
    assert muhmod(*(APPLY if written else ("pin", "--rules", "bi100", "-q")), enginex).code == 0
    fresh(enginex)
    edit(enginex, OPS, "return 32 * 1024", "return 49152")
    for file in (PREFILL, MOE, FLASH, OPS):
        edit(enginex, file, "import ", "import  ")
    upstream = tree_bytes(enginex)
    code, rows = check(muhmod, enginex)
    assert (code, rows["shared-memory"]["state"]) == (1, "satisfied-upstream")
    assert muhmod(*APPLY, enginex).code == 0
    assert muhmod("revert", "-q", enginex).code == 0
    assert tree_bytes(enginex) == upstream, "what upstream has by itself is not taken back"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return 32 * 1024", "return device_limit"),
        ("return 32 * 1024", "limit = query(device)\n    return limit"),
    ],
)
@pytest.mark.parametrize("written", [False, True])
def test_a_literal_that_is_none_any_more_is_no_equality(muhmod, enginex, old, new, written):
    assert muhmod(*(APPLY if written else ("pin", "--rules", "bi100", "-q")), enginex).code == 0
    fresh(enginex)
    edit(enginex, OPS, old, new)
    code, rows = check(muhmod, enginex)
    assert (code, rows["shared-memory"]["state"]) == (3, "drifted")


@pytest.mark.parametrize(
    "new",
    [
        # One arm is a name from elsewhere; one that this hardware does not take has another value.
        "BLOCK = 128 if current_platform.has_device_capability(80) else SMALL",
        "BLOCK = 256 if current_platform.has_device_capability(80) else 32",
    ],
)
def test_equality_is_of_every_literal_that_changed(muhmod, enginex, new):
    old = "BLOCK = 128 if current_platform.has_device_capability(80) else 64"
    edit(enginex, PREFILL, "NUM_WARPS = 8", "NUM_WARPS = 4")
    pinned = tree_bytes(enginex)
    assert muhmod("pin", "--rules", "bi100", "-q", enginex).code == 0
    edit(enginex, PREFILL, old, new)
    row = check(muhmod, enginex)[1]["prefill-tile"]
    assert row["state"] == "drifted"
    for file, data in pinned.items():
        (enginex / file).write_bytes(data)
    edit(enginex, PREFILL, "else 64", "else 32")
    assert check(muhmod, enginex)[1]["prefill-tile"]["state"] == "satisfied-upstream"


def test_an_arm_that_became_a_name_is_no_equality(muhmod, enginex):
    """The other arms hold what the rule derives."""
    assert muhmod(*APPLY, enginex).code == 0
    (enginex.parent / "muhmod.lock").unlink()
    edit(enginex, MOE, "config['BLOCK_SIZE_M'] = 128", "config['BLOCK_SIZE_M'] = 256")
    assert muhmod("pin", "--rules", "bi100", "-q", enginex).code == 0
    edit(enginex, MOE, "config['BLOCK_SIZE_M'] = 256", "config['BLOCK_SIZE_M'] = LARGEST")
    assert check(muhmod, enginex)[1]["moe-config"]["state"] == "drifted"
    edit(enginex, MOE, "config['BLOCK_SIZE_M'] = LARGEST", "config['BLOCK_SIZE_M'] = 128")
    assert check(muhmod, enginex)[1]["moe-config"]["state"] == "satisfied-upstream"


@pytest.mark.parametrize(
    "below",
    [
        "_PARTITION_SIZE = upstream_has(_PARTITION_SIZE)",
        "if torch:\n    _PARTITION_SIZE = upstream_has()",
        "_PARTITION_SIZE, other = upstream_has()",
    ],
)
def test_a_modules_constant_that_is_bound_again_has_drifted(muhmod, enginex, below):
    assert muhmod("pin", "--rules", "bi100", "-q", enginex).code == 0
    edit(enginex, PAGED, "_PARTITION_SIZE = 512\n", f"_PARTITION_SIZE = 512\n{below}\n")
    code, rows = check(muhmod, enginex)
    assert code >= 3
    assert rows["partition-size"]["state"] == "drifted"


def test_other_constants_of_the_module_may_come(muhmod, enginex):
    assert muhmod("pin", "--rules", "bi100", "-q", enginex).code == 0
    edit(enginex, PAGED, "_PARTITION_SIZE = 512\n", "_PARTITION_SIZE = 512\n_OTHER = _PARTITION_SIZE\n")
    assert check(muhmod, enginex)[1]["partition-size"]["state"] == "already"


def test_a_test_above_the_definition_counts_where_its_literals_stand_elsewhere(muhmod, package, tmp_path):
    common = (FIXTURES / "rules.toml").read_text()
    own = next(line for line in common.splitlines() if line.startswith("autotune-configs ="))
    rules = tmp_path / "mine.toml"
    rules.write_text(f"{common[: common.index('[sites]')]}[sites]\n{own}\n")
    before = (FIXTURES / "autotune-configs" / "list-variable" / "before.py").read_text()
    tree = package(module=before)
    assert muhmod("pin", "--rules", rules, tree).code == 0
    at = before.index("@triton.autotune")
    wrapped = "".join(f"    {line}" for line in before[at:].splitlines(keepends=True))
    (tree / "module.py").write_text(f"{before[:at]}if UPSTREAM_WANTS_IT:\n{wrapped}")
    ran = muhmod("apply", "--rules", rules, tree)
    assert ran.code == 3
    assert "drifted: above configs: `if UPSTREAM_WANTS_IT` is new" in ran.err


def test_a_new_upstream_tree_under_the_applied_lock_is_written_again_and_reverted(muhmod, enginex):
    """Each file has moved on elsewhere, so that no digest is known."""
    muhmod(*APPLY, enginex)
    fresh(enginex)
    for file in (PREFILL, MOE, PAGED, OPS, FLASH):
        path = enginex / file
        path.write_text(f"# a new release\n{path.read_text()}\n\ndef upstream_counts():\n    return 1\n")
    upstream = tree_bytes(enginex)
    code, rows = check(muhmod, enginex)
    assert code == 1
    assert {row["state"] for row in rows.values()} == {"already", "held", "pending"}
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 0, ran.err
    assert tree_bytes(enginex) != upstream
    assert check(muhmod, enginex)[0] == 0
    assert muhmod("revert", enginex).code == 0
    assert tree_bytes(enginex) == upstream


def test_of_two_written_literals_one_is_upstreams_again_and_each_is_told_apart(muhmod, enginex):
    pristine = (enginex / PREFILL).read_text()
    muhmod(*APPLY, enginex)
    edit(enginex, PREFILL, "NUM_WARPS = 4", "NUM_WARPS = 8")
    edit(enginex, PREFILL, '"""', '"""A new head. ')
    assert check(muhmod, enginex)[0] == 1
    assert muhmod(*APPLY, enginex).code == 0
    assert "NUM_WARPS = 4" in (enginex / PREFILL).read_text()
    assert muhmod("revert", enginex).code == 0
    assert (enginex / PREFILL).read_text() == pristine.replace('"""', '"""A new head. ', 1)


def test_the_file_of_a_lost_site_is_gone_and_the_others_go_on(muhmod, enginex):
    muhmod(*APPLY, enginex)
    fresh(enginex)
    (enginex / PREFILL).unlink()
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 3
    assert "prefill-tile: lost" in ran.err
    assert muhmod(*APPLY, "--ignore", "prefill-tile", enginex).code == 0
    assert "return 49152" in (enginex / OPS).read_text()
    for _ in range(2):
        code, rows = check(muhmod, enginex)
        assert code == 3
        assert [site for site, row in rows.items() if row["state"] == "lost"] == ["prefill-tile"]
        assert rows["prefill-tile"]["pinned"] == f"{PREFILL}:27"
        ran = muhmod("relock", enginex)
        assert ran.code == 3
        assert "prefill-tile: lost" in ran.err


@pytest.mark.parametrize("name", ["tile_limit", "query"])
def test_a_renamed_function_is_told_by_its_body_whatever_its_name(muhmod, enginex, name):
    muhmod("pin", "--rules", "bi100", enginex)
    edit(enginex, PREFILL, "def context_attention_fwd", f"def {name}")
    code, rows = check(muhmod, enginex)
    row = rows["prefill-tile"]
    assert (code, row["state"], kinds(row)) == (3, "lost", ["renamed"])
    assert f"context_attention_fwd is now {name}, as it seems" in row["reason"]
    assert name in row["candidates"][0]


def test_a_lost_function_has_no_candidate_of_another_body(muhmod, enginex):
    muhmod("pin", "--rules", "bi100", enginex)
    path = enginex / PREFILL
    text = path.read_text()
    path.write_text(text[: text.index("    @torch.inference_mode()")])
    row = check(muhmod, enginex)[1]["prefill-tile"]
    assert row["state"] == "lost"
    assert not row.get("candidates")


# Three-way --------------------------------------------------------------------------------------


def moved_upstream(muhmod, enginex):
    muhmod(*APPLY, enginex)
    fresh(enginex)
    edit(enginex, PREFILL, "NUM_WARPS = 8", "NUM_WARPS = 16")


def test_three_way_shows_base_ours_theirs(muhmod, enginex):
    moved_upstream(muhmod, enginex)
    assert "NUM_WARPS: base 8, ours 4, theirs 16" in muhmod("check", enginex).out


@pytest.mark.parametrize(
    ("answers", "code", "warps"), [("o\na\n", 0, "4"), ("t\na\n", 0, "16"), ("n\n", 3, "16"), ("", 3, "16")]
)
def test_three_way_asks(muhmod, enginex, answers, code, warps):
    moved_upstream(muhmod, enginex)
    ran = muhmod("apply", "--rules", "bi100", "-i", enginex, stdin=answers)
    assert ran.code == code, ran.err
    assert "base 8, ours 4, theirs 16" in ran.err
    assert f"NUM_WARPS = {warps}\n" in (enginex / PREFILL).read_text()
    assert muhmod("check", enginex).code == code
    if code == 0:
        assert muhmod("revert", "-q", enginex).code == 0
        assert "NUM_WARPS = 16\n" in (enginex / PREFILL).read_text()


# accept -----------------------------------------------------------------------------------------


def test_accept_needs_a_reason_and_drift(muhmod, enginex):
    muhmod(*APPLY, enginex)
    assert "needs --reason" in muhmod("accept", "prefill-tile", enginex).err
    ran = muhmod("accept", "prefill-tile", enginex, "--reason", "x")
    assert (ran.code, "nothing to accept" in ran.err) == (2, True)
    ran = muhmod("accept", "prefil-tile", enginex, "--reason", "x")
    assert (ran.code, "did you mean 'prefill-tile'" in ran.err) == (2, True)


def test_accept_takes_upstreams_new_body(muhmod, enginex):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    edit(enginex, PREFILL, "BLOCK = BLOCK // 2", "BLOCK = BLOCK // 4")
    before = tree_bytes(enginex)
    ran = muhmod("accept", "prefill-tile", enginex, "--reason", "fp32 is not served here")
    assert (ran.code, tree_bytes(enginex)) == (0, before)
    assert "fp32 is not served here" in (enginex.parent / "muhmod.lock").read_text()
    code, rows = check(muhmod, enginex)
    assert (code, rows["prefill-tile"]["state"]) == (1, "pending")


def test_accept_takes_upstreams_new_literal_as_what_will_be_rewritten(muhmod, enginex):
    moved_upstream(muhmod, enginex)
    assert muhmod("accept", "prefill-tile", enginex, "--reason", "seen").code == 0
    assert muhmod(*APPLY, enginex).code == 0
    assert "NUM_WARPS = 4\n" in (enginex / PREFILL).read_text()
    assert muhmod("revert", "-q", enginex).code == 0
    assert "NUM_WARPS = 16\n" in (enginex / PREFILL).read_text()


def test_accept_keeps_what_somebody_wrote(muhmod, enginex):
    muhmod(*APPLY, enginex)
    edit(enginex, PREFILL, "NUM_WARPS = 4", "NUM_WARPS = 2")
    assert muhmod("accept", "prefill-tile", enginex, "--reason", "measured by us").code == 0
    code, rows = check(muhmod, enginex)
    assert (code, rows["prefill-tile"]["state"]) == (0, "skipped")
    assert "measured by us" in rows["prefill-tile"]["reason"]
    before = tree_bytes(enginex.parent)
    assert muhmod(*APPLY, enginex).code == 0
    assert tree_bytes(enginex.parent) == before
    edit(enginex, PREFILL, "NUM_WARPS = 2", "NUM_WARPS = 1")
    assert check(muhmod, enginex)[1]["prefill-tile"]["state"] == "drifted"


def test_accept_takes_the_new_name_that_a_person_gives(muhmod, enginex):
    muhmod(*APPLY, enginex)
    edit(enginex, MOE, "def get_default_config(", "def default_tile(")
    ran = muhmod("accept", "moe-config", enginex, "--reason", "renamed")
    assert (ran.code, "--as" in ran.err) == (3, True)
    assert muhmod("accept", "moe-config", enginex, "--as", "nothing_like_it", "--reason", "x").code == 3
    assert muhmod("accept", "moe-config", enginex, "--as", "default_tile", "--reason", "renamed").code == 0
    code, rows = check(muhmod, enginex)
    assert (code, rows["moe-config"]["state"], rows["moe-config"]["scope"]) == (0, "already", "default_tile")
    assert muhmod("revert", "-q", enginex).code == 0
    assert "config['BLOCK_SIZE_M'] = 256" in (enginex / MOE).read_text()


def test_accept_takes_one_of_two_twins(muhmod, enginex):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    shutil.copy(enginex / PREFILL, enginex / "attention/ops/another.py")
    place = f"{PREFILL}:context_attention_fwd"
    assert muhmod("accept", "prefill-tile", enginex, "--as", place, "--reason", "the other is dead").code == 0
    assert muhmod(*APPLY, enginex).code == 0
    assert "NUM_WARPS = 8" in (enginex / "attention/ops/another.py").read_text()
    assert "NUM_WARPS = 4" in (enginex / PREFILL).read_text()


# relock and bad locks ---------------------------------------------------------------------------


def test_relock_mends_a_merge(muhmod, enginex):
    """Two branches, each with a site of its own written, and the merge of their trees."""
    lock = enginex.parent / "muhmod.lock"
    muhmod(*APPLY, "--select", "prefill-tile", enginex)
    one, first = lock.read_text(), (enginex / PREFILL).read_text()
    muhmod("revert", "-q", enginex)
    muhmod(*APPLY, "--select", "shared-memory", enginex)
    two = lock.read_text()
    (enginex / PREFILL).write_text(first)
    lock.write_text(f"<<<<<<< ours\n{one}=======\n{two}>>>>>>> theirs\n")
    ran = muhmod("check", "--rules", "bi100", enginex)
    assert (ran.code, "merge markers" in ran.err, "relock" in ran.err) == (3, True, True)
    assert muhmod("relock", enginex).code == 0
    states = {site: row["state"] for site, row in check(muhmod, enginex)[1].items()}
    assert (states["prefill-tile"], states["shared-memory"]) == ("already", "already")
    assert muhmod("revert", "-q", enginex).code == 0
    assert tree_bytes(enginex) == tree_bytes(FIXTURES / "enginex" / "vllm")


def test_relock_chooses_the_side_that_the_tree_bears_out(muhmod, enginex):
    lock = enginex.parent / "muhmod.lock"
    muhmod(*APPLY, "--set", "smem_per_block=32KiB", enginex)
    theirs = lock.read_text()
    muhmod("revert", "-q", enginex)
    muhmod(*APPLY, enginex)
    lock.write_text(f"<<<<<<< ours\n{theirs}=======\n{lock.read_text()}>>>>>>> theirs\n")
    assert muhmod("relock", enginex).code == 0
    assert check(muhmod, enginex)[0] == 0
    assert muhmod("revert", "-q", enginex).code == 0
    assert tree_bytes(enginex) == tree_bytes(FIXTURES / "enginex" / "vllm")


def test_relock_does_not_accept_drift(muhmod, enginex):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    edit(enginex, PREFILL, "BLOCK = BLOCK // 2", "BLOCK = BLOCK // 4")
    assert muhmod("relock", enginex).code == 3
    assert check(muhmod, enginex)[1]["prefill-tile"]["state"] == "drifted"


def test_relock_without_a_lock(muhmod, enginex):
    ran = muhmod("relock", "--rules", "bi100", enginex)
    assert (ran.code, "muhmod pin" in ran.err) == (3, True)


@pytest.mark.parametrize("command", ["check", "apply", "accept", "revert"])
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: t[:-20], "damaged"),
        (lambda t: t.replace('"slots"', '"slotz"'), "damaged"),
        (lambda t: t.replace("muhmod/lock/2", "muhmod/lock/3"), "is no muhmod/lock/2"),
        (lambda t: t.replace('"tree": "vllm"', '"tree": "other"'), "belongs to the tree other/"),
        (lambda t: f"<<<<<<< a\n{t}=======\n{t}>>>>>>> b\n", "merge markers"),
        (lambda t: "\x00\xff", "damaged"),
    ],
)
def test_bad_locks_are_named_and_nothing_is_lost(muhmod, enginex, command, damage, says):
    muhmod(*APPLY, enginex)
    lock = enginex.parent / "muhmod.lock"
    lock.write_text(damage(lock.read_text()), encoding="latin-1")
    before = tree_bytes(enginex.parent)
    more = {"accept": ["prefill-tile", enginex, "--reason", "x"]}.get(command, [enginex])
    rules = [] if command == "revert" else ["--rules", "bi100"]
    ran = muhmod(command, *rules, *more)
    assert (ran.code, says in ran.err) == (3, True), ran.err
    assert tree_bytes(enginex.parent) == before


def test_the_lock_is_sorted_and_a_line_a_site(muhmod, enginex):
    muhmod("pin", "--rules", "bi100", "-q", enginex)
    first = (enginex.parent / "muhmod.lock").read_text()
    rows = [json.loads(line) for line in first.splitlines()]
    sites = [row["site"] for row in rows if "site" in row]
    assert sites == sorted(sites)
    assert len(sites) == 6
    muhmod("relock", "-q", enginex)
    assert (enginex.parent / "muhmod.lock").read_text() == first


# Rules change -----------------------------------------------------------------------------------


@pytest.fixture
def own(muhmod, enginex, tmp_path):
    """A pack of one's own, applied; gives its path."""
    pack = tmp_path / "own.toml"
    pack.write_text((ROOT / "rules" / "bi100.toml").read_text())
    shutil.copytree(ROOT / "rules" / "hardware", tmp_path / "hardware")
    assert muhmod("apply", "--rules", pack, "-q", enginex).code == 0
    return pack


def rows_of(muhmod, enginex):
    ran = muhmod("check", "--output-format", "json", enginex)
    return ran.code, {row["site"]: row for row in json.loads(ran.out)["sites"]}


def test_a_changed_value_is_pending_and_the_rules_are_the_cause(muhmod, enginex, own):
    edit(own.parent, own.name, "value = 4, reason", "value = 2, reason")
    code, rows = rows_of(muhmod, enginex)
    row = rows["prefill-tile"]
    assert (code, row["state"], row["cause"]) == (1, "pending", "rules changed")
    assert {r.get("cause") for s, r in rows.items() if s != "prefill-tile"} == {None}


def test_a_changed_reason_is_taken_by_relock(muhmod, enginex, own):
    edit(own.parent, own.name, "the candidate list of the earlier generator", "our own list")
    code, rows = rows_of(muhmod, enginex)
    assert (code, rows["prefill-tile"]["state"], rows["prefill-tile"]["cause"]) == (
        1,
        "already",
        "rules changed",
    )
    assert muhmod("relock", "-q", enginex).code == 0
    assert rows_of(muhmod, enginex)[0] == 0


def test_a_comment_in_the_pack_changes_nothing(muhmod, enginex, own):
    own.write_text("# a word\n" + own.read_text())
    assert rows_of(muhmod, enginex)[0] == 0


def test_a_changed_fact_is_pending_where_it_counts(muhmod, enginex, own):
    edit(own.parent, own.name, 'value = "48 KiB"', 'value = "32 KiB"')
    code, rows = rows_of(muhmod, enginex)
    assert code == 1
    changed = {site for site, row in rows.items() if row.get("cause") == "rules changed"}
    assert changed == {"prefill-tile", "shared-memory", "autotune-configs"}


def test_a_rule_that_went_is_said(muhmod, enginex, own):
    text = own.read_text()
    own.write_text(text[: text.index("[sites.autotune-configs]")])
    code, rows = rows_of(muhmod, enginex)
    assert (code, rows["autotune-configs"]["state"]) == (1, "pending")
    assert "no rule autotune-configs any more" in rows["autotune-configs"]["reason"]


# Guards, dependencies, suppressions, advice -----------------------------------------------------


def test_a_guard_that_fails_after_the_write_is_drift(muhmod, enginex):
    head = "                       longest):\n    "
    edit(enginex, OPS, f"{head}raise NotImplementedError()", f"{head}ixf_F.v2(out, query)")
    muhmod(*APPLY, enginex)
    assert check(muhmod, enginex)[1]["v1-override"]["state"] == "already"
    edit(enginex, OPS, f"{head}ixf_F.v2(out, query)", f"{head}raise NotImplementedError()")
    code, rows = check(muhmod, enginex)
    assert (code, rows["v1-override"]["state"], kinds(rows["v1-override"])) == (3, "drifted", ["condition"])


@pytest.mark.parametrize(
    ("symbol", "evidence"),
    [
        ("_fwd_kernel_alibi", f"{PREFILL}:19 has _fwd_kernel_alibi"),
        ("vllm._custom_ops.paged_attention_v1", "_custom_ops.py:"),
        ("vllm.attention.ops.paged_attn.PagedAttention.forward_decode", f"{PAGED}:"),
        ("vllm.triton_utils.HAS_TRITON", "triton_utils/__init__.py:"),
        ("_fwd_kernel_flash", ""),
        ("vllm._custom_ops.paged_attention_v3", ""),
        ("vllm.no.such.module", ""),
    ],
)
def test_the_guard_that_a_symbol_exists(muhmod, enginex, own, symbol, evidence):
    edit(own.parent, own.name, '[sites.prefill-tile]\n',
         f'[sites.prefill-tile]\nguards = [{{ guard = "exists", symbol = "{symbol}" }}]\n')  # fmt: skip
    muhmod("relock", "-q", enginex)
    _, rows = rows_of(muhmod, enginex)
    (guard,) = rows["prefill-tile"]["guards"]
    assert guard["holds"] is bool(evidence)
    assert guard["evidence"].startswith(evidence) if evidence else "nowhere" in guard["evidence"]


def test_a_rule_waits_for_those_it_depends_on(muhmod, enginex, own):
    edit(own.parent, own.name, '[sites.partition-size]\n',
         '[sites.partition-size]\ndepends_on = ["v1-override"]\nwhen_guard_false = "hold"\n')  # fmt: skip
    _, rows = rows_of(muhmod, enginex)
    assert rows["partition-size"]["state"] == "held"
    assert rows["partition-size"]["reason"] == "it depends on v1-override, which is held"
    edit(own.parent, own.name, '["v1-override"]', '["v1-overide"]')
    ran = muhmod("check", enginex)
    assert (ran.code, "did you mean 'v1-override'" in ran.err) == (2, True)
    edit(own.parent, own.name, '["v1-overide"]', '["partition-size"]')
    assert "depends on itself" in muhmod("check", enginex).err


def test_unused_suppressions_are_reported(muhmod, enginex):
    edit(enginex, OPS, "import ", "import os  # muhmod: skip[shared-memory] long gone\nimport ")
    (enginex / "extra.py").write_text("x = 1  # muhmod: skip[moe-config] not here\n")
    ran = muhmod("check", "--rules", "bi100", enginex)
    assert "the suppression of shared-memory is unused" in ran.err
    assert "extra.py:1: the suppression of moe-config is unused" in ran.err
    edit(enginex, OPS, "return 32 * 1024", "return 32 * 1024  # muhmod: skip[shared-memory] as measured")
    ran = muhmod("check", "--rules", "bi100", enginex)
    assert "skipped            shared-memory" in ran.out
    assert "as measured" in ran.out


def test_equal_sites_that_the_rule_misses_are_advice(muhmod, enginex):
    """As where num_warps stands in two places and a rule was written for one."""
    text = (enginex / MOE).read_text()
    twin = text[text.index("def get_default_config") : text.index("def fused_experts")]
    (enginex / MOE).write_text(text + "\n\n" + twin.replace("get_default_config", "get_marlin_config"))
    ran = muhmod("check", "--rules", "bi100", enginex)
    assert "moe-config does not set BLOCK_SIZE_M = 256; the rule covers 1 of 2 equal sites" in ran.out
    assert ran.code == 1
    muhmod(*APPLY, enginex)
    assert muhmod("check", enginex).code == 0
    assert muhmod("check", "--strict", enginex).code == 1


def test_tuning_literals_without_a_rule_are_advice(muhmod, enginex):
    (enginex / "kernels.py").write_text(
        "import triton\nWARP_SIZE = 32\nBLOCK_H = 16\n\n\ndef run(k, x):\n"
        "    k[(1,)](x, BLOCK_D=64, num_warps=4)\n"
        "    return triton.Config({'BLOCK_D': 64}, num_warps=2)\n"
    )
    muhmod(*APPLY, enginex)
    ran = muhmod("check", "-v", enginex)
    for name, line in (("WARP_SIZE = 32", 2), ("BLOCK_H = 16", 3), ("BLOCK_D = 64", 7), ("num_warps = 4", 7),
                       ("triton.Config = …", 8)):  # fmt: skip
        assert f"kernels.py:{line}: {name}: no rule owns it" in ran.out
    assert ran.code == 0
    assert muhmod("check", "--strict", enginex).code == 1
    report = json.loads(muhmod("check", "--output-format", "json", enginex).out)
    assert {
        "kind": "unowned",
        "file": "kernels.py",
        "line": 2,
        "name": "WARP_SIZE",
        "value": "32",
        "rule": "",
    } in (report["advice"])


@pytest.mark.parametrize(
    ("change", "warned"),
    [
        (("BLOCK = BLOCK // 2", "BLOCK = min(BLOCK, 4096 // Lk)"), True),
        (("        Lk = k.shape[-1]\n", "        for Lk in (k.shape[-1],):\n            pass\n"), False),
        (("BLOCK = BLOCK // 2", "BLOCK = (lambda: 4096 // Lk)"), False),
    ],
)
def test_a_name_that_is_read_before_it_is_bound_is_warned_of(muhmod, enginex, change, warned):
    """A later commit of the fork computes a tile from a name that is bound below."""
    edit(enginex, PREFILL, *change)
    ran = muhmod("explain", "--rules", "bi100", "prefill-tile", enginex)
    said = re.search(r"reads Lk, which line \d+ binds: that way ends in an UnboundLocalError", ran.out)
    assert bool(said) is warned


# Nothing changed --------------------------------------------------------------------------------


def awake(*arguments, path=ROOT / "src"):
    """(exit code, stdout, whether click, ast and libcst were woken) of a command line of its own."""
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "muhmod", *map(str, arguments)],
        capture_output=True, text=True,
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if "|" in line}
    return ran.returncode, ran.stdout, {"click", "ast", "libcst"} & loaded


@pytest.fixture
def clean(muhmod, enginex, own):
    """An applied tree whose check wakes nothing."""
    assert awake("check", enginex)[::2] == (0, set())
    return enginex


def test_nothing_changed_says_the_same_as_the_whole_command(muhmod, clean):
    assert awake("check", clean)[1] == muhmod("check", clean).out


def test_other_files_may_change(muhmod, clean):
    (clean / "engine" / "arg_utils.py").write_text("# edited\n")
    assert awake("check", clean)[::2] == (0, set())


@pytest.mark.parametrize(
    "change",
    [
        lambda tree, pack: edit(tree, PREFILL, "NUM_WARPS = 4", "NUM_WARPS = 4 "),
        lambda tree, pack: edit(tree, OPS, "import ", "import  "),
        lambda tree, pack: (tree / "new.py").write_text("x = 1\n"),
        lambda tree, pack: (tree / "utils.py").unlink(),
        lambda tree, pack: (tree / "engine" / "arg_utils.py").write_text("def get_default_config(): ...\n"),
        lambda tree, pack: (tree / "engine" / "arg_utils.py").write_text("# muhmod: skip[q-chunk] y\n"),
        lambda tree, pack: pack.write_text(pack.read_text() + "\n# a word\n"),
        lambda tree, pack: edit(pack.parent, "hardware/bi100.toml", "[warp_size]", "# a word\n[warp_size]"),
        lambda tree, pack: edit(tree.parent, "muhmod.lock", '"muhmod": "', '"muhmod": "0'),
    ],
    ids=["a site's file", "a guard's file", "a new file", "a file gone", "a needle", "a suppression",
         "the pack", "a fact", "the version"],
)  # fmt: skip
def test_what_changed_wakes_the_whole_command(clean, own, change):
    change(clean, own)
    _, _, woken = awake("check", clean)
    assert {"click", "ast"} <= woken
    assert "libcst" not in woken


def test_a_changed_codemod_wakes_the_whole_command(clean):
    """The lock holds the digest of each codemod's source: another source is another digest."""
    lock = clean.parent / "muhmod.lock"
    rows = [json.loads(line) for line in lock.read_text().splitlines()]
    inputs = {row["input"]: row["sha256"] for row in rows if "input" in row}
    from muhmod.pins import digest_of

    for name in ("moe_config", "prefill_tile", "v1_override"):
        source = (ROOT / "codemods" / f"{name}.py").read_bytes()
        assert inputs[f"muhmod.codemods/{name}.py"] == digest_of(source)
    assert "muhmod.codemods/q_chunk.py" not in inputs
    text = lock.read_text()
    lock.write_text(text.replace(inputs["muhmod.codemods/moe_config.py"], "0" * 64))
    assert "ast" in awake("check", clean)[2]


def test_another_command_line_wakes_the_whole_command(clean):
    for more in (["-v"], ["--strict"], ["--set", "smem_per_block=32KiB"], ["--output-format", "json"],
                 ["--rules", "bi100"]):  # fmt: skip
        assert "click" in awake("check", *more, clean)[2], more


def test_a_large_tree_is_read_once(muhmod, enginex):
    """Ten thousand files, and the right answer."""
    for number in range(100):
        folder = enginex / f"p{number}"
        folder.mkdir()
        for inner in range(100):
            (folder / f"m{inner}.py").write_text(f"x = {inner}\n")
    assert muhmod(*APPLY, enginex).code == 0
    assert muhmod("check", enginex).code == 0


def test_two_at_once(muhmod, enginex):
    import fcntl
    import os

    muhmod(*APPLY, enginex)
    handle = os.open(enginex.parent, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        for command in (["relock", enginex], ["pin", "--rules", "bi100", enginex],
                        ["accept", "prefill-tile", enginex, "--reason", "x"]):  # fmt: skip
            ran = muhmod(*command)
            assert (ran.code, "another muhmod" in ran.err) == (3, True)
        assert muhmod("check", enginex).code == 0, "looking needs no lock"
    finally:
        os.close(handle)


def test_a_file_that_goes_while_the_tree_is_read(muhmod, enginex, monkeypatch):
    from muhmod import tree

    read = tree.read
    gone = Path(enginex / PREFILL)

    def racing(of, file):
        gone.unlink(missing_ok=True)
        return read(of, file)

    monkeypatch.setattr(tree, "read", racing)
    ran = muhmod("check", "--rules", "bi100", enginex)
    assert (ran.code, "cannot read attention/ops/prefix_prefill.py" in ran.out + ran.err) == (4, True)
