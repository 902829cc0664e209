"""Launch options that a rule adds to dicts: in which dict they count, and does what arrives together fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product

from muhmod.derive.arms import reached
from muhmod.derive.kernels.card import modelled
from muhmod.derive.work import Ask, Work
from muhmod.displays import together
from muhmod.errors import LimitError
from muhmod.model import LADDER_KEYS, OPTIONS, TILE_KEYS, Arrival, Found, Scalar, Slot, SlotReport
from muhmod.rulebook import Rule

# A tile that follows the checkpoint's quantisation: blocks of 128 x 128 in those that name them.
_QUANTISED = re.compile(r"block_shape\[[01]\]")
_QUANTISED_SIDE = 128


def side_of(slot: Slot) -> int:
    """The side of the quantisation's blocks, where the slot is one; else 0."""
    return _QUANTISED_SIDE if _QUANTISED.fullmatch(slot.text) else 0


def follows(slot: Slot, found: Found) -> bool:
    """Whether a side of the tile beside a slot is one of the quantisation's blocks."""
    ways = [{*arrival.conditions} for arrival in slot.arrivals]
    return any(
        side_of(other) and any({*a.conditions} <= way for a in other.arrivals for way in ways)
        for other in found.slots
    )


def next_step(name: str, found: Found) -> str:
    """What a pack could say to have the key written, for a message; empty where no dict lacks it."""
    lacks = any(room.name == name for display in found.keys.displays for room in display.rooms)
    return f'; when_absent = "add" writes {name}' if lacks else ""


def asked(ask: Ask, rule: Rule, slot: Slot, found: Found) -> Ask:
    """The ask of a rule that adds launch options: with them in a whole dict, else without."""
    ways = (way for display in found.keys.displays if display.whole for way in display.arrivals)
    whole = any(together(way, arrival) for way in ways for arrival in slot.arrivals)
    return chosen(ask, rule) if whole and not follows(slot, found) else ask._replace(launch=False)


def chosen(ask: Ask, rule: Rule) -> Ask:
    """The ask where the rule's own launch options hold: derived with the tile, or the pack's literals."""
    if not {*OPTIONS} <= {*rule.slots}:
        return ask._replace(launch=False)
    fixed = tuple(value for name in OPTIONS if type(value := rule.slots[name].value) is int)
    if len(fixed) == len(OPTIONS):
        return ask._replace(launch=False, options=fixed)
    return ask._replace(launch=True)


def check(found: Found, reports: Sequence[SlotReport], work: Work) -> None:
    """Hold each tile that arrives with its dict's options against the card, few tokens to many.

    A ladder behind a dict may set a part of the tile for many arms: the dict's options are one for all.
    Raises LimitError.
    """
    if not modelled(work):
        return
    from muhmod.derive.modelled import moe_standing

    seen: set[tuple[object, ...]] = set()
    for line, element, tile in _tiles(found, reports, work):
        if (element, *tile.items()) not in seen:
            seen.add((element, *tile.items()))
            shown, refused = moe_standing(work, tile, element)
            if refused:
                raise LimitError(
                    f"line {line}: with what is written there, {shown}",
                    "give num_stages a smaller value, with its reason",
                )


def _tiles(
    found: Found, reports: Sequence[SlotReport], work: Work
) -> Iterator[tuple[int, int, dict[str, int]]]:
    """(line of the dict, bytes of an element, tile and options) that may arrive together."""
    most, topk = work.integer("max_num_batched_tokens"), work.integer("experts_per_token")
    for tokens in [*(2**n for n in range(most.bit_length())), most]:
        given: dict[str, Scalar] = {"M": tokens, "num_tokens": tokens, "numel": tokens * topk}
        for display in found.keys.displays:
            for way in display.arrivals if display.whole else ():
                if reached(way, work, given):
                    narrow = any("fp8" in c.test and c.taken for c in way.conditions)
                    for tile in _beside(way, found, reports, work, given):
                        yield display.line, 1 if narrow else work.element_size(), tile


def _beside(
    way: Arrival, found: Found, reports: Sequence[SlotReport], work: Work, given: dict[str, Scalar]
) -> Iterator[dict[str, int]]:
    """The tiles that arrive on a dict's way; none where a part of it is no literal."""
    values: dict[str, dict[int, None]] = {}
    for slot, report in zip(found.slots, reports, strict=True):
        text = str(side_of(slot) or report.new or report.old)
        arrives = any(together(a, way) and reached(a, work, given) for a in slot.arrivals)
        if slot.name in LADDER_KEYS and slot.live and text.isdigit() and arrives:
            values.setdefault(slot.name, {})[int(text)] = None
    if {*TILE_KEYS} <= {*values}:
        yield from (dict(zip(values, one, strict=True)) for one in product(*values.values()))
