"""Plan a tree: never asks, never prints, never exits.

`plan` reads and decides; `apply` writes a plan and reads it back. The flow goes one way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from muhmod import __version__, catalog, derive, lock, tree
from muhmod.decide import awaited, decide, decide_rule, settled, without_values
from muhmod.errors import FileError, MuhmodError, RefusedError, UsageError, nearest
from muhmod.model import Edit, Found, SiteReport, SlotReport
from muhmod.rulebook import Pack, Rule, in_order, natural_derivation
from muhmod.search import (
    SUPPRESSION,
    Reading,
    Search,
    Source,
    binds,
    neighbours,
    parse,
    roomy,
    search,
    too_deep,
)
from muhmod.site import Module
from muhmod.tree import Tree

if TYPE_CHECKING:
    # Woken only where there is a lock, or one is to be made.
    from muhmod.coverage import Advice
    from muhmod.fingerprint import Place

_Result = TypeVar("_Result")


class Options(NamedTuple):
    """What narrows a plan.

    `declined`: (rule, slot start) of edits that the user said no to; `live_only`: only what is shown to
    reach a kernel is set, as if each rule had `require_reach`.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    declined: frozenset[tuple[str, int]] = frozenset()
    live_only: bool = False


class Purpose(NamedTuple):
    """What a plan is for.

    `rewrite`: its files; `pin`: places and stamp for the lock; `advice`: what no rule owns, in the files
    that it reads or, with `everything`, in all of the tree; `reach`: of which slots it is told whether
    their values reach a kernel.
    """

    rewrite: bool = True
    pin: bool = True
    advice: bool = False
    everything: bool = False
    reach: Callable[[SiteReport, SlotReport], bool] | None = None


class Change(NamedTuple):
    """A file's old and new bytes, the splices by rule name over the new text, and its sites after them."""

    file: str
    before: bytes
    after: bytes
    splices: tuple[tuple[str, lock.Splice], ...]
    places: tuple[Place, ...] = ()


