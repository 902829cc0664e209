"""Each rule's row held against the lock: moved, drifted, or as it was pinned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muhmod import drift, fingerprint
from muhmod.fingerprint import Place, governed
from muhmod.lock import Entry, Lock, around
from muhmod.model import Difference, Edit, Found, SiteReport, SlotReport, ThreeWay
from muhmod.rulebook import Rule
from muhmod.search import Source

Bound = Sequence[tuple[Source, Found]]
Changes = list[tuple[str, Edit]]


class Pair(NamedTuple):
    """A pinned site and where it stands now; `alone`: nothing but its literals differs in its file."""

    entry: Entry
    place: Place
    alone: bool


def effective(rule: Rule, known: Lock | None) -> Rule:
    """The rule, bound to the place that a person accepted for it."""
    for entry in known.of_rule(rule.name) if known else ():
        if entry.accepted and entry.scope not in ("", rule.scope):
            rule = rule._replace(scope=entry.scope)
        if entry.accepted.startswith(ONE_FILE):
            rule = rule._replace(file=entry.file)
    return rule


# The mark of an accepted place that is one of several of the same name.
ONE_FILE = "this file: "


def places(rule: Rule, bound: Bound) -> list[Place]:
    """Where the rule's sites stand, with their fingerprints."""
    return [place(rule, source, found) for source, found in bound]


def place(rule: Rule, source: Source, found: Found) -> Place:
    """One site's place and fingerprint."""
    slots = fingerprint.governed(found, rule.slots, remove=rule.remove)
    return Place(
        rule.name, rule.site, source.file, found.scope, found.form, found.line,
        min((slot.start for slot in slots), default=0),
        tuple(slot.line for slot in slots),
        tuple(f"{slot.name}#{number}" for number, slot in enumerate(found.slots) if slot in slots),
        digest_of(source.data),
        fingerprint.take(source.module, found, rule.slots, remove=rule.remove, adds=rule.adds),
    )  # fmt: skip


def digest_of(data: bytes) -> str:
    """sha256, hexadecimal."""
    from hashlib import sha256

    return sha256(data).hexdigest()


def rule_digest(rule: Rule) -> str:
    """A hash of what the rule says; comments and order in its file do not count."""
    table = rule._asdict() | {
        "slots": {name: slot._asdict() for name, slot in (rule.leaves or rule.slots).items()},
        "keys": () if rule.leaves else rule.keys,
        "leaves": bool(rule.leaves),
        "instead": "",
        "guards": [guard.table() for guard in rule.guards],
        "file": "",
    }
    return digest_of(json.dumps(table, sort_keys=True).encode())[:12]


def facts_of(row: SiteReport) -> tuple[tuple[str, object], ...]:
    """The facts that the row's guards and derived values rest on, by name."""
    facts = {fact.name: fact.value for guard in row.guards for fact in guard.facts}
    facts |= {fact.name: fact.value for slot in row.slots if slot.derived for fact in slot.derived.facts}
    return tuple(sorted(facts.items()))


def pairs(known: Lock, now: Mapping[str, list[Place]], bound: Mapping[str, Bound]) -> dict[str, list[Pair]]:
    """The entries of each rule with the places that they are now at, in the same order."""
    out = {}
    for rule, found in now.items():
        entries = sorted((e for e in known.of_rule(rule) if e.file), key=lambda e: (e.file, e.line))
        if entries and len(entries) == len(found):
            sources = {source.file: (source, site) for source, site in bound[rule]}
            out[rule] = [
                Pair(entry, one, _alone(entry, *sources[one.file]))
                for entry, one in zip(entries, sorted(found, key=lambda p: (p.file, p.line)), strict=True)
            ]
    return out


def _alone(entry: Entry, source: Source, found: Found) -> bool:
    """Whether the file is the pinned one but for the literals that muhmod had written."""
    written = [n for n, slot in enumerate(entry.slots) if slot.base != slot.ours]
    slots = governed(found, {pinned.name for pinned in entry.slots})
    if len(slots) != len(entry.slots) or len(written) != len(entry.splices):
        return False
    text = source.text.text
    for number, splice in reversed([*zip(written, entry.splices, strict=True)]):
        slot = slots[number]
        start, end = around(splice, entry.slots[number].ours, slot.start, slot.end)
        text = text[:start] + splice.old + text[end:]
    try:
        return digest_of(source.text.encode(text)) == entry.before
    except UnicodeEncodeError:
        return False


class Standing(NamedTuple):
    """What of all that was written is still there.

    `written`: how many sites were; `ours`: the rules of which something stands; `fresh`: the tree is one
    of upstream's, not the one that was written: no file is as it was left, and less than half of the
    sites hold what was written (upstream may have come to the same value).
    """

    written: int
    ours: frozenset[str]
    fresh: bool


def standing(known: Lock, found: Mapping[str, list[Pair]]) -> Standing:
    """The same, from all pinned sites."""
    every = [pair for rows in found.values() for pair in rows]
    left = any(pair.entry.written and pair.place.digest == pair.entry.after for pair in every)
    ours = frozenset(pair.entry.rule for pair in every if drift.stands(pair.entry, pair.place))
    written = sum(entry.written for entry in known.entries)
    return Standing(written, ours, not left and 2 * len(ours) < written)


