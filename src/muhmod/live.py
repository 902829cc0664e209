"""Reach in a plan: the verdict beside each slot that is asked for, and what a rule holds back for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from muhmod import rulebook
from muhmod.model import Edit, Found, Reach, SiteReport, Slot, SlotReport
from muhmod.reach import Reaches
from muhmod.rulebook import Pack
from muhmod.search import Reading, Search

# Which slots are asked about.
Wanted = Callable[[SiteReport, SlotReport], bool]
# Of several verdicts the one that tells most of what a new value beside them will do.
_BEST = ("reaches", "unknown", "overridden", "stopped")


def judged(
    rows: list[SiteReport], found: Mapping[str, Search], reading: Reading, pack: Pack, wanted: Wanted
) -> list[SiteReport]:
    """The rows, with a verdict on each slot that is wanted; the tree is looked at only where one is."""
    asked = {row.rule for row in rows if any(wanted(row, slot) for slot in row.slots)}
    if not asked:
        return rows
    with Reaches(reading, rulebook.platform_of(pack)).remembered() as reaches:
        return [_row(row, found[row.rule], reaches, wanted) if row.rule in asked else row for row in rows]


def _row(row: SiteReport, search: Search, reaches: Reaches, wanted: Wanted) -> SiteReport:
    (site,) = [one for source, one in search.bound if source.file == row.file and one.line == row.line][:1]
    places = {(slot.name, slot.line, slot.column): slot for slot in site.slots if slot.text}
    rooms = {(slot.name, slot.line): slot.room for slot in site.slots if slot.room != (0, 0)}
    slots = []
    for slot in row.slots:
        if wanted(row, slot):
            place = places.get((slot.name, slot.line, slot.column))
            room = rooms.get((slot.name, slot.line), (0, 0))
            verdict = _verdict(reaches, row.file, place) if place else _beside(reaches, row.file, site, room)
            slot = slot._replace(reach=verdict)
        slots.append(slot)
    return row._replace(slots=tuple(slots))


def _verdict(reaches: Reaches, file: str, slot: Slot) -> Reach:
    try:
        return reaches.slot(file, slot)
    except Exception as error:
        # A tree that reach cannot follow must not keep a value from being written.
        if os.environ.get("MUHMOD_DEBUG"):
            raise
        return Reach("unknown", f"it could not be followed: {type(error).__name__}: {error}")


def _beside(reaches: Reaches, file: str, site: Found, room: tuple[int, int]) -> Reach:
    """What is not in the file yet goes where the best of the site's slots, or of its own dict's, goes."""
    own = [slot for slot in site.slots if slot.text and room[0] <= slot.start < room[1]]
    verdicts = [_verdict(reaches, file, slot) for slot in own or site.slots if slot.text]
    best = min(verdicts, key=lambda one: _BEST.index(one.verdict), default=None)
    return best or Reach("unknown", "nothing stands beside it that could be followed")


def held(
    rows: list[SiteReport], edits: Iterable[tuple[str, str, Edit]], rules: Iterable[str]
) -> tuple[list[SiteReport], frozenset[tuple[str, int]]]:
    """Hold back what is not shown to reach a kernel, of these rules: (rule, start) of those edits."""
    back: set[tuple[str, int]] = set()
    out = []
    wants = {*rules}
    for row in rows:
        own = [edit for rule, _, edit in edits if rule == row.rule] if row.rule in wants else []
        dead = {edit.number: edit for edit in own if not _reaches(row.slots[edit.number])}
        if dead:
            back |= {(row.rule, edit.start) for edit in dead.values()}
            row = _held(row, {*dead}, left=len(own) - len(dead))
        out.append(row)
    return out, frozenset(back)


def _reaches(slot: SlotReport) -> bool:
    return slot.reach is not None and slot.reach.verdict == "reaches"


def _held(row: SiteReport, numbers: set[int], *, left: int) -> SiteReport:
    """The row without the edits of these slots' numbers; `left`: how many others it has."""
    # A list of configurations is one edit of many rows.
    back = [n in numbers or not left for n in range(len(row.slots))]
    slots = [
        slot._replace(new=slot.old, note=f"held: {slot.mark}" if slot.reach else "held", derived=None)
        if held_back and slot.old != slot.new
        else slot
        for slot, held_back in zip(row.slots, back, strict=True)
    ]
    # An entry that does not come leaves the list; a key keeps its number among the slots.
    there = tuple(s for s in slots if s.old or s.new or not s.name.startswith("configs"))
    row = row._replace(slots=there)
    if left:
        return row
    if any(slot.derived is not None and not slot.name.startswith("configs") for slot in row.slots):
        return row._replace(state="already")
    said = next(slot.note for slot in row.slots if slot.note.startswith("held: "))
    return row._replace(state="held", reason=f"it must reach a kernel: {said.removeprefix('held: ')}")
