"""A tree as the importing interpreter would see it on one platform: modules, names, who mentions what.

Import resolution is our own: what is needed is which of several guarded imports binds a name on a declared
platform, with the lines that say so, and no library answers that without importing the tree.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from muhmod.errors import FileError
from muhmod.model import Step
from muhmod.reach.value import (
    SOMETHING,
    UNKNOWN,
    Class,
    External,
    Function,
    Marks,
    ModuleRef,
    Trail,
    Val,
    join,
    known,
    refer,
)
from muhmod.rulebook import Platform
from muhmod.search import Reading
from muhmod.site import FunctionNode, Module, dotted

_MOST_HOPS = 12
NOTHING: Mapping[tuple[str, str], object] = MappingProxyType({})
_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Late(NamedTuple):
    """An import that is not looked into before its name is used."""

    file: str
    module: str
    level: int
    attr: str


class Excluded(NamedTuple):
    """Lines that are never run, with what shows it."""

    first: int
    last: int
    trail: Trail


class Env(NamedTuple):
    """What a module's top level binds: values, lines, and the lines that are never run."""

    names: dict[str, Val]
    lines: dict[str, int]
    excluded: list[Excluded]


class Index(NamedTuple):
    """A file's nodes by what they name: loads, attributes and strings; imports; what binds; each node's parent.

    Annotations are left out: nothing in them is called.
    """

    parents: dict[int, ast.AST]
    words: dict[str, list[ast.AST]]
    imports: list[ast.Import | ast.ImportFrom]
    strings: list[ast.Constant | ast.JoinedStr]
    stores: dict[str, list[ast.AST]]


