"""Plan, apply, revert: never asks, never prints, never exits.

`plan` reads and decides; `apply` writes a plan and reads it back. The flow goes one way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from muhmod import catalog, derive, guards, lock, tree
from muhmod.derive.arms import holds, possible
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
)
from muhmod.rulebook import Pack, Rule, natural_derivation
from muhmod.site import MODULE_SCOPE, Definition, Module, dotted
from muhmod.tree import Text, Tree

_MOST_CANDIDATES = 3
_Result = TypeVar("_Result")


class Options(NamedTuple):
    """What narrows a plan. `declined`: (rule, slot start) of edits that the user said no to."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    declined: frozenset[tuple[str, int]] = frozenset()


class Change(NamedTuple):
    """A file's old and new bytes, and the splices by rule name, over the new text."""

    file: str
    before: bytes
    after: bytes
    splices: tuple[tuple[str, lock.Splice], ...]


class Plan(NamedTuple):
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


class _Source(NamedTuple):
    """A file in reach: its bytes, text and module, parsed once."""

    file: str
    data: bytes
    text: Text
    module: Module


class _Reading:
    """All files of a tree, read once; parsed only where wanted."""

    def __init__(self, of: Tree, packages: tuple[str, ...]) -> None:
        self.tree = of
        # The sources call the package by its own name, whatever its folder is called here.
        self.names = {of.name, *packages}
        self.files, self.outside = tree.files(of)
        self.sources: dict[str, _Source] = {}
        self.faults: dict[str, FileError] = {}

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
        if top not in self.names:
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
    reading = _Reading(of, pack.packages)
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
        edits += [(rule.name, file, edit) for file, edit in changes]
    if all(row.state in ("lost", "skipped", "absent") for row in rows) and of.name not in (pack.packages):
        raise UsageError(
            f"no site of {pack.name} is in {of.name}/, which is no {' or '.join(pack.packages)}",
            "give the package folder of the tree that the pack is for",
        )
    rows, edits = _without_overlaps(rows, edits)
    wanted = [e for e in edits if (e[0], e[2].start) not in options.declined]
    rows = [_declined(row, edits, options) for row in rows]
    changes_, rows = _rewrite(rows, wanted, reading, pack, options)
    notes = [f"{file} is a link out of the tree and was not read" for file in reading.outside]
    notes += [note for source in reading.sources.values() for note in _bad_suppressions(source)]
    return Plan(of, pack, tuple(rows), tuple(changes_), tuple(wanted), tuple(notes))


def _bad_suppressions(source: _Source) -> list[str]:
    """Suppression comments that do nothing, and why."""
    notes = []
    for line, (sites, reason) in source.module.suppressions().items():
        place = f"{source.file}:{line}: the suppression"
        for name in sites:
            if name not in catalog.names():
                notes.append(f"{place} names no site: {name!r}{nearest(name, catalog.names())}")
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


class _Search:
    """What one rule found: bound places, look-alikes, and files that could not be read."""

    def __init__(self) -> None:
        self.bound: list[tuple[_Source, Found]] = []
        self.others: list[tuple[_Source, Found]] = []
        self.faults: list[FileError] = []


def _search(reading: _Reading, rules: list[Rule]) -> dict[str, _Search]:
    """One pass over the bytes of all files; a file is parsed if a rule may bind in it."""
    found = {rule.name: _Search() for rule in rules}
    wanted = [(rule, _Needles(rule), catalog.site(rule.site)) for rule in rules]
    first = {rule.name: max([*needles.names, site.needle], key=len) for rule, needles, site in wanted}
    needles_ = tuple({*first.values()})
    for file in reading.files:
        try:
            data = tree.read(reading.tree, file)
        except FileError as error:
            for search in found.values():
                search.faults.append(error)
            continue
        # One cheap look for the longest name of each rule decides for nearly every file.
        held = {needle for needle in needles_ if needle in data}
        if held:
            for rule, needles, site in wanted:
                if first[rule.name] in held and site.wanted(data) and needles.match(data):
                    _look(file, data, rule, reading, found[rule.name])
    return found


class _Needles:
    """Bytes that a file must hold if a rule may bind in it: the names of its scope, being bound."""

    def __init__(self, rule: Rule) -> None:
        names = [] if rule.scope == MODULE_SCOPE else rule.scope.split(".")
        self.names = [name.encode() for name in (*names, rule.beside) if name]

    def match(self, data: bytes) -> bool:
        """Whether all names stand in the bytes where a definition or binding could be."""
        return all(_is_bound(name, data) for name in self.names)


