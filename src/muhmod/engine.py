"""Plan, apply, revert: never asks, never prints, never exits.

`plan` reads and decides; `apply` writes a plan and reads it back. The flow goes one way.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from muhmod import catalog, derive, guards, journal, lock, tree
from muhmod.derive.arms import possible
from muhmod.derive.work import Ask, Work
from muhmod.errors import DerivationError, FileError, MuhmodError, RefusedError, UsageError, nearest
from muhmod.model import (
    Derived,
    Edit,
    Found,
    GuardResult,
    SiteReport,
    Slot,
    SlotReport,
    State,
)
from muhmod.rulebook import Pack, Rule
from muhmod.site import MODULE_SCOPE, Module
from muhmod.tree import Text, Tree

_MOST_CANDIDATES = 3


@dataclass(frozen=True, slots=True)
class Options:
    """What narrows a plan. `declined`: (rule, slot start) of edits that the user said no to."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    declined: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Change:
    """A file's old and new bytes, and the splices by rule name, over the new text."""

    file: str
    before: bytes
    after: bytes
    splices: tuple[tuple[str, lock.Splice], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be: a row for every rule, and the files that would change."""

    tree: Tree
    pack: Pack
    sites: tuple[SiteReport, ...]
    changes: tuple[Change, ...]
    edits: tuple[tuple[str, str, Edit], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """The exit code of all refusals; 0 where everything can be written."""
        return max((row.code for row in self.sites), default=0)

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence for each row that refuses."""
        return tuple(f"{row.site}: {row.state}: {row.reason}" for row in self.sites if row.code)


@dataclass
class _Source:
    """A file in reach: its bytes, text and module, parsed once."""

    file: str
    data: bytes
    text: Text
    module: Module


@dataclass
class _Reading:
    """All files of a tree, read once; parsed only where wanted."""

    tree: Tree
    files: list[str]
    outside: list[str]
    sources: dict[str, _Source] = field(default_factory=dict)
    faults: dict[str, FileError] = field(default_factory=dict)

    def source(self, file: str, data: bytes | None = None) -> _Source:
        """The parsed file. Raises FileError, the same one each time."""
        if file in self.faults:
            raise self.faults[file]
        if file not in self.sources:
            try:
                self.sources[file] = _parse(self.tree, file, data)
            except FileError as error:
                self.faults[file] = error
                raise
        return self.sources[file]

    def resolve(self, name: str) -> tuple[str, Module] | None:
        """The module of a dotted name inside the tree."""
        top, _, rest = name.partition(".")
        if top != self.tree.name:
            return None
        base = rest.replace(".", "/")
        for file in (f"{base}.py", f"{base}/__init__.py" if base else "__init__.py"):
            if file in self.files:
                return file, self.source(file).module
        return None


def _parse(of: Tree, file: str, data: bytes | None) -> _Source:
    data = tree.read(of, file) if data is None else data
    text = tree.decode(data, file)
    try:
        return _Source(file, data, text, Module(text.text))
    except FileError as error:
        raise FileError(f"{file} {error.message}", error.hint) from None


# Planning -------------------------------------------------------------------------------------


def plan(of: Tree, pack: Pack, options: Options = Options()) -> Plan:  # noqa: B008
    """Decide every rule of the pack on the tree. Writes nothing. Raises UsageError."""
    check_names(pack, options)
    files, outside = tree.files(of)
    reading = _Reading(of, files, outside)
    active = [rule for rule in pack.rules if _selected(rule, options)]
    found = _search(reading, active)
    rows: list[SiteReport] = []
    edits: list[tuple[str, str, Edit]] = []
    for rule in pack.rules:
        if rule not in active:
            rows.append(SiteReport(rule.site, "skipped", rule=rule.name, reason="not selected"))
            continue
        row, changes = _decide_rule(rule, found[rule.name], reading, pack)
        rows.append(row)
        edits += [(rule.name, row.file, edit) for edit in changes]
    if all(row.state in ("lost", "skipped", "absent") for row in rows) and of.name not in (
        pack.packages
    ):
        raise UsageError(
            f"no site of {pack.name} is in {of.name}/, which is no {' or '.join(pack.packages)}",
            "give the package folder of the tree that the pack is for",
        )
    rows, edits = _without_overlaps(rows, edits)
    wanted = [e for e in edits if (e[0], e[2].start) not in options.declined]
    rows = [_declined(row, edits, options) for row in rows]
    changes_, rows = _rewrite(rows, wanted, reading, pack, options)
    notes = [f"{file} is a link out of the tree and was not read" for file in outside]
    return Plan(of, pack, tuple(rows), tuple(changes_), tuple(wanted), tuple(notes))


def check_names(pack: Pack, options: Options) -> None:
    """--select and --ignore name rules or sites of the pack; rules name sites and derivations."""
    for rule in pack.rules:
        catalog.check(rule.site)
        for slot in rule.slots.values():
            if slot.derive not in derive.DERIVATIONS:
                raise UsageError(
                    f"{Path(pack.path).name}: [sites.{rule.name}] unknown derivation "
                    f"{slot.derive!r}{nearest(slot.derive, derive.DERIVATIONS)}"
                )
    known = {rule.name for rule in pack.rules} | {rule.site for rule in pack.rules}
    for name in (*options.select, *options.ignore):
        if name not in known:
            raise UsageError(f"the pack {pack.name} has no site {name!r}{nearest(name, known)}")


def _selected(rule: Rule, options: Options) -> bool:
    names = {rule.name, rule.site}
    return (not options.select or bool(names & {*options.select})) and not (
        names & {*options.ignore}
    )


@dataclass
class _Search:
    """What one rule found: bound places, look-alikes, and files that could not be read."""

    bound: list[tuple[_Source, Found]] = field(default_factory=list)
    others: list[tuple[_Source, Found]] = field(default_factory=list)
    faults: list[FileError] = field(default_factory=list)


def _search(reading: _Reading, rules: list[Rule]) -> dict[str, _Search]:
    """One pass over the bytes of all files; a file is parsed if a rule may bind in it."""
    found = {rule.name: _Search() for rule in rules}
    needles = {rule.name: _needles(rule) for rule in rules}
    for file in reading.files:
        try:
            data = tree.read(reading.tree, file)
        except FileError as error:
            for search in found.values():
                search.faults.append(error)
            continue
        for rule in rules:
            if all(n in data for n in needles[rule.name]) and catalog.site(rule.site).wanted(data):
                _look(file, data, rule, reading, found[rule.name])
    return found


def _needles(rule: Rule) -> tuple[bytes, ...]:
    names = [] if rule.scope == MODULE_SCOPE else rule.scope.split(".")
    return tuple(name.encode() for name in [*names, *filter(None, [rule.beside])])


def _look(file: str, data: bytes | None, rule: Rule, reading: _Reading, into: _Search) -> None:
    try:
        source = reading.source(file, data)
    except FileError as error:
        into.faults.append(error)
        return
    for found in catalog.site(rule.site).find(source.module):
        found = replace(found, file=file)
        (into.bound if _binds(rule, found, source.module) else into.others).append((source, found))


def _binds(rule: Rule, found: Found, module: Module) -> bool:
    names = {slot.name for slot in found.slots}
    return (
        found.scope == rule.scope
        and (not rule.slots or bool(names & set(rule.slots)) or bool(found.problem))
        and (not rule.beside or module.defines(rule.beside))
    )


def _decide_rule(
    rule: Rule, search: _Search, reading: _Reading, pack: Pack
) -> tuple[SiteReport, list[Edit]]:
    """The row of one rule, and the edits where it binds once."""
    base = SiteReport(rule.site, "lost", rule=rule.name, scope=rule.scope)
    if search.faults:
        fault = search.faults[0]
        reason = f"{fault.message}; {fault.hint}" if fault.hint else fault.message
        return replace(base, state="unrewritable", reason=reason, code=fault.code), []
    if not search.bound:
        return _lost(base, rule, search, reading), []
    if len(search.bound) != rule.expect:
        places = ", ".join(f"{found.file}:{found.line}" for _, found in search.bound)
        reason = f"found {len(search.bound)} times, expected {rule.expect}: {places}"
        first = search.bound[0][1]
        return replace(
            base, state="ambiguous", reason=reason, code=3, file=first.file, line=first.line
        ), []
    rows = [_decide(rule, source, found, reading, pack) for source, found in search.bound]
    return rows[0] if len(rows) == 1 else _merged(rows)


def _merged(rows: list[tuple[SiteReport, list[Edit]]]) -> tuple[SiteReport, list[Edit]]:
    """A rule that expects several places and finds them in one file is one row."""
    first = max((row for row, _ in rows), key=lambda row: (row.code, row.state == "pending"))
    slots = tuple(slot for row, _ in rows for slot in row.slots)
    return replace(first, slots=slots), [edit for _, edits in rows for edit in edits]


def _lost(base: SiteReport, rule: Rule, search: _Search, reading: _Reading) -> SiteReport:
    if rule.when_absent == "ok":
        return replace(base, state="absent", reason="not in this tree, and the rule allows it")
    wide = _Search(others=list(search.others))
    site = catalog.site(rule.site)
    seen = {found.file for _, found in search.others}
    for file in reading.files:
        if file not in seen and file not in reading.faults:
            data = tree.read(reading.tree, file)
            if site.wanted(data):
                _look(file, data, rule, reading, wide)
    candidates = _nearest(rule, wide)
    reason = f"no {rule.site} in {rule.scope}" + (
        f" beside {rule.beside}" if rule.beside else ""
    )
    if reading.outside:
        reason += f"; not read, a link out of the tree: {', '.join(reading.outside)}"
    reason += f"; nearest: {candidates[0]}" if candidates else "; nothing like it is in the tree"
    return replace(base, reason=reason, code=3, candidates=tuple(candidates))


def _nearest(rule: Rule, search: _Search) -> list[str]:
    from difflib import SequenceMatcher

    def score(found: Found) -> float:
        scope = SequenceMatcher(None, rule.scope, found.scope).ratio()
        names = {slot.name for slot in found.slots}
        return round((scope + bool(names & set(rule.slots)) + (not found.problem)) / 3, 2)

    ranked = sorted(
        {(-score(f), f.file, f.line, f.scope) for _, f in (*search.others, *search.bound)}
    )
    return [
        f"{file}:{line} {scope} (score {-points:.2f})"
        for points, file, line, scope in ranked[:_MOST_CANDIDATES]
    ]


# One site -------------------------------------------------------------------------------------


def _decide(
    rule: Rule, source: _Source, found: Found, reading: _Reading, pack: Pack
) -> tuple[SiteReport, list[Edit]]:
    """State, slots and edits of one bound site."""
    row = SiteReport(
        rule.site, "already", found.file, found.scope, found.line, found.end_line, found.form,
        rule=rule.name, slots=tuple(_plain(slot) for slot in found.slots),
    )  # fmt: skip
    suppressed = _suppressed(rule, source.module, found)
    if suppressed is not None:
        return replace(row, state="skipped", reason=f"suppressed in the source: {suppressed}"), []
    if found.satisfied:
        return replace(row, state="satisfied-upstream", reason=found.satisfied), []
    if found.problem:
        return replace(row, state="unrewritable", reason=found.problem, code=3), []
    results = tuple(
        guards.evaluate(
            guard, found, source.module, reading.resolve, pack.modules, reading.tree.name
        )
        for guard in rule.guards
    )
    row = replace(row, guards=results)
    failed = [result for result in results if not result.holds]
    if failed:
        return _held(row, rule, failed[0]), []
    if rule.remove:
        return _removal(row, found)
    try:
        return _values(row, rule, found, pack)
    except DerivationError as error:
        reason = f"derivation refused: {error.message}" + (f"; {error.hint}" if error.hint else "")
        return replace(row, state="unrewritable", reason=reason, code=5), []


def _plain(slot: Slot, note: str = "no rule sets it") -> SlotReport:
    if slot.entry is not None and slot.name != "configs":
        shown = slot.entry.show() or slot.text
    elif slot.name == "configs":
        shown = "the list"
    else:
        shown = " ".join(slot.text.split())
    return SlotReport(slot.name, slot.line, shown, shown, slot.reason or note, end_line=slot.end_line)


def _held(row: SiteReport, rule: Rule, guard: GuardResult) -> SiteReport:
    allowed = rule.when_guard_false == "hold"
    slots = tuple(replace(slot, note="held by the guard") for slot in row.slots)
    reason = f"{guard.guard}: no; {guard.evidence}"
    return replace(row, state="held", reason=reason, code=0 if allowed else 3, slots=slots)


def _suppressed(rule: Rule, module: Module, found: Found) -> str | None:
    for line, (sites, reason) in module.suppressions().items():
        if {rule.site, rule.name} & {*sites} and found.line - 1 <= line <= found.end_line and reason:
            return reason
    return None


def _removal(row: SiteReport, found: Found) -> tuple[SiteReport, list[Edit]]:
    slots, edits = [], []
    for index, slot in enumerate(found.slots):
        if slot.editable:
            why = Derived("", "heuristic", ("its guards hold, so the choice is left to the heuristic",))
            slots.append(replace(_plain(slot, ""), new="", note="removed", derived=why))
            edits.append(Edit(index, slot.start, slot.end, "remove", "", slot.segment))
        else:
            slots.append(_plain(slot))
    return replace(row, state="pending", slots=tuple(slots)), edits


def _values(row: SiteReport, rule: Rule, found: Found, pack: Pack) -> tuple[SiteReport, list[Edit]]:
    """Each slot that the rule sets, against its derived value."""
    missing = [name for name in rule.slots if all(slot.name != name for slot in found.slots)]
    if missing:
        held = ", ".join(sorted({slot.name for slot in found.slots}))
        reason = f"the slot {missing[0]} is not there; slots: {held}"
        return replace(row, state="drifted", reason=reason, code=3), []
    slots: list[SlotReport] = []
    edits: list[Edit] = []
    governed: set[str] = set()
    for index, slot in enumerate(found.slots):
        if slot.name == "configs" and "configs" in rule.slots:
            report, edit = _list(found, rule, pack)
            slots += report
            edits += [edit] if edit else []
            governed.add(slot.name)
        elif slot.name in rule.slots:
            report_, edit, sets = _value(index, slot, rule, pack)
            slots.append(report_)
            edits += [edit] if edit else []
            governed |= {slot.name} if sets else set()
        elif "configs" not in rule.slots:
            slots.append(_plain(slot))
    row = replace(row, slots=tuple(slots))
    unset = [name for name in rule.slots if name not in governed]
    if unset:
        notes = sorted({slot.note for slot in slots if slot.name == unset[0]})
        reason = f"{unset[0]} cannot be set: {'; '.join(notes)}"
        return replace(row, state="unrewritable", reason=reason, code=3), []
    return replace(row, state="pending" if edits else "already"), edits


def _value(
    index: int, slot: Slot, rule: Rule, pack: Pack
) -> tuple[SlotReport, Edit | None, bool]:
    """The report and edit of a leaf; the flag says whether the rule sets it."""
    plain = _plain(slot)
    if not slot.live:
        return replace(plain, note="overwritten on every path: never read"), None, False
    if not any(possible(arrival, Work(pack.facts)) for arrival in slot.arrivals):
        return replace(plain, note="an arm that this hardware does not take"), None, False
    if not slot.editable:
        return replace(plain, note=slot.reason), None, False
    setting = rule.slots[slot.name]
    ask = Ask(slot.arrivals, literal=setting.value, reason=setting.reason)
    derived = derive.run(setting.derive, pack.facts, ask)
    if derived.value == slot.value and type(derived.value) is type(slot.value):
        return replace(plain, note="holds the derived value", derived=derived), None, True
    new = derive.literal_of(derived.value)
    report = replace(plain, new=new, note="", derived=derived)
    return report, Edit(index, slot.start, slot.end, "replace", new, slot.segment), True


def _list(found: Found, rule: Rule, pack: Pack) -> tuple[list[SlotReport], Edit | None]:
    """The reports of a list's entries, and the edit of the whole list."""
    whole, *entries = found.slots
    ask = Ask(entries=tuple(slot.entry for slot in entries if slot.entry is not None))
    derived = derive.run(rule.slots["configs"].derive, pack.facts, ask)
    fates = derive.entries(pack.facts, ask)
    reports = []
    keep = []
    for slot, (entry, fate, why) in zip(entries, fates, strict=False):
        kind = Derived(entry.show(), "limit", (why,), derived.facts)
        keep.append(fate == "keep")
        note = "feasible: stays" if keep[-1] else "cannot run: goes"
        shown = entry.show()
        reports.append(
            SlotReport(slot.name, slot.line, shown, shown if keep[-1] else "", note, kind,
                       slot.end_line)
        )  # fmt: skip
    added = [(entry, why) for entry, fate, why in fates if fate == "add"]
    for number, (entry, why) in enumerate(added):
        kind = Derived(entry.show(), "heuristic", (*derived.steps, why), derived.facts)
        reports.append(
            SlotReport(f"configs[+{number}]", whole.end_line, "", entry.show(), "added", kind)
        )
    if all(keep) and not added:
        return reports, None
    payload = (tuple(keep), tuple(entry for entry, _ in added))
    edit = Edit(0, whole.start, whole.end, "entries", "", whole.segment, payload)
    return reports, edit


# From edits to bytes --------------------------------------------------------------------------


def _without_overlaps(
    rows: list[SiteReport], edits: list[tuple[str, str, Edit]]
) -> tuple[list[SiteReport], list[tuple[str, str, Edit]]]:
    """Two rules that would change the same text are both refused, each by the other's name."""
    clashes: dict[str, str] = {}
    for number, (rule, file, edit) in enumerate(edits):
        for other, other_file, against in edits[number + 1 :]:
            if file == other_file and rule != other and edit.start < against.end and (
                against.start < edit.end
            ):
                clashes[rule], clashes[other] = other, rule
    out = [
        replace(
            row,
            state="unrewritable",
            reason=f"overlaps with the rule {clashes[row.rule]}: both would change {row.file}:{row.line}",
            code=3,
        )
        if row.rule in clashes
        else row
        for row in rows
    ]
    return out, [edit for edit in edits if edit[0] not in clashes]


def _declined(
    row: SiteReport, edits: list[tuple[str, str, Edit]], options: Options
) -> SiteReport:
    own = [edit for rule, _, edit in edits if rule == row.rule]
    if own and all((row.rule, edit.start) in options.declined for edit in own):
        return replace(row, state="skipped", reason="declined by the user")
    return row


def _rewrite(
    rows: list[SiteReport],
    edits: list[tuple[str, str, Edit]],
    reading: _Reading,
    pack: Pack,
    options: Options,
) -> tuple[list[Change], list[SiteReport]]:
    """The changed files. Where one fails, its sites' rows say why and nothing of it stands."""
    changes = []
    for file in sorted({file for _, file, _ in edits}):
        group = [(rule, edit) for rule, of, edit in edits if of == file]
        try:
            changes.append(_change(reading.source(file), group, reading, pack, options))
        except MuhmodError as error:
            failed = {rule for rule, _ in group}
            rows = [
                replace(row, state="unrewritable", reason=error.message, code=error.code)
                if row.rule in failed
                else row
                for row in rows
            ]
    return changes, rows


def _change(
    source: _Source,
    group: list[tuple[str, Edit]],
    reading: _Reading,
    pack: Pack,
    options: Options,
) -> Change:
    """One file's change, re-parsed and planned a second time before it is offered."""
    from muhmod import rewrite

    names = {id(edit): rule for rule, edit in group}
    splices = rewrite.rewrite(source.text.text, [edit for _, edit in group])
    text = rewrite.spliced(source.text.text, splices)
    after = _Source(source.file, b"", source.text, Module(text))
    _second_pass(after, {rule for rule, _ in group}, reading, pack, options)
    try:
        data = source.text.encode(text)
    except UnicodeEncodeError as error:
        raise FileError(f"{source.file}: {error}") from None
    shift = 0
    records = []
    for splice in splices:
        old = source.text.text[splice.start : splice.end]
        at = splice.start + shift
        shift += len(splice.new) - len(old)
        head, tail = _context(text, at, at + len(splice.new))
        slot = f"{splice.edit.slot}"
        records.append((names[id(splice.edit)], lock.Splice(slot, at, old, splice.new, head, tail)))
    return Change(source.file, source.data, data, tuple(records))


def _second_pass(
    after: _Source, rules: set[str], reading: _Reading, pack: Pack, options: Options
) -> None:
    """Planned again, the new text must leave nothing to do (but what the user declined)."""
    if options.declined:
        return
    for rule in pack.rules:
        if rule.name not in rules:
            continue
        search = _Search()
        for found in catalog.site(rule.site).find(after.module):
            if _binds(rule, found, after.module) or (rule.remove and found.scope == rule.scope):
                search.bound.append((after, replace(found, file=after.file)))
        results = [_decide(rule, after, found, reading, pack) for _, found in search.bound]
        if not results or any(edits or row.code for row, edits in results):
            raise RefusedError(f"{rule.name}: a second run would change {after.file} again")


def _context(text: str, start: int, end: int) -> tuple[str, str]:
    """What stands around a splice: from the line before it to the line after it."""
    first = text.rfind("\n", 0, max(0, text.rfind("\n", 0, start))) + 1
    last = text.find("\n", text.find("\n", end) + 1)
    return text[first:start], text[end : last + 1 if last >= 0 else len(text)]


# Writing --------------------------------------------------------------------------------------


def apply(made: Plan, lock_path: Path | None, *, allow_dirty: bool = False) -> Plan:
    """Write the plan's files and the lock, all or none, then read them back.

    The caller holds the tree (`journal.held`). Rows become `applied` only by what was read.
    Raises MuhmodError, after which the tree is as before.
    """
    if not made.changes:
        return made
    path = lock_path or made.tree.home / lock.NAME
    known = lock.load(path, made.tree.name)
    if not allow_dirty:
        _refuse_dirty(made.tree, {c.file: c.before for c in made.changes}, known)
    new = _locked(made, known)
    writes = [
        journal.Write(_real(made.tree, c.file), journal.digest(c.before), c.after)
        for c in made.changes
    ]
    writes.append(_write_of(path, new.dump()))
    journal.write(made.tree, writes)
    return _read_back(made)


def _write_of(path: Path, data: bytes | None) -> journal.Write:
    before = journal.digest(path.read_bytes()) if path.exists() else ""
    return journal.Write(path, before, data)


def _real(of: Tree, file: str) -> Path:
    return of.package / file


def _locked(made: Plan, known: lock.Lock | None) -> lock.Lock:
    rows = {row.rule: row for row in made.sites}
    old = list(known.entries) if known else []
    new = []
    for change in made.changes:
        before, after = journal.digest(change.before), journal.digest(change.after)
        old = [_moved(entry, change, before, after) for entry in old]
        for rule in dict.fromkeys(rule for rule, _ in change.splices):
            splices = tuple(splice for name, splice in change.splices if name == rule)
            row = rows[rule]
            new.append(
                lock.Entry(row.site, row.file, row.scope, row.form, before, after, splices)
            )
    return lock.Lock(made.tree.name, made.pack.name, made.pack.digest, lock.merge(old, new))


def _moved(entry: lock.Entry, change: Change, before: str, after: str) -> lock.Entry:
    """An earlier entry of a file that is written again: its splices move with the new ones."""
    if entry.file != change.file or entry.after != before:
        return entry
    shift_at = []
    shift = 0
    for _, splice in change.splices:
        shift_at.append((splice.at - shift, len(splice.new) - len(splice.old)))
        shift += len(splice.new) - len(splice.old)

    def moved(splice: lock.Splice) -> lock.Splice:
        return replace(splice, at=splice.at + sum(d for at, d in shift_at if at < splice.at))

    return replace(entry, after=after, splices=tuple(moved(s) for s in entry.splices))


def _read_back(made: Plan) -> Plan:
    for change in made.changes:
        if tree.read(made.tree, change.file) != change.after:
            raise FileError(
                f"{change.file} does not hold what was written", "something else writes to it"
            )
    written = {rule for change in made.changes for rule, _ in change.splices}
    rows = tuple(
        replace(row, state="applied") if row.rule in written and row.state == "pending" else row
        for row in made.sites
    )
    return replace(made, sites=rows)


def _refuse_dirty(of: Tree, files: Mapping[str, bytes], known: lock.Lock | None) -> None:
    """Uncommitted changes in a file to be written, unless they are muhmod's own."""
    if not (of.root / ".git").exists():
        return
    own = {entry.file for entry in known.entries if known} if known else set()
    ours = {
        file
        for file, data in files.items()
        if file in own
        and any(e.after == journal.digest(data) for e in (known.of_file(file) if known else ()))
    }
    names = [of.shown(file) for file in files if file not in ours]
    if not names:
        return
    try:
        result = subprocess.run(
            ["git", "-C", str(of.root), "status", "--porcelain", "-z", "-uall", "--", *names],
            capture_output=True,
            check=False,
        )
    except OSError:
        result = None
    if result is None or result.returncode:
        raise RefusedError(
            "git cannot say whether the files to be written have uncommitted changes",
            "mend git, or give --allow-dirty",
        )
    dirty = [os.fsdecode(row[3:]) for row in result.stdout.split(b"\0") if row]
    if dirty:
        raise RefusedError(
            f"uncommitted changes in {', '.join(sorted(dirty))}",
            "commit or stash them, or give --allow-dirty",
        )


# Revert ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reverting:
    """What a revert would write: files with old and new bytes, rows, and the lock that stays."""

    tree: Tree
    sites: tuple[SiteReport, ...]
    files: tuple[tuple[str, bytes, bytes], ...]
    rest: lock.Lock
    lock_path: Path

    @property
    def code(self) -> int:
        """The exit code of all refusals."""
        return max((row.code for row in self.sites), default=0)


def plan_revert(of: Tree, lock_path: Path | None, options: Options = Options()) -> Reverting:  # noqa: B008
    """The inverse of what the lock says, on the tree as it is now. Raises MuhmodError."""
    path = lock_path or of.home / lock.NAME
    known = lock.load(path, of.name)
    if known is None:
        raise RefusedError(f"there is no {path.name} beside {of.name}/: nothing to revert")
    sites = {entry.site for entry in known.entries}
    for name in (*options.select, *options.ignore):
        if name not in sites:
            raise UsageError(f"{path.name} has no site {name!r}{nearest(name, sites)}")
    chosen = [
        e
        for e in known.entries
        if (not options.select or e.site in options.select) and e.site not in options.ignore
    ]
    rows: list[SiteReport] = []
    files = []
    for file in sorted({entry.file for entry in chosen}):
        group = [entry for entry in chosen if entry.file == file]
        try:
            data, back, found = _reverted(of, file, group)
        except MuhmodError as error:
            rows += [_revert_row(e, "drifted", error.message, error.code) for e in group]
            continue
        files.append((file, data, back))
        rows += [_revert_row(e, "pending", "", 0, line) for e, line in zip(group, found, strict=True)]
    rest = replace(known, entries=tuple(e for e in known.entries if e not in chosen))
    rest = _kept_offsets(rest, chosen, files)
    rows.sort(key=lambda row: (row.site, row.file))
    return Reverting(of, tuple(rows), tuple(files), rest, path)


def _revert_row(entry: lock.Entry, state: State, reason: str, code: int, line: int = 0) -> SiteReport:
    slots = tuple(SlotReport(s.slot, line, s.new.strip(), s.old.strip()) for s in entry.splices)
    return SiteReport(
        entry.site, state, entry.file, entry.scope, line, line, entry.form, reason, entry.site, code,
        slots if len(slots) < 4 and all("\n" not in s.old for s in slots) else (),
    )  # fmt: skip


def _reverted(
    of: Tree, file: str, entries: list[lock.Entry]
) -> tuple[bytes, bytes, list[int]]:
    data = tree.read(of, file)
    text = tree.decode(data, file)
    exact = journal.digest(data)
    module = Module(text.text)
    spans: list[tuple[int, lock.Splice]] = []
    lines = []
    for entry in entries:
        places = []
        for splice in entry.splices:
            at = splice.at if exact == entry.after else _find_again(module, entry, splice)
            if text.text[at : at + len(splice.new)] != splice.new:
                raise RefusedError(f"{entry.site} was edited since it was written: {file}")
            places.append((at, splice))
        spans += places
        lines.append(module.line_of(places[0][0]) if places else 1)
    back = text.text
    for at, splice in sorted(spans, key=lambda s: -s[0]):
        back = back[:at] + splice.old + back[at + len(splice.new) :]
    Module(back)
    return data, text.encode(back), lines


def _find_again(module: Module, entry: lock.Entry, splice: lock.Splice) -> int:
    """Where the splice stands in a file that changed elsewhere: its surroundings, exactly once."""
    wanted = splice.head + splice.new + splice.tail
    first = module.text.find(wanted)
    if first < 0 or module.text.find(wanted, first + 1) >= 0:
        raise RefusedError(
            f"{entry.site} was edited since it was written: {entry.file}",
            "take the file back from version control, or undo that edit",
        )
    return first + len(splice.head)


def _kept_offsets(
    rest: lock.Lock, chosen: Iterable[lock.Entry], files: Iterable[tuple[str, bytes, bytes]]
) -> lock.Lock:
    """Entries that stay in a file that a partial revert writes: their splices move with it."""
    after = {file: journal.digest(back) for file, _, back in files}
    undone = [(e.file, s) for e in chosen for s in e.splices]

    def moved(entry: lock.Entry) -> lock.Entry:
        if entry.file not in after:
            return entry
        splices = tuple(
            replace(
                splice,
                at=splice.at
                + sum(
                    len(s.old) - len(s.new)
                    for file, s in undone
                    if file == entry.file and s.at < splice.at
                ),
            )
            for splice in entry.splices
        )
        return replace(entry, after=after[entry.file], splices=splices)

    return replace(rest, entries=tuple(moved(entry) for entry in rest.entries))


def revert(made: Reverting, *, allow_dirty: bool = False) -> Reverting:
    """Write a revert, all or none. The caller holds the tree. Raises MuhmodError."""
    if not allow_dirty:
        known = lock.load(made.lock_path, made.tree.name)
        _refuse_dirty(made.tree, {file: data for file, data, _ in made.files}, known)
    writes = [
        journal.Write(_real(made.tree, file), journal.digest(data), back)
        for file, data, back in made.files
    ]
    writes.append(_write_of(made.lock_path, made.rest.dump() if made.rest.entries else None))
    journal.write(made.tree, writes)
    for file, _, back in made.files:
        if tree.read(made.tree, file) != back:
            raise FileError(f"{file} does not hold what was written")
    rows = tuple(
        replace(row, state="applied") if row.state == "pending" else row for row in made.sites
    )
    return replace(made, sites=rows)


# Sites ----------------------------------------------------------------------------------------


def sites(
    of: Tree, select: tuple[str, ...] = (), *, everything: bool = False
) -> tuple[list[Found], list[FileError]]:
    """Every tuning site of the tree, by file and line, and the files that could not be read."""
    chosen = [catalog.check(name) for name in select] or list(catalog.names())
    kinds = [catalog.site(name) for name in chosen]
    found: list[Found] = []
    faults: list[FileError] = []
    files, _ = tree.files(of, everything=everything)
    for file in files:
        try:
            data = tree.read(of, file)
            wanted = [kind for kind in kinds if kind.wanted(data)]
            if not wanted or (tree.is_generated(data) and not everything):
                continue
            module = _parse(of, file, data).module
        except FileError as error:
            faults.append(error)
            continue
        for kind in wanted:
            found += [replace(f, file=file) for f in kind.find(module)]
    return sorted(found, key=lambda f: (f.file, f.line, f.site, f.scope)), faults