class Plan(NamedTuple):
    """What would be: a row for every rule, and the files that would change.

    `places`, `stamp`: where the sites stand now and what that rests on, for the lock; `advice`: tuning
    literals that no rule owns.
    """

    tree: Tree
    pack: Pack
    sites: tuple[SiteReport, ...]
    changes: tuple[Change, ...]
    edits: tuple[tuple[str, str, Edit], ...] = ()
    notes: tuple[str, ...] = ()
    known: lock.Lock | None = None
    places: tuple[Place, ...] = ()
    stamp: lock.Stamp = lock.Stamp()
    advice: tuple[Advice, ...] = ()

    @property
    def code(self) -> int:
        """The exit code of all refusals; 0 where everything can be written."""
        return max((row.code for row in self.sites), default=0)

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence for each row that refuses."""
        return tuple(f"{row.site}: {row.state}: {row.reason}" for row in self.sites if row.code)


# Planning -------------------------------------------------------------------------------------


def plan(
    of: Tree,
    pack: Pack,
    options: Options = Options(),  # noqa: B008
    known: lock.Lock | None = None,
    purpose: Purpose = Purpose(),  # noqa: B008
) -> Plan:
    """Decide every rule of the pack on the tree, against its lock. Writes nothing. Raises UsageError."""
    check_names(pack, options)
    reading = Reading(of, pack.packages)
    bound_pack = _bound_pack(pack, known)
    active = [rule for rule in bound_pack.rules if _selected(rule, options)]
    looked = _with_awaited(active, bound_pack)
    found = search(reading, looked)
    bound_pack, looked = _settled(bound_pack, looked, found, reading)
    every = _places(looked, found) if known or purpose.pin else {}
    held = _Held(known, every, found) if known else None
    names = {rule.name for rule in active}
    active = [rule for rule in looked if rule.name in names]
    rows, edits, planned = _decided(pack, bound_pack, looked, names, reading, found, held)
    if all(row.state in ("lost", "skipped", "absent") for row in rows) and of.name not in (pack.packages):
        raise UsageError(
            f"no site of {pack.name} is in {of.name}/, which is no {' or '.join(pack.packages)}",
            "give the package folder of the tree that the pack is for",
        )
    places = {rule.name: every[rule.name] for rule in active if rule.name in every}
    before = rows
    rows, edits = _without_overlaps(rows, edits)
    # What these rules come to rests on every file of the tree: no stamp can say that nothing changed.
    strict = {rule.name for rule in active if rule.require_reach or options.live_only}
    rows, back = _with_reach(rows, edits, strict, found, reading, bound_pack, purpose)
    wanted = [e for e in edits if (e[0], e[2].start) not in options.declined | back]
    rows = [_declined(row, edits, options) for row in rows]
    rows, wanted = _waiting_again(bound_pack, rows, wanted, before)
    left = frozenset((rule, edit.name) for rule, _, edit in planned - {*wanted})
    changes_: list[Change] = []
    if purpose.rewrite:
        changes_, rows = _rewrite(rows, wanted, reading, bound_pack, left)
    if purpose.pin:
        changes_ = [_with_places(change, bound_pack, places, reading) for change in changes_]
    wants_advice = purpose.pin or purpose.advice
    advice = _advice(reading, active, found, purpose) if wants_advice else ()
    return Plan(
        of, pack, tuple(rows), tuple(changes_), tuple(wanted), tuple(_notes(reading, found)), known,
        tuple(place for one in places.values() for place in one),
        _stamp(pack, reading) if purpose.pin and not strict else lock.Stamp(), tuple(advice),
    )  # fmt: skip


def _bound_pack(pack: Pack, known: lock.Lock | None) -> Pack:
    """The pack with its rules bound to the places that a person accepted for them."""
    if known is None:
        return pack
    from muhmod import pins

    return pack._replace(rules=tuple(pins.effective(rule, known) for rule in pack.rules))


def _settled(
    pack: Pack, active: list[Rule], found: dict[str, Search], reading: Reading
) -> tuple[Pack, list[Rule]]:
    """The pack and its active rules as the tree lets them be."""
    known = {rule.name: settled(rule, found[rule.name], reading) for rule in active}
    rules = tuple(known.get(rule.name, rule) for rule in pack.rules)
    return pack._replace(rules=rules), [*known.values()]


def _advice(
    reading: Reading, rules: list[Rule], found: dict[str, Search], purpose: Purpose
) -> tuple[Advice, ...]:
    from muhmod import coverage

    return coverage.advice(reading, rules, found, everything=purpose.everything)


def _places(rules: list[Rule], found: dict[str, Search]) -> dict[str, list[Place]]:
    from muhmod import pins

    return {rule.name: pins.places(rule, found[rule.name].bound) for rule in rules}


_Edits = list[tuple[str, str, Edit]]


def edited(row: SiteReport, slot: SlotReport) -> bool:
    """Whether the slot is to be changed."""
    return row.state == "pending" and slot.old != slot.new


def governed(row: SiteReport, slot: SlotReport) -> bool:
    """Whether a rule sets the slot, changed or not."""
    return slot.derived is not None or slot.old != slot.new


def _with_reach(
    rows: list[SiteReport],
    edits: _Edits,
    strict: set[str],
    found: dict[str, Search],
    reading: Reading,
    pack: Pack,
    purpose: Purpose,
) -> tuple[list[SiteReport], frozenset[tuple[str, int]]]:
    """The rows with what is known of reach, and (rule, slot start) of the edits that are held back for it."""
    needed = strict & {rule for rule, _, _ in edits}
    if not needed and purpose.reach is None:
        return rows, frozenset()

    def wanted(row: SiteReport, slot: SlotReport) -> bool:
        asked = purpose.reach is not None and purpose.reach(row, slot)
        return asked or (row.rule in needed and edited(row, slot))

    if not any(wanted(row, slot) for row in rows for slot in row.slots):
        return rows, frozenset()
    from muhmod import live

    rows = live.judged(rows, found, reading, pack, wanted)
    return live.held(rows, edits, needed)


class _Held:
    """The rows of a plan held against the lock: each by its rule, all of them by what stands of it."""

    def __init__(self, known: lock.Lock, places: dict[str, list[Place]], found: dict[str, Search]) -> None:
        from muhmod import pins

        self.known, self.places = known, places
        self.paired = pins.pairs(known, places, {name: one.bound for name, one in found.items()})
        self.stand = pins.standing(known, self.paired)

    def against(
        self, rule: Rule, row: SiteReport, edits: list[tuple[str, Edit]]
    ) -> tuple[SiteReport, list[tuple[str, Edit]]]:
        """A row and its edits as the lock has them."""
        from muhmod import pins

        pinned = self.known.of_rule(rule.name)
        if row.state == "ambiguous":
            row = pins.twins(row, self.known, self.places.get(rule.name, []))
        if not pinned and row.state in ("already", "held", "satisfied-upstream"):
            said = "; ".join(filter(None, (row.reason, "not in the lock yet: `muhmod relock` pins it")))
            row = row._replace(cause="rules changed", reason=said)
        return pins.hold(rule, row, edits, self.paired.get(rule.name, []), self.stand)


def _with_awaited(active: list[Rule], pack: Pack) -> list[Rule]:
    """The selected rules, and those that they wait for, in the pack's order."""
    wanted, after = {rule.name for rule in active}, [name for rule in active for name in rule.awaits]
    rules = {rule.name: rule for rule in pack.rules}
    while after:
        name = after.pop()
        if name in rules and name not in wanted:
            wanted.add(name)
            after += rules[name].awaits
    return [rule for rule in pack.rules if rule.name in wanted]


