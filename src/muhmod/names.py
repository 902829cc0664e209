"""What names mean: imports, aliases and definitions, in one file and across the files of a tree.

A meaning is a dotted name: `triton.jit`, `ixformer.functions.rms_norm`, or that of a definition in the
tree, `vllm.attention.ops.prefix_prefill._fwd_kernel`. What is done at run time is not looked for.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple, TypeAlias

from muhmod.errors import FileError
from muhmod.search import Reading
from muhmod.site import MODULE_SCOPE, Definition, Module

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BINDING = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.AsyncFor)
# What holds no name that is read.
_LEAVES = frozenset({ast.Constant, ast.Load, ast.Store, ast.Del, ast.Pass, ast.Break, ast.Continue,
                     *ast.operator.__subclasses__(), *ast.cmpop.__subclasses__(),
                     *ast.unaryop.__subclasses__(), *ast.boolop.__subclasses__()})  # fmt: skip
_IMPORTS = re.compile(rb"^[ \t]*(?:from|import)\b[^\n(\\]*(?:\([^)]*\)|\\\r?\n[^\n]*)?", re.MULTILINE)
_WORD = re.compile(rb"\w+|\*")
# The name of an extension module that is built with the package: `_C`, `_moe_C`, `_C_stable`.
EXTENSION = re.compile(r"_(?:\w*_)?C(?:_\w+)?")


class Parameter(NamedTuple):
    """A name that a function is called with: its place among the positional ones, -1 for none."""

    name: str
    position: int


# What binds a name: an import (dotted), an expression, a definition, a parameter.
Binding: TypeAlias = "str | ast.expr | Definition | Parameter"


class Names:
    """The names of one file: what binds them in which scope, and every call with its scope."""

    def __init__(self, file: str, name: str, module: Module) -> None:
        self.file, self.name, self.module = file, name, module
        self.bound: dict[str, dict[str, list[Binding]]] = {MODULE_SCOPE: {}}
        self.calls: list[tuple[ast.Call, str]] = []
        self.functions: list[tuple[Definition, str]] = []
        # Names and attributes where they stand, by the name or the attribute.
        self.reads: dict[str, list[tuple[ast.Name | ast.Attribute, str]]] = {}
        self.stars: list[str] = []
        self._classes: set[str] = set()
        self._known: dict[tuple[str, str, bool], set[str]] = {}
        for statement in module.tree.body:
            self._visit(statement, MODULE_SCOPE)

    # Reading --------------------------------------------------------------------------------

    def _bind(self, scope: str, name: str, binding: Binding) -> None:
        self.bound.setdefault(scope, {}).setdefault(name, []).append(binding)

    def _visit(self, node: ast.AST, scope: str) -> None:
        kind = type(node)
        if kind in _DEFINITIONS:
            self._define(node, scope)  # type: ignore[arg-type]
            return
        if kind in _LEAVES:
            return
        if kind is ast.Name:
            self.reads.setdefault(node.id, []).append((node, scope))  # type: ignore[attr-defined,arg-type]
            return
        if kind is ast.Attribute:
            self.reads.setdefault(node.attr, []).append((node, scope))  # type: ignore[attr-defined,arg-type]
        elif kind is ast.Call:
            self.calls.append((node, scope))  # type: ignore[arg-type]
        elif kind in _BINDING:
            self._bind_by(node, scope)
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                for part in value:
                    if isinstance(part, ast.AST):
                        self._visit(part, scope)
            elif isinstance(value, ast.AST):
                self._visit(value, scope)

    def _bind_by(self, node: ast.AST, scope: str) -> None:
        match node:
            case ast.Import():
                for alias in node.names:
                    local = alias.asname or alias.name.partition(".")[0]
                    self._bind(scope, local, alias.name if alias.asname else local)
            case ast.ImportFrom():
                base = self.absolute(node.module or "", node.level)
                for alias in node.names:
                    if alias.name == "*":
                        self.stars.append(base)
                    else:
                        self._bind(scope, alias.asname or alias.name, f"{base}.{alias.name}")
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, scope)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
                | ast.For(target=target, iter=value)
                | ast.AsyncFor(target=target, iter=value)
            ):
                self._assign(target, value, scope)

    def _define(self, node: Definition, scope: str) -> None:
        path = node.name if scope == MODULE_SCOPE else f"{scope}.{node.name}"
        self._bind(scope, node.name, node)
        self.functions.append((node, path))
        for decorator in node.decorator_list:
            self._visit(decorator, scope)
        if isinstance(node, ast.ClassDef):
            self._classes.add(path)
            for base in (*node.bases, *node.keywords):
                self._visit(base, scope)
        else:
            positional = [*node.args.posonlyargs, *node.args.args]
            rest = (*node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
            for place, arg in enumerate(positional):
                self._bind(path, arg.arg, Parameter(arg.arg, place))
            for arg in filter(None, rest):
                self._bind(path, arg.arg, Parameter(arg.arg, -1))
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                self._visit(default, scope)
        for statement in node.body:
            self._visit(statement, path)

    def _assign(self, target: ast.expr, value: ast.expr, scope: str) -> None:
        match target, value:
            case ast.Name(id=name), _:
                self._bind(scope, name, value)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr), _:
                self._bind(self._class_of(scope), attr, value)
            case (
                (ast.Tuple(elts=targets) | ast.List(elts=targets)),
                (ast.Tuple(elts=values) | ast.List(elts=values)),
            ):
                if len(targets) == len(values):
                    for one, other in zip(targets, values, strict=True):
                        self._assign(one, other, scope)
            case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), _):
                for one in targets:
                    self._assign(one, value, scope)

    def _class_of(self, scope: str) -> str:
        parts = scope.split(".")
        outer = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((path for path in outer if path in self._classes), scope)

    def absolute(self, module: str, level: int) -> str:
        """The dotted name of an imported module, relative ones from this file's package."""
        if not level:
            return module
        parts = self.name.split(".")
        folder = parts if self.file.endswith("__init__.py") else parts[:-1]
        return ".".join([*folder[: len(folder) - level + 1], *filter(None, [module])])

    # Meaning --------------------------------------------------------------------------------

    def bindings(self, name: str, scope: str) -> Iterator[tuple[Binding, str]]:
        """What binds the name where the scope reads it, with the scope that does."""
        parts = [] if scope == MODULE_SCOPE else scope.split(".")
        for count in range(len(parts), -1, -1):
            path = ".".join(parts[:count]) or MODULE_SCOPE
            if path in self._classes and path != scope:
                continue
            found = self.bound.get(path, {}).get(name)
            if found:
                yield from ((binding, path) for binding in found)
                return

    def meanings(self, node: ast.expr, scope: str, *, loose: bool = False) -> set[str]:
        """The dotted names that an expression may be; none where it cannot be told.

        `loose`: of what it holds too: the arguments of a call, the entries of a list or dict.
        """
        match node:
            case ast.Name(id=name):
                return self._of_name(name, scope, loose)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr) if (
                self._class_of(scope) != scope
            ):
                return self._of_attribute(attr, self._class_of(scope), loose)
            case ast.Attribute(value=value, attr=attr):
                return {f"{name}.{attr}" for name in self.meanings(value, scope, loose=loose)}
            case ast.Call(func=ast.Name(id="getattr"), args=[of, ast.Constant(value=str() as attr), *_]):
                return {f"{name}.{attr}" for name in self.meanings(of, scope, loose=loose)}
        parts = (self.meanings(part, scope, loose=loose) for part in _parts(node, loose=loose))
        return {name for part in parts for name in part}

    def _of_name(self, name: str, scope: str, loose: bool) -> set[str]:
        found = [*self.bindings(name, scope)]
        if not found:
            return {name, *(f"{base}.{name}" for base in self.stars)}
        return self._of_bindings((found[0][1], name, loose), found)

    def _of_attribute(self, attr: str, path: str, loose: bool) -> set[str]:
        inside = f"{path}.__init__"
        found = self.bound.get(path, {}).get(attr, ())
        places = [(one, inside if isinstance(one, ast.expr) else path) for one in found]
        return self._of_bindings((inside, attr, loose), places)

    def _of_bindings(self, key: tuple[str, str, bool], found: list[tuple[Binding, str]]) -> set[str]:
        if key not in self._known:
            # What is bound to itself means no more by that.
            self._known[key] = set()
            self._known[key] = {m for one, where in found for m in self._of_binding(one, where, key[2])}
        return self._known[key]

    def _of_binding(self, binding: Binding, scope: str, loose: bool) -> set[str]:
        if isinstance(binding, str):
            return {binding}
        if isinstance(binding, Parameter):
            return set()
        if isinstance(binding, ast.expr):
            return self.meanings(binding, scope, loose=loose)
        prefix = "" if scope == MODULE_SCOPE else f"{scope}."
        return {f"{self.name}.{prefix}{binding.name}"}


