"""Reach beside each edit: where its value goes, and `--live-only`, which holds what is not shown to."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from muhmod.reach import Reaches, cache

from .conftest import FIXTURES, tree_bytes

MOE = "model_executor/layers/fused_moe/fused_moe.py"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MUHMOD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "reach"


def sites(ran):
    return {row["site"]: row for row in json.loads(ran.out)["sites"]}


def verdicts(row):
    return [(slot["name"], slot["reach"]) for slot in row["slots"] if "reach" in slot]


def pack(tmp_path, lines):
    path = tmp_path / "mine.toml"
    path.write_text(f'schema = "muhmod/rules/1"\nextends = "bi100"\n{lines}')
    return path


@pytest.mark.parametrize("mode", [[], ["--check"], ["--diff"]])
def test_each_edit_has_its_verdict_and_nothing_else(muhmod, enginex, mode):
    ran = muhmod("apply", "--rules", "bi100", "--output-format", "json", *mode, enginex)
    found = sites(ran)
    assert verdicts(found["moe-config"]) == [("BLOCK_SIZE_M", "reaches")] * 3
    assert verdicts(found["prefill-tile"]) == [("BLOCK", "stopped"), ("NUM_WARPS", "stopped")]
    assert verdicts(found["shared-memory"]) == [("return", "stopped")]
    assert {reach for _, reach in verdicts(found["autotune-configs"])} == {"stopped"}
    assert verdicts(found["v1-override"]) == verdicts(found["partition-size"]) == []
    for row in found.values():
        for slot in row["slots"]:
            assert ("reach" in slot) is (slot["old"] != slot["new"])
    (slot,) = [s for s in found["moe-config"]["slots"] if s["old"] == "256"]
    assert slot["why"] == "it arrives at the call of ixformer.functions.fused_moe (_custom_ops.py:19)"
    assert [step["file"] for step in slot["path"]] == [MOE, MOE, MOE, MOE, "_custom_ops.py"]


def test_the_table_marks_what_is_dead(muhmod, enginex):
    said = " ".join(muhmod("apply", "--rules", "bi100", "--check", enginex).out.split())
    assert "BLOCK_SIZE_M 256 -> 128 (heuristic) reaches" in said
    assert "NUM_WARPS 8 -> 4 (literal) dead dead: stopped:" in said
    assert said.count("`HAS_TRITON` does not hold") == 1
    assert "configs: 7 cannot run (limit), 2 stay, 13 added (heuristic) dead dead: stopped:" in said


def test_a_dead_slot_is_still_applied(muhmod, enginex):
    assert muhmod("apply", "--rules", "bi100", enginex).code == 0
    assert "NUM_WARPS = 4" in (enginex / "attention/ops/prefix_prefill.py").read_text()


def test_the_patch_is_the_same_with_the_verdicts_in_its_preamble(muhmod, enginex, monkeypatch):
    told = muhmod("apply", "--rules", "bi100", "--diff", "-v", enginex)
    assert "#   NUM_WARPS: 8 -> 4 (literal), dead: stopped: " in told.out
    assert "#   BLOCK_SIZE_M: 32 -> 16 (heuristic), reaches\n" in told.out
    monkeypatch.setattr(Reaches, "slot", None)
    plain = muhmod("apply", "--rules", "bi100", "--diff", enginex)
    assert "dead" not in plain.out
    lines = [[one for one in ran.out.splitlines() if not one.startswith("#")] for ran in (told, plain)]
    assert lines[0] == lines[1]
    before = tree_bytes(enginex)
    assert (
        subprocess.run(["git", "apply", "-p2", "--check", "-"], input=told.raw, cwd=enginex).returncode == 0
    )
    assert tree_bytes(enginex) == before


def test_what_changes_nothing_asks_nothing(muhmod, enginex, monkeypatch):
    assert muhmod("apply", "--rules", "bi100", "-q", enginex).code == 0
    monkeypatch.setattr(Reaches, "__init__", None)
    assert muhmod("apply", "--rules", "bi100", enginex).code == 0
    assert muhmod("apply", "--rules", "bi100", "--check", "-q", enginex).code == 0
    assert muhmod("check", "--output-format", "json", enginex).code == 0


def test_check_says_it_beside_what_is_pending(muhmod, enginex):
    ran = muhmod("check", "--rules", "bi100", enginex)
    assert ran.code == 1
    assert "    BLOCK_SIZE_M 256 -> 128, reaches\n" in ran.out
    assert "    NUM_WARPS 8 -> 4, dead: stopped: " in ran.out
    assert "    9 -> 15 configs, dead: stopped: " in ran.out
    found = sites(muhmod("check", "--rules", "bi100", "--output-format", "json", enginex))
    assert verdicts(found["shared-memory"]) == [("return", "stopped")]


@pytest.mark.parametrize("name", ["sarif", "github", "markdown"])
def test_what_a_reviewer_sees_marks_it_too(muhmod, enginex, name):
    ran = muhmod("check", "--rules", "bi100", "--output-format", name, enginex)
    assert "NUM_WARPS 8 -> 4, dead: stopped" in ran.out


def test_live_only_writes_what_reaches_and_holds_the_rest(muhmod, enginex):
    before = tree_bytes(enginex)
    ran = muhmod("apply", "--rules", "bi100", "--live-only", "--output-format", "json", enginex)
    assert ran.code == 0
    found = sites(ran)
    states = {site: row["state"] for site, row in found.items()}
    held = dict.fromkeys(("prefill-tile", "shared-memory", "autotune-configs", "v1-override"), "held")
    assert states == {"moe-config": "applied", "partition-size": "already", **held}
    assert found["shared-memory"]["reason"].startswith("it must reach a kernel: dead: stopped: ")
    after = tree_bytes(enginex)
    assert [file for file in before if before[file] != after[file]] == [MOE]
    again = muhmod("apply", "--rules", "bi100", "--live-only", "--check", enginex)
    assert (again.code, "nothing to change" in again.err) == (0, True)
    assert muhmod("check", "--live-only", enginex).code == 0
    # Without it the others are wanted, whatever the last run said, where nothing heavy would wake too.
    assert muhmod("check", enginex).code == 1
    assert subprocess.run([sys.executable, "-m", "muhmod", "check", "-q", str(enginex)]).returncode == 1
    assert muhmod("revert", enginex).code == 0
    assert tree_bytes(enginex) == before


def test_in_a_table_a_held_site_says_why_once(muhmod, enginex):
    said = " ".join(muhmod("apply", "--rules", "bi100", "--live-only", "--check", enginex).out.split())
    assert said.count("`HAS_TRITON` does not hold") == 1
    assert "all feasible" not in said


def test_some_of_a_site_is_held_and_the_rest_is_set(muhmod, enginex, tmp_path):
    own = pack(tmp_path, '[sites.moe-config]\nscope = "get_default_config"\n'
               'slots.BLOCK_SIZE_M = { derive = "moe_block_m" }\n'
               'slots.GROUP_SIZE_M = { value = 2, reason = "as measured" }\n'
               "require_reach = true\n")  # fmt: skip
    ran = muhmod("apply", "--rules", own, "--select", "moe-config", "--output-format", "json", enginex)
    assert ran.code == 0
    row = sites(ran)["moe-config"]
    assert row["state"] == "applied"
    held = [
        (s["name"], s["old"], s["new"]) for s in row["slots"] if s.get("note", "").startswith("held: dead")
    ]
    assert held == [("GROUP_SIZE_M", "8", "8"), ("GROUP_SIZE_M", "1", "1")]
    text = (enginex / MOE).read_text()
    assert "'GROUP_SIZE_M': 8" in text and "config['BLOCK_SIZE_M'] = 128" in text
    again = muhmod("apply", "--rules", own, "--select", "moe-config", enginex)
    assert (again.code, "nothing to change" in again.err) == (0, True)
    said = " ".join(muhmod("apply", "--rules", own, "--check", "--select", "moe-config", enginex).out.split())
    assert "GROUP_SIZE_M 8: held: dead: stopped: " in said


def test_a_rule_that_requires_reach_is_held_by_its_own_leave(muhmod, enginex, tmp_path):
    own = pack(tmp_path, '[sites.shared-memory]\nscope = "get_max_shared_memory_per_block_device_attribute"\n'
               'slots.return = { derive = "shared_memory" }\nrequire_reach = true\n')  # fmt: skip
    ran = muhmod("apply", "--rules", own, "--output-format", "json", enginex)
    assert ran.code == 0
    assert sites(ran)["shared-memory"]["state"] == "held"
    assert sites(ran)["prefill-tile"]["state"] == "applied"
    assert "return 32 * 1024" in (enginex / "_custom_ops.py").read_text()
    assert muhmod("check", "--rules", own, enginex).code == 0
    # Once somebody calls it, it is wanted.
    (enginex / "worker/model_runner.py").write_text(
        (enginex / "worker/model_runner.py").read_text()
        + "\n\ndef room():\n    import ixformer\n    from vllm.utils import get_max_shared_memory_bytes\n"
        "    ixformer.reserve(get_max_shared_memory_bytes())\n"
    )
    ran = muhmod("check", "--rules", own, "--output-format", "json", enginex)
    assert (ran.code, sites(ran)["shared-memory"]["state"]) == (1, "pending")


def test_what_is_unknown_does_not_reach(muhmod, package, tmp_path):
    tree = package(
        config=(FIXTURES / "enginex/vllm" / MOE).read_text().split("def fused_experts")[0],
        worker="from vllm.config import get_default_config\n\nMAKERS = {}\n\n\n"
        "def run(name, *shape):\n    MAKERS[name](get_default_config(*shape))\n"
        "\n\nif __name__ == '__main__':\n    run('x')\n",
    )
    asked = ("apply", "--rules", "bi100", "--select", "moe-config", "--output-format", "json")
    told = sites(muhmod(*asked, "--check", tree))["moe-config"]
    assert {reach for _, reach in verdicts(told)} == {"unknown"}
    ran = muhmod(*asked, "--live-only", tree)
    row = sites(ran)["moe-config"]
    assert (ran.code, row["state"]) == (0, "held")
    assert row["reason"].startswith("it must reach a kernel: unknown: it would have to be known ")


def test_the_rules_key_is_checked(muhmod, enginex, tmp_path):
    own = pack(tmp_path, '[sites.shared-memory]\nscope = "x"\nslots.return = { derive = "shared_memory" }\n'
               'require_reach = "yes"\n')  # fmt: skip
    ran = muhmod("apply", "--rules", own, enginex)
    assert ran.code == 2
    assert "mine.toml:6:" in ran.err and "require_reach must be true or false" in ran.err


def test_explain_draws_the_way(muhmod, enginex):
    said = muhmod("explain", "moe-config", "--rules", "bi100", enginex).out
    assert "    reaches: it arrives at the call of ixformer.functions.fused_moe (_custom_ops.py:19)\n" in said
    ways = said.split("    reaches: ")[1].splitlines()[1:6]
    assert [line.index(place) for line, place in zip(ways, (MOE, *["└─"] * 4), strict=True)] == [
        6,
        6,
        9,
        12,
        15,
    ]
    one = muhmod("explain", "--rules", "bi100", f"{enginex}/attention/ops/prefix_prefill.py:28").out
    assert "    dead: stopped: " in one and "triton_utils/importing.py:4  HAS_TRITON = False" in one
    found = sites(muhmod("explain", "moe-config", "--rules", "bi100", "--output-format", "json", enginex))
    assert verdicts(found["moe-config"]) == [("BLOCK_SIZE_M", "reaches")] * 3


def test_explain_of_what_is_written_still_says_where_it_goes(muhmod, enginex):
    assert muhmod("apply", "--rules", "bi100", "-q", enginex).code == 0
    said = muhmod("explain", "moe-config", "--rules", "bi100", enginex).out
    assert said.count("    reaches: it arrives at the call of ixformer.functions.fused_moe") == 3


# What a flag would wake --------------------------------------------------------------------------


@pytest.mark.parametrize("narrow", [[], ["--select", "triton-flag"]])
def test_a_false_flag_says_what_it_would_wake(muhmod, enginex, narrow):
    asked = ["reach", "--rules", "bi100", *narrow]
    (flag,) = [
        row for row in json.loads(muhmod(*asked, "--output-format", "json", enginex).out)["sites"]
        if row["site"] == "triton-flag"
    ]  # fmt: skip
    assert {(wake["site"], wake["slot"], wake["verdict"]) for wake in flag["wakes"]} == {
        ("prefill-tile", slot, "reaches") for slot in ("BLOCK", "NUM_WARPS", "num_stages")
    }
    lines = muhmod(*asked, enginex).out
    assert "  if it were True: prefill-tile attention/ops/prefix_prefill.py:28 NUM_WARPS: reaches\n" in lines
    # The arm of another card stays as dead as it was.
    assert [w["line"] for w in flag["wakes"] if w["slot"] == "BLOCK"] == [27, 32]


def test_a_flag_that_is_true_wakes_nothing(muhmod, enginex):
    importing = enginex / "triton_utils/importing.py"
    importing.write_text(importing.read_text().replace("HAS_TRITON = False", "HAS_TRITON = True"))
    ran = muhmod("reach", "--rules", "bi100", enginex)
    assert "if it were" not in ran.out and "10 reaches" in ran.err


# Verdicts are kept ------------------------------------------------------------------------------


def count(monkeypatch):
    """How many slots are worked out."""
    done = []
    real = Reaches._slot
    monkeypatch.setattr(Reaches, "_slot", lambda self, asked: done.append(asked) or real(self, asked))
    return done


def test_a_second_run_works_nothing_out(muhmod, enginex, monkeypatch):
    done = count(monkeypatch)
    first = muhmod("reach", "--rules", "bi100", "-v", "--output-format", "json", enginex)
    assert done
    done.clear()
    again = muhmod("reach", "--rules", "bi100", "-v", "--output-format", "json", enginex)
    assert (again.out, done) == (first.out, [])
    assert muhmod("apply", "--rules", "bi100", "--check", enginex).code == 1
    assert not [asked for asked in done if asked.text]


@pytest.mark.parametrize("what", ["another file", "platform", "file added", "damaged", "of another shape"])
def test_what_it_rests_on_is_part_of_its_name(muhmod, enginex, monkeypatch, own_cache, what):
    asked = ["reach", "--rules", "bi100", "--output-format", "json", enginex]
    first = muhmod(*asked)
    done = count(monkeypatch)
    importing = enginex / "triton_utils/importing.py"
    if what == "another file":
        importing.write_text(importing.read_text().replace("HAS_TRITON = False", "HAS_TRITON = True"))
        changed = muhmod(*asked)
        assert done and changed.out != first.out
    elif what == "file added":
        (enginex / "worker" / "extra.py").write_text("from vllm.utils import *\n")
        assert muhmod(*asked).code == 0 and done
    elif what == "platform":
        assert muhmod(*asked, "--platform", "rocm").out != first.out and done
    else:
        for kept in own_cache.glob("*.json"):
            kept.write_text('{"a": [1]}' if what == "of another shape" else kept.read_text()[:-40])
        assert muhmod(*asked).out == first.out and done


def test_a_cache_that_cannot_be_written_is_none(muhmod, enginex, own_cache):
    own_cache.parent.mkdir()
    own_cache.write_text("a file where the folder would be")
    ran = muhmod("reach", "--rules", "bi100", enginex)
    assert (ran.code, "5 reaches" in ran.err) == (0, True)


def test_the_oldest_trees_are_forgotten(muhmod, enginex, own_cache, monkeypatch):
    monkeypatch.setattr(cache, "_MOST_FILES", 2)
    for number in range(4):
        (enginex / "utils.py").write_text(f"NUMBER = {number}\n")
        muhmod("reach", "--rules", "bi100", "--select", "triton-flag", enginex)
    assert len([*own_cache.iterdir()]) == 2


def test_what_reach_cannot_do_keeps_nothing_from_being_written(muhmod, enginex, monkeypatch):
    def broken(self, asked):
        raise KeyError("lost")

    monkeypatch.setattr(Reaches, "_slot", broken)
    ran = muhmod("apply", "--rules", "bi100", enginex)
    assert ran.code == 0
    assert "unknown: it could not be followed: KeyError: 'lost'" in " ".join(ran.out.split())
