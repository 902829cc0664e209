"""muhmod.lock: how each site was found and what was written there. The only module that knows its format.

One JSON line for the lock itself, one for each file that was read without holding a site, one for
each site; sorted, so that merges are readable. `muhmod relock` mends what a merge left behind.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from muhmod.errors import FileError, RefusedError

SCHEMA = "muhmod/lock/2"
NAME = "muhmod.lock"


class Splice(NamedTuple):
    """One change of a site: at char offset `at` of the new text, `new` stands where `old` stood.

    `head` and `tail` are what stands around it, to find it again where the file changed elsewhere.
    """

    slot: str
    at: int
    old: str
    new: str
    head: str
    tail: str


def around(splice: Splice, ours: str, start: int, end: int) -> tuple[int, int]:
    """Where a splice stands whose slot's literal is at start to end: that of an added key holds more.

    `ours`: the literal as it was written.
    """
    is_item = bool(ours) and splice.slot.partition("#")[0] in splice.new
    before, _, after = splice.new.rpartition(ours) if is_item else ("", "", "")
    return start - len(before), end + len(after)


class Pinned(NamedTuple):
    """A slot's text before muhmod wrote (`base`) and after (`ours`; equal where nothing was written).

    `kept`: `ours` is a value that a person accepted, so it is not derived anew.
    """

    name: str
    base: str
    ours: str
    kept: bool = False


class Entry(NamedTuple):
    """One site as it was pinned.

    `rule`, `digest`: the rule's name and a hash of what it says; `before`, `after`: sha256 of the file
    without and with what was written; `guards`, `body`: the site's fingerprint; `facts`: what the values
    rest on; `accepted`: the reason for which a person took this place or value; `conditions`: the rule's
    guards, and whether they held.
    """

    rule: str
    site: str
    file: str
    scope: str
    line: int
    form: str
    state: str
    reason: str
    digest: str
    before: str
    after: str
    slots: tuple[Pinned, ...] = ()
    guards: tuple[tuple[str, ...], ...] = ()
    body: tuple[str, ...] = ()
    facts: tuple[tuple[str, Any], ...] = ()
    splices: tuple[Splice, ...] = ()
    accepted: str = ""
    conditions: tuple[tuple[str, bool], ...] = ()

    @property
    def written(self) -> bool:
        """Whether muhmod changed this site."""
        return bool(self.splices)


class Stamp(NamedTuple):
    """What the states in a lock rest on beside the sites' own files: where it is the same, so are they.

    `inputs`: sha256 by name of the pack, the facts and the codemods; `needles`: names one of which any
    file must hold to matter; `listing`: sha256 of the names of all files; `seen`: sha256 of each file
    that held a needle or was read for a guard, or what stands where a guard looked for a file.
    """

    version: str = ""
    inputs: tuple[tuple[str, str], ...] = ()
    needles: tuple[str, ...] = ()
    listing: str = ""
    seen: tuple[tuple[str, str], ...] = ()


class Lock(NamedTuple):
    """The lock of one tree under one pack.

    `upstream`: the tree's own version, where it states one; `pinned`: made by `muhmod pin`, so that it
    stays when all that was written is taken back.
    """

    tree: str
    rules: str
    digest: str
    entries: tuple[Entry, ...] = ()
    upstream: str = ""
    stamp: Stamp = Stamp()
    advice: tuple[str, ...] = ()
    pinned: bool = False

    def of_file(self, file: str) -> tuple[Entry, ...]:
        """The entries of one file."""
        return tuple(entry for entry in self.entries if entry.file == file)

    def of_rule(self, rule: str) -> tuple[Entry, ...]:
        """The entries of one rule."""
        return tuple(entry for entry in self.entries if entry.rule == rule)

    def dump(self) -> bytes:
        """The lock's bytes."""
        import json

        head: dict[str, Any] = {"schema": SCHEMA, "tree": self.tree, "rules": self.rules}
        head |= {"digest": self.digest, "sites": sorted({entry.rule for entry in self.entries})}
        rows: list[dict[str, Any]] = [
            head
            | ({"upstream": self.upstream} if self.upstream else {})
            | ({"pinned": True} if self.pinned else {})
        ]
        if self.stamp.version:
            rows += [{"muhmod": self.stamp.version, "needles": list(self.stamp.needles)}]
            rows += [{"files": self.stamp.listing}]
            rows += [{"input": name, "sha256": digest} for name, digest in sorted(self.stamp.inputs)]
            rows += [{"seen": file, "sha256": digest} for file, digest in sorted(self.stamp.seen)]
        rows += [{"advice": line} for line in self.advice]
        rows += [_row(e) for e in sorted(self.entries, key=lambda e: (e.site, e.rule, e.file, e.scope))]
        return "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows).encode()


