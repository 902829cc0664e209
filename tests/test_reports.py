"""Tiles that users could not run, or ran slowly: each report's release, and every card on every release.

Facts of the reports (card, bytes needed, limit); the trees are upstream's own.
"""

from __future__ import annotations

import ast
import json
import re
import shutil

import pytest

from muhmod import rulebook
from muhmod.derive.kernels import attention, fused_moe
from muhmod.derive.kernels.card import card
from muhmod.derive.work import Work

from . import trees
from .conftest import FIXTURES
from .test_packs import PACKS

RELEASES = [
    "0.5.2",
    "0.6.3",
    "0.7.0",
    "0.8.5.post1",
    "0.9.0",
    "0.11.2",
    "0.12.0",
    "0.16.0",
    "0.20.2",
    "0.33.0",
]
# The adapters' layer builds a new dict of the configuration: where its keys go cannot be followed.
NO_LADDER = ("0.11.2", "0.12.0", "0.16.0")
NOT_TAKEN = "an arm that this hardware does not take"


def on(pack):
    return card(Work(rulebook.load(pack).facts))


def applied(muhmod, tmp_path, pack, version):
    """A release with the pack applied, and the report's sites by name."""
    source = trees.vllm(version)
    tree = shutil.copytree(source, tmp_path / "vllm")
    ran = muhmod("apply", "--rules", pack, "--output-format", "json", tree)
    assert ran.code == 0, ran.err
    again = muhmod("apply", "--rules", pack, "--check", "-q", tree)
    assert again.code == 0, again.err
    return tree, {row["site"]: row for row in json.loads(ran.out)["sites"]}


def taken(row, *names):
    """What arrives at a launch on this card under these names."""
    return [int(s["new"]) for s in row["slots"] if s["name"] in names and s["new"].isdigit()
            and not s.get("note", "").startswith((NOT_TAKEN, "overwritten"))]  # fmt: skip


def decision(tree, pack):
    """`get_default_config` of a tree, run on the pack's platform."""
    (path,) = tree.rglob("fused_moe/fused_moe.py")
    (node,) = (n for n in ast.parse(path.read_text()).body if getattr(n, "name", "") == "get_default_config")
    node.returns = None
    for argument in node.args.args:
        argument.annotation = None
    platform = str(rulebook.load(pack).facts.get("platform"))

    class Platform:
        is_rocm = staticmethod(lambda: platform == "rocm")

    class Envs:
        VLLM_BATCH_INVARIANT = False

    scope = {"current_platform": Platform, "envs": Envs, "vllm_is_batch_invariant": lambda: False}
    exec(compile(ast.Module([node], []), str(path), "exec"), scope)
    return scope["get_default_config"]


def configurations(decide, *, quantised):
    """What the decision gives for the pack's model, with the bytes of an element: few tokens to many."""
    names = decide.__code__.co_varnames[: decide.__code__.co_argcount]
    for tokens in (1, 4, 16, 32, 64, 65, 96, 128, 129, 256, 512, 513, 1024, 4096, 8192):
        given = {"dtype": None, "is_marlin": False}
        if quantised and "block_shape" in names:
            given |= {"dtype": "fp8_w8a8", "block_shape": [128, 128]}
        given = {name: value for name, value in given.items() if name in names}
        config = {"num_warps": 4, "num_stages": 3, "GROUP_SIZE_M": 1} | decide(
            tokens, 128, 768, 2048, 8, **given
        )
        yield fused_moe.Tile(*(config[key] for key in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K",
                                                       "GROUP_SIZE_M", "num_warps", "num_stages"))), (
            1 if "block_shape" in given else 2)  # fmt: skip


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("pack", PACKS)
def test_every_pack_lands_and_every_tile_fits(muhmod, tmp_path, pack, version):
    tree, sites = applied(muhmod, tmp_path, pack, version)
    gone = tuple(map(int, version.split(".")[:3])) >= (0, 11, 2) if "post" not in version else False
    assert sites["autotune-configs"]["state"] == ("absent" if gone else "applied")
    assert sites["prefill-tile"]["state"] in ("applied", "already")
    assert sites["moe-config"]["state"] in ("applied", "already")
    c, heads = on(pack), attention.Heads(128)

    prefill = sites["prefill-tile"]
    rows, columns = taken(prefill, "BLOCK", "BLOCK_M"), taken(prefill, "BLOCK", "BLOCK_N")
    stages = max(taken(prefill, "num_stages"))
    assert rows and columns
    for warps in {*taken(prefill, "NUM_WARPS")}:
        tile = attention.Tile(max(rows), max(columns), False, warps, stages)
        assert attention.refusal(c, heads, tile) == ""

    for slot in sites["autotune-configs"]["slots"]:
        if slot["new"] and slot["name"] != "configs" and not slot.get("note", "").startswith(NOT_TAKEN):
            entry = dict(part.split("=") for part in slot["new"].split())
            sides = (int(entry["BLOCK_M"]), int(entry["BLOCK_N"]), entry.get("PRE_LOAD_V") == "True")
            tile = attention.Tile(*sides, int(entry["num_warps"]), int(entry["num_stages"]))
            assert attention.refusal(c, heads, tile) == ""

    # Only cards with fp8 get that arm.
    for quantised in (False, True) if pack in ("h200", "l40s", "mi300x") else (False,):
        for tile, element in configurations(decision(tree, pack), quantised=quantised):
            assert fused_moe.shared_bytes(c, tile, element) <= c.smem_per_block, tile
            assert tile.warps * c.warp_size <= c.max_threads_per_block