def _is_bound(name: bytes, data: bytes) -> bool:
    """Whether `def name`, `class name`, `name =` or `name:` is anywhere, by its bytes."""
    at = data.find(name)
    while at >= 0:
        before, after = data[max(0, at - 80) : at], data[at + len(name) : at + len(name) + 80]
        if re.search(rb"\b(?:def|class)[\s\\]+$", before) or re.match(rb"\s*[:=]", after):
            return True
        at = data.find(name, at + 1)
    return False


def _look(file: str, data: bytes | None, rule: Rule, reading: _Reading, into: _Search) -> None:
    try:
        source = reading.source(file, data)
    except FileError as error:
        into.faults.append(error)
        return
    try:
        every = catalog.site(rule.site).find(source.module)
    except RecursionError:
        into.faults.append(_too_deep(file))
        return
    for found in every:
        found = found._replace(file=file)
        (into.bound if _binds(rule, found, source.module) else into.others).append((source, found))


def _too_deep(file: str) -> FileError:
    return FileError(f"{file} is nested too deeply to be followed", "--ignore the site, or flatten the code")


def _binds(rule: Rule, found: Found, module: Module) -> bool:
    names = {slot.name for slot in found.slots}
    return (
        found.scope == rule.scope
        and (not rule.slots or bool(names & set(rule.slots)) or bool(found.problem))
        and (not rule.beside or module.defines(rule.beside))
    )


def _decide_rule(
    rule: Rule, search: _Search, reading: _Reading, pack: Pack
) -> tuple[SiteReport, list[tuple[str, Edit]]]:
    """The row of one rule, and the edits where it binds once."""
    base = SiteReport(rule.site, "lost", rule=rule.name, scope=rule.scope)
    if search.faults:
        fault = search.faults[0]
        reason = f"{fault.message}; {fault.hint}" if fault.hint else fault.message
        return base._replace(state="unrewritable", reason=reason, code=fault.code), []
    if not search.bound:
        return _lost(base, rule, search, reading), []
    if len(search.bound) != rule.expect:
        places = ", ".join(f"{found.file}:{found.line}" for _, found in search.bound)
        reason = f"found {len(search.bound)} times, expected {rule.expect}: {places}"
        first = search.bound[0][1]
        return base._replace(state="ambiguous", reason=reason, code=3, file=first.file, line=first.line), []
    twice = _bound_twice(rule, search)
    if twice:
        first = search.bound[0][1]
        return base._replace(state="ambiguous", reason=twice, code=3, file=first.file, line=first.line), []
    decided = [(found.file, *_decide(rule, source, found, reading, pack)) for source, found in search.bound]
    edits = [(file, edit) for file, _, changes in decided for edit in changes]
    row = max((row for _, row, _ in decided), key=lambda row: (row.code, row.state == "pending"))
    if len(decided) > 1:
        row = row._replace(slots=tuple(slot for _, one, _ in decided for slot in one.slots))
    return row, edits


def _bound_twice(rule: Rule, search: _Search) -> str:
    """Why the place that was found may not be the one that Python uses; empty where it is.

    A second definition of the same path, or a rebinding of its name, may replace the first.
    """
    for source, found in search.bound:
        paths = [
            scope.node
            for scope in source.module.scopes()
            if scope.path == rule.scope and scope.node is not None and not _is_overload(scope.node)
        ]
        if len(paths) > max(1, len([f for _, f in search.bound if f.file == found.file])):
            lines = ", ".join(str(node.lineno) for node in paths)
            return f"{rule.scope} is defined {len(paths)} times in {found.file}: lines {lines}"
        line = source.module.rebinds(rule.scope.partition(".")[0]) if paths else 0
        if line:
            return f"{rule.scope} is bound again in {found.file}:{line}"
    return ""


def _is_overload(node: Definition) -> bool:
    return any(dotted(d).endswith("overload") for d in node.decorator_list)


def _lost(base: SiteReport, rule: Rule, search: _Search, reading: _Reading) -> SiteReport:
    if rule.when_absent == "ok":
        return base._replace(state="absent", reason="not in this tree, and the rule allows it")
    candidates = _nearest(rule, _everywhere(rule, search, reading)) or _namesakes(rule, reading)
    reason = f"no {rule.site} in {rule.scope}" + (f" beside {rule.beside}" if rule.beside else "")
    if reading.outside:
        reason += f"; not read, a link out of the tree: {', '.join(reading.outside)}"
    reason += f"; nearest: {candidates[0]}" if candidates else "; nothing like it is in the tree"
    return base._replace(reason=reason, code=3, candidates=tuple(candidates))


def _everywhere(rule: Rule, search: _Search, reading: _Reading) -> list[Found]:
    """The site wherever it stands, by its own needles and not by the rule's names."""
    wide = _Search()
    site = catalog.site(rule.site)
    for file in reading.files:
        if file not in reading.faults:
            data = tree.read(reading.tree, file)
            if site.wanted(data):
                _look(file, data, rule, reading, wide)
    return [found for _, found in wide.others]


