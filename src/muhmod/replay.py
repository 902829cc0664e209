"""How a pack fared over many trees: each rule's site in each of them, held against the tree before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from muhmod import drift, engine, pins
from muhmod.engine import Options, Purpose
from muhmod.errors import FileError
from muhmod.fingerprint import Place
from muhmod.lock import Entry, Lock, Pinned
from muhmod.model import Difference, SiteReport, State, ThreeWay
from muhmod.rulebook import Pack, Rule
from muhmod.search import parse
from muhmod.tree import Tree

Kind = Literal["found", "new", "back", "moved", "renamed", "value", "guard", "shape", "body", "gone",
               "ambiguous", "unreadable"]  # fmt: skip
# What `drift` tells apart, in the words of the table. A mere change of line is none.
_KINDS: dict[str, Kind] = {
    "literal": "value", "guard": "guard", "shape": "shape", "vanished": "shape", "body": "body",
}  # fmt: skip
# From this likeness on a definition is worth a look.
_NEAR = 0.5


class Cell(NamedTuple):
    """One rule on one tree.

    `kinds`: what became of the site since the tree `against`, at least one; `state`: what the rule would
    do with it; `difference`: the first node that is not as it was there.
    """

    tree: str
    against: str
    kinds: tuple[Kind, ...]
    state: State
    reason: str = ""
    file: str = ""
    scope: str = ""
    line: int = 0
    form: str = ""
    difference: Difference | None = None


class Row(NamedTuple):
    """One rule on all trees, in their order."""

    rule: str
    site: str
    cells: tuple[Cell, ...]


class Sight(NamedTuple):
    """What one tree shows: a row for each rule, the places that they bind to, and notes."""

    rows: tuple[SiteReport, ...]
    places: tuple[Place, ...]
    notes: tuple[str, ...]


class Base(NamedTuple):
    """What a tree is held against: the places of a rule in the tree of that number.

    `named`: the rule does not bind there: it is the same definition under another name.
    """

    tree: int
    places: tuple[Place, ...]
    named: bool = False


def replay(
    trees: Sequence[tuple[str, Tree]], pack: Pack, options: Options, jobs: int = 1, *, first: bool = False
) -> tuple[list[Row], list[str]]:
    """The table, and what else is to be said of a tree. Each tree has a label of its own.

    A tree is held against the last one before it where the site was found; with `first`, against the
    first. Raises MuhmodError.
    """
    sights = engine.mapped(see, [(of, pack, options) for _, of in trees], jobs)
    rules, near = _in_doubt(pack, sights)
    found = engine.mapped(alike, [(trees[number][1], rules) for number in near], jobs)
    likes = dict(zip(near, found, strict=True))
    labels = [label for label, _ in trees]
    rows = [
        Row(rule.name, rule.site, tuple(_cells(rule, sights, likes, labels, first=first)))
        for rule in pack.rules
        if _row(sights[0], rule) is not None
    ]
    notes = [f"{label}: {note}" for label, sight in zip(labels, sights, strict=True) for note in sight.notes]
    return rows, notes


def _in_doubt(pack: Pack, sights: list[Sight]) -> tuple[list[Rule], list[int]]:
    """The rules that are lost somewhere, and the trees in which look-alikes may tell what became of them."""
    rules, near = [], set()
    for rule in pack.rules:
        there = [n for n, sight in enumerate(sights) if any(one.rule == rule.name for one in sight.places)]
        lost = [n for n, sight in enumerate(sights) if n not in there and _row(sight, rule) is not None]
        if lost and there:
            rules.append(rule)
            near |= {*lost, there[0], *(m for m in there if m + 1 not in there)}
    return rules, sorted(near)


def _row(sight: Sight, rule: Rule) -> SiteReport | None:
    """The rule's row, None where it was not selected."""
    return next((row for row in sight.rows if row.rule == rule.name), None)


def see(of: Tree, pack: Pack, options: Options) -> Sight:
    """One tree under the pack, without its lock."""
    made = engine.plan(of, pack, options, Lock("", "", ""), Purpose(rewrite=False, pin=False))
    rows = tuple(row for row in made.sites if row.reason != "not selected")
    return Sight(rows, made.places, made.notes)


def alike(of: Tree, rules: Sequence[Rule]) -> list[Place]:
    """Every place in the tree that holds the site of one of the rules, whatever its name."""
    found, _ = engine.sites(of, tuple({rule.site for rule in rules}))
    sources = {}
    for file in {one.file for one in found}:
        try:
            sources[file] = parse(of, file, None)
        except FileError:
            continue
    return [
        pins.place(rule, sources[one.file], one)
        for rule in rules
        for one in found
        if one.site == rule.site and one.file in sources
    ]


