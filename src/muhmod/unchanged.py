"""`muhmod check` where nothing changed: the lock's digests decide, and nothing heavy wakes.

A lock that was written while all was well names what that rests on: the files with sites, every
other file that holds a name a rule looks for, the listing of the tree, the pack, the facts, the
codemods, and muhmod's version. Where all of it is as it was, so is every state.
"""

from __future__ import annotations

import os
import re
import sys
from hashlib import sha256
from pathlib import Path

from muhmod import __version__, lock, tree
from muhmod.errors import MuhmodError

# [tool.muhmod] in any spelling, or a [tool] table that may hold it.
_CONFIGURES = re.compile(rb"""tool["']?\s*\.\s*["']?muhmod|^\s*\[\s*["']?tool["']?\s*\]""", re.MULTILINE)
_WELL = ("already", "held", "satisfied-upstream", "absent", "skipped")


def check(arguments: list[str]) -> tuple[list[str], str] | None:
    """Report lines and the closing word of `check` with these arguments, where nothing changed.

    None where anything did, or where the arguments ask for more: then the whole command must run.
    """
    given = _simple(arguments)
    if given is None or _is_configured():
        return None
    rules, lock_path, word = given
    try:
        return _check(rules, lock_path, os.path.realpath(word))
    except (MuhmodError, OSError):
        return None


def _simple(arguments: list[str]) -> tuple[str, str, str] | None:
    """--rules, --lock and TREE of `check [-q] [--rules PACK] [--lock FILE] TREE`; None for any other."""
    options = {"--rules": "", "--lock": ""}
    words: list[str] = []
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in options:
            options[name] = value if equals else next(rest, "")
            if not options[name]:
                return None
        elif word.startswith("-") and word not in ("-q", "--quiet"):
            return None
        elif word.startswith("-"):
            continue
        else:
            words.append(word)
    return (options["--rules"], options["--lock"], words[0]) if len(words) == 1 else None


def _is_configured() -> bool:
    """Whether a configuration file may say more than the command line."""
    folder = os.getcwd()
    while True:
        if os.path.isfile(os.path.join(folder, "muhmod.toml")):
            return True
        project = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(project):
            with open(project, "rb") as stream:
                if _CONFIGURES.search(stream.read()):
                    return True
        above = os.path.dirname(folder)
        if above == folder or os.path.exists(os.path.join(folder, ".git")):
            return False
        folder = above


def _check(rules: str, lock_path: str, top: str) -> tuple[list[str], str] | None:
    package = _package(top, lock_path)
    if package is None:
        return None
    home = os.path.dirname(package)
    path = Path(lock_path or os.path.join(home, lock.NAME)).absolute()
    if os.path.exists(os.path.join(home, ".muhmod-journal")):
        return None
    known = lock.load(path, os.path.relpath(package, path.parent))
    if known is None or not _is_well(known) or not _is_its_pack(rules, known.rules, path.parent):
        return None
    of = tree.Tree(Path(package), Path(home), Path(home))
    if not _same_inputs(known, str(path.parent)) or not _same_files(known, of):
        return None
    lines = [line(e.state, e.rule, f"{e.file}:{e.line}" if e.file else "", e.reason) for e in known.entries]
    return [*lines, *known.advice], closing(of.name, known.rules)


def _package(top: str, lock_path: str) -> str | None:
    """The package folder, as far as the place of the lock tells; None where it does not."""
    name = os.path.basename(top)
    inside = [word for word in os.listdir(top) if word in (*tree.PACKAGES, name)]
    inside = [word for word in inside if os.path.isdir(os.path.join(top, word))]
    if not inside and os.path.isfile(os.path.join(top, "__init__.py")):
        return top
    return os.path.join(top, inside[0]) if len(inside) == 1 and inside[0] != name and not lock_path else None


def _is_its_pack(given: str, known: str, home: Path) -> bool:
    """Whether the pack that was asked for is the lock's: a shipped one by name, another by its place."""
    if not given:
        return True
    if given.endswith(".toml") or "/" in given:
        return "/" in known and os.path.samefile(given, home / known)
    return given == known


def _is_well(known: lock.Lock) -> bool:
    return known.stamp.version == __version__ and all(entry.state in _WELL for entry in known.entries)


def _same_inputs(known: lock.Lock, home: str) -> bool:
    folders = {"muhmod.rules": "", "muhmod.codemods": ""}
    for name, digest in known.stamp.inputs:
        package, _, rest = name.partition("/")
        if package in folders:
            folders[package] = folders[package] or _folder(package)
            at = os.path.join(folders[package], rest)
        else:
            at = os.path.join(home, name)
        with open(at, "rb") as stream:
            if sha256(stream.read()).hexdigest() != digest:
                return False
    return True


def _folder(package: str) -> str:
    from importlib import import_module

    return str(next(iter(import_module(package).__path__)))


def _same_files(known: lock.Lock, of: tree.Tree) -> bool:
    files, outside = tree.files(of)
    listing = "\n".join(files).encode("utf-8", "surrogateescape")
    if outside or sha256(listing).hexdigest() != known.stamp.listing:
        return False
    # Where a guard looked for a file that is none of the sources, only its presence counts.
    listed = {*files}
    for file, presence in known.stamp.seen:
        if file not in listed and tree.presence(of, file) != presence:
            return False
    digests = dict(known.stamp.seen) | {entry.file: entry.after for entry in known.entries if entry.file}
    needles = tuple(needle.encode() for needle in known.stamp.needles)
    for file in files:
        data = tree.read(of, file)
        digest = digests.get(file)
        if digest is None:
            for needle in needles:
                if needle in data:
                    return False
        elif sha256(data).hexdigest() != digest:
            return False
    return True


def line(state: str, rule: str, place: str, reason: str) -> str:
    """A site's line in `check`'s report."""
    place = f"  {place}" if place else ""
    reason = f"  {reason}" if reason else ""
    return f"{state:<18} {rule:<17}{place}{reason}".rstrip()


def closing(name: str, rules: str) -> str:
    """What is said where everything is as it should be."""
    return f"{name}/ is as {rules} wants it"


def run(arguments: list[str]) -> bool:
    """Do the command, where nothing changed; False where the whole command must run."""
    found = check(arguments)
    if found is None:
        return False
    lines, word = found
    if not {"-q", "--quiet"} & {*arguments}:
        sys.stdout.write("".join(f"{text}\n" for text in lines))
        sys.stderr.write(f"muhmod: {word}\n")
    return True