@pytest.mark.parametrize("version", NO_LADDER)
def test_without_a_ladder_literals_are_set_and_it_is_said(muhmod, version):
    ran = muhmod("apply", "--rules", "h200", "--diff", "--select", "moe-config", trees.vllm(version))
    said = " ".join((ran.out + ran.err).split())
    assert ran.code == 1
    assert "no ladder: not every reader of the dict can be followed: lora/layers/fused_moe.py:" in said
    assert "values in place instead" in said


def explained(muhmod, site, pack, version):
    ran = muhmod("explain", site, "--rules", pack, trees.vllm(version))
    assert ran.code == 0, ran.err
    return ran.out


@pytest.mark.parametrize(
    ("site", "pack", "version", "needed", "limit"),
    [("prefill-tile", "mi300x", "0.7.0", "66,560", "65,536"),
     ("moe-config", "mi300x", "0.8.5.post1", "73,728", "65,536"),
     ("prefill-tile", "p40", "0.9.0", "98,304", "49,152"),
     ("prefill-tile", "p40", "0.7.0", "65,536", "49,152"),
     ("prefill-tile", "t4", "0.9.0", "98,304", "65,536")],
    ids=["vllm-12498", "vllm-17744", "pascal-pkgs-ci-50", "vllm-11584", "t4-main-launch"],
)  # fmt: skip
def test_explain_shows_what_was_needed_and_the_limit(muhmod, site, pack, version, needed, limit):
    says = explained(muhmod, site, pack, version)
    assert f"needs {needed} B of shared memory, over {limit} B" in says


def test_mi300x_takes_a_stage_less(muhmod, tmp_path):
    """vllm #17744: the dict of block-quantised fp8 names three stages."""
    _, sites = applied(muhmod, tmp_path, "mi300x", "0.8.5.post1")
    (slot,) = (s for s in sites["moe-config"]["slots"] if s["name"] == "num_stages")
    assert (slot["old"], slot["new"]) == ("3", "2")
    kept = [s for s in sites["moe-config"]["slots"] if "quantisation" in s.get("note", "")]
    assert [(s["name"], s["new"]) for s in kept] == [("BLOCK_SIZE_M", "64"), ("GROUP_SIZE_M", "32")]


@pytest.mark.parametrize("version", ["0.9.0", "0.16.0", "0.33.0"])
def test_the_second_tile_further_down_is_set_too(muhmod, tmp_path, version):
    """pascal-pkgs-ci #50: the main launch has a tile of its own beside the module's constant."""
    tree, sites = applied(muhmod, tmp_path, "p40", version)
    slots = sites["prefill-tile"]["slots"]
    assert {("BLOCK_M", "128", "32"), ("BLOCK_N", "64", "32"), ("BLOCK", "64", "32")} <= {
        (s["name"], s["old"], s["new"]) for s in slots
    }
    (path,) = tree.rglob("prefix_prefill.py")
    assert not re.search(r"BLOCK_[MN] ?= ?(64|128)\b", path.read_text())


def test_odd_pages_keep_the_tile_that_upstream_made_for_them(muhmod, tmp_path):
    _, sites = applied(muhmod, tmp_path, "h200", "0.16.0")
    sides = [s["new"] for s in sites["prefill-tile"]["slots"] if s["name"] in ("BLOCK_M", "BLOCK_N")]
    assert sides == ["128", "128", "32", "32"]


