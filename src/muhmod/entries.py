"""What becomes of an autotune list: which entries stay, and which display takes the new ones.

A list may be made of several displays, and be one of several lists, by tests. Each list that this
hardware may get keeps what can run, and gets the derived entries once.
"""

from __future__ import annotations

from typing import NamedTuple

from muhmod import derive
from muhmod.derive.arms import possible, tests_against
from muhmod.derive.attention import refused_keys
from muhmod.derive.work import Ask, Facts, Work
from muhmod.errors import DerivationError
from muhmod.model import Derived, Edit, Entry, Found, Kind, Slot, SlotReport


class _Part(NamedTuple):
    """A display: its slot's place in the site, the slot, and those of its entries."""

    number: int
    whole: Slot
    entries: list[Slot]


def decided(found: Found, derivation: str, facts: Facts) -> tuple[list[SlotReport], list[Edit]]:
    """The reports of all entries, and an edit for each display that changes. Raises DerivationError."""
    parts = _parts(found)
    work = Work(facts)
    taken = [part for part in parts if any(possible(a, work) for a in part.whole.arrivals)]
    if not taken:
        raise DerivationError("no list is taken on this hardware: " + _against(parts[0].whole, facts))
    stays: dict[int, SlotReport] = {}
    added: dict[int, list[SlotReport]] = {}
    payloads: dict[int, tuple[Entry, ...]] = {}
    for target, group in _groups(taken, facts):
        slots = [slot for part in group for slot in part.entries]
        ask = Ask(entries=tuple(_entry(slot) for slot in slots))
        derived = derive.run(derivation, facts, ask)
        fates = derive.entries(facts, ask)
        for slot, (entry, fate, why) in zip(slots, fates, strict=False):
            stays[slot.start] = _judged(slot, entry, fate, why, derived)
        new = [
            (entry, Derived(entry.show(), "heuristic", (*derived.steps, why), derived.facts))
            for entry, fate, why in fates
            if fate == "add"
        ]
        payloads[target.number] = tuple(entry for entry, _ in new)
        added[target.number] = [
            SlotReport(f"configs[+{number}]", target.whole.end_line, "", entry.show(), "added", why)
            for number, (entry, why) in enumerate(new)
        ]
    reports: list[SlotReport] = []
    edits: list[Edit] = []
    for part in parts:
        note = (
            "" if part in taken else f"an arm that this hardware does not take: {_against(part.whole, facts)}"
        )
        reports += [stays.get(slot.start) or _plain(slot, note) for slot in part.entries]
        reports += added.get(part.number, [])
        keep = tuple(slot.start not in stays or bool(stays[slot.start].new) for slot in part.entries)
        payload = payloads.get(part.number, ())
        if payload or not all(keep):
            whole = part.whole
            edits.append(
                Edit(f"configs#{part.number}", whole.start, whole.end, "entries", "", whole.segment,
                     (keep, payload, len(taken) > 1, refused_keys(Work(facts))))
            )  # fmt: skip
    return reports, edits


def _parts(found: Found) -> list[_Part]:
    parts: list[_Part] = []
    for index, slot in enumerate(found.slots):
        if slot.name == "configs":
            parts.append(_Part(index, slot, []))
        else:
            parts[-1].entries.append(slot)
    return parts


def _groups(parts: list[_Part], facts: Facts) -> list[tuple[_Part, list[_Part]]]:
    """The display that takes new entries, with all displays of the lists that it is in."""
    ways = {a: None for part in parts for a in part.whole.arrivals if possible(a, Work(facts))}
    made = {way: [part for part in parts if way in part.whole.arrivals] for way in ways}
    groups: dict[int, tuple[_Part, list[_Part]]] = {}
    for within in made.values():
        whole = [part for part in within if part.entries]
        common = [part for part in whole if all(part in other for other in made.values())]
        if not whole:
            raise DerivationError(
                "one of the lists is empty: there is no entry whose spelling could be followed"
            )
        target = (common or whole)[0]
        group = groups.setdefault(target.number, (target, []))[1]
        group += [part for part in within if part not in group]
    for within in made.values():
        if sum(part.number in groups for part in within) != 1:
            raise DerivationError("the lists that this hardware may get share displays in part")
    return list(groups.values())


def _entry(slot: Slot) -> Entry:
    entry = slot.entry or Entry((), ())
    missing = [key for key in ("BLOCK_M", "BLOCK_N") if entry.get(key) is None]
    if missing:
        raise DerivationError(
            f"the entry in line {slot.line} has no {missing[0]}",
            "the derivation is of attention's tiles, BLOCK_M x BLOCK_N",
        )
    return entry


_NOTES = {"keep": "feasible: stays", "drop": "cannot run: goes", "slower": "slower than others: goes"}


def _judged(slot: Slot, entry: Entry, fate: str, why: str, derived: Derived) -> SlotReport:
    shown = entry.show()
    kind: Kind = "heuristic" if fate == "slower" else "limit"
    reason = Derived(shown, kind, (why,), derived.facts)
    return _plain(slot, _NOTES[fate])._replace(new=shown if fate == "keep" else "", derived=reason)


def _plain(slot: Slot, note: str) -> SlotReport:
    shown = _show(slot)
    return SlotReport(
        slot.name, slot.line, shown, shown, note, end_line=slot.end_line, column=slot.column,
        end_column=slot.end_column,
    )  # fmt: skip


def _show(slot: Slot) -> str:
    return (slot.entry.show() if slot.entry else "") or slot.text


def _against(slot: Slot, facts: Facts) -> str:
    """The tests that this hardware fails on every way to the slot."""
    work = Work(facts)
    tests = [test for arrival in slot.arrivals for test in tests_against(arrival, work)]
    return "; ".join(dict.fromkeys(tests))