class World:
    """One tree on one platform. `interpret` fills the environment of a file."""

    def __init__(
        self, reading: Reading, platform: Platform, instead: Mapping[tuple[str, str], object] = NOTHING
    ) -> None:
        self.reading = reading
        self.platform = platform
        self.interpret: Callable[[str, Env], None] = lambda file, env: None
        # What the value under trace was found in: module names, function results, attributes.
        self.globals: dict[tuple[str, str], Marks] = {}
        # Constants that stand for what the source has: for the question what would be if.
        self.instead = instead
        self._files = {*reading.files}
        self._folders = {file[: at + 1] for file in reading.files for at, c in enumerate(file) if c == "/"}
        self._envs: dict[str, Env] = {}
        self._indices: dict[str, Index] = {}
        self._mentions: dict[bytes, list[str]] | None = None
        self._classes: dict[tuple[str, str], dict[str, Val]] = {}
        self._defined: dict[str, dict[str, list[ast.AST]]] = {}
        self._changed: dict[str, bool] = {}
        self.forcing: set[Late] = set()

    def read_with(self, other: World) -> None:
        """Share with another world of the same tree what rests on its text alone."""
        self._indices, self._mentions, self._defined = other._indices, other._mentions, other._defined

    # Files ----------------------------------------------------------------------------------

    def module(self, file: str) -> Module | None:
        """The parsed file; None where it does not parse, is no text, or is nested too deeply."""
        try:
            return self.reading.source(file).module
        except (FileError, RecursionError):
            return None

    def file_of(self, name: str) -> str | None:
        """The file of a dotted module name in the tree; a folder with a final "/" where it has no `__init__.py`."""
        top, _, rest = name.partition(".")
        if top not in self.reading.names:
            return None
        base = rest.replace(".", "/")
        for file in (f"{base}.py", f"{base}/__init__.py" if base else "__init__.py"):
            if file in self._files:
                return file
        folder = f"{base}/"
        return folder if folder in self._folders else None

    def absolute(self, file: str, module: str, level: int) -> str:
        """The dotted name that an import in the file means."""
        if not level:
            return module
        folders = [self.reading.tree.name, *file.split("/")[:-1]]
        return ".".join([*folders[: len(folders) - level + 1], *filter(None, [module])])

    def name_of(self, file: str) -> str:
        """The dotted name of a file's module."""
        parts = file.removesuffix(".py").split("/")
        parts = parts[:-1] if parts[-1] in ("__init__", "") else parts
        return ".".join([self.reading.tree.name, *parts])

    def line(self, file: str, number: int) -> str:
        """A line of a file, for a person."""
        module = self.module(file)
        return module.line(number) if module else ""

    def step(self, file: str, node: ast.AST, does: str = "") -> Step:
        """The place of a node, with what happens there: by default what the line says."""
        number = getattr(node, "lineno", 1)
        return Step(file, number, does or self.line(file, number))

    # Names ----------------------------------------------------------------------------------

    def env(self, file: str) -> Env:
        """What the file's top level binds. In a cycle of imports: what it has bound so far."""
        if file not in self._envs:
            env = self._envs[file] = Env({}, {}, [])
            if self.module(file) is not None:
                self.interpret(file, env)
        return self._envs[file]

    def look(self, file: str, name: str) -> Val:
        """What a module-level name of the file is worth to a reader of it."""
        if (file, name) in self.instead:
            return known(self.instead[file, name])
        found = self.env(file).names.get(name)
        if found is None:
            starred = self._starred(file, name)
            if starred is not None:
                return starred
            return Val(open=self._unbound_is_open(file, name))
        found = self.force(found)
        if found.const is not UNKNOWN and self._is_changed(file, name):
            found = found._replace(const=UNKNOWN, open=True)
        return found.marked(self.globals.get((file, name), {}))

    def _unbound_is_open(self, file: str, name: str) -> bool:
        """Whether an unbound name may be bound after all: by a star import or the module's `__getattr__`."""
        names = self.env(file).names
        return "*" in names or "__getattr__" in names

    def _is_changed(self, file: str, name: str) -> bool:
        """Whether a function, or another file, binds the module's name anew."""
        key = f"{file}:{name}"
        if key not in self._changed:
            module = self.module(file)
            self._changed[key] = bool(module and module.globals_of(name)) or any(
                self._stores(other, name) for other in self.mentions(name)
            )
        return self._changed[key]

    def _stores(self, file: str, name: str) -> bool:
        """Whether a file stores to an attribute of that name, by its name or by a string of it."""
        if self.module(file) is None:
            return True
        index = self.index(file)
        if any(
            isinstance(node, ast.Attribute) and dotted(node.value) not in ("self", "cls")
            for node in index.stores.get(name, ())
        ):
            return True
        strings = [n for n in index.words.get(name, ()) if isinstance(n, ast.Constant) and n.value == name]
        return any(_sets(index.parents.get(id(node))) for node in strings)

    def force(self, value: Val) -> Val:
        """The value with its imports looked into."""
        if not any(isinstance(ref, Late) for ref in value.refs):
            return value
        parts = [value._replace(refs=tuple(r for r in value.refs if not isinstance(r, Late)))]
        if not parts[0].refs and parts[0].const is UNKNOWN and not parts[0].marks and not value.open:
            parts = []
        for ref in value.refs:
            if isinstance(ref, Late):
                parts.append(self._late(ref))
        return join(*parts)

    def _late(self, ref: Late) -> Val:
        if ref in self.forcing or len(self.forcing) > _MOST_HOPS * 4:
            # A package that imports its own module by name: there is no other thing of that name.
            inner = self.file_of(f"{self.absolute(ref.file, ref.module, ref.level)}.{ref.attr}")
            return refer(ModuleRef(inner)) if inner else Val()
        self.forcing.add(ref)
        try:
            base = self.absolute(ref.file, ref.module, ref.level)
            inside = self.file_of(base)
            if not ref.attr:
                return refer(ModuleRef(inside)) if inside else refer(External(base))
            if inside is None:
                return self.named(f"{base}.{ref.attr}") or refer(External(f"{base}.{ref.attr}"))
            return self.attribute(ModuleRef(inside), ref.attr)
        finally:
            self.forcing.discard(ref)

    def named(self, name: str) -> Val | None:
        """What the platform says of a dotted name from outside."""
        if name in self.platform.names:
            return known(SOMETHING if self.platform.names[name] else None)
        return None

    def attribute(self, of: object, name: str) -> Val:
        """An attribute of a module, a class or something from outside."""
        match of:
            case ModuleRef(file=file):
                if not file.endswith("/") and name in self.env(file).names:
                    return self.look(file, name)
                inner = self.file_of(f"{self.name_of(file)}.{name}")
                if inner is not None:
                    return refer(ModuleRef(inner))
                star = None if file.endswith("/") else self._starred(file, name)
                if star is not None:
                    return star
                return Val(open=True)
            case External(name=base):
                full = f"{base}.{name}"
                return self.named(full) or refer(External(full))
        return Val()

    def _starred(self, file: str, name: str) -> Val | None:
        """A name that a star import binds, where exactly that can be read."""
        stars = self.env(file).names.get("*")
        for ref in stars.refs if stars else ():
            if isinstance(ref, Late):
                inside = self.file_of(self.absolute(ref.file, ref.module, ref.level))
                if inside and name in self.env(inside).names:
                    return self.look(inside, name)
        return None

    # Definitions ----------------------------------------------------------------------------

    def defined(self, file: str, path: str) -> list[ast.AST]:
        """The classes and functions of a file by that dotted path, in source order."""
        if file not in self._defined:
            module = self.module(file)
            found: dict[str, list[ast.AST]] = {}
            for scope in module.scopes() if module else ():
                if scope.node is not None:
                    found.setdefault(scope.path, []).append(scope.node)
            self._defined[file] = found
        return self._defined[file].get(path, [])

    def function(self, ref: Function) -> FunctionNode | None:
        """The node of a function."""
        nodes = [n for n in self.defined(ref.file, ref.path) if isinstance(n, _FUNCTIONS)]
        return next((n for n in nodes if n.lineno == ref.line), nodes[-1] if nodes else None)

    def class_of(self, ref: Class) -> ast.ClassDef | None:
        """The node of a class."""
        nodes = [n for n in self.defined(ref.file, ref.path) if isinstance(n, ast.ClassDef)]
        return nodes[-1] if nodes else None

    def methods(self, ref: Class, name: str) -> list[Function]:
        """What the class, or the nearest class of the tree above it, defines under the name."""
        for one in self.lineage(ref):
            path = f"{one.path}.{name}"
            nodes = [n for n in self.defined(one.file, path) if isinstance(n, _FUNCTIONS)]
            if nodes:
                return [Function(one.file, path, n.lineno) for n in nodes]
        return []

    def bases(self, ref: Class) -> list[object]:
        """What a class is derived from: classes of the tree, and External for what is not in it."""
        node = self.class_of(ref)
        found: list[object] = []
        for base in node.bases if node else ():
            if isinstance(base, ast.Subscript):
                base = base.value
            head, _, rest = dotted(base).partition(".")
            value = self.look(ref.file, head) if head else Val()
            for part in filter(None, rest.split(".")):
                value = join(*(self.attribute(one, part) for one in value.refs)) if value.refs else Val()
            found += value.refs or [External(dotted(base) or "?")]
        return found

    def lineage(self, ref: Class) -> Iterator[Class]:
        """The class and the tree's classes that it is derived from."""
        pending, seen = [ref], set()
        while pending:
            one = pending.pop(0)
            key = (one.file, one.path)
            if key in seen:
                continue
            seen.add(key)
            yield one
            pending += [base for base in self.bases(one) if isinstance(base, Class)]

    def is_enumeration(self, ref: Class) -> bool:
        """Whether the class is an enum."""
        return any(
            isinstance(base, External) and base.name.rpartition(".")[2] in
            ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "EnumMeta")
            for one in self.lineage(ref) for base in self.bases(one)
        )  # fmt: skip

    def index(self, file: str) -> Index:
        """The file's nodes by what they name."""
        if file not in self._indices:
            module = self.module(file)
            self._indices[file] = _index(module.tree) if module else Index({}, {}, [], [], {})
        return self._indices[file]

    def parents(self, file: str) -> dict[int, ast.AST]:
        """Each node's parent, by id."""
        return self.index(file).parents

    def mentions(self, identifier: str) -> list[str]:
        """The files whose bytes hold the identifier as a whole word."""
        if self._mentions is None:
            self._mentions = {}
            for file in self.reading.files:
                with contextlib.suppress(FileError):
                    for word in {*_WORD.findall(self.reading.data(file))}:
                        self._mentions.setdefault(word, []).append(file)
        # A name that is not ASCII may be spelled in another encoding, or normal form.
        return self._mentions.get(identifier.encode(), []) if identifier.isascii() else self.reading.files