def hold(
    rule: Rule, row: SiteReport, edits: Changes, own: list[Pair], stand: Standing
) -> tuple[SiteReport, Changes]:
    """The row as the lock has it: drifted where something that counts differs."""
    if row.state in ("lost", "absent", "ambiguous", "skipped") or row.code == 4 or not own:
        return row, edits
    found: list[Difference] = []
    literals: list[ThreeWay] = []
    cause = None
    for pair in own:
        differs, changed = drift.differences(pair.entry, pair.place)
        differs += _conditions(pair, rule, row)
        alone = pair.alone and stand.written == 1
        evidence = drift.Evidence(stand.fresh, bool(stand.ours - {rule.name}), alone)
        cause = cause or drift.cause(pair.entry, pair.place, differs, changed, evidence)
        found += differs
        literals += changed
    entry = own[0].entry
    row = row._replace(
        differences=tuple(found), literals=tuple(literals), cause=cause, pinned=f"{entry.file}:{entry.line}"
    )
    serious = [one for one in found if one.kind != "moved"]
    ours = any(drift.stands(pair.entry, pair.place) for pair in own)
    if _is_equal(row, serious, own) or (ours and stand.fresh and not serious and row.state == "already"):
        reason = "upstream has the derived value itself now"
        return row._replace(state="satisfied-upstream", reason=reason, cause=None), []
    if serious:
        return _drifted(row, serious), []
    if row.state == "satisfied-upstream" and ours:
        row = row._replace(state="already", reason="")
    row, edits = _without_kept(row, edits, own)
    if _rules_changed(rule, row, own):
        row = row._replace(cause="rules changed")
    return row, edits


def _is_equal(row: SiteReport, serious: list[Difference], own: list[Pair]) -> bool:
    """Whether upstream changed nothing but literals, and each to what the rule derives there."""
    moved = row.cause == "upstream moved" and {one.kind for one in serious} == {"literal"}
    numbers = [
        int(key.rpartition("#")[2])
        for pair in own
        for key, slot, text in zip(
            pair.place.keys,
            pair.entry.slots,
            drift.standing_texts(pair.entry, pair.place) or (),
            strict=False,
        )
        if text not in (slot.base, slot.ours)
    ]
    derived = [slot.derived is not None for slot in row.slots]
    return moved and row.state == "already" and all(n < len(derived) and derived[n] for n in numbers)


def _without_kept(row: SiteReport, edits: Changes, own: list[Pair]) -> tuple[SiteReport, Changes]:
    """The row and edits without the slots whose values a person accepted as they stand."""
    kept = {
        (pair.place.file, key)
        for pair in own
        for key, slot in zip(pair.place.keys, pair.entry.slots, strict=False)
        if slot.kept
    }
    if not kept:
        return row, edits
    reason = f"kept as accepted: {own[0].entry.accepted.removeprefix(ONE_FILE)}"
    rest = [(file, edit) for file, edit in edits if (file, edit.name) not in kept]
    if rest:
        numbers = {int(key.rpartition("#")[2]) for _, key in kept}
        slots = tuple(
            slot._replace(new=slot.old, note=reason, derived=None) if number in numbers else slot
            for number, slot in enumerate(row.slots)
        )
        return row._replace(slots=slots, reason=reason), rest
    return row._replace(state="skipped", code=0, reason=reason, slots=_as_they_are(row)), []


def _as_they_are(row: SiteReport) -> tuple[SlotReport, ...]:
    return tuple(slot._replace(new=slot.old) if slot.old else slot for slot in row.slots)


def _drifted(row: SiteReport, serious: list[Difference]) -> SiteReport:
    more = f" (and {len(serious) - 1} more)" if len(serious) > 1 else ""
    now = f"; now {row.state}: {row.reason}" if row.reason else ""
    now += "; it holds the derived value now" if row.state == "already" else ""
    return row._replace(
        state="drifted", code=max(3, row.code), slots=_as_they_are(row),
        reason=f"{serious[0].text}{more}{now}",
    )  # fmt: skip


def _conditions(pair: Pair, rule: Rule, row: SiteReport) -> list[Difference]:
    """The first guard that held when the site was pinned and does not any more.

    Where a fact is another now, what no longer fits the numbers is the rules' doing, and no drift.
    """
    held = dict(pair.entry.conditions)
    failed = [guard for guard in row.guards if not guard.holds and held.get(guard.guard)]
    if failed and failed[0].facts and _rules_changed(rule, row, [pair]):
        return []
    if not failed:
        return []
    done = "written" if pair.entry.written and drift.stands(pair.entry, pair.place) else "pinned"
    text = f"it was {done} while {failed[0].guard}, which is so no more: {failed[0].evidence}"
    return [Difference("condition", text, pair.place.file, pair.place.line)]


def _rules_changed(rule: Rule, row: SiteReport, own: list[Pair]) -> bool:
    facts = dict(facts_of(row))
    return any(
        pair.entry.digest != rule_digest(rule)
        or any(facts.get(name, value) != value for name, value in pair.entry.facts)
        for pair in own
    )


def twins(row: SiteReport, known: Lock, found: list[Place]) -> SiteReport:
    """An ambiguous row with what the lock says of it: which of the places is as it was pinned."""
    entries = known.of_rule(row.rule)
    if not entries:
        return row
    entry = entries[0]
    same = [
        f"{one.file}:{one.line}"
        for one in found
        if not [d for d in drift.differences(entry, one)[0] if d.kind != "moved"]
    ]
    told = f"as pinned is {same[0]}" if len(same) == 1 else f"{len(same)} of them are as pinned"
    text = f"a twin has come: {told}"
    return row._replace(
        cause="upstream moved", pinned=f"{entry.file}:{entry.line}", reason=f"{row.reason}; {text}",
        differences=(Difference("twin", text, row.file, row.line),),
    )  # fmt: skip
