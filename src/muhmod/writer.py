"""Apply and revert: a plan's bytes onto the disk, all or none, and read back.

The caller holds the tree (`journal.held`). Never asks, never prints.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from muhmod import journal, lock, tree
from muhmod.engine import Change, Options, Plan
from muhmod.errors import FileError, MuhmodError, RefusedError, UsageError, nearest
from muhmod.model import SiteReport, SlotReport, State
from muhmod.site import Module
from muhmod.tree import Tree


def apply(made: list[Plan], lock_path: Path | None, *, allow_dirty: bool = False) -> list[Plan]:
    """Write the plans' files and locks, all or none, then read them back.

    The caller holds the trees (`journal.held`). Rows become `applied` only by what was read.
    Raises MuhmodError, after which the trees are as before.
    """
    changing = [plan for plan in made if plan.changes]
    if not changing:
        return made
    locks = [_lock_of(plan.tree, lock_path) for plan in changing]
    if len({*locks}) < len(locks):
        raise UsageError(
            f"two trees would share {locks[0].name}", "run muhmod once for each, with a --lock FILE each"
        )
    writes: list[journal.Write] = []
    for plan, path in zip(changing, locks, strict=True):
        known = lock.load(path, _tree_of(plan.tree, path))
        if not allow_dirty:
            _refuse_dirty(plan.tree, {c.file: c.before for c in plan.changes}, known)
        writes += [_write_of_change(plan.tree, change) for change in plan.changes]
        writes.append(_write_of(path, _locked(plan, known, _tree_of(plan.tree, path)).dump()))
    journal.write(changing[0].tree, writes)
    return [_read_back(plan) for plan in made]


def _lock_of(of: Tree, lock_path: Path | None) -> Path:
    return lock_path.absolute() if lock_path else of.home / lock.NAME


def _tree_of(of: Tree, path: Path) -> str:
    """What the lock at that path calls the tree: its place from there."""
    return Path(os.path.relpath(of.package, path.parent)).as_posix()


def _write_of_change(of: Tree, change: Change) -> journal.Write:
    return journal.Write(of.package / change.file, journal.digest(change.before), change.after)


def _write_of(path: Path, data: bytes | None) -> journal.Write:
    before = journal.digest(path.read_bytes()) if path.exists() else ""
    return journal.Write(path, before, data)


def _locked(made: Plan, known: lock.Lock | None, name: str) -> lock.Lock:
    """The lock after the plan: earlier entries moved along, new splices chained onto theirs."""
    rows = {row.rule: row for row in made.sites}
    entries = {(e.site, e.file, e.scope): e for e in (known.entries if known else ())}
    for change in made.changes:
        before, after = journal.digest(change.before), journal.digest(change.after)
        held = [e for e in entries.values() if e.file == change.file]
        for entry in held:
            del entries[entry.site, entry.file, entry.scope]
        held = [_current(made.tree, entry, change, before) for entry in held if entry.before != before]
        chained: set[int] = set()
        for entry in held:
            splices = tuple(_moved(splice, entry, change, chained) for splice in entry.splices)
            entry = entry._replace(after=after, splices=splices)
            entries[entry.site, entry.file, entry.scope] = entry
        for rule in dict.fromkeys(rule for rule, _ in change.splices):
            fresh = [s for n, (name, s) in enumerate(change.splices) if name == rule and n not in chained]
            row = rows[rule]
            key = (row.site, change.file, row.scope)
            first = entries.get(key)
            old = first.splices if first else ()
            start = first.before if first else before
            splices = tuple(sorted((*old, *fresh), key=lambda s: s.at))
            entries[key] = lock.Entry(row.site, change.file, row.scope, row.form, start, after, splices)
    digest = journal.digest(made.pack.text.encode())[:16]
    return lock.Lock(name, made.pack.name, digest, tuple(entries.values()))


def _current(of: Tree, entry: lock.Entry, change: Change, before: str) -> lock.Entry:
    """An earlier entry on the file as it is now. Raises RefusedError where its places are gone."""
    if entry.after == before:
        return entry
    module = Module(tree.decode(change.before, change.file).text)
    try:
        places = [(s, _find_again(module, entry, s)) for s in entry.splices]
    except RefusedError as error:
        raise RefusedError(
            error.message,
            f"undo that edit, or remove the {entry.site} line of {lock.NAME} to go on without a way back",
        ) from None
    return entry._replace(splices=tuple(s._replace(at=at) for s, at in places))


def _moved(splice: lock.Splice, entry: lock.Entry, change: Change, chained: set[int]) -> lock.Splice:
    """An earlier splice in the new text: moved by what changed before it, or chained where it changed."""
    passed = shift = 0
    for number, (_, new) in enumerate(change.splices):
        start = new.at - passed
        passed += len(new.new) - len(new.old)
        if start == splice.at and new.old == splice.new:
            chained.add(number)
            return new._replace(old=splice.old)
        if start < splice.at + len(splice.new) and splice.at < start + len(new.old):
            raise RefusedError(
                f"{entry.site} of {entry.file} would be written in part over an earlier change",
                "run `muhmod revert` first",
            )
        if start < splice.at:
            shift = passed
    return splice._replace(at=splice.at + shift)


def _read_back(made: Plan) -> Plan:
    for change in made.changes:
        if tree.read(made.tree, change.file) != change.after:
            raise FileError(f"{change.file} does not hold what was written", "something else writes to it")
    written = {rule for change in made.changes for rule, _ in change.splices}
    rows = tuple(
        row._replace(state="applied") if row.rule in written and row.state == "pending" else row
        for row in made.sites
    )
    return made._replace(sites=rows)


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
    import subprocess

    try:
        result = subprocess.run(
            [
                "git",
                "--literal-pathspecs",
                "-C",
                str(of.root),
                "status",
                "--porcelain",
                "-z",
                "-uall",
                "--",
                *names,
            ],
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


class Reverting(NamedTuple):
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
    path = _lock_of(of, lock_path)
    known = lock.load(path, _tree_of(of, path))
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
    files: list[tuple[str, bytes, bytes]] = []
    rest = [entry for entry in known.entries if entry not in chosen]
    for file in sorted({entry.file for entry in chosen}):
        group = [entry for entry in chosen if entry.file == file]
        staying = [entry for entry in rest if entry.file == file]
        try:
            data, back, lines, moved = _reverted(of, file, group, staying)
        except MuhmodError as error:
            rows += [_revert_row(e, "drifted", error.message, error.code) for e in group]
            continue
        rest = [entry for entry in rest if entry not in staying] + moved
        if data != back:
            files.append((file, data, back))
        state: State = "pending" if data != back else "already"
        why = "" if data != back else "the file is as it was before it was written"
        rows += [_revert_row(e, state, why, 0, line) for e, line in zip(group, lines, strict=True)]
    rows.sort(key=lambda row: (row.site, row.file))
    return Reverting(of, tuple(rows), tuple(files), known._replace(entries=tuple(rest)), path)


def _revert_row(entry: lock.Entry, state: State, reason: str, code: int, line: int = 0) -> SiteReport:
    slots = tuple(
        SlotReport(s.slot.partition("#")[0], line, s.new.strip(), s.old.strip()) for s in entry.splices
    )
    return SiteReport(
        entry.site, state, entry.file, entry.scope, line, line, entry.form, reason, entry.site, code,
        slots if len(slots) < 4 and all("\n" not in s.old for s in slots) else (),
    )  # fmt: skip


def _reverted(
    of: Tree, file: str, entries: list[lock.Entry], staying: list[lock.Entry]
) -> tuple[bytes, bytes, list[int], list[lock.Entry]]:
    """Old bytes, new bytes, the line of each entry, and the entries that stay, moved along."""
    data = tree.read(of, file)
    text = tree.decode(data, file)
    exact = journal.digest(data)
    if all(entry.before == exact for entry in entries):
        return data, data, [1] * len(entries), []
    module = Module(text.text)
    places = [_places(module, entry, exact) for entry in entries]
    undone = sorted((at, splice) for row in places for at, splice in row)
    back = text.text
    for at, splice in reversed(undone):
        back = back[:at] + splice.old + back[at + len(splice.new) :]
    Module(back)
    after = text.encode(back)
    moved = []
    for entry in staying:
        splices = tuple(
            splice._replace(at=at + sum(len(s.old) - len(s.new) for before, s in undone if before < at))
            for at, splice in _places(module, entry, exact)
        )
        moved.append(entry._replace(after=journal.digest(after), splices=splices))
    lines = [module.line_of(row[0][0]) if row else 1 for row in places]
    return data, after, lines, moved


def _places(module: Module, entry: lock.Entry, exact: str) -> list[tuple[int, lock.Splice]]:
    """Where an entry's splices stand now. Raises RefusedError where one was edited."""
    found = []
    for splice in entry.splices:
        at = splice.at if exact == entry.after else _find_again(module, entry, splice)
        if module.text[at : at + len(splice.new)] != splice.new:
            raise RefusedError(f"{entry.site} was edited since it was written: {entry.file}")
        found.append((at, splice))
    return found


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


def revert(made: Reverting, *, allow_dirty: bool = False) -> Reverting:
    """Write a revert, all or none. The caller holds the tree. Raises MuhmodError."""
    if not allow_dirty:
        known = lock.load(made.lock_path, _tree_of(made.tree, made.lock_path))
        _refuse_dirty(made.tree, {file: data for file, data, _ in made.files}, known)
    writes = [
        journal.Write(made.tree.package / file, journal.digest(data), back) for file, data, back in made.files
    ]
    writes.append(_write_of(made.lock_path, made.rest.dump() if made.rest.entries else None))
    journal.write(made.tree, writes)
    for file, _, back in made.files:
        if tree.read(made.tree, file) != back:
            raise FileError(f"{file} does not hold what was written")
    rows = tuple(row._replace(state="applied") if row.state == "pending" else row for row in made.sites)
    return made._replace(sites=rows)
