"""Derivations against the figures of the earlier generator, and what breaks them."""

from __future__ import annotations

import json

import pytest

from muhmod import derive, rulebook
from muhmod.derive import attention, scaling
from muhmod.derive.attention import Card
from muhmod.derive.work import Ask, Facts, Work
from muhmod.errors import DisputedFactError, LimitError, MissingFactError
from muhmod.model import Arrival, Candidate, Condition

from .conftest import ROOT

PARITY = json.loads((ROOT / "tests" / "parity.json").read_text())
GEN = PARITY["gen_config"]
# The generator took warps of 32 threads.
CARD = Card(
    *(GEN["inputs"][key] for key in ("head_dim", "elem_size", "smem_per_block", "warp_size",
                                      "registers_per_sm", "max_threads_per_block"))
)  # fmt: skip


def facts(**changed):
    pack = rulebook.load("bi100", settings=[f"{k}={v}" for k, v in changed.items()])
    return pack.facts


def test_grid_has_the_generators_counts():
    configs = attention.grid(CARD)
    assert len(configs) == GEN["valid"]
    distinct = attention.unique(configs)
    assert len(distinct) == GEN["ranking"]["unique_after_dedupe"]
    known = {tuple(row) for row in GEN["ranking"]["already_in_list"]}
    assert sum(config.key not in known for config in distinct[:30]) == GEN["new_among_top_30"]


def test_fifteen_distinct_configs_keep_the_causal_mask():
    distinct = attention.unique(attention.grid(CARD))
    assert sum(c.block_m % c.block_n == 0 for c in distinct) == 15


def test_scores_are_ranked_and_stable():
    scores = [config.score for config in attention.grid(CARD)]
    assert scores == sorted(scores, reverse=True)
    first = attention.unique(attention.grid(CARD))[0]
    assert (first.smem, first.occupancy, first.waves_per_eu) == (41472, 1, 1)


def test_prefill_tile_is_the_generators():
    wanted = GEN["prefill"]
    derived = derive.run("prefill_block", facts(warp_size=32), Ask())
    assert derived.value == wanted["BLOCK_M"] == wanted["BLOCK_N"]
    assert attention.smem_bytes(32, 32, 256, 2) == wanted["smem_bytes"] == 33024
    assert any("33,024 B, fits" in step for step in derived.steps)
    assert any("66,048 B, over 49,152 B" in step for step in derived.steps)
    warps = derive.run("prefill_warps", facts(warp_size=32), Ask(literal=4, reason="list"))
    assert (warps.value, warps.kind) == (wanted["NUM_WARPS"], "literal")


def test_the_notes_own_choice_does_not_fit():
    assert attention.smem_bytes(32, 64, 256, 2) == 49408 > 49152


def test_less_shared_memory_gives_a_smaller_tile():
    assert derive.run("prefill_block", facts(smem_per_block="32KiB"), Ask()).value == 16


HALVED = (
    Arrival((Condition("q.dtype is torch.float32", False),)),
    Arrival((Condition("q.dtype is torch.float32", True),), ("_ // 2",)),
)


def test_a_halving_that_may_break_the_limit_is_a_warning():
    derived = derive.run("prefill_block", facts(smem_per_block="32KiB"), Ask(HALVED))
    assert derived.value == 16
    assert "into 8" in derived.warnings[0]
    assert "16 that tl.dot needs" in derived.warnings[0]


def test_a_halving_that_does_break_the_limit_is_refused():
    with pytest.raises(LimitError, match="no tile of at least 16"):
        derive.run("prefill_block", facts(smem_per_block="32KiB", dtype="float32"), Ask(HALVED))


def test_with_fp32_the_literal_is_twice_what_the_kernel_gets():
    """48 KiB hold a 16 x 16 tile of fp32; the source halves, so 32 stands in it."""
    assert derive.run("prefill_block", facts(dtype="float32"), Ask(HALVED)).value == 32


@pytest.mark.parametrize(
    ("test", "expected"),
    [("numel <= 64", 16), ("numel <= 1024", 16), ("numel < 1025", 16), ("1024 >= M * topk", 16),
     ("M <= 64", 16), ("M <= E", 16), ("numel <= 80 * 64", 32), ("M // max(E, 1) <= 4", 64),
     ("is_marlin", 128)],
)  # fmt: skip
def test_moe_tile_of_an_arm(test, expected):
    ask = Ask((Arrival((Condition(test, True),)),))
    assert derive.run("moe_block_m", facts(), ask).value == expected


