"""Apply and revert: a plan's bytes onto the disk, all or none, and read back.

The caller holds the tree (`journal.held`). Never asks, never prints.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from muhmod import journal, lock, record, tree
from muhmod.engine import Change, Options, Plan
from muhmod.errors import FileError, MuhmodError, RefusedError, UsageError, nearest
from muhmod.model import SiteReport, SlotReport, State
from muhmod.site import Module
from muhmod.tree import Tree


def apply(
    made: list[Plan], lock_path: Path | None, *, allow_dirty: bool = False, allow_staged: bool = False
) -> list[Plan]:
    """Write the plans' files and locks, all or none, then read them back.

    The caller holds the trees (`journal.held`). Rows become `applied` only by what was read.
    Raises MuhmodError, after which the trees are as before.
    """
    changing = [plan for plan in made if plan.changes or _is_answered(plan, lock_path)]
    if not changing:
        return made
    locks = [lock.beside(plan.tree.home, lock_path) for plan in changing]
    if len({*locks}) < len(locks):
        raise UsageError(
            f"two trees would share {locks[0].name}", "run muhmod once for each, with a --lock FILE each"
        )
    writes: list[journal.Write] = []
    for plan, path in zip(changing, locks, strict=True):
        if not allow_dirty:
            files = {change.file: change.before for change in plan.changes}
            _refuse_dirty(plan.tree, files, plan.known, allow_staged=allow_staged)
        writes += [_write_of_change(plan.tree, change) for change in plan.changes]
        writes.append(
            _write_of(path, record.locked(plan, lock.name_of(plan.tree.package, path), path).dump())
        )
    journal.write(changing[0].tree, writes)
    return [_read_back(plan) for plan in made]


def _is_answered(made: Plan, lock_path: Path | None) -> bool:
    """Whether an answer of the user's changed the lock that the plan was made with."""
    path = lock.beside(made.tree.home, lock_path)
    return made.known is not None and made.known != lock.load(path, lock.name_of(made.tree.package, path))


def _write_of_change(of: Tree, change: Change) -> journal.Write:
    return journal.Write(of.package / change.file, journal.digest(change.before), change.after)


def _write_of(path: Path, data: bytes | None) -> journal.Write:
    if path.is_symlink() and not path.exists():
        raise RefusedError(f"{path.name} is a link that leads nowhere", "mend it, or remove it")
    before = journal.digest(path.read_bytes()) if path.exists() else ""
    return journal.Write(path, before, data)


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


def _refuse_dirty(
    of: Tree, files: Mapping[str, bytes], known: lock.Lock | None, *, allow_staged: bool
) -> None:
    """Uncommitted changes in a file to be written, unless they are muhmod's own.

    `allow_staged`: those that git's index holds whole may be written over, `git restore` brings them back.
    """
    if not (of.root / ".git").exists():
        return
    own = {entry.file for entry in known.entries if entry.written} if known else set()
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
                "--no-renames",
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
    # XY PATH: X is what the index holds beyond the commit, Y what the file holds beyond the index.
    rows = [row for row in result.stdout.split(b"\0") if row]
    staged = all(row[1:2] == b" " for row in rows)
    if rows and not (allow_staged and staged):
        raise RefusedError(
            f"uncommitted changes in {', '.join(sorted(os.fsdecode(row[3:]) for row in rows))}",
            f"commit or stash them, or give --allow-{'staged' if staged else 'dirty'}",
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
    path = lock.beside(of.home, lock_path)
    known = lock.load(path, lock.name_of(of.package, path))
    if known is None:
        raise RefusedError(f"there is no {path.name} beside {of.name}/: nothing to revert")
    names = {name for entry in known.entries for name in (entry.rule, entry.site)}
    for name in (*options.select, *options.ignore):
        if name not in names:
            raise UsageError(f"{path.name} has no site {name!r}{nearest(name, names)}")
    chosen = [entry for entry in known.entries if entry.written and _chosen(entry, options)]
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
    if known.pinned or any(entry.written for entry in rest):
        rest += [_taken_back(entry) for entry in chosen]
    else:
        rest = []
    # What the states rested on is no more: the next look finds them again.
    stay = known._replace(entries=tuple(rest), stamp=lock.Stamp(), advice=())
    return Reverting(of, tuple(rows), tuple(files), stay, path)


def _chosen(entry: lock.Entry, options: Options) -> bool:
    names = {entry.rule, entry.site}
    return (not options.select or bool(names & {*options.select})) and not names & {*options.ignore}


def _taken_back(entry: lock.Entry) -> lock.Entry:
    """The entry of a site that is as it was pinned, with nothing written."""
    slots = tuple(slot._replace(ours=slot.base) for slot in entry.slots)
    return entry._replace(splices=(), slots=slots, after=entry.before, state="pending")


def _revert_row(entry: lock.Entry, state: State, reason: str, code: int, line: int = 0) -> SiteReport:
    slots = tuple(_undone(splice, line) for splice in entry.splices)
    return SiteReport(
        entry.site, state, entry.file, entry.scope, line, line, entry.form, reason, entry.rule, code,
        slots if len(slots) < 4 and all("\n" not in s.old for s in slots) else (),
    )  # fmt: skip


def _undone(splice: lock.Splice, line: int) -> SlotReport:
    name = splice.slot.partition("#")[0]
    key, _, value = splice.new.rpartition(name)
    if key:
        # The whole item goes: `, 'num_warps': 4`.
        return SlotReport(name, line, value.strip("'\":= ,"), "")
    return SlotReport(name, line, splice.new.strip(), splice.old.strip())


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
    places = [s.at for s in entry.splices] if exact == entry.after else record.anchors(module, entry)
    for at, splice in zip(places, entry.splices, strict=True):
        if module.text[at : at + len(splice.new)] != splice.new:
            raise RefusedError(f"{entry.rule} was edited since it was written: {entry.file}")
    return [*zip(places, entry.splices, strict=True)]


def revert(made: Reverting, *, allow_dirty: bool = False, allow_staged: bool = False) -> Reverting:
    """Write a revert, all or none. The caller holds the tree. Raises MuhmodError."""
    if not allow_dirty:
        known = lock.load(made.lock_path, lock.name_of(made.tree.package, made.lock_path))
        files = {file: data for file, data, _ in made.files}
        _refuse_dirty(made.tree, files, known, allow_staged=allow_staged)
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


# The lock alone --------------------------------------------------------------------------------


def save(made: Plan, path: Path, new: lock.Lock) -> None:
    """Write a lock, and no file of the tree. The caller holds the tree. Raises MuhmodError."""
    journal.write(made.tree, [_write_of(path, new.dump())])
