"""muhmod.lock: what was written, so that it can be taken back. The only module that knows its format.

A header line, then one JSON line a site, sorted, so that merges are readable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from muhmod.errors import FileError, RefusedError

SCHEMA = "muhmod/lock/1"
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


class Entry(NamedTuple):
    """One site that was written: its file's digests before and after, and the changes."""

    site: str
    file: str
    scope: str
    form: str
    before: str
    after: str
    splices: tuple[Splice, ...]


class Lock(NamedTuple):
    """The lock of one tree under one pack."""

    tree: str
    rules: str
    digest: str
    entries: tuple[Entry, ...] = ()

    def of_file(self, file: str) -> tuple[Entry, ...]:
        """The entries of one file."""
        return tuple(entry for entry in self.entries if entry.file == file)

    def dump(self) -> bytes:
        """The lock's bytes."""
        import json

        head = {"schema": SCHEMA, "tree": self.tree, "rules": self.rules, "digest": self.digest}
        rows = [_row(e) for e in sorted(self.entries, key=lambda e: (e.site, e.file, e.scope))]
        lines = [json.dumps(row, ensure_ascii=True) for row in (head, *rows)]
        return ("\n".join(lines) + "\n").encode()


def load(path: Path, tree: str) -> Lock | None:
    """The lock at that path, None where there is none. Raises RefusedError for a foreign or damaged one."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"cannot read {path.name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _damaged(path, 1) from None
    import json

    lines = text.splitlines()
    number = 0
    try:
        head = json.loads(lines[0]) if lines else {}
        if head.get("schema") != SCHEMA:
            raise RefusedError(
                f"{path.name} is no {SCHEMA}",
                "it is from another muhmod: use that version, or remove the lock",
            )
        entries = []
        for line in lines[1:]:
            number += 1
            entries.append(_entry(json.loads(line)))
        lock = Lock(head["tree"], head["rules"], head["digest"], tuple(entries))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path, number + 1) from None
    if not text.endswith("\n"):
        raise _damaged(path, number + 1)
    if lock.tree != tree:
        raise RefusedError(
            f"{path.name} belongs to the tree {lock.tree}/, not {tree}/",
            "give each tree a lock of its own with --lock FILE",
        )
    return lock


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "site": entry.site,
        "file": entry.file,
        "scope": entry.scope,
        "form": entry.form,
        "before": entry.before,
        "after": entry.after,
        "splices": [[s.slot, s.at, s.old, s.new, s.head, s.tail] for s in entry.splices],
    }


def _entry(row: dict[str, Any]) -> Entry:
    splices = tuple(
        Splice(str(slot), int(at), str(old), str(new), str(head), str(tail))
        for slot, at, old, new, head, tail in row["splices"]
    )
    words = {key: row[key] for key in ("site", "file", "scope", "form", "before", "after")}
    if not all(isinstance(word, str) for word in words.values()) or _leads_out(row["file"]):
        raise ValueError("not a row that muhmod wrote")
    return Entry(**words, splices=splices)


def _leads_out(file: str) -> bool:
    return file.startswith("/") or ".." in file.split("/")


def _damaged(path: Path, line: int) -> RefusedError:
    return RefusedError(
        f"{path.name}:{line} is damaged: truncated, edited by hand, or with merge markers in it",
        "take it back from version control",
    )
