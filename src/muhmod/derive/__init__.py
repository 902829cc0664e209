"""From facts to values: pure arithmetic, no I/O, no LibCST.

A derivation is a function `(Work, Ask) -> value`; its name in a rule pack is its name here.
`run` gives the value with its steps and the facts that it used.
"""

from __future__ import annotations

from collections.abc import Callable

from muhmod.derive.arms import computed, possible
from muhmod.derive.attention import attention_configs, prefill_block, prefill_stages, prefill_warps
from muhmod.derive.literal import literal
from muhmod.derive.memory import partition_size, shared_memory
from muhmod.derive.moe import moe_block_k, moe_block_m, moe_block_n, moe_group_m
from muhmod.derive.work import Ask, Facts, Value, Work
from muhmod.errors import DisputedFactError, LimitError, UsageError, nearest
from muhmod.model import Derived, Entry, Kind, Scalar

Derivation = Callable[[Work, Ask], Value]

DERIVATIONS: dict[str, tuple[Kind, Derivation]] = {
    "literal": ("literal", literal),
    "attention_configs": ("heuristic", attention_configs),
    "moe_block_k": ("heuristic", moe_block_k),
    "moe_block_m": ("heuristic", moe_block_m),
    "moe_block_n": ("heuristic", moe_block_n),
    "moe_group_m": ("heuristic", moe_group_m),
    "partition_size": ("limit", partition_size),
    "prefill_block": ("limit", prefill_block),
    "prefill_stages": ("heuristic", prefill_stages),
    "prefill_warps": ("heuristic", prefill_warps),
    "shared_memory": ("limit", shared_memory),
}


# Derivations that take the source's arithmetic on the way into account.
_FOLLOWS_ARITHMETIC = {"prefill_block", "attention_configs", "literal"}


def run(name: str, facts: Facts, ask: Ask) -> Derived:
    """The derived value of one slot.

    Raises UsageError for an unknown name, DerivationError where a fact is missing, a limit is
    broken, or a disputed fact would change the value.
    """
    if name not in DERIVATIONS:
        raise UsageError(f"unknown derivation {name!r}{nearest(name, DERIVATIONS)}")
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
    """For an autotune list: each entry that should stand, or go, with `keep|drop|add` and why."""
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


def literal_of(value: Scalar) -> str:
    """Python source of a derived scalar."""
    return repr(value)
