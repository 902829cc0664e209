"""A site as it stands against how it was pinned: what differs, and who moved it. Reads nothing itself."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import NamedTuple

from muhmod.fingerprint import Place, Word
from muhmod.lock import Entry, Pinned
from muhmod.model import Cause, Difference, ThreeWay, differing
from muhmod.site import fold

# Words that a guard's change changes by itself.
_TESTS = ("If.", "Try.", "With.", "For.", "While.", "Match.", "ExceptHandler.", "match_case.", "else",
          "finally", "end")  # fmt: skip


def differences(entry: Entry, place: Place) -> tuple[list[Difference], list[ThreeWay]]:
    """How the place differs from its pin, a change of mere line or file included; its changed literals."""
    out: list[Difference] = []
    if (place.file, place.line) != (entry.file, entry.line):
        out.append(Difference("moved", f"moved from {entry.file}:{entry.line}", place.file, place.line))
    literals = []
    texts = standing_texts(entry, place)
    if texts is None:
        out.append(_shape(entry, place))
    for number, (pinned, text) in enumerate(zip(entry.slots, texts or (), strict=texts is not None)):
        if not (_same(text, pinned.base) or _same(text, pinned.ours)):
            literals.append(ThreeWay(pinned.name, pinned.base, pinned.ours, text))
            line = place.lines[number] if number < len(place.lines) else place.line
            out.append(Difference("literal", _said(pinned, text), place.file, line))
    guards = _guards(entry, place)
    return [*out, *guards, *_body(entry, place, guarded=bool(guards))], literals


def _same(text: str, other: str) -> bool:
    """Whether two literals are spelled alike, or have one value."""
    return text == other or (bool(text and other) and _value(text) == _value(other) is not None)


def _value(text: str) -> object:
    import ast

    return fold(ast.parse(text, mode="eval").body) if text[0].isdigit() else None


def standing_texts(entry: Entry, place: Place) -> list[str] | None:
    """The present text of each pinned slot ("" where it is gone by our hand); None where they do not pair."""
    now = place.print.slots
    if not now and entry.slots and all(slot.ours == "" for slot in entry.slots):
        return ["" for _ in entry.slots]
    if [name for name, _ in now] != [slot.name for slot in entry.slots]:
        return None
    return [text for _, text in now]


def stands(entry: Entry, place: Place) -> bool:
    """Whether something that muhmod wrote at this site is still there."""
    texts = standing_texts(entry, place) or []
    return any(slot.base != slot.ours == text for slot, text in zip(entry.slots, texts, strict=bool(texts)))


class Evidence(NamedTuple):
    """What else tells an edited tree from a fresh one of upstream's.

    `fresh`: no file is as muhmod left it, and little of what it wrote stands; `ours`: some other site holds
    what muhmod wrote; `alone`: it is the only site that was written, and nothing else in its file differs.
    """

    fresh: bool
    ours: bool
    alone: bool


def cause(
    entry: Entry, place: Place, found: Iterable[Difference], literals: list[ThreeWay], evidence: Evidence
) -> Cause | None:
    """Who moved it: the literals are muhmod's to hold, all around them is upstream's."""
    around = any(one.kind not in ("moved", "literal", "condition") for one in found)
    here = stands(entry, place)
    if not around and not literals:
        return None
    if not around and entry.written and evidence.alone:
        return "somebody edited"
    if evidence.fresh or (around and not (literals and here)):
        return "upstream moved"
    if around:
        return "both"
    return "somebody edited" if here or evidence.ours else "upstream moved"


def _said(pinned: Pinned, text: str) -> str:
    if text.startswith("["):
        return f"{pinned.name}: {_list(pinned.base, text)}"
    now, base, ours = differing((text, pinned.base, pinned.ours))
    written = f", written {ours}" if ours != base else ""
    return f"{pinned.name} is {now or 'gone'}; pinned {base or 'as none'}{written}"


def _list(was: str, now: str) -> str:
    """What came to a list and what went from it."""
    before, after = _entries(was), _entries(now)
    gone = [one for one in before if one not in after]
    new = [one for one in after if one not in before]
    parts = [f"{len(new)} new, first {_short(new[0])}" if new else "", f"{len(gone)} gone" if gone else ""]
    said = ", ".join(filter(None, parts)) or "in another order"
    return f"{len(before)} entries, now {len(after)}: {said}"


def _entries(text: str) -> list[str]:
    import ast

    node = ast.parse(text, mode="eval").body
    return [ast.unparse(one) for one in node.elts] if isinstance(node, ast.List) else [text]


def _paired(entry: Entry, place: Place) -> list[tuple[int, int]]:
    """The pinned slots with those that stand in their place now.

    All, where the names are the same; else those that only one of them can be.
    """
    names = [slot.name for slot in entry.slots]
    if names == [name for name, _ in place.print.slots]:
        return [(number, number) for number in range(len(names))]
    now = [f"{name} {_short(text)}" for name, text in place.print.slots]
    was = _nearer(entry, now)
    return [(was.index(one), now.index(one)) for one in was if was.count(one) == 1 and now.count(one) == 1]


def _nearer(entry: Entry, now: list[str]) -> list[str]:
    """The pinned slots as upstream had them or as muhmod wrote them, whichever is nearer to what stands."""
    from difflib import SequenceMatcher

    sides = [
        [f"{slot.name} {_short(slot.base)}" for slot in entry.slots],
        [f"{slot.name} {_short(slot.ours)}" for slot in entry.slots],
    ]
    return max(sides, key=lambda side: SequenceMatcher(None, side, now, autojunk=False).ratio())


def _shape(entry: Entry, place: Place) -> Difference:
    from difflib import SequenceMatcher

    now = [f"{name} {_short(text)}" for name, text in place.print.slots]
    if not now:
        text = f"{', '.join(f'{slot.name} {_short(slot.base)}' for slot in entry.slots)} is gone"
        return Difference("vanished", text, place.file, place.line)
    was = _nearer(entry, now)
    for op, a, a_end, b, b_end in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        if op != "equal":
            gone, new = ", ".join(was[a:a_end]), ", ".join(now[b:b_end])
            said = f"{gone} became {new}" if gone and new else f"{new} is new" if new else f"{gone} is gone"
            line = place.lines[min(b, len(place.lines) - 1)]
            return Difference("shape", f"its literals: {said}", place.file, line)
    return Difference("shape", "its literals stand in another order", place.file, place.line)


def _guards(entry: Entry, place: Place) -> list[Difference]:
    """The first test above each slot that differs, each said once."""
    said: dict[str, Difference] = {}
    for before, after in _paired(entry, place):
        was, now = entry.guards[before], place.print.guards[after]
        for a, b in zip_longest(was, now):
            if a != b:
                text = f"`{a}` became `{b}`" if a and b else f"`{b}` is new" if b else f"`{a}` is gone"
                text = f"above {entry.slots[before].name}: {text}"
                said.setdefault(text, Difference("guard", text, place.file, place.lines[after]))
                break
    return list(said.values())


def _body(entry: Entry, place: Place, *, guarded: bool) -> list[Difference]:
    was: list[str] = [word for word in entry.body if not (guarded and word.startswith(_TESTS))]
    now = [word for word in place.print.body if not (guarded and word.text.startswith(_TESTS))]
    first = first_difference(was, now)
    return [] if first is None else [Difference("body", first[0], place.file, first[1])]


def first_difference(was: list[str], now: list[Word]) -> tuple[str, int] | None:
    """The first statement of a definition that is not as it was, in words, and its line now."""
    if was == [word.text for word in now]:
        return None
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(None, was, [word.text for word in now], autojunk=False)
    for op, a, a_end, b, b_end in matcher.get_opcodes():
        if op == "equal":
            continue
        gone = _words(was[a:a_end])
        new, shown, line = _first(now[b:b_end] or now[b : b + 1])
        if op == "insert":
            return f"{new} is new: {shown}", line
        if op == "delete":
            return f"{gone} is gone", line
        said = f"{gone} changed" if gone == new else f"{gone} became {new}"
        return f"{said}: {shown}", line
    return None


def _first(words: list[Word]) -> tuple[str, str, int]:
    """In plain language the first word that says something; its source line, and that line's number."""
    for word in words:
        if "." in word.text:
            return _words([word.text]), f"`{word.shown}`", word.line
    return _words(()), "", words[0].line if words else 0