def _sets(parent: ast.AST | None) -> bool:
    """Whether a string names what is set: an argument of `setattr`, a key of `globals()`."""
    match parent:
        case ast.Call(func=func):
            return dotted(func).rpartition(".")[2] in ("setattr", "patch", "update")
        case ast.Subscript(ctx=ast.Store()):
            return True
    return False


# Fields with nothing that is run or looked for.
_LEFT_OUT = frozenset({"annotation", "returns", "ctx", "op", "ops"})


def _index(tree: ast.Module) -> Index:
    index = Index({}, {}, [], [], {})
    pending: list[ast.AST] = [tree]
    parents, words, stores = index.parents, index.words, index.stores
    while pending:
        node = pending.pop()
        kind = type(node)
        if kind is ast.Name or kind is ast.Attribute:
            word = node.id if kind is ast.Name else node.attr  # type: ignore[attr-defined]
            table = words if type(node.ctx) is ast.Load else stores  # type: ignore[attr-defined]
            table.setdefault(word, []).append(node)
            if kind is ast.Name:
                continue
        elif kind is ast.Constant:
            text = node.value  # type: ignore[attr-defined]
            if type(text) is str:
                index.strings.append(node)  # type: ignore[arg-type]
                if len(text) < 200:
                    words.setdefault(re.split(r"[.:]", text)[-1], []).append(node)
            continue
        elif kind is ast.JoinedStr:
            index.strings.append(node)  # type: ignore[arg-type]
        elif kind is ast.Import or kind is ast.ImportFrom:
            index.imports.append(node)  # type: ignore[arg-type]
        for field, value in vars(node).items():
            if type(value) is list:
                for one in value:
                    if isinstance(one, ast.AST):
                        parents[id(one)] = node
                        pending.append(one)
            elif isinstance(value, ast.AST) and field not in _LEFT_OUT:
                parents[id(value)] = node
                pending.append(value)
    return index