@pytest.mark.parametrize("version", ["0.11.2", "0.20.2", "0.33.0"])
def test_decode_on_a_v100_takes_short_k_steps(muhmod, tmp_path, version):
    """vllm #47019: BLOCK_SIZE_K of 128 makes it slower than a dense model."""
    tree, _ = applied(muhmod, tmp_path, "v100", version)
    assert {tile.block_k for tile, _ in configurations(decision(tree, "v100"), quantised=False)} == {64}
    assert "longer ones spill" in explained(muhmod, "moe-config", "v100", version)


LIST = """import triton


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 128, "BLOCK_N": 32, "PRE_LOAD_V": False}, num_stages=1, num_warps=4),
        triton.Config({"BLOCK_M": 32, "BLOCK_N": 32, "PRE_LOAD_V": False}, num_stages=1, num_warps=32),
    ],
    key=["n"],
)
@triton.jit
def attn_fwd(q, n):
    pass
"""


@pytest.mark.parametrize(
    ("pack", "says"),
    [("t4", "needs 81,920 B of shared memory, over 65,536 B"),
     ("mi300x", "32 x 64 = 2,048 threads, over 1,024 a block")],
    ids=["vllm-36802", "vllm-12789"],
)  # fmt: skip
def test_what_a_card_cannot_run_leaves_the_list(muhmod, package, pack, says):
    tree = package(module=LIST)
    assert says in muhmod("explain", "autotune-configs", "--rules", pack, tree).out
    assert muhmod("apply", "--rules", pack, "--select", "autotune-configs", tree).code == 0
    text = (tree / "module.py").read_text()
    assert "num_warps=32" not in text
    assert pack != "t4" or '"BLOCK_M": 128, "BLOCK_N": 32,' not in text


def test_32_waves_of_64_threads_are_refused(muhmod, package, tmp_path):
    """As in vllm #12789: a literal of the pack's is held against a block's threads."""
    pack = tmp_path / "mine.toml"
    pack.write_text('schema = "muhmod/rules/1"\nextends = "mi300x"\n[sites.prefill-tile]\n'
                    'scope = "context_attention_fwd"\n'
                    'slots.NUM_WARPS = { value = 32, reason = "as on another card" }\n')  # fmt: skip
    tree = package(module=(FIXTURES / "prefill-tile" / "conditional" / "before.py").read_bytes())
    before = (tree / "module.py").read_bytes()
    ran = muhmod("apply", "--rules", pack, tree)
    assert ran.code == 5
    assert "32 warps x 64 = 2,048 threads, over 1,024 a block" in " ".join(ran.err.split())
    assert (tree / "module.py").read_bytes() == before


@pytest.mark.parametrize("pack", PACKS)
def test_a_kilobyte_over_is_over(pack):
    """As in Lvllm #77: a card with 1 KiB less than a tile needs does not run it; one with as much does."""
    c, heads = on(pack), attention.Heads(128)
    wide, tall = fused_moe.Tile(64, 64, 64, 1, 4, 3), attention.Tile(64, 64, False, 4, 1)
    moe, tile = fused_moe.shared_bytes(c, wide), attention.shared_bytes(c, heads, tall)
    assert fused_moe.refusal(c._replace(smem_per_block=moe), wide) == ""
    assert attention.refusal(c._replace(smem_per_block=tile), heads, tall) == ""
    less, little = c._replace(smem_per_block=moe - 1024), c._replace(smem_per_block=tile - 1024)
    assert f"needs {moe:,} B of shared memory, over {moe - 1024:,} B" in fused_moe.refusal(less, wide)
    assert f"needs {tile:,} B of shared memory, over {tile - 1024:,} B" in attention.refusal(
        little, heads, tall
    )


@pytest.mark.parametrize("hardware", ["a100", "h100"])
@pytest.mark.parametrize("version", ["0.6.3", "0.9.0", "0.20.2", "0.33.0"])
def test_the_reference_cards_run_upstreams_own_tiles(hardware, version):
    c = card(Work(rulebook.hardware(hardware)))
    for tile, _ in configurations(decision(trees.vllm(version), "l40s"), quantised=False):
        assert fused_moe.refusal(c, tile) == "", tile
    for head_dim in (64, 128):
        for tile in (attention.Tile(128, 128, False, 8, 1), attention.Tile(128, 64, False, 4, 1)):
            refused = attention.refusal(c, attention.Heads(head_dim), tile)
            assert refused == "" or "accumulators a thread" in refused