def likeness(was: tuple[str, ...], now: tuple[str, ...]) -> float:
    """How much of a definition's statements two of them share, from 0 to 1."""
    from difflib import SequenceMatcher

    return SequenceMatcher(None, was, now, autojunk=False).ratio()


_NAMES = {"Import": "the import of", "Assign": "the assignment of", "FunctionDef": "the function",
          "ClassDef": "the class", "AsyncFunctionDef": "the function"}  # fmt: skip
_PLAIN = {"Assign": "an assignment", "AugAssign": "an augmented assignment", "If": "an if",
          "FunctionDef": "the signature", "AsyncFunctionDef": "the signature", "Expr": "a call",
          "Return": "the return", "Assert": "an assert", "For": "a loop", "While": "a loop", "Try": "a try",
          "With": "a with", "Import": "an import", "ImportFrom": "an import", "Raise": "a raise"}  # fmt: skip


def _words(words: Iterable[str]) -> str:
    """The first word that says something, in plain language."""
    for word in words:
        kind, _, name = word.rpartition(".")[0].partition(":")
        if name and kind in _NAMES:
            return f"{_NAMES[kind]} {name}"
        if kind and kind not in ("else", "finally", "end"):
            return _PLAIN.get(kind, f"a {kind}")
    return "the end of a block"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"