def _nearest(rule: Rule, found: list[Found]) -> list[str]:
    from difflib import SequenceMatcher

    def score(one: Found) -> float:
        scope = SequenceMatcher(None, rule.scope, one.scope).ratio()
        names = {slot.name for slot in one.slots}
        return round((scope + bool(names & set(rule.slots)) + (not one.problem)) / 3, 2)

    ranked = sorted({(-score(f), f.file, f.line, f.scope) for f in found})
    return [_candidate(*row) for row in ranked[:_MOST_CANDIDATES]]


def _namesakes(rule: Rule, reading: _Reading) -> list[str]:
    """Definitions whose names are near the rule's, where the site itself is nowhere."""
    from difflib import SequenceMatcher

    wanted = rule.scope.rpartition(".")[2]
    ranked = set()
    for file in reading.files:
        data = tree.read(reading.tree, file)
        for match in re.finditer(rb"^[ \t]*(?:async\s+def|def|class)\s+(\w+)", data, re.MULTILINE):
            name = match[1].decode("utf-8", "replace")
            matcher = SequenceMatcher(None, wanted, name)
            if matcher.real_quick_ratio() > 0.7 and matcher.quick_ratio() > 0.7 and matcher.ratio() > 0.7:
                line = data.count(b"\n", 0, match.start(1)) + 1
                ranked.add((-round(matcher.ratio(), 2), file, line, name))
    return [_candidate(*row) for row in sorted(ranked)[:_MOST_CANDIDATES]]


def _candidate(points: float, file: str, line: int, scope: str) -> str:
    return f"{file}:{line} {scope} (score {-points:.2f})"


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
        return row._replace(state="skipped", reason=f"suppressed in the source: {suppressed}"), []
    if found.satisfied:
        return row._replace(state="satisfied-upstream", reason=found.satisfied), []
    if found.problem:
        return row._replace(state="unrewritable", reason=found.problem, code=3), []
    results = tuple(
        guards.evaluate(guard, found, source.module, reading.resolve, pack.modules, reading.tree.name)
        for guard in rule.guards
    )
    row = row._replace(guards=results)
    failed = [result for result in results if not result.holds]
    if failed:
        return _held(row, rule, failed[0]), []
    if rule.remove:
        return _removal(row, found)
    try:
        return _values(row, rule, found, pack)
    except DerivationError as error:
        reason = f"derivation refused: {error.message}" + (f"; {error.hint}" if error.hint else "")
        return row._replace(state="unrewritable", reason=reason, code=5), []


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
    slots = tuple(slot._replace(note="held by the guard") for slot in row.slots)
    reason = f"a guard is false, {guard.guard}: {guard.evidence}"
    return row._replace(state="held", reason=reason, code=0 if allowed else 3, slots=slots)


def _suppressed(rule: Rule, module: Module, found: Found) -> str | None:
    for line, (sites, reason) in module.suppressions().items():
        if {rule.site, rule.name} & {*sites} and found.line - 1 <= line <= found.end_line and reason:
            return reason
    return None


def _key(index: int, slot: Slot) -> str:
    """A slot's name within its site: the same on every run."""
    return f"{slot.name}#{index}"


def _removal(row: SiteReport, found: Found) -> tuple[SiteReport, list[Edit]]:
    slots, edits = [], []
    for index, slot in enumerate(found.slots):
        if slot.editable:
            why = Derived("", "heuristic", ("its guards hold, so the choice is left to the heuristic",))
            slots.append(_plain(slot, "")._replace(new="", note="removed", derived=why))
            edits.append(Edit(_key(index, slot), slot.start, slot.end, "remove", "", slot.segment))
        else:
            slots.append(_plain(slot))
    return row._replace(state="pending", slots=tuple(slots)), edits


def _values(row: SiteReport, rule: Rule, found: Found, pack: Pack) -> tuple[SiteReport, list[Edit]]:
    """Each slot that the rule sets, against its derived value."""
    missing = [name for name in rule.slots if all(slot.name != name for slot in found.slots)]
    if missing:
        held = ", ".join(sorted({slot.name for slot in found.slots}))
        reason = f"the slot {missing[0]} is not there; slots: {held}"
        return row._replace(state="drifted", reason=reason, code=3), []
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
    row = row._replace(slots=tuple(slots))
    unset = [name for name in rule.slots if name not in governed]
    if unset:
        notes = sorted({slot.note for slot in slots if slot.name == unset[0]})
        reason = f"{unset[0]} cannot be set: {'; '.join(notes)}"
        return row._replace(state="unrewritable", reason=reason, code=3), []
    return row._replace(state="pending" if edits else "already"), edits