def test_moe_tile_of_the_else_arm_is_that_of_all_tokens():
    ask = Ask((Arrival((Condition("numel <= 64", False), Condition("numel <= 1024", False))),))
    derived = derive.run("moe_block_m", facts(), ask)
    assert derived.value == 128
    assert any("32,768" in step for step in derived.steps)
    ask = Ask((Arrival((Condition("numel > 1024", False),)),))
    assert derive.run("moe_block_m", facts(), ask).value == 16


def test_moe_arm_under_an_unknown_count_is_refused():
    ask = Ask((Arrival((Condition("rows_of_something <= 64", True),)),))
    with pytest.raises(derive.LimitError.__base__, match="rows_of_something"):
        derive.run("moe_block_m", facts(), ask)


def test_every_value_says_its_kind_steps_and_facts():
    pack = rulebook.load("bi100")
    for rule in pack.rules:
        for setting in rule.slots.values():
            ask = Ask(literal=setting.value, reason=setting.reason)
            derived = derive.run(setting.derive, pack.facts, ask)
            assert derived.kind in ("limit", "heuristic", "measured", "literal")
            assert derived.steps
            assert derived.facts


@pytest.mark.parametrize(
    ("name", "literal", "says"),
    [("partition_size", 256, "not the 512"), ("prefill_block", 128, "no tile"),
     ("prefill_warps", 32, "2,048 threads, over 1,024"), ("prefill_warps", 3, "power of two"),
     ("moe_block_m", 24, "power of two"), ("shared_memory", 65536, "over the 49,152 B")],
)  # fmt: skip
def test_a_literal_over_a_limit_is_refused(name, literal, says):
    with pytest.raises(LimitError, match=says):
        derive.run(name, facts(), Ask(literal=literal, reason="because"))


def _disputed(*values):
    claims = tuple(Candidate(v, "documented", f"source {v}") for v in values)
    base = facts()
    return Facts(base.units, {**base.claims, "smem_per_block": claims})


def test_a_dispute_that_changes_the_value_is_refused_with_both():
    with pytest.raises(DisputedFactError, match=r"49152 gives 32.*32768 gives 16"):
        derive.run("prefill_block", _disputed(49152, 32768), Ask())


def test_a_dispute_that_changes_nothing_is_harmless():
    derived = derive.run("prefill_block", _disputed(49152, 50000), Ask())
    assert derived.value == 32
    assert "harmless here" in derived.steps[-1]


def test_the_best_status_wins_and_rivals_are_kept():
    work = Work(facts())
    assert work.integer("warp_size") == 64
    assert work.used["warp_size"].status == "measured"
    assert [rival.value for rival in work.used["warp_size"].rivals] == [32]
    assert facts().resolve("memory_bandwidth").value == 584.2
    assert facts().resolve("sm_count").value == 16


def test_a_missing_fact_is_named():
    base = facts()
    less = Facts(base.units, {k: v for k, v in base.claims.items() if k != "head_dim"})
    with pytest.raises(MissingFactError, match="head_dim"):
        derive.run("prefill_block", less, Ask())


@pytest.mark.parametrize("row", PARITY["scale_mem_bound"]["vectors"], ids=str)
def test_scaling_vectors(row):
    threads, items, size, wanted_items, wanted_threads = row
    assert scaling.scale_mem_bound(threads, items, size) == (wanted_items, wanted_threads)


def test_register_bound_scaling_never_grows_items():
    assert scaling.scale_reg_bound(256, 16, 1) == (16, 256)
    assert scaling.scale_reg_bound(256, 16, 8) == (8, 256)
    assert scaling.scale_reg_bound(1024, 16, 16) == (4, 768)


def test_bytes_in_flight_of_one_multiprocessor():
    wanted = PARITY["bytes_in_flight"]
    got = scaling.bytes_in_flight(wanted["per_sm_bandwidth_gbps"], wanted["latency_ns"])
    assert got == wanted["bytes"]