def beside(home: Path, given: Path | None) -> Path:
    """Where the lock is: in the folder that holds the tree, or where the user says."""
    return given.absolute() if given else home / NAME


def name_of(package: Path, path: Path) -> str:
    """What the lock at `path` calls the tree: its place from there."""
    return Path(os.path.relpath(package, path.parent)).as_posix()


def load(path: Path, tree: str) -> Lock | None:
    """The lock at that path, None where there is none. Raises RefusedError for a foreign or damaged one."""
    text = _text(path)
    if text is None:
        return None
    lines = text.splitlines()
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            if line.startswith(("<<<<<<<", "=======", ">>>>>>>", "|||||||")):
                raise _damaged(path, number, "it holds merge markers", "`muhmod relock` mends it")
        lock = _parsed(path, lines)
    except _RowError as error:
        raise _damaged(path, error.args[0]) from None
    if not text.endswith("\n"):
        raise _damaged(path, len(lines), "its last line is cut short")
    if lock.tree != tree:
        raise RefusedError(
            f"{path.name} belongs to the tree {lock.tree}/, not {tree}/",
            "give each tree a lock of its own with --lock FILE",
        )
    return lock


def salvage(path: Path) -> tuple[Lock | None, set[str]]:
    """What can still be read of a merged or damaged lock, and the rules whose lines are lost.

    None where there is no lock. Entries of both sides of a merge are there, the same site perhaps twice.
    """
    import json

    try:
        text = _text(path)
    except RefusedError:
        text = ""
    if text is None:
        return None, set()
    lock = Lock("", "", "")
    entries: dict[Entry, None] = {}
    sites: set[str] = set()
    for line in text.splitlines():
        try:
            row = json.loads(line)
            if row.get("schema") == SCHEMA:
                sites |= {*row["sites"]}
                pinned = bool(row.get("pinned", False))
                lock = lock if lock.tree else Lock(row["tree"], row["rules"], row["digest"], pinned=pinned)
            elif "site" in row:
                entries[_entry(row)] = None
        except _BROKEN:
            continue
    if not lock.tree:
        raise _damaged(path, 1, "nothing of it can be read", "take it back from version control")
    return lock._replace(entries=tuple(entries)), sites - {entry.rule for entry in entries}


# What reading a row raises that muhmod did not write.
_BROKEN = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class _RowError(Exception):
    """A line that is no row of a lock, by its number."""


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"cannot read {path.name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _damaged(path, 1) from None