def _cells(
    rule: Rule, sights: list[Sight], likes: Mapping[int, list[Place]], labels: list[str], *, first: bool
) -> list[Cell]:
    base: Base | None = None
    cells: list[Cell] = []
    for number, sight in enumerate(sights):
        row = _row(sight, rule)
        assert row is not None
        places = tuple(place for place in sight.places if place.rule == rule.name)
        cell = Cell(labels[number], labels[base.tree] if base else "", ("found",), row.state, row.reason,
                    row.file, row.scope, row.line, row.form)  # fmt: skip
        now: Base | None = None
        if row.code == FileError.code:
            cell = cell._replace(kinds=("unreadable",))
        elif row.state == "ambiguous":
            text = row.reason + (_nearest(base, places) if base else "")
            twin = Difference("twin", text, row.file, row.line)
            cell = cell._replace(kinds=("ambiguous",), difference=twin)
        elif not places:
            cell, now = _lost(cell, rule, base, likes, number)
        else:
            now = Base(number, places)
            if base is not None:
                cell = _against(cell, base, places, back=base.named or "gone" in cells[-1].kinds)
            elif number:
                cell = cell._replace(kinds=("new",))
        cells.append(cell)
        if now is not None and not (first and base is not None):
            base = now
    return cells


def _against(cell: Cell, base: Base, places: tuple[Place, ...], *, back: bool = False) -> Cell:
    """The cell of a site that stands in both trees."""
    kinds: list[Kind] = ["back"] if back else []
    found: list[Difference] = []
    for before, after in zip(_sorted(base.places), _sorted(places), strict=False):
        differs = _differences(before, after)
        kinds += ["moved"] if before.file != after.file else []
        kinds += [_KINDS[one.kind] for one in differs]
        found += differs
    return cell._replace(kinds=_in_order(kinds or ["found"]), difference=next(iter(found), None))


def _in_order(kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """Each kind once, in the order of their list."""
    return tuple(sorted({*kinds}, key=get_args(Kind).index))


def _sorted(places: Sequence[Place]) -> list[Place]:
    return sorted(places, key=lambda place: (place.file, place.line))


def _differences(before: Place, after: Place) -> list[Difference]:
    """How a place differs from an earlier one; its line and file do not count."""
    entry = _entry(before)
    found, literals = drift.differences(entry, after)
    said = iter(literals)
    out = []
    for one in found:
        if one.kind == "literal":
            one = _said(one, next(said))
        if one.kind != "moved":
            out.append(one)
    if before.form != after.form and not any(_KINDS[one.kind] == "shape" for one in out):
        text = f"its form: {before.form} became {after.form}"
        out.append(Difference("shape", text, after.file, after.line))
    return out


def _said(one: Difference, literal: ThreeWay) -> Difference:
    """A changed literal in words of two trees. A list that a name or a call replaced is another form."""
    was, now = literal.base, literal.theirs
    if was.startswith("[") and now.startswith("["):
        return one
    text = f"{literal.slot}: {_short(was)} became {_short(now)}"
    return one._replace(text=text, kind="shape" if "[" in (was[0], now[0]) else "literal")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"


def _entry(place: Place) -> Entry:
    """The place as a lock would have pinned it."""
    return Entry(
        place.rule, place.site, place.file, place.scope, place.line, place.form, "", "", "",
        place.digest, place.digest,
        slots=tuple(Pinned(name, text, text) for name, text in place.print.slots),
        guards=place.print.guards,
        body=place.print.words,
    )  # fmt: skip


def _lost(
    cell: Cell, rule: Rule, base: Base | None, likes: Mapping[int, list[Place]], number: int
) -> tuple[Cell, Base | None]:
    """The cell of a site that the rule does not find: the same under another name, or gone."""
    cell = cell._replace(kinds=("gone",))
    if base is None or len(base.places) != 1:
        return cell, None
    (before,) = base.places
    near = [one for one in likes[number] if one.rule == rule.name]
    stood = {(one.file, one.scope) for one in likes[base.tree] if one.rule == rule.name}
    same = [one for one in near if _is_same(before, one, stood, named=base.named)]
    if len(same) == 1:
        (now,) = same
        renamed = _against(cell, base, (now,))
        text = f"{rule.scope} is now {now.scope}"
        difference = Difference("renamed", text, now.file, now.line)
        kinds = _in_order(["renamed", *(kind for kind in renamed.kinds if kind != "found")])
        cell = renamed._replace(kinds=kinds, file=now.file, scope=now.scope, line=now.line, form=now.form)
        return cell._replace(difference=difference), Base(number, (now,), named=True)
    text = f"no {rule.site} in {rule.scope} any more; it was in {before.file}{_nearest(base, near)}"
    return cell._replace(difference=Difference("vanished", text)), None


def _nearest(base: Base, near: Sequence[Place]) -> str:
    """The place that is most like the one that was, if any is like it."""
    was = base.places[0].print.words
    ranked = [(-drift.likeness(was, one.print.words), one.file, one.line, one.scope) for one in near]
    points, file, line, scope = min(ranked, default=(0.0, "", 0, ""))
    return f"; most like it: {file}:{line} {scope} (likeness {-points:.2f})" if points <= -_NEAR else ""


def _is_same(before: Place, now: Place, stood: set[tuple[str, str]], *, named: bool) -> bool:
    """Whether a place is the earlier one under another name, and no look-alike that stood beside it."""
    if named and now.scope == before.scope:
        return True
    fresh = (now.file, now.scope) not in stood and now.scope != before.scope
    return fresh and now.print.words == before.print.words