def _value(index: int, slot: Slot, rule: Rule, pack: Pack) -> tuple[SlotReport, Edit | None, bool]:
    """The report and edit of a leaf; the flag says whether the rule sets it."""
    plain = _plain(slot)
    if not slot.live:
        return plain._replace(note="overwritten on every path: never read"), None, False
    if not any(possible(arrival, Work(pack.facts)) for arrival in slot.arrivals):
        work = Work(pack.facts)
        against = [
            [c.test for c in arrival.conditions if holds(c.test, work) not in (None, c.taken)]
            for arrival in slot.arrivals
        ]
        tests = [t for t in against[0] if all(t in other for other in against)] or against[0]
        note = f"an arm that this hardware does not take: {'; '.join(tests)}"
        return plain._replace(note=note), None, False
    if not slot.editable:
        return plain._replace(note=slot.reason), None, False
    others = [name for name in slot.also if name not in rule.slots]
    if others:
        return plain._replace(note=f"the same literal also sets {', '.join(others)}"), None, False
    setting = rule.slots[slot.name]
    ask = Ask(slot.arrivals, literal=setting.value, reason=setting.reason)
    derived = derive.run(setting.derive, pack.facts, ask)
    if derived.value == slot.value and type(derived.value) is type(slot.value):
        return plain._replace(note="holds the derived value", derived=derived), None, True
    new = derive.literal_of(derived.value)
    report = plain._replace(new=new, note="", derived=derived)
    return report, Edit(_key(index, slot), slot.start, slot.end, "replace", new, slot.segment), True


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
        reports.append(SlotReport(f"configs[+{number}]", whole.end_line, "", entry.show(), "added", kind))
    if all(keep) and not added:
        return reports, None
    payload = (tuple(keep), tuple(entry for entry, _ in added))
    edit = Edit(_key(0, whole), whole.start, whole.end, "entries", "", whole.segment, payload)
    return reports, edit


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
    numbers = {int(edit.name.rpartition("#")[2]) for edit in no}
    slots = tuple(
        slot._replace(new=slot.old, note="declined by the user", derived=None) if n in numbers else slot
        for n, slot in enumerate(row.slots)
    )
    return row._replace(slots=slots)


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
                row._replace(state="unrewritable", reason=error.message, code=error.code)
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
    _second_pass(source._replace(module=module), set(names.values()), reading, pack, options)
    return Change(source.file, source.data, data, tuple(records))


def _second_pass(after: _Source, rules: set[str], reading: _Reading, pack: Pack, options: Options) -> None:
    """Planned again, the new text must leave nothing to do (but what the user declined)."""
    if options.declined:
        return
    for rule in pack.rules:
        if rule.name not in rules:
            continue
        search = _Search()
        for found in catalog.site(rule.site).find(after.module):
            if _binds(rule, found, after.module) or (rule.remove and found.scope == rule.scope):
                search.bound.append((after, found._replace(file=after.file)))
        results = [_decide(rule, after, found, reading, pack) for _, found in search.bound]
        if not results or any(edits or row.code for row, edits in results):
            raise RefusedError(f"{rule.name}: a second run would change {after.file} again")


def _context(text: str, start: int, end: int) -> tuple[str, str]:
    """What stands around a splice: from the line before it to the line after it."""
    first = text.rfind("\n", 0, max(0, text.rfind("\n", 0, start))) + 1
    last = text.find("\n", text.find("\n", end) + 1)
    return text[first:start], text[end : last + 1 if last >= 0 else len(text)]


# Sites ----------------------------------------------------------------------------------------


def plan_all(trees: Sequence[Tree], pack: Pack, options: Options, jobs: int = 1) -> list[Plan]:
    """The plans of several trees, in order; with `jobs` worker processes."""
    return _mapped(plan, [(of, pack, options) for of in trees], jobs)


def _mapped(work: Callable[..., _Result], rows: list[tuple[object, ...]], jobs: int) -> list[_Result]:
    """`work(*row)` for each row, in order, in up to `jobs` processes."""
    if jobs == 1 or len(rows) == 1:
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
    parts = _mapped(_sites_of, [(of, chosen, everything, part) for part in slices], jobs)
    found = [row for rows, _ in parts for row in rows]
    faults = [fault for _, part in parts for fault in part]
    return sorted(found, key=lambda f: (f.file, f.line, f.site, f.scope)), sorted(faults, key=str)


def _sites_of(
    of: Tree, chosen: tuple[str, ...], everything: bool, files: list[str]
) -> tuple[list[Found], list[FileError]]:
    kinds = [catalog.site(name) for name in chosen]
    found: list[Found] = []
    faults: list[FileError] = []
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
        try:
            found += [f._replace(file=file) for kind in wanted for f in kind.find(module)]
        except RecursionError:
            faults.append(_too_deep(file))
    return found, faults
