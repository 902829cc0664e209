"""What would be derived from other facts: another claim about a disputed one, or another pack's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from muhmod import derive
from muhmod.derive.work import Ask, Facts
from muhmod.errors import DerivationError
from muhmod.model import Candidate


class Case(NamedTuple):
    """One value of a pack: its site and slot, under which test, and what derives it."""

    site: str
    slot: str
    case: str
    derivation: str
    ask: Ask

    @property
    def label(self) -> str:
        """`moe-config BLOCK_SIZE_M (numel <= 64)`."""
        return f"{self.site} {self.slot}" + (f" ({self.case})" if self.case else "")


class Change(NamedTuple):
    """A value that another claim would change; text, since one of the two may be a refusal."""

    case: Case
    before: str
    after: str


class Outcome(NamedTuple):
    """One claim about a disputed fact: whether it is in use, and what it would change."""

    fact: str
    unit: str
    candidate: Candidate
    used: bool
    changes: tuple[Change, ...]


def disputed(facts: Facts) -> list[str]:
    """Facts with more than one distinct claim, whatever their status."""
    return [name for name, claims in facts.claims.items() if len({c.value for c in claims}) > 1]


def outcomes(facts: Facts, cases: Sequence[Case]) -> list[Outcome]:
    """Every claim about every disputed fact, one fact at a time, with the values that would change."""
    before = [_value(facts, case) for case in cases]
    found = []
    for name in disputed(facts):
        used = facts.get(name)
        distinct = {claim.value: claim for claim in reversed(facts.claims[name])}
        for claim in sorted(distinct.values(), key=facts.claims[name].index):
            pinned = facts.pin(name, claim)
            after = [_value(pinned, case) for case in cases] if claim.value != used else before
            changes = tuple(
                Change(case, *_shown(old, new))
                for case, old, new in zip(cases, before, after, strict=True)
                if old != new
            )
            found.append(Outcome(name, facts.units.get(name, ""), claim, claim.value == used, changes))
    return found


class Row(NamedTuple):
    """One fact or value in which packs differ: `fact` or `value`, its name, and what each pack has."""

    kind: str
    name: str
    values: tuple[str, ...]


def differences(packs: Sequence[tuple[Facts, Sequence[Case]]]) -> list[Row]:
    """Facts and derived values that are not the same in all packs; `-` where a pack has none."""
    names = dict.fromkeys(name for facts, _ in packs for name in facts.claims)
    rows = [Row("fact", name, tuple(_fact(facts, name) for facts, _ in packs)) for name in names]
    values = [{case.label: _text(_value(facts, case)) for case in cases} for facts, cases in packs]
    labels = dict.fromkeys(label for found in values for label in found)
    rows += [Row("value", label, tuple(found.get(label, "-") for found in values)) for label in labels]
    return [row for row in rows if len(set(row.values)) > 1]


def _fact(facts: Facts, name: str) -> str:
    if name not in facts.claims:
        return "-"
    value = facts.get(name)
    return "disputed" if value is None else str(value)


def _text(value: str | frozenset[str]) -> str:
    if isinstance(value, str):
        from muhmod.derive.kernels import ladder

        return ladder.shown(value) if "\n" in value else value
    return f"{len(value)} configs"


def _value(facts: Facts, case: Case) -> str | frozenset[str]:
    """A value as text, a list of configurations as a set, a refusal as its reason."""
    try:
        if case.derivation == "attention_configs":
            rows = derive.entries(facts, case.ask)
            return frozenset(entry.show() for entry, fate, _ in rows if fate not in derive.GONE)
        return str(derive.run(case.derivation, facts, case.ask).value)
    except DerivationError as error:
        return f"refused: {error.message}"


def _shown(old: str | frozenset[str], new: str | frozenset[str]) -> tuple[str, str]:
    if isinstance(old, str) or isinstance(new, str):
        return _text(old), _text(new)
    fresh = f", {len(new - old)} of them new" if new - old else ""
    return f"{len(old)} configs", f"{len(new)}{fresh}"