def _decided(
    pack: Pack,
    bound_pack: Pack,
    looked: list[Rule],
    selected: set[str],
    reading: Reading,
    found: dict[str, Search],
    held: _Held | None,
) -> tuple[list[SiteReport], _Edits, set[tuple[str, str, Edit]]]:
    """The rows of all rules in the pack's order, each decided behind those that it waits for; the edits.

    Last all edits that the rules alone would make, whatever the lock says of them.
    A rule that is only waited for is looked at and left as it is: where it would change, it is not selected.
    """
    written = {rule.name: rule for rule in pack.rules}
    seen = {rule.name: _not_selected(rule) for rule in bound_pack.rules}
    edits: dict[str, list[tuple[str, Edit]]] = {}
    planned: set[tuple[str, str, Edit]] = set()
    for rule in in_order(looked):
        pinned = next(iter(held.known.of_rule(rule.name)), None) if held else None
        row, changes = decide_rule(rule, found[rule.name], reading, bound_pack, pinned)
        row, changes = awaited(rule, row, changes, seen, bound_pack)
        planned |= {(rule.name, file, edit) for file, edit in changes}
        if held:
            row, changes = held.against(written[rule.name], row, changes)
        row, changes = _depending(rule, row, changes, seen)
        if rule.name in selected or row.state != "pending":
            seen[rule.name], edits[rule.name] = row, changes
    rows = [seen[r.name] if r.name in selected else _not_selected(r) for r in bound_pack.rules]
    out = [(row.rule, file, edit) for row in rows for file, edit in edits.get(row.rule, ())]
    return rows, [edit for edit in out if edit[0] in selected], planned


def _not_selected(rule: Rule) -> SiteReport:
    return SiteReport(rule.site, "skipped", rule=rule.name, reason="not selected")


_FINE = ("applied", "already", "pending", "satisfied-upstream")


def _depending(
    rule: Rule, row: SiteReport, edits: list[tuple[str, Edit]], others: Mapping[str, SiteReport]
) -> tuple[SiteReport, list[tuple[str, Edit]]]:
    """A rule waits for those that it depends on."""
    bad = [name for name in rule.depends_on if others[name].state not in _FINE]
    if not bad or row.state not in ("already", "pending"):
        return row, edits
    reason = f"it depends on {bad[0]}, which is {others[bad[0]].state}"
    code = 0 if rule.when_guard_false == "hold" else 3
    return without_values(row)._replace(state="held", reason=reason, code=code), []


