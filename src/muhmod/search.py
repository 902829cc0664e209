"""Reading a tree and finding where each rule binds: the bytes first, then `ast`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from muhmod import catalog, tree
from muhmod.errors import FileError
from muhmod.model import OPTIONS, Found
from muhmod.rulebook import Rule
from muhmod.site import MODULE_SCOPE, Module, Resolve
from muhmod.tree import Text, Tree

SUPPRESSION = b"muhmod: skip["


class Source(NamedTuple):
    """A file in reach: its bytes, text and module, parsed once."""

    file: str
    data: bytes
    text: Text
    module: Module


class Reading:
    """All files of a tree, read once; parsed only where wanted."""

    def __init__(self, of: Tree, packages: tuple[str, ...]) -> None:
        self.tree = of
        # The sources call the package by its own name, whatever its folder is called here.
        self.names = {of.name, *packages}
        self.files, self.outside = tree.files(of)
        self.sources: dict[str, Source] = {}
        # The files that hold one of the needles: no other can matter.
        self.near: list[str] = []
        self.needles: tuple[bytes, ...] = ()
        self.faults: dict[str, FileError] = {}
        # The paths at which a guard looked for a file.
        self.watched: set[str] = set()
        self._data: dict[str, bytes] = {}

    def data(self, file: str) -> bytes:
        """A file's bytes. Kept from the second time on: only what is lost is looked for again."""
        if file not in self._data:
            self._data[file] = tree.read(self.tree, file)
        return self._data[file]

    def matters(self, needle: bytes) -> None:
        """What a state rests on is in the files that hold the needle too, now and later."""
        if needle not in self.needles:
            self.needles = (*self.needles, needle)
            self.near += [file for file in self.files if file not in self.near and needle in self.data(file)]

    def source(self, file: str, data: bytes | None = None) -> Source:
        """The parsed file. Raises FileError, the same one each time."""
        if file in self.faults:
            raise self.faults[file]
        if file not in self.sources:
            try:
                self.sources[file] = parse(self.tree, file, data)
            except FileError as error:
                self.faults[file] = error
                raise
        return self.sources[file]

    def from_file(self, file: str) -> Resolve:
        """How one file sees other modules: by dotted name, and relative level."""

        def resolve(name: str, level: int) -> tuple[str, Module] | None:
            if level:
                folders = [self.tree.name, *file.split("/")[:-1]]
                name = ".".join([*folders[: len(folders) - level + 1], *filter(None, [name])])
            try:
                return self.resolve(name)
            except FileError:
                return None

        return resolve

    def resolve(self, name: str) -> tuple[str, Module] | None:
        """The module of a dotted name inside the tree."""
        top, _, rest = name.partition(".")
        if top not in self.names:
            return None
        base = rest.replace(".", "/")
        for file in (f"{base}.py", f"{base}/__init__.py" if base else "__init__.py"):
            file = self._linked(file)
            if file in self.files:
                return file, self.source(file).module
        return None

    def _linked(self, file: str) -> str:
        """A file by the name that it is listed under, where it is reached by a link inside the tree."""
        path = os.path.join(self.tree.package, file)
        if file in self.files or not os.path.islink(path):
            return file
        return os.path.relpath(os.path.realpath(path), self.tree.package)


def whole(of: Tree) -> Reading:
    """A tree that is called by its own name, or by those of known packages where its folder has another."""
    return Reading(of, () if of.name in tree.PACKAGES else tree.PACKAGES)


def neighbours(of: Tree) -> Callable[[str], Resolve]:
    """`Reading.from_file` for a tree of which other files are read only where a site asks for them."""
    once = cache(lambda: Reading(of, ()))
    return lambda file: lambda name, level: once().from_file(file)(name, level)


def parse(of: Tree, file: str, data: bytes | None) -> Source:
    """One file, decoded and parsed. Raises FileError, by the file's name."""
    data = tree.read(of, file) if data is None else data
    text = tree.decode(data, file)
    try:
        return Source(file, data, text, Module(text.text))
    except FileError as error:
        raise FileError(f"{file} {error.message}", error.hint) from None


class Search:
    """What one rule found: bound places, look-alikes, and files that could not be read."""

    def __init__(self) -> None:
        self.bound: list[tuple[Source, Found]] = []
        self.others: list[tuple[Source, Found]] = []
        self.faults: list[FileError] = []


def search(reading: Reading, rules: list[Rule]) -> dict[str, Search]:
    """One pass over the bytes of all files; a file is parsed if a rule may bind in it."""
    found = {rule.name: Search() for rule in rules}
    wanted = [(rule, Needles(rule), catalog.site(rule.site)) for rule in rules]
    first = {rule.name: max([*needles.names, site.needle], key=len) for rule, needles, site in wanted}
    reading.needles = needles_ = tuple({*first.values()})
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
            reading.near.append(file)
            for rule, needles, site in wanted:
                if first[rule.name] in held and site.wanted(data) and needles.match(data):
                    look(file, data, rule, reading, found[rule.name])
        elif SUPPRESSION in data:
            # Only to tell that it is unused.
            with contextlib.suppress(FileError):
                reading.source(file, data)
    return found


class Needles:
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


def look(file: str, data: bytes | None, rule: Rule, reading: Reading, into: Search) -> None:
    """Sort what the rule's site is in one file into bound places and others."""
    try:
        source = reading.source(file, data)
    except FileError as error:
        into.faults.append(error)
        return
    try:
        every = catalog.site(rule.site).find(source.module, reading.from_file(file))
    except RecursionError:
        into.faults.append(too_deep(file))
        return
    for found in every:
        found = roomy(rule, found, source.module)._replace(file=file)
        bound = binds(rule, found, source.module) and rule.file in ("", file)
        (into.bound if bound else into.others).append((source, found))


def roomy(rule: Rule, found: Found, module: Module) -> Found:
    """The site as the rule sees it: with room for the ladder that it emits, or for keys that it adds."""
    if rule.keys:
        return found.with_room()
    if rule.slots.keys().isdisjoint(OPTIONS):
        return found
    return found.with_keys(rule.adds, catalog.site(found.site).keys(module, found))


def too_deep(file: str) -> FileError:
    """What is said of a file whose nesting no recursion can follow."""
    return FileError(f"{file} is nested too deeply to be followed", "--ignore the site, or flatten the code")


def binds(rule: Rule, found: Found, module: Module) -> bool:
    """Whether the rule means this place: its scope, one of its slots, its neighbour."""
    names = {name for slot in found.slots for name in (slot.name, *slot.also)}
    return (
        found.scope == rule.scope
        and (not rule.slots or bool(names & set(rule.slots)) or bool(found.problem))
        and (not rule.beside or module.defines(rule.beside))
    )
