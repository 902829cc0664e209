"""`derive --what-if`: which values hang on a disputed fact."""

from __future__ import annotations

import json

import pytest

from muhmod import derive, rulebook
from muhmod.derive import whatif
from muhmod.derive.work import Ask, Facts
from muhmod.errors import LimitError
from muhmod.model import Candidate


def rows(muhmod, *arguments):
    ran = muhmod("derive", "--rules", "bi100", "--what-if", "--output-format", "json", *arguments)
    assert ran.code == 0
    return {(row["fact"], row["value"]): row for row in json.loads(ran.out)["outcomes"]}


def test_every_claim_about_the_card_is_tried(muhmod):
    found = rows(muhmod)
    for claim in [("warp_size", 32), ("warp_size", 64), ("sm_count", 16), ("sm_count", 50),
                  ("smem_per_block", 49152), ("smem_per_block", 32768), ("memory_bandwidth", 584.2),
                  ("memory_bandwidth", 900)]:  # fmt: skip
        assert claim in found


def test_less_shared_memory_changes_what_hangs_on_it(muhmod):
    row = rows(muhmod)["smem_per_block", 32768]
    changes = {(c["site"], c["slot"]): (c["before"], c["after"]) for c in row["changes"]}
    assert changes["prefill-tile", "BLOCK"] == ("32", "16")
    assert changes["shared-memory", "return"] == ("49152", "32768")
    assert changes["autotune-configs", "configs"][0] == "15 configs"
    assert not row["harmless"] and not row["used"]


def test_a_fact_that_no_value_uses_is_harmless(muhmod):
    found = rows(muhmod)
    assert found["sm_count", 50]["harmless"] and found["memory_bandwidth", 900]["harmless"]
    assert found["sm_count", 16]["used"]


def test_the_table_says_so(muhmod):
    ran = muhmod("derive", "--rules", "bi100", "--what-if")
    assert ran.code == 0
    assert "prefill-tile BLOCK: 32 -> 16" in ran.out
    assert "nothing: the dispute is harmless here" in ran.out


def test_select_narrows_it(muhmod):
    row = rows(muhmod, "--select", "shared-memory")["smem_per_block", 32768]
    assert [c["site"] for c in row["changes"]] == ["shared-memory"]


def test_a_claim_that_leaves_nothing_legal_is_shown_as_a_refusal():
    facts = rulebook.load("bi100").facts
    claims = (*facts.claims["smem_per_block"], Candidate(2048, "assumed", "nobody"))
    facts = Facts(facts.units, {**facts.claims, "smem_per_block": claims}, facts.choices)
    case = whatif.Case("prefill-tile", "BLOCK", "", "prefill_block", Ask())
    (tiny,) = (
        o for o in whatif.outcomes(facts, [case]) if (o.fact, o.candidate.value) == ("smem_per_block", 2048)
    )
    assert tiny.changes[0].after.startswith("refused: no tile of at least 16 fits 2,048 B")


def test_nothing_disputed_is_said(muhmod):
    settings = []
    facts = rulebook.load("bi100").facts
    for name in whatif.disputed(facts):
        settings += ["--set", f"{name}={facts.get(name)}"]
    ran = muhmod("derive", "--rules", "bi100", "--what-if", *settings)
    assert "no fact of this pack is disputed" in ran.out


@pytest.mark.parametrize("kernel", ["fused_moe"])
def test_it_does_not_go_with_one_kernel(muhmod, kernel):
    ran = muhmod("derive", "--kernel", kernel, "--hardware", "h200", "--shape", "M=1", "--what-if")
    assert ran.code == 2
    assert "not over one kernel" in ran.err


# apply --robust ----------------------------------------------------------------------------------


def robust(**claims):
    facts = rulebook.load("bi100").facts
    more = {k: tuple(Candidate(v, "documented", "x") for v in values) for k, values in claims.items()}
    return Facts(facts.units, {**facts.claims, **more}, facts.choices, robust=True)


def test_robust_takes_what_every_claim_allows(muhmod, enginex):
    ran = muhmod("apply", "--rules", "bi100", "--robust", "--output-format", "json", enginex)
    assert ran.code == 0
    sites = {row["site"]: row["slots"] for row in json.loads(ran.out)["sites"]}
    changed = [slot for slot in sites["prefill-tile"] if slot["old"] != slot["new"]]
    assert [slot["new"] for slot in changed if slot["name"] == "BLOCK"] == ["16"]
    # What the tree returns, 32 * 1024, is the smaller of the two claims.
    assert sites["shared-memory"][0]["new"] == sites["shared-memory"][0]["old"] == "32 * 1024"
    steps = [s for slot in sites["prefill-tile"] for s in slot.get("derivation", ())]
    assert "robust: 16 is legal under all 2 combinations of claims about smem_per_block" in steps
    assert muhmod("apply", "--rules", "bi100", "--robust", "--check", enginex).code == 0


def test_robust_keeps_a_value_that_is_legal_anyway():
    derived = derive.run("prefill_warps", robust(), Ask(literal=4, reason="ours"))
    assert derived.value == 4
    assert "robust: 4 is legal" in derived.steps[-1]


def test_robust_lists_hold_only_what_every_card_runs():
    plain = rulebook.load("bi100").facts
    kept = {e.show() for e, fate, _ in derive.entries(robust(), Ask()) if fate != "drop"}
    for smem in (49152, 32768):
        for warp in (32, 64):
            world = plain.pin("smem_per_block", Candidate(smem, "set", "x"))
            world = world.pin("warp_size", Candidate(warp, "set", "x"))
            assert kept <= {e.show() for e, fate, _ in derive.entries(world, Ask()) if fate != "drop"}
    assert len(kept) == 6


def test_robust_says_where_nothing_is_legal():
    with pytest.raises(LimitError, match="legal under every claim"):
        derive.run("partition_size", robust(paged_attention_partition=(512, 256))._replace(
            choices={"paged_attention_partition": (512, "ours")}), Ask())  # fmt: skip