def _waiting_again(
    pack: Pack, rows: list[SiteReport], edits: _Edits, before: list[SiteReport]
) -> tuple[list[SiteReport], _Edits]:
    """Rows and edits, once some of what others wait for was refused or declined since `before`."""
    was, seen = {row.rule: row for row in before}, {row.rule: row for row in rows}
    for rule in in_order(rule for rule in pack.rules if rule.awaits):
        row = seen[rule.name]
        changed = any(seen[name].state != was[name].state for name in rule.awaits)
        if changed and row.state in ("already", "pending"):
            row, _ = awaited(rule, row, [], seen, pack)
            seen[rule.name], _ = _depending(rule, row, [], seen)
    return list(seen.values()), [edit for edit in edits if seen[edit[0]].state != "held"]


def _with_places(change: Change, pack: Pack, places: dict[str, list[Place]], reading: Reading) -> Change:
    """The change with its file's sites as they will stand."""
    from muhmod import pins

    text = tree.decode(change.after, change.file)
    after = Source(change.file, change.after, text, Module(text.text))
    rules = [rule for rule in pack.rules if any(p.file == change.file for p in places.get(rule.name, []))]
    return change._replace(
        places=tuple(
            pins.place(rule, after, found._replace(file=change.file))
            for rule in rules
            for found in (
                roomy(rule, one, after.module)
                for one in catalog.site(rule.site).find(after.module, reading.from_file(after.file))
            )
            if binds(rule, found, after.module)
        )
    )


def _stamp(pack: Pack, reading: Reading) -> lock.Stamp:
    """What the states rest on beside the sites' own files."""
    from muhmod import pins

    seen = {
        file: pins.digest_of(reading.sources[file].data if file in reading.sources
                             else tree.read(reading.tree, file))
        for file in {*reading.near, *reading.sources}
    }  # fmt: skip
    seen |= {file: tree.presence(reading.tree, file) for file in reading.watched - {*reading.files}}
    inputs = [(name, pins.digest_of(path.read_bytes())) for name, path in pack.files]
    inputs += [
        (f"muhmod.codemods/{path.name}", pins.digest_of(path.read_bytes()))
        for path in catalog.files({rule.site for rule in pack.rules})
    ]
    return lock.Stamp(
        __version__, tuple(inputs), tuple(sorted(n.decode() for n in (*reading.needles, SUPPRESSION))),
        pins.digest_of("\n".join(reading.files).encode("utf-8", "surrogateescape")),
        tuple(sorted(seen.items())),
    )  # fmt: skip


def _notes(reading: Reading, found: dict[str, Search]) -> list[str]:
    notes = [f"{file} is a link out of the tree and was not read" for file in reading.outside]
    return notes + [note for s in reading.sources.values() for note in _bad_suppressions(s, found)]


def _bad_suppressions(source: Source, found: dict[str, Search]) -> list[str]:
    """Suppression comments that do nothing, and why."""
    notes = []
    spans = [
        (one.site, name, one.line, one.end_line)
        for name, search in found.items()
        for of, one in search.bound
        if of.file == source.file
    ]
    for line, (sites, reason) in source.module.suppressions().items():
        place = f"{source.file}:{line}: the suppression"
        for name in sites:
            if name not in catalog.names() and name not in found:
                notes.append(f"{place} names no site: {name!r}{nearest(name, catalog.names())}")
            elif not any(name in row[:2] and row[2] - 1 <= line <= row[3] for row in spans):
                notes.append(f"{place} of {name} is unused: no such site of a rule stands there")
        if not reason:
            notes.append(f"{place} has no reason, so it does not count")
    return notes


def check_names(pack: Pack, options: Options) -> None:
    """--select and --ignore name rules or sites of the pack; rules name sites and derivations."""
    for rule in pack.rules:
        catalog.check(rule.site)
        for name, slot in rule.slots.items():
            where = f"{Path(pack.path).name}: [sites.{rule.name}] {name}"
            if slot.derive not in derive.DERIVATIONS:
                raise UsageError(
                    f"{where}: unknown derivation {slot.derive!r}{nearest(slot.derive, derive.DERIVATIONS)}"
                )
            natural = natural_derivation(name)
            if slot.derive != (natural or slot.derive) or (slot.derive == "attention_configs") != (
                name == "configs"
            ):
                raise UsageError(f"{where}: {slot.derive} derives no value of this slot")
    known = {rule.name for rule in pack.rules} | {rule.site for rule in pack.rules}
    for name in (*options.select, *options.ignore):
        if name not in known:
            raise UsageError(f"the pack {pack.name} has no site {name!r}{nearest(name, known)}")
    both = {*options.select} & {*options.ignore}
    if both:
        raise UsageError(f"{sorted(both)[0]} is both selected and ignored")


