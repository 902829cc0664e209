"""A site that was not found: what in the tree is nearest to it. Only shown, never chosen."""

from __future__ import annotations

import re

from muhmod import catalog, drift, fingerprint
from muhmod.lock import Entry
from muhmod.model import Difference, Found, SiteReport
from muhmod.rulebook import Rule
from muhmod.search import Reading, Search, look

_MOST = 3
_SHARED = 5
_LONGEST = 80
_DEF = b"def "


def lost(base: SiteReport, rule: Rule, search: Search, reading: Reading, pin: Entry | None) -> SiteReport:
    """The row of a site that was found nowhere, with the nearest candidates by its pin or its name."""
    if rule.when_absent == "ok" and pin is None:
        return base._replace(state="absent", reason="not in this tree, and the rule allows it")
    ranked = _nearest(rule, _everywhere(rule, reading), reading, pin)
    candidates = [text for _, text in ranked[:_MOST]] or _namesakes(rule, reading)
    reason = f"no {rule.site} in {rule.scope}" + (f" beside {rule.beside}" if rule.beside else "")
    if reading.outside:
        reason += f"; not read, a link out of the tree: {', '.join(reading.outside)}"
    reason += f"; nearest: {candidates[0]}" if candidates else "; nothing like it is in the tree"
    row = base._replace(reason=reason, code=3, candidates=tuple(candidates))
    if pin is None:
        return row
    same = ranked[0][0] if ranked else None
    renamed = same is not None and _is_same(rule, same, reading, pin)
    what = f"renamed: {pin.scope} is now {same.scope}" if renamed and same else f"{pin.scope} is gone"
    where = (same.file, same.line) if renamed and same else ("", 0)
    difference = Difference("renamed" if renamed else "vanished", what, *where)
    return row._replace(
        cause="upstream moved", differences=(difference,), pinned=f"{pin.file}:{pin.line}",
        reason=f"{what}; {reason}",
    )  # fmt: skip


def _everywhere(rule: Rule, reading: Reading) -> list[Found]:
    """The site wherever it stands, by its own needles and not by the rule's names."""
    wide = Search()
    site = catalog.site(rule.site)
    for file in reading.files:
        if file not in reading.faults and site.needle in (data := reading.data(file)) and site.wanted(data):
            look(file, data, rule, reading, wide)
    return [found for _, found in wide.others]


def _nearest(rule: Rule, found: list[Found], reading: Reading, pin: Entry | None) -> list[tuple[Found, str]]:
    """Every place of the site, the most alike first, with its score and where it first differs."""
    rows = []
    for one in found:
        points, differs = _score(rule, one, reading, pin)
        text = f"{one.file}:{one.line} {one.scope} (score {points:.2f}; {differs})"
        rows.append((-points, one.file, one.line, one.scope, one, text))
    rows.sort(key=lambda row: row[:4])
    return [(row[4], row[5]) for row in rows]


def _score(rule: Rule, one: Found, reading: Reading, pin: Entry | None) -> tuple[float, str]:
    """From 0 to 1: the likeness of the name, the slots, and of the definition where one is pinned."""
    from difflib import SequenceMatcher

    name = SequenceMatcher(None, rule.scope, one.scope).ratio()
    slots = float(bool({slot.name for slot in one.slots} & {*rule.slots}))
    differs = f"the name {one.scope} for {rule.scope}" if one.scope != rule.scope else "its slots"
    if pin is None:
        return round((name + slots + (not one.problem)) / 3, 2), f"first difference: {differs}"
    now = _print(rule, one, reading)
    first = drift.first_difference(list(pin.body), list(now.body))
    if first is not None:
        differs = f"{first[0]}, line {first[1]}"
    likeness = drift.likeness(pin.body, now.words)
    return round((name + slots + 2 * likeness) / 4, 2), f"first difference: {differs}"


def _print(rule: Rule, one: Found, reading: Reading) -> fingerprint.Print:
    module = reading.source(one.file).module
    return fingerprint.take(module, one, rule.slots, remove=rule.remove)


def _is_same(rule: Rule, one: Found, reading: Reading, pin: Entry) -> bool:
    """Whether the candidate is the pinned definition under another name."""
    return _print(rule, one, reading).words == pin.body


def _namesakes(rule: Rule, reading: Reading) -> list[str]:
    """Definitions whose names are near the rule's, where the site itself is nowhere."""
    from difflib import SequenceMatcher

    wanted = rule.scope.rpartition(".")[2]
    # A near name shares a few letters in a row: only those are compared letter by letter.
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
                ranked.add((-round(matcher.ratio(), 2), file, line, name))
    return [
        f"{file}:{line} {name} (score {-points:.2f}; first difference: no {rule.site} in it)"
        for points, file, line, name in sorted(ranked)[:_MOST]
    ]
