"""What waits for a decision: formulas over facts and derived values, and the states of other sites."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from itertools import islice, product

from muhmod import formula as language
from muhmod.errors import DerivationError
from muhmod.guards.around import Verdict, unproven
from muhmod.model import Fact, Scalar, SiteReport
from muhmod.rulebook import GuardRule, Pack, Rule

# A slot may have many values: so many combinations are tried.
_MOST = 4096
# States of a site that has its values, or will have them when the plan is written.
_HAS_VALUES = ("applied", "already", "pending")


def state(guard: GuardRule, others: Mapping[str, SiteReport]) -> Verdict:
    """Whether another rule's site is in one of the states. What would be applied is applied."""
    row = others[guard.about]
    if row.state == "skipped" and row.reason == "not selected":
        return unproven(f"{guard.about} is not selected, and it would change")
    now = "applied" if row.state == "pending" else row.state
    place = f"{row.file}:{row.line} " if row.file else ""
    return Verdict(now in guard.states, f"{place}{guard.about} is {now}")


def formula(
    guard: GuardRule, rule: Rule, row: SiteReport, others: Mapping[str, SiteReport], pack: Pack
) -> Verdict:
    """Whether the formula is true of all values that its names have, or false of all."""
    node = language.parse(guard.about)
    names = language.names(node)
    facts: dict[str, Fact] = {}
    try:
        entries = _entries(row) if "configs" in rule.slots else [{}]
        held = {name for entry in entries for name in entry}
        ways = {n: _ways(n, rule, row, others, pack, facts) for n in names if n not in held}
        truths = _truths(node, names, entries, ways)
    except (language.Undecided, DerivationError) as error:
        return unproven(error.message if isinstance(error, DerivationError) else str(error),
                        tuple(facts.values()))  # fmt: skip
    first = dict(reversed(truths))
    if len(first) == 1:
        return Verdict(truths[0][0], truths[0][1], facts=tuple(facts.values()))
    said = f"not the same for all values: {first[guard.negated]}; {first[not guard.negated]}"
    return unproven(said, tuple(facts.values()))


def _truths(
    node: ast.expr,
    names: list[str],
    entries: list[dict[str, Scalar]],
    ways: Mapping[str, tuple[Scalar, ...]],
) -> list[tuple[bool, str]]:
    """What the formula says of each combination of values. Raises Undecided."""
    out = []
    for entry in entries:
        missing = [name for name in names if name not in entry and name not in ways]
        if missing:
            raise language.Undecided(f"a configuration of the list does not name {missing[0]}")
        tried = islice(product(*ways.values()), _MOST + 1)
        for number, values in enumerate(tried):
            if number == _MOST:
                raise language.Undecided(f"there are more than {_MOST} combinations of values")
            out.append(language.evaluate(node, {**dict(zip(ways, values, strict=True)), **entry}))
    return out


def _ways(
    name: str,
    rule: Rule,
    row: SiteReport,
    others: Mapping[str, SiteReport],
    pack: Pack,
    facts: dict[str, Fact],
) -> tuple[Scalar, ...]:
    """Each value that a name may have. Raises Undecided and DerivationError."""
    head, dot, slot = name.partition(".")
    if dot:
        other = next(key for key in others if key.replace("-", "_") == head)
        if others[other].state not in _HAS_VALUES:
            raise language.Undecided(f"{other} is {others[other].state}: its {slot} is not derived")
        return _of_slot(slot, others[other])
    if name in rule.slots:
        return _of_slot(name, row)
    fact = pack.facts.resolve(name)
    facts[name] = fact
    rivals = tuple(claim.value for claim in fact.rivals) if pack.facts.robust else ()
    return tuple(dict.fromkeys((fact.value, *rivals)))


def _of_slot(name: str, row: SiteReport) -> tuple[Scalar, ...]:
    """The derived values of a slot: what will stand there."""
    values = [s.derived.value for s in row.slots if s.derived and name in (s.name, *s.also)]
    if not values:
        raise language.Undecided(f"the slot {name} of {row.rule} has no derived value")
    # By kind too: Python takes True for 1.
    return tuple(value for _, value in dict.fromkeys((type(value), value) for value in values))


def _entries(row: SiteReport) -> list[dict[str, Scalar]]:
    """The configurations that will stand in a list. Raises Undecided."""
    shown = [slot.new for slot in row.slots if slot.name.startswith("configs") and slot.derived and slot.new]
    if not shown:
        raise language.Undecided(f"the list of {row.rule} is not derived")
    return [dict(_pairs(text)) for text in shown]


def _pairs(text: str) -> Iterable[tuple[str, Scalar]]:
    for part in text.split(" "):
        name, equals, value = part.partition("=")
        if equals:
            yield name, ast.literal_eval(value)