def _selected(rule: Rule, options: Options) -> bool:
    names = {rule.name, rule.site}
    return (not options.select or bool(names & {*options.select})) and not (names & {*options.ignore})


# From edits to bytes --------------------------------------------------------------------------


def _without_overlaps(
    rows: list[SiteReport], edits: list[tuple[str, str, Edit]]
) -> tuple[list[SiteReport], list[tuple[str, str, Edit]]]:
    """Two rules that set the same slot, or change the same text, are both refused, by each other's name."""
    clashes: dict[str, str] = {}
    claimed: dict[tuple[str, int, str], str] = {}
    for row in rows:
        for slot in row.slots:
            if slot.derived is not None and slot.line:
                other = claimed.setdefault((row.file, slot.line, slot.name), row.rule)
                if other != row.rule:
                    clashes[row.rule], clashes[other] = other, row.rule
    for number, (rule, file, edit) in enumerate(edits):
        for other, other_file, against in edits[number + 1 :]:
            overlap = edit.start < against.end and against.start < edit.end
            if file == other_file and rule != other and overlap:
                clashes[rule], clashes[other] = other, rule
    out = [_clash(row, clashes[row.rule]) if row.rule in clashes else row for row in rows]
    return out, [edit for edit in edits if edit[0] not in clashes]


def _clash(row: SiteReport, other: str) -> SiteReport:
    reason = f"overlaps with the rule {other}: both would change {row.file}:{row.line}"
    return row._replace(state="unrewritable", reason=reason, code=3)


def _declined(row: SiteReport, edits: list[tuple[str, str, Edit]], options: Options) -> SiteReport:
    own = [edit for rule, _, edit in edits if rule == row.rule]
    no = [edit for edit in own if (row.rule, edit.start) in options.declined]
    if own and len(no) == len(own):
        return row._replace(state="skipped", reason="declined by the user")
    numbers = {edit.number for edit in no}
    slots = tuple(
        slot._replace(new=slot.old, note="declined by the user", derived=None)
        if n in numbers and slot.old != slot.new
        else slot
        for n, slot in enumerate(row.slots)
    )
    return row._replace(slots=slots)


def _rewrite(
    rows: list[SiteReport],
    edits: list[tuple[str, str, Edit]],
    reading: Reading,
    pack: Pack,
    left: frozenset[tuple[str, str]],
) -> tuple[list[Change], list[SiteReport]]:
    """The changed files. Where one fails, its sites' rows say why and nothing of it stands."""
    changes = []
    for file in sorted({file for _, file, _ in edits}):
        group = [(rule, edit) for rule, of, edit in edits if of == file]
        try:
            changes.append(_change(reading.source(file), group, reading, pack, left))
        except MuhmodError as error:
            failed = {rule for rule, _ in group}
            rows = [
                row._replace(state="unrewritable", reason=error.message, code=error.code)
                if row.rule in failed
                else row
                for row in rows
            ]
    return changes, rows


def _change(
    source: Source,
    group: list[tuple[str, Edit]],
    reading: Reading,
    pack: Pack,
    left: frozenset[tuple[str, str]],
) -> Change:
    """One file's change, re-parsed and planned a second time before it is offered."""
    from muhmod import rewrite

    names = {id(edit): rule for rule, edit in group}
    splices = rewrite.rewrite(source.text.text, [edit for _, edit in group])
    text = rewrite.spliced(source.text.text, splices)
    try:
        data = source.text.encode(text)
    except UnicodeEncodeError as error:
        raise FileError(f"{source.file}: {error}") from None
    shift = 0
    records: list[tuple[str, lock.Splice]] = []
    for splice in splices:
        old = source.text.text[splice.start : splice.end]
        at = splice.start + shift
        shift += len(splice.new) - len(old)
        head, tail = _context(text, at, at + len(splice.new))
        record = lock.Splice(splice.edit.name, at, old, splice.new, head, tail)
        records.append((names[id(splice.edit)], record))
    module = source.module.edited(text, [(r.at, r.at + len(r.new)) for _, r in records])
    _second_pass(source._replace(module=module), set(names.values()), reading, pack, left)
    return Change(source.file, source.data, data, tuple(records))