def _parsed(path: Path, lines: list[str]) -> Lock:
    import json

    entries: list[Entry] = []
    kinds: dict[str, list[Any]] = {"input": [], "seen": [], "advice": []}
    head: dict[str, Any] = {}
    stamp = Stamp()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if number == 1:
                head = row
                _check_schema(path, head)
            elif "site" in row:
                entries.append(_entry(row))
            elif "needles" in row:
                stamp = stamp._replace(version=str(row["muhmod"]), needles=tuple(row["needles"]))
            elif "files" in row:
                stamp = stamp._replace(listing=str(row["files"]))
            elif "advice" in row:
                kinds["advice"].append(str(row["advice"]))
            else:
                kind = "input" if "input" in row else "seen"
                kinds[kind].append((str(row[kind]), str(row["sha256"])))
        except _BROKEN:
            raise _RowError(number) from None
    if not head:
        raise _RowError(1)
    stamp = stamp._replace(inputs=tuple(kinds["input"]), seen=tuple(kinds["seen"]))
    missing = {*head.get("sites", ())} ^ {entry.rule for entry in entries}
    if missing:
        raise _damaged(path, 1, f"its line of {min(missing)} is missing, or too many")
    return Lock(
        head["tree"], head["rules"], head["digest"], tuple(entries),
        str(head.get("upstream", "")), stamp, tuple(kinds["advice"]), bool(head.get("pinned", False)),
    )  # fmt: skip


def _check_schema(path: Path, head: dict[str, Any]) -> None:
    if head.get("schema") != SCHEMA:
        raise RefusedError(
            f"{path.name} is no {SCHEMA}",
            "it is from another muhmod: use that version, or remove the lock and run `muhmod pin`",
        )
    if not all(isinstance(head[key], str) for key in ("tree", "rules", "digest")):
        raise ValueError("not a header that muhmod wrote")


def _row(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"site": entry.rule}
    row |= {"kind": entry.site} if entry.site != entry.rule else {}
    row |= {key: getattr(entry, key) for key in _WORDS}
    row["line"] = entry.line
    row["slots"] = [[*slot[:3], *([True] if slot.kept else [])] for slot in entry.slots]
    row["guards"] = [list(chain) for chain in entry.guards]
    row["body"] = " ".join(entry.body)
    row["facts"] = dict(entry.facts)
    if entry.splices:
        row["splices"] = [list(splice) for splice in entry.splices]
    if entry.conditions:
        row["conditions"] = dict(entry.conditions)
    if entry.accepted:
        row["accepted"] = entry.accepted
    return row | {"sum": _sum(row)}


def _sum(row: dict[str, Any]) -> str:
    """A check on a line: it is not edited by hand, and not put together from two."""
    import json
    from hashlib import sha256

    whole = json.dumps({key: value for key, value in row.items() if key != "sum"}, sort_keys=True)
    return sha256(whole.encode()).hexdigest()[:12]


_WORDS = ("file", "scope", "form", "state", "reason", "digest", "before", "after")


def _entry(row: dict[str, Any]) -> Entry:
    if row["sum"] != _sum(row):
        raise ValueError("edited by hand")
    words = {key: row[key] for key in _WORDS} | {"rule": row["site"], "accepted": row.get("accepted", "")}
    if not all(isinstance(word, str) for word in words.values()) or _leads_out(row["file"]):
        raise ValueError("not a row that muhmod wrote")
    return Entry(
        **words,
        site=str(row.get("kind", row["site"])),
        line=int(row["line"]),
        slots=tuple(
            Pinned(str(name), str(base), str(ours), bool(kept)) for name, base, ours, *kept in row["slots"]
        ),
        guards=tuple(tuple(str(test) for test in chain) for chain in row["guards"]),
        body=tuple(str(row["body"]).split()),
        facts=tuple(sorted(dict(row["facts"]).items())),
        conditions=tuple((str(guard), held is True) for guard, held in row.get("conditions", {}).items()),
        splices=tuple(
            Splice(str(slot), int(at), str(old), str(new), str(head), str(tail))
            for slot, at, old, new, head, tail in row.get("splices", ())
        ),
    )


def _leads_out(file: str) -> bool:
    os.fsencode(file)
    return "\0" in file or file.startswith("/") or ".." in file.split("/")


def _damaged(path: Path, line: int, what: str = "", hint: str = "") -> RefusedError:
    what = what or "it is damaged: truncated, or edited by hand"
    return RefusedError(
        f"{path.name}:{line}: {what}", hint or "take it back from version control, or run `muhmod relock`"
    )
