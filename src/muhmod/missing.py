"""Modules of a tree's own package that its files import and that are not there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from muhmod.errors import FileError
from muhmod.names import EXTENSION, Index, import_lines

_OWN_IMPORT = re.compile(rb"[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import\b(.*)|import[ \t]+(.+))", re.DOTALL)
_WORD = re.compile(rb"\w+")
_BUILT = {"_version", "commit_id", "vllm_flash_attn"}


class Absent(NamedTuple):
    """What ought to be there by the tree's imports or by the rules: its name, why, and who says so."""

    kind: str  # "import" or "rule"
    name: str
    file: str
    why: str
    places: tuple[tuple[str, int], ...] = ()


def imports(index: Index) -> Iterator[Absent]:
    """The modules of the tree's own package that are imported and are not there."""
    missing: dict[str, list[tuple[str, int, str]]] = {}
    for file in index.reading.files:
        try:
            data = index.reading.data(file)
        except FileError:
            continue
        if _may_miss(index, file, data):
            for name, line, guard in _missing(index, file):
                missing.setdefault(name, []).append((file, line, guard))
    for name, rows in missing.items():
        guards = {guard for _, _, guard in rows}
        guarded = f"; each import stands {' or '.join(sorted(guards))}" if "" not in guards else ""
        file = "/".join(name.split(".")[1:]) + ".py"
        places = tuple(sorted({(importer, line) for importer, line, _ in rows}))
        yield Absent("import", name, file, f"{_built(name)}{guarded}", places)


def _built(name: str) -> str:
    last = name.rpartition(".")[2]
    if EXTENSION.fullmatch(last):
        return "no such module in the tree; by its name an extension that is built"
    if last in _BUILT:
        return "no such module in the tree; it is written when the package is built"
    return "imported, and no such module in the tree"


def _may_miss(index: Index, file: str, data: bytes) -> bool:
    """Whether the text of a file's imports names a module of the package that is not there."""
    for line in import_lines(data).split(b"\0"):
        match = _OWN_IMPORT.match(line)
        if match is None:
            continue
        bases = [match[1]] if match[1] else [part.split()[0] for part in match[3].split(b",") if part.split()]
        for base in bases:
            name = _absolute(index, file, base.decode("ascii", "replace"))
            words = [word.decode() for word in _WORD.findall(match[2] or b"")] if match[1] else []
            if any(True for _ in _gone(index, name, words)):
                return True
    return False


def _absolute(index: Index, file: str, base: str) -> str:
    name = base.lstrip(".")
    level = len(base) - len(name)
    if not level:
        return index.own(name)
    folders = [index.top, *file.split("/")[:-1]]
    return ".".join([*folders[: len(folders) - level + 1], *filter(None, [name])])


def _gone(index: Index, name: str, names: Sequence[str]) -> Iterator[str]:
    """Which of a module of the package, and the modules imported from it by name, are not in the tree."""
    top, _, inner = name.partition(".")
    if top != index.top:
        return
    if not index.exists(inner):
        yield name
        return
    words = index.package_words(inner)
    if words is None or b"__getattr__" in words or b"*" in words:
        return
    for one in names:
        if (
            one.isidentifier()
            and one.encode() not in words
            and not index.exists(f"{inner}.{one}".lstrip("."))
        ):
            yield f"{name}.{one}"


def _missing(index: Index, file: str) -> Iterator[tuple[str, int, str]]:
    """(module, line, what guards the import) of each import of a file that leads nowhere."""
    try:
        parsed = index.reading.source(file).module.tree
    except FileError as error:
        index.faults.setdefault(file, error)
        return
    for node, guard in _guarded(parsed, ""):
        if isinstance(node, ast.Import):
            for alias in node.names:
                for name in _gone(index, index.own(alias.name), ()):
                    yield name, node.lineno, guard
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(index, file, "." * node.level + (node.module or ""))
            for name in _gone(index, base, [alias.name for alias in node.names]):
                yield name, node.lineno, guard


def _guarded(node: ast.AST, guard: str) -> Iterator[tuple[ast.stmt, str]]:
    """Every import statement, with what it stands under that lets it fail or never run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, guard
        elif isinstance(child, ast.Try):
            for statement in child.body:
                inside = guard or "in a try"
                if isinstance(statement, (ast.Import, ast.ImportFrom)):
                    yield statement, inside
                else:
                    yield from _guarded(statement, inside)
            rest = ast.Module([*child.orelse, *child.finalbody], [])
            handlers = ast.Module([s for handler in child.handlers for s in handler.body], [])
            yield from _guarded(rest, guard)
            yield from _guarded(handlers, guard)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _guarded(ast.Module(child.body, []), guard or "under TYPE_CHECKING")
            yield from _guarded(ast.Module(child.orelse, []), guard)
        elif isinstance(child, (ast.With, ast.AsyncWith)) and "suppress" in ast.unparse(child.items[0]):
            yield from _guarded(ast.Module(child.body, []), guard or "in a suppress")
        elif not isinstance(child, ast.expr):
            yield from _guarded(child, guard)
