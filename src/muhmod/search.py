"""Reading a tree and finding where each rule binds: the bytes first, then `ast`."""

from __future__ import annotations

import re
from typing import NamedTuple

from muhmod import catalog, tree
from muhmod.errors import FileError
from muhmod.model import Found, SiteReport
from muhmod.rulebook import Rule
from muhmod.site import MODULE_SCOPE, Module
from muhmod.tree import Text, Tree

_MOST_CANDIDATES = 3


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
        self.faults: dict[str, FileError] = {}

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
                    look(file, data, rule, reading, found[rule.name])
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
        every = catalog.site(rule.site).find(source.module)
    except RecursionError:
        into.faults.append(too_deep(file))
        return
    for found in every:
        found = found._replace(file=file)
        (into.bound if binds(rule, found, source.module) else into.others).append((source, found))


def too_deep(file: str) -> FileError:
    """What is said of a file whose nesting no recursion can follow."""
    return FileError(f"{file} is nested too deeply to be followed", "--ignore the site, or flatten the code")


def binds(rule: Rule, found: Found, module: Module) -> bool:
    """Whether the rule means this place: its scope, one of its slots, its neighbour."""
    names = {slot.name for slot in found.slots}
    return (
        found.scope == rule.scope
        and (not rule.slots or bool(names & set(rule.slots)) or bool(found.problem))
        and (not rule.beside or module.defines(rule.beside))
    )


def lost(base: SiteReport, rule: Rule, search: Search, reading: Reading) -> SiteReport:
    """The row of a site that was found nowhere, with the nearest candidates."""
    if rule.when_absent == "ok":
        return base._replace(state="absent", reason="not in this tree, and the rule allows it")
    candidates = _nearest(rule, _everywhere(rule, search, reading)) or _namesakes(rule, reading)
    reason = f"no {rule.site} in {rule.scope}" + (f" beside {rule.beside}" if rule.beside else "")
    if reading.outside:
        reason += f"; not read, a link out of the tree: {', '.join(reading.outside)}"
    reason += f"; nearest: {candidates[0]}" if candidates else "; nothing like it is in the tree"
    return base._replace(reason=reason, code=3, candidates=tuple(candidates))


def _everywhere(rule: Rule, search: Search, reading: Reading) -> list[Found]:
    """The site wherever it stands, by its own needles and not by the rule's names."""
    wide = Search()
    site = catalog.site(rule.site)
    for file in reading.files:
        if file not in reading.faults:
            data = tree.read(reading.tree, file)
            if site.wanted(data):
                look(file, data, rule, reading, wide)
    return [found for _, found in wide.others]


def _nearest(rule: Rule, found: list[Found]) -> list[str]:
    from difflib import SequenceMatcher

    def score(one: Found) -> float:
        scope = SequenceMatcher(None, rule.scope, one.scope).ratio()
        names = {slot.name for slot in one.slots}
        return round((scope + bool(names & set(rule.slots)) + (not one.problem)) / 3, 2)

    ranked = sorted({(-score(f), f.file, f.line, f.scope) for f in found})
    return [_candidate(*row) for row in ranked[:_MOST_CANDIDATES]]


def _namesakes(rule: Rule, reading: Reading) -> list[str]:
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
