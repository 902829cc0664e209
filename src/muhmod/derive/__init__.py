"""From facts to values: pure arithmetic, no I/O, no LibCST.

A derivation is a function `(Work, Ask) -> value`; its name in a rule pack is its name here.
`run` gives the value with its steps and the facts that it used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from muhmod.derive.arms import computed, possible
from muhmod.derive.attention import (
    attention_configs,
    prefill_block,
    prefill_side,
    prefill_stages,
    prefill_warps,
)
from muhmod.derive.literal import literal
from muhmod.derive.memory import partition_size, shared_memory
from muhmod.derive.moe import (
    moe_block_k,
    moe_block_m,
    moe_block_n,
    moe_group_m,
    moe_ladder,
    moe_stages,
    moe_warps,
)
from muhmod.derive.work import Ask, Facts, Value, Work
from muhmod.errors import DisputedFactError, LimitError, UsageError, nearest
from muhmod.model import Derived, Entry, Fact, Kind, Scalar

Derivation = Callable[[Work, Ask], Value]

DERIVATIONS: dict[str, tuple[Kind, Derivation]] = {
    "literal": ("literal", literal),
    "attention_configs": ("heuristic", attention_configs),
    "moe_block_k": ("heuristic", moe_block_k),
    "moe_block_m": ("heuristic", moe_block_m),
    "moe_block_n": ("heuristic", moe_block_n),
    "moe_group_m": ("heuristic", moe_group_m),
    "moe_ladder": ("heuristic", moe_ladder),
    "moe_stages": ("heuristic", moe_stages),
    "moe_warps": ("heuristic", moe_warps),
    "partition_size": ("limit", partition_size),
    "prefill_block": ("limit", prefill_block),
    "prefill_side": ("limit", prefill_side),
    "prefill_stages": ("heuristic", prefill_stages),
    "prefill_warps": ("heuristic", prefill_warps),
    "shared_memory": ("limit", shared_memory),
}


# Fates of entries that do not stay.
GONE = ("drop", "slower")
# Derivations that take the source's arithmetic on the way into account.
_FOLLOWS_ARITHMETIC = {"prefill_block", "prefill_side", "attention_configs", "literal"}


def run(name: str, facts: Facts, ask: Ask) -> Derived:
    """The derived value of one slot.

    Raises UsageError for an unknown name, DerivationError where a fact is missing, a limit is
    broken, or a disputed fact would change the value.
    """
    if name not in DERIVATIONS:
        raise UsageError(f"unknown derivation {name!r}{nearest(name, DERIVATIONS)}")
    if facts.robust:
        return _robust(name, facts._replace(robust=False), ask)
    try:
        return _once(name, facts, ask)
    except DisputedFactError as dispute:
        return _harmless(name, facts, ask, dispute)


def _once(name: str, facts: Facts, ask: Ask) -> Derived:
    kind, derivation = DERIVATIONS[name]
    work = Work(facts)
    if name not in _FOLLOWS_ARITHMETIC:
        _refuse_arithmetic(ask, work)
    value = derivation(work, ask)
    if ask.literal is not None:
        kind = "literal"
        work.step(f"the rule pack sets {ask.literal}: {ask.reason}")
    return Derived(
        value=value if not isinstance(value, tuple) else len(value),
        kind=kind,
        steps=tuple(work.steps),
        facts=tuple(work.used.values()),
        warnings=tuple(work.warnings),
    )


def _refuse_arithmetic(ask: Ask, work: Work) -> None:
    """What the source makes of the value is not what was derived: no literal can be set."""
    for arrival in ask.arrivals:
        if possible(arrival, work) and computed(arrival):
            raise LimitError(
                f"the source computes `{computed(arrival)}` from this literal (`_`) before it is used",
                "write the value where it is used, or leave the site out with --ignore",
            )


def entries(facts: Facts, ask: Ask) -> tuple[tuple[Entry, str, str], ...]:
    """For an autotune list: each entry that should stand, or go, with its fate and why.

    Fates: `keep`; `add`; `drop`, since it cannot run; `slower`, since others are better.
    """
    if facts.robust:
        return _robust_entries(facts._replace(robust=False), ask)
    value = attention_configs(Work(facts), ask)
    assert isinstance(value, tuple)
    return value


def _harmless(name: str, facts: Facts, ask: Ask, dispute: DisputedFactError) -> Derived:
    """One value under every candidate is no dispute; anything else is refused."""
    outcomes: dict[str, Derived | None] = {}
    for candidate in facts.candidates(dispute.name):
        try:
            outcomes[str(candidate.value)] = run(name, facts.pin(dispute.name, candidate), ask)
        except LimitError:
            outcomes[str(candidate.value)] = None
    results = {None if d is None else d.value for d in outcomes.values()}
    first = next(iter(outcomes.values()))
    if len(results) > 1 or first is None:
        shown = ", ".join(
            f"{dispute.name} = {value} gives {d.value if d else 'no legal value'}"
            for value, d in outcomes.items()
        )
        raise DisputedFactError(f"{dispute.message}: {shown}", dispute.hint, dispute.name)
    step = f"{dispute.name} is disputed ({', '.join(outcomes)}), harmless here: one value under all"
    return Derived(first.value, first.kind, (*first.steps, step), first.facts, first.warnings)


def _worlds(facts: Facts, used: Iterable[Fact]) -> list[Facts]:
    """The facts under every combination of claims about the disputed ones among those used."""
    disputed = [fact.name for fact in used if fact.rivals]
    worlds = [facts]
    for name in disputed:
        claims = {claim.value: claim for claim in facts.claims[name]}
        worlds = [world.pin(name, claim) for world in worlds for claim in claims.values()]
    return worlds


def _robust(name: str, facts: Facts, ask: Ask) -> Derived:
    """The value in use if every claim allows it, else the largest that every claim allows."""
    first = run(name, facts, ask)
    worlds = _worlds(facts, first.facts)
    if len(worlds) == 1:
        return first
    if name == "attention_configs":
        step = f"robust: only configurations that all {len(worlds)} combinations of claims allow"
        return first._replace(value=len(_robust_entries(facts, ask)), steps=(*first.steps, step))
    found = [_allowed(name, world, ask) for world in worlds]
    if name == "moe_ladder" and all(one is not None and one.value == first.value for one in found):
        step = f"robust: the same ladder under all {len(worlds)} combinations of claims"
        return first._replace(steps=(*first.steps, step))
    others = {one.value for one in found if one is not None}
    ordered = [first.value, *sorted(others - {first.value}, key=lambda v: (str(type(v)), v), reverse=True)]
    for value in ordered:
        fixed = ask._replace(literal=value, reason="robust")
        if all(_allowed(name, world, fixed) is not None for world in worlds):
            disputed = ", ".join(fact.name for fact in first.facts if fact.rivals)
            step = f"robust: {value} is legal under all {len(worlds)} combinations of claims about {disputed}"
            return first._replace(value=value, steps=(*first.steps, step))
    raise LimitError(
        f"no value is legal under every claim: {', '.join(str(value)[:40].strip() for value in ordered)}",
        "measure what is disputed, or choose without --robust",
    )


def _allowed(name: str, facts: Facts, ask: Ask) -> Derived | None:
    try:
        return run(name, facts, ask)
    except LimitError:
        return None


def _robust_entries(facts: Facts, ask: Ask) -> tuple[tuple[Entry, str, str], ...]:
    """The list in use without what some claim rules out."""
    work = Work(facts)
    attention_configs(work, ask)
    known = [entries(world, ask) for world in _worlds(facts, work.used.values())]
    standing = [{entry for entry, fate, _ in rows if fate not in GONE} for rows in known]
    found = []
    for entry, fate, why in entries(facts, ask):
        if fate in GONE or all(entry in world for world in standing):
            found.append((entry, fate, why))
        elif fate == "keep":
            found.append((entry, "drop", "a disputed claim rules it out"))
    if all(fate in GONE for _, fate, _ in found):
        raise LimitError("no configuration is legal under every claim", "choose without --robust")
    return tuple(found)


def literal_of(value: Scalar) -> str:
    """Python source of a derived scalar."""
    return repr(value)
