"""The packs of upstream vLLM: thin, one rule set, and values that fit their card."""

from __future__ import annotations

import json
import shutil

import pytest

from muhmod import rulebook
from muhmod.derive.kernels import attention, fused_moe
from muhmod.derive.kernels.card import card
from muhmod.derive.work import Work
from muhmod.errors import UsageError

from . import trees
from .conftest import FIXTURES, tree_bytes

PACKS = ["h200", "l40s", "mi300x", "p40", "t4", "v100"]


@pytest.mark.parametrize("name", [name for name in PACKS if name not in ("h200", "l40s")])
def test_a_pack_of_another_card_says_only_what_differs(name):
    own, base = rulebook.load(name), rulebook.load("l40s")
    assert own.rules == base.rules
    assert own.hardware == name
    assert "[sites" not in own.text


@pytest.mark.parametrize("name", PACKS)
def test_apply_twice_changes_once(muhmod, enginex, name):
    assert muhmod("apply", "--rules", name, "-q", enginex).code == 0
    before = tree_bytes(enginex)
    ran = muhmod("apply", "--rules", name, "--check", "-q", enginex)
    assert (ran.code, tree_bytes(enginex)) == (0, before)
    assert muhmod("revert", enginex).code == 0


@pytest.mark.parametrize("name", PACKS)
def test_upstream_takes_values_that_fit(muhmod, tmp_path, name):
    tree = shutil.copytree(trees.vllm("0.6.3"), tmp_path / "vllm")
    ran = muhmod("apply", "--rules", name, "--output-format", "json", tree)
    assert ran.code == 0, ran.err
    pack = rulebook.load(name)
    c, heads = card(Work(pack.facts)), attention.Heads(128)
    sites = {row["site"]: row for row in json.loads(ran.out)["sites"]}
    blocks = {int(s["new"]) for s in sites["prefill-tile"]["slots"] if s["name"] == "BLOCK" and s.get("kind")}
    for block in blocks:
        assert attention.tied(c, heads, block)
    entries = [s["new"] for s in sites["autotune-configs"]["slots"] if s["new"] and s["name"] != "configs"]
    assert 1 <= len(entries) <= 9
    for text in entries:
        entry = dict(part.split("=") for part in text.split())
        tile = attention.Tile(int(entry["BLOCK_M"]), int(entry["BLOCK_N"]), entry["PRE_LOAD_V"] == "True",
                              int(entry["num_warps"]), int(entry["num_stages"]))  # fmt: skip
        assert attention.shared_bytes(c, heads, tile) <= c.smem_per_block
    if name == "h200":
        return
    moe = {s["name"]: int(s["new"]) for s in reversed(sites["moe-config"]["slots"])}
    tile = fused_moe.Tile(*(moe[key] for key in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K",
                                                 "GROUP_SIZE_M")), *fused_moe.DEFAULT_LAUNCH)  # fmt: skip
    assert fused_moe.refusal(c, tile) == ""


def test_compare_shows_what_differs(muhmod):
    ran = muhmod("rules", "show", "--compare", "bi100,h200,t4", "--output-format", "json")
    assert ran.code == 0
    rows = {row["name"]: row["values"] for row in json.loads(ran.out)["differences"]}
    assert rows["smem_per_block"] == {"bi100": "49152", "h200": "232448", "t4": "65536"}
    assert rows["prefill-tile BLOCK"] == {"bi100": "32", "h200": "128", "t4": "64"}
    assert "max_threads_per_block" not in rows
    assert "smem_per_block" in muhmod("rules", "show", "--compare", "bi100,h200,t4").out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("show", "--compare", "h200"), "two packs"), (("list", "--compare", "h200,t4"), "goes with"),
     (("show", "--compare", "h200,t5"), "did you mean")],
)  # fmt: skip
def test_compare_refuses_what_it_cannot(muhmod, arguments, says):
    ran = muhmod("rules", *arguments)
    assert ran.code == 2 and says in ran.err


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text('schema = "muhmod/rules/1"\n' + text)
    return str(path)


def test_a_pack_of_ones_own_may_extend_one_that_ships(tmp_path):
    text = 'extends = "h200"\nhardware = "a100"\n[sites.q-chunk]\nscope = "f"\n'
    text += 'slots._Q_CHUNK = { value = 64, reason = "ours" }\n'
    pack = rulebook.load(write(tmp_path, text))
    assert [rule.name for rule in pack.rules][-1] == "q-chunk"
    assert pack.model == "qwen3-30b-a3b"


def test_a_site_of_the_same_name_replaces_the_other(tmp_path):
    pack = rulebook.load(write(tmp_path, 'extends = "h200"\n[sites.autotune-configs]\nscope = "other"\n'
                                         'slots.configs = { derive = "attention_configs" }\n'))  # fmt: skip
    (rule,) = (rule for rule in pack.rules if rule.name == "autotune-configs")
    assert rule.scope == "other"


def test_what_is_extended_may_extend_another(tmp_path):
    pack = rulebook.load(write(tmp_path, 'extends = "t4"\n'))
    assert (pack.hardware, pack.rules) == ("t4", rulebook.load("l40s").rules)
    assert pack.facts.get("memory_bandwidth") == 320


@pytest.mark.parametrize(
    ("text", "says"),
    [('extends = "h20"\n', "did you mean 'h200'"), ("extends = 3\n", "extends is missing"),
     ('extends = "mine.toml"\n', "mine.toml extends itself")],
)  # fmt: skip
def test_a_bad_extends_is_named(tmp_path, text, says):
    with pytest.raises(UsageError) as error:
        rulebook.load(write(tmp_path, text))
    assert says in str(error.value)


def test_why_an_entry_goes_is_the_true_reason(muhmod, package):
    """What cannot run goes by a limit, with its numbers; what is merely slower by the heuristic."""
    form = FIXTURES / "autotune-configs" / "amd-keys"
    tree = package(module=(form / "before.py").read_bytes())
    ran = muhmod("apply", "--rules", form / "rules.toml", "--output-format", "json", tree)
    (row,) = json.loads(ran.out)["sites"]
    tall, usual, even, small = (s for s in row["slots"] if s["old"] and not s["new"])
    assert [s["kind"] for s in (tall, usual, even, small)] == ["limit", "limit", "heuristic", "heuristic"]
    assert "it carries waves_per_eu, which Triton for CUDA refuses" in usual["derivation"][0]
    assert "one stage" in even["derivation"][0]
    assert "4 rows a warp of 32, not 16" in small["derivation"][0]
    assert [s["note"] for s in (even, small)] == ["slower than others: goes"] * 2


def test_a_list_serves_every_head_size():
    """One list stands in the source for all models: each head size finds its best two there, if they fit."""
    c = card(Work(rulebook.load("h200").facts))
    listed = attention.listed(c, attention.Heads(128))
    assert len(listed) == attention.MOST_ENTRIES == len({*listed})
    for width in attention.HEAD_DIMS:
        assert {*attention.attn_fwd(c, attention.Heads(width))[:2]} <= {*listed}
    wide = attention.Heads(256)
    assert all(not attention.refusal(c, wide, tile) for tile in attention.listed(c, wide))