def _parts(node: ast.expr, *, loose: bool) -> list[ast.expr]:
    """The expressions that an expression may be; `loose`: or that it holds, where no launch lies between."""
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            return [body, orelse]
        case ast.BoolOp(values=values):
            return values
        case ast.NamedExpr(value=value):
            return [value]
    if not loose:
        return []
    match node:
        case ast.Call(func=func, args=args, keywords=keywords) if not isinstance(func, ast.Subscript):
            return [func, *args, *(keyword.value for keyword in keywords)]
        case ast.Dict(values=values):
            return values
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            return elts
        case ast.Subscript(value=value) | ast.Starred(value=value):
            return [value]
    return []


class Index:
    """The files of a tree that were read for names, and what a name means through all of them."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.top = reading.tree.name
        self.modules: dict[str, Names] = {}
        self.faults: dict[str, FileError] = {}
        self.imported = cache(self._imported)
        self.exists = cache(self._exists)
        self.listed = cache(_listed)
        self.package_words = cache(self._package_words)

    def add(self, file: str) -> Names | None:
        """Read a file; None, and the fault kept, where it cannot be."""
        name = self.dotted(file)
        if name not in self.modules and file not in self.faults:
            try:
                self.modules[name] = Names(file, name, self.reading.source(file).module)
            except FileError as error:
                self.faults[file] = error
            except RecursionError:
                self.faults[file] = FileError(f"{file} is nested too deeply to be followed")
        return self.modules.get(name)

    def dotted(self, file: str) -> str:
        """`vllm.attention.ops` for `attention/ops/__init__.py`."""
        parts = [self.top, *file.removesuffix(".py").split("/")]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def own(self, name: str) -> str:
        """A dotted name with the package called as its folder is here."""
        head, _, rest = name.partition(".")
        return f"{self.top}.{rest}" if rest and head in self.reading.names else name

    def _imported(self, file: str) -> frozenset[bytes]:
        """The words of a file's import statements."""
        try:
            return frozenset(_WORD.findall(import_lines(self.reading.data(file))))
        except FileError as error:
            self.faults.setdefault(file, error)
            return frozenset()

    def _exists(self, module: str) -> bool:
        """Whether a module (dotted, without the package's own name) is a file or folder of the tree."""
        path = os.path.join(self.reading.tree.package, *module.split("."))
        if os.path.isdir(path) or os.path.isfile(f"{path}.py") or os.path.isfile(f"{path}.so"):
            return True
        folder, name = os.path.split(path)
        return any(
            one.startswith(f"{name}.") and one.endswith((".so", ".pyd")) for one in self.listed(folder)
        )

    def _package_words(self, module: str) -> frozenset[bytes] | None:
        """The words of a folder's `__init__.py`, none without one; None where the module is a file."""
        path = os.path.join(self.reading.tree.package, *filter(None, module.split(".")))
        if not os.path.isdir(path) or (module and os.path.isfile(f"{path}.py")):
            return None
        try:
            with open(os.path.join(path, "__init__.py"), "rb") as stream:
                data = stream.read()
        except OSError:
            return frozenset()
        return frozenset(re.findall(rb"\w+", data)) | frozenset([b"*"] if b"import *" in data else [])

    def at(self, name: str) -> tuple[Names, str] | None:
        """The module that a dotted name stands in, of those that were read, and what is left of the name."""
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            module = self.modules.get(".".join(parts[:count]))
            if module is not None:
                return module, ".".join(parts[count:])
        return None

    def final(self, names: Iterable[str], *, loose: bool = False) -> set[str]:
        """The meanings, followed through the imports and aliases of other files."""
        done: set[str] = set()
        pending = [self.own(name) for name in names]
        while pending:
            name = pending.pop()
            if name in done or len(done) > 64:
                continue
            done.add(name)
            at = self.at(name)
            if at is None or not at[1]:
                continue
            module, rest = at
            head, _, tail = rest.partition(".")
            for binding in module.bound[MODULE_SCOPE].get(head, ()):
                if isinstance(binding, (str, ast.expr)):
                    means = module.meanings(ast.Name(head, ast.Load()), MODULE_SCOPE, loose=loose)
                    pending += [self.own(f"{one}.{tail}" if tail else one) for one in means]
            if head not in module.bound[MODULE_SCOPE]:
                pending += [self.own(f"{base}.{rest}") for base in module.stars]
        return done

    def grow(self, wanted: Callable[[set[str]], bool]) -> None:
        """Read also the files that can name what is wanted under the names that the read ones give it."""
        exported: set[tuple[str, str]] = set()
        seen: set[str] = set()
        while len(seen) < len(self.modules):
            fresh = {name: module for name, module in self.modules.items() if name not in seen}
            seen |= {*fresh}
            news = {
                (name, local)
                for name, module in fresh.items()
                for local in module.bound[MODULE_SCOPE]
                if wanted(self.meanings(module, ast.Name(local, ast.Load()), MODULE_SCOPE, loose=True))
            } - exported
            exported |= news
            by_stem: dict[bytes, set[tuple[bytes, bytes]]] = {}
            for name, local in news:
                folder, _, stem = name.rpartition(".")
                around = folder.rpartition(".")[2].encode()
                by_stem.setdefault(stem.encode(), set()).add((around, local.encode()))
            for file in self.reading.files:
                if self.dotted(file) not in self.modules and self._can_name(file, by_stem):
                    self.add(file)

    def _can_name(self, file: str, by_stem: dict[bytes, set[tuple[bytes, bytes]]]) -> bool:
        """Whether a file can name one of these (folder, name) of modules called so, by its words."""
        words = self.imported(file)
        for stem in by_stem.keys() & words:
            names = by_stem[stem]
            if b"*" in words or any(name in words for _, name in names):
                return True
            data = self.reading.data(file)
            for around, name in names:
                if stem + b"." + name in data or (b"as" in words and around in words and b"." + name in data):
                    return True
        return False

    def meanings(self, of: Names, node: ast.expr, scope: str, *, loose: bool = False) -> set[str]:
        """What an expression of a file may be, through all files."""
        return self.final(of.meanings(node, scope, loose=loose), loose=loose)


def _listed(folder: str) -> tuple[str, ...]:
    """The names in a folder; none where there is no such."""
    return tuple(os.listdir(folder)) if os.path.isdir(folder) else ()


def import_lines(data: bytes) -> bytes:
    """All that looks like an import statement: enough to tell which files can name another's names."""
    return b"\0".join(match[0] for match in _IMPORTS.finditer(data))