def _second_pass(
    after: Source, rules: set[str], reading: Reading, pack: Pack, left: frozenset[tuple[str, str]]
) -> None:
    """Planned again, the new text must leave nothing to do but what the user `left`: (rule, edit)."""
    for rule in pack.rules:
        if rule.name not in rules:
            continue
        again = Search()
        for one in catalog.site(rule.site).find(after.module, reading.from_file(after.file)):
            found = roomy(rule, one, after.module)
            if binds(rule, found, after.module) or (rule.remove and found.scope == rule.scope):
                again.bound.append((after, found._replace(file=after.file)))
        results = [decide(rule, after, found, reading, pack) for _, found in again.bound]
        if not results or any(
            row.code or any((rule.name, edit.name) not in left for edit in edits) for row, edits in results
        ):
            raise RefusedError(f"{rule.name}: a second run would change {after.file} again")


def _context(text: str, start: int, end: int) -> tuple[str, str]:
    """What stands around a splice: from the line before it to the line after it."""
    first = text.rfind("\n", 0, max(0, text.rfind("\n", 0, start))) + 1
    last = text.find("\n", text.find("\n", end) + 1)
    return text[first:start], text[end : last + 1 if last >= 0 else len(text)]


# Sites ----------------------------------------------------------------------------------------


def plan_all(
    trees: Sequence[tuple[Tree, lock.Lock | None]],
    pack: Pack,
    options: Options,
    purpose: Purpose,
    jobs: int = 1,
) -> list[Plan]:
    """The plans of several trees, each with its lock, in order; with `jobs` worker processes."""
    return mapped(plan, [(of, pack, options, known, purpose) for of, known in trees], jobs)


def mapped(work: Callable[..., _Result], rows: list[tuple[object, ...]], jobs: int) -> list[_Result]:
    """`work(*row)` for each row, in order, in up to `jobs` processes."""
    if jobs == 1 or len(rows) < 2:
        return [work(*row) for row in rows]
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(min(jobs, len(rows))) as pool:
        return [future.result() for future in [pool.submit(work, *row) for row in rows]]


def sites(
    of: Tree, select: tuple[str, ...] = (), *, everything: bool = False, jobs: int = 1
) -> tuple[list[Found], list[FileError]]:
    """Every tuning site of the tree, by file and line, and the files that could not be read."""
    chosen = tuple(catalog.check(name) for name in select) or catalog.names()
    files, _ = tree.files(of, everything=everything)
    slices = [files[number::jobs] for number in range(jobs)]
    parts = mapped(_sites_of, [(of, chosen, everything, part) for part in slices], jobs)
    found = [row for rows, _ in parts for row in rows]
    faults = [fault for _, part in parts for fault in part]
    return sorted(found, key=lambda f: (f.file, f.line, f.site, f.scope)), sorted(faults, key=str)


def _sites_of(
    of: Tree, chosen: tuple[str, ...], everything: bool, files: list[str]
) -> tuple[list[Found], list[FileError]]:
    kinds = [catalog.site(name) for name in chosen]
    from_file = neighbours(of)
    found: list[Found] = []
    faults: list[FileError] = []
    for file in files:
        try:
            data = tree.read(of, file)
            wanted = [kind for kind in kinds if kind.wanted(data)]
            if not wanted or (tree.is_generated(data) and not everything):
                continue
            module = parse(of, file, data).module
        except FileError as error:
            faults.append(error)
            continue
        try:
            sites_ = [one for kind in wanted for one in kind.find(module, from_file(file))]
            found += [one._replace(file=file) for one in sites_]
        except RecursionError:
            faults.append(too_deep(file))
    return found, faults
