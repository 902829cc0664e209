"""A site that was not found: what in the tree is nearest to it. Only shown, never chosen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from muhmod import catalog, drift, fingerprint
from muhmod.errors import FileError
from muhmod.lock import Entry
from muhmod.model import Difference, Found, SiteReport, Slot
from muhmod.rulebook import Rule
from muhmod.search import Reading, Search, look
from muhmod.site import Definition, Module, make_slot

_MOST = 3
# A near name has so many letters in a row in common.
_SHARED = 5
_LONGEST = 80
_DEF = b"def "
# From this likeness on, a definition of another name is taken to be the pinned one, renamed.
_RENAMED = 0.9
# From this likeness on, one of any name is worth a look.
_LIKE = 0.5


class Candidate(NamedTuple):
    """A place that the lost site may have become. `points`, `body`: likeness, 0 to 1."""

    points: float
    file: str
    line: int
    scope: str
    differs: str
    body: float = 0.0

    def show(self) -> str:
        """One line for a person."""
        where = f"{self.file}:{self.line} {self.scope}"
        return f"{where} (score {self.points:.2f}; first difference: {self.differs})"


def lost(base: SiteReport, rule: Rule, search: Search, reading: Reading, pin: Entry | None) -> SiteReport:
    """The row of a site that was found nowhere, with the nearest candidates by its pin or its name."""
    pin = pin if pin and pin.file else None
    if rule.when_absent == "ok" and pin is None:
        return base._replace(state="absent", reason="not in this tree, and the rule allows it")
    found = [_of_site(rule, one, reading, pin) for one in _everywhere(rule, reading)]
    ranked = _ranked(found) or _ranked([*_namesakes(rule, reading, pin)])
    reason = f"no {rule.site} in {rule.scope}" + (f" beside {rule.beside}" if rule.beside else "")
    if reading.outside:
        reason += f"; not read, a link out of the tree: {', '.join(reading.outside)}"
    reason += f"; nearest: {ranked[0].show()}" if ranked else "; nothing like it is in the tree"
    row = base._replace(reason=reason, code=3, candidates=tuple(one.show() for one in ranked))
    if pin is None:
        return row
    first = ranked[0] if ranked and ranked[0].body >= _RENAMED else None
    difference = (
        Difference("renamed", f"{pin.scope} is now {first.scope}, as it seems", first.file, first.line)
        if first and first.scope != pin.scope
        else Difference("vanished", f"{rule.site} is gone from {pin.scope}")
    )
    return row._replace(
        cause="upstream moved", differences=(difference,), pinned=f"{pin.file}:{pin.line}",
        reason=f"{difference.text}; {reason}",
    )  # fmt: skip


def _ranked(found: list[Candidate]) -> list[Candidate]:
    return sorted(found, key=lambda one: (-one.points, *one[1:4]))[:_MOST]


def _everywhere(rule: Rule, reading: Reading) -> list[Found]:
    """The site wherever it stands, by its own needles and not by the rule's names."""
    wide = Search()
    site = catalog.site(rule.site)
    for file in reading.files:
        if file not in reading.faults and site.needle in (data := reading.data(file)) and site.wanted(data):
            look(file, data, rule, reading, wide)
    return [found for _, found in wide.others]


def _of_site(rule: Rule, one: Found, reading: Reading, pin: Entry | None) -> Candidate:
    """The site elsewhere: the likeness of the name, the slots, and of the definition where one is pinned."""
    from difflib import SequenceMatcher

    name = SequenceMatcher(None, rule.scope, one.scope).ratio()
    slots = float(bool({slot.name for slot in one.slots} & {*rule.slots}))
    differs = f"the name {one.scope} for {rule.scope}" if one.scope != rule.scope else "its slots"
    place = (one.file, one.line, one.scope)
    if pin is None:
        return Candidate(round((name + slots + (not one.problem)) / 3, 2), *place, differs)
    module = reading.source(one.file).module
    now = fingerprint.take(module, one, rule.slots, remove=rule.remove, adds=rule.adds)
    first = drift.first_difference(list(pin.body), list(now.body))
    body = drift.likeness(pin.body, now.words)
    if first is not None:
        differs = f"{first[0]}, line {first[1]}"
    return Candidate(round((name + slots + 2 * body) / 4, 2), *place, differs, body)


def _namesakes(rule: Rule, reading: Reading, pin: Entry | None) -> Iterator[Candidate]:
    """Definitions whose names are near the rule's, where the site itself is nowhere.

    In the pinned file also those whose statements are, whatever their names.
    """
    wanted = rule.scope.rpartition(".")[2]
    near = _near_names(wanted, reading)
    for points, file, line, name in near | (_names_in(pin.file, wanted, reading) if pin else set()):
        candidate = Candidate(points, file, line, name, f"no {rule.site} in it")
        candidate = _by_body(candidate, reading, pin) if pin else candidate
        if candidate.body >= _LIKE or (points, file, line, name) in near:
            yield candidate


def _names_in(file: str, wanted: str, reading: Reading) -> set[tuple[float, str, int, str]]:
    """(likeness, file, line, name) of all functions of one file."""
    from difflib import SequenceMatcher

    try:
        scopes = [*reading.source(file).module.scopes()] if file in reading.files else []
    except FileError:
        return set()
    named = [(scope.path.rpartition(".")[2], scope.node) for scope in scopes]
    return {
        (round(SequenceMatcher(None, name, wanted).ratio(), 2), file, node.lineno, name)
        for name, node in named
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def _near_names(wanted: str, reading: Reading) -> set[tuple[float, str, int, str]]:
    """(likeness, file, line, name) of the functions of the tree whose names are near."""
    from difflib import SequenceMatcher

    parts = [wanted[at : at + _SHARED] for at in range(max(1, len(wanted) - _SHARED + 1))]
    shares = re.compile("|".join(map(re.escape, parts)).encode()).search
    matcher = SequenceMatcher(None, "", wanted)
    ranked = set()
    for file in reading.files:
        data = reading.data(file)
        for chunk in data.split(_DEF)[1:]:
            found = chunk[:_LONGEST].partition(b"(")[0].strip()
            if not shares(found):
                continue
            name = found.decode("utf-8", "replace")
            matcher.set_seq1(name)
            if matcher.real_quick_ratio() > 0.7 and matcher.ratio() > 0.7:
                line = data.count(b"\n", 0, data.find(_DEF + found)) + 1
                ranked.add((round(matcher.ratio(), 2), file, line, name))
    return ranked


def _by_body(candidate: Candidate, reading: Reading, pin: Entry) -> Candidate:
    """A namesake with the likeness of its statements to those that were pinned."""
    try:
        module = reading.source(candidate.file).module
    except FileError:
        return candidate
    for scope in module.scopes():
        if scope.path.rpartition(".")[2] == candidate.scope and scope.node is not None:
            line = scope.node.lineno
            slots = tuple(_literals(module, scope.node, pin))
            now = fingerprint.take(module, Found("", scope.path, line, line, "", slots), [""])
            body = drift.likeness(pin.body, now.words)
            points = round((candidate.points + body) / 2, 2)
            return candidate._replace(points=points, scope=scope.path, body=body)
    return candidate


def _literals(module: Module, node: Definition, pin: Entry) -> Iterator[Slot]:
    """What may be the pinned literals there: they are no part of a definition's likeness."""
    texts = {text for slot in pin.slots for text in (slot.base, slot.ours)}
    for part in ast.walk(node):
        if isinstance(part, ast.expr) and not isinstance(part, ast.Name) and ast.unparse(part) in texts:
            yield make_slot(module, "", part, part)
