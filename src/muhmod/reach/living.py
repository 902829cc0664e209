"""What is provably never run on the declared platform: modules that nobody imports, functions that nobody calls.

Only an exhaustive look over the tree proves that: each place that mentions the name is excluded, or stands in
what is itself never run. A name in a string, a decorator that registers, or too many places to look at prove nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from muhmod.model import Step
from muhmod.reach.trace import Frame, Tracer, locals_of
from muhmod.reach.value import Class, Function, ModuleRef, Trail, Val, truth
from muhmod.reach.world import Late, World
from muhmod.site import dotted

_MOST_FILES = 80
_MOST_DEPTH = 24
# Folders and files that a process starts in.
_ENTRIES = ("entrypoints/", "engine/", "worker/", "executor/", "v1/engine/", "v1/worker/", "v1/executor/",
            "scripts", "__init__.py", "__main__.py", "benchmarks/", "srt/entrypoints/", "cli/")  # fmt: skip
# Decorators that do not hand the function to somebody who may call it.
_PLAIN = {"staticmethod", "classmethod", "property", "lru_cache", "cache", "inference_mode", "no_grad", "jit",
          "heuristics", "autotune", "abstractmethod", "override", "cached_property", "contextmanager", "wraps",
          "overload", "final", "compile", "deprecate_kwargs", "deprecated", "dataclass"}  # fmt: skip
# A `getattr` of a plain base by a literal name.
_LITERAL_GETATTR = re.compile(rb"""\bgetattr\(\s*[\w.]+\s*,\s*(?:"\w*"|'\w*')\s*[,)]""")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Dead(NamedTuple):
    """Why something is never run: in a sentence, and the places that show it.

    `perhaps`: what might run it all the same, where that alone keeps it from being proven.
    """

    why: str
    trail: Trail
    perhaps: str = ""


class Living:
    """Answers for one world; each answer is worked out once."""

    def __init__(self, world: World, tracer: Tracer) -> None:
        self.world = world
        self.tracer = tracer
        self._modules: dict[str, Dead | None] = {}
        self._names: dict[tuple[str, str], Dead | None] = {}
        self._asking: set[object] = set()
        self._prefixes: tuple[str, ...] | None = None
        self._computed: list[str] | None = None
        self._lines: dict[tuple[str, int], Dead | None] = {}
        self._cut = False

    # Modules --------------------------------------------------------------------------------

    def module(self, file: str, depth: int = 0) -> Dead | None:
        """Why the module is never loaded; None where it is, or may be."""
        if file in self._modules:
            return self._modules[file]
        key = ("module", file)
        if self._is_entry(file) or self._is_script(file) or depth > _MOST_DEPTH or key in self._asking:
            self._cut = self._cut or key in self._asking
            # Asked for in its own proof: it gives no life to itself.
            return Dead("", ()) if key in self._asking else None
        self._asking.add(key)
        cut, self._cut = self._cut, False
        dead = self._module(file, depth)
        self._asking.discard(key)
        if dead is None or not self._cut or not self._asking:
            self._modules[file] = dead
        self._cut = cut or (self._cut and bool(self._asking))
        return dead

    def _is_entry(self, file: str) -> bool:
        return any(
            file.startswith(e) if e.endswith("/") else file == e or file.startswith(f"{e}/") for e in _ENTRIES
        )

    def _is_script(self, file: str) -> bool:
        """Whether a process may start in the file itself."""
        index = self.world.index(file)
        return any(isinstance(node, ast.Name) for node in index.words.get("__name__", ())) and any(
            isinstance(node, ast.Constant) for node in index.words.get("__main__", ())
        )

    def _module(self, file: str, depth: int) -> Dead | None:
        name = self.world.name_of(file)
        if any(name.endswith(f".{other}") for other in self.world.platform.unloaded):
            step = Step(file, 1, f"{name} is loaded on another platform")
            return Dead(f"{name} is not loaded on the platform {self.world.platform.name}", (step,))
        if file.endswith("__init__.py"):
            # A package is loaded with any module of it: that is not followed.
            return None
        last = name.rpartition(".")[2]
        files = self.world.mentions(last)
        if len(files) > _MOST_FILES:
            return None
        shown: list[Step] = []
        perhaps = ""
        for other in files:
            if other == file:
                continue
            if self.world.module(other) is None:
                unread = self._unread(other)
                perhaps = perhaps or unread.perhaps
                shown += unread.trail
                continue
            for node, does in self._loads(other, file, name, last):
                why = self._excluded(other, node, depth + 1)
                if why is None:
                    return None
                perhaps = perhaps or why.perhaps
                shown += [self.world.step(other, node, does), *why.trail]
        for prefix in self._loaded_by_name():
            # With importers that are all excluded, only a prefix that fits speaks against it.
            if any(s.startswith(prefix) for s in self._spellings(name)) if prefix else not shown:
                return None
        if shown:
            return Dead(f"{name} is never imported{_because(shown)}", tuple(dict.fromkeys(shown)), perhaps)
        return Dead(
            f"no file of the tree imports {name}", (Step(file, 1, f"no import of {name} in the tree"),)
        )

    def _loads(self, other: str, file: str, name: str, last: str) -> Iterator[tuple[ast.AST, str]]:
        """The imports of a module in a file, and strings that name it."""
        spellings = self._spellings(name)
        index = self.world.index(other)
        parents = index.parents
        for node in index.imports:
            if isinstance(node, ast.Import):
                if any(f"{a.name}.".startswith(tuple(f"{s}." for s in spellings)) for a in node.names):
                    yield node, ""
                continue
            base = self.world.absolute(other, node.module or "", node.level)
            if base in spellings or any(f"{base}.{a.name}" in spellings for a in node.names):
                yield node, ""
        for text in index.strings:
            match text:
                case ast.Constant(value=str() as word) if last in word:
                    if self._names_module(word, spellings, last) and not (
                        _is_attribute(text, parents) or self._is_elsewhere(text, parents)
                    ):
                        yield text, ""
                case ast.JoinedStr(values=[ast.Constant(value=str() as head), *_]):
                    if "." in head and any(s.startswith(head) for s in spellings):
                        yield text, ""

    def _unread(self, file: str) -> Dead:
        """Of a file that cannot be read, and holds the name."""
        said = f"{file} cannot be read"
        return Dead(said, (Step(file, 1, said),), f"what {file} does, which cannot be read")

    def _spellings(self, name: str) -> set[str]:
        """A module's dotted name under each name that the package goes by."""
        return {f"{top}.{name.partition('.')[2]}" for top in self.world.reading.names}

    def _loaded_by_name(self) -> tuple[str, ...]:
        """How the names begin that modules are loaded by where that is computed: "" where nothing is known."""
        if self._prefixes is None:
            found: set[str] = set()
            for word in ("import_module", "__import__", "load_module", "exec_module"):
                for file in self.world.mentions(word):
                    for node in self.world.index(file).words.get(word, ()):
                        call = self.world.parents(file).get(id(node))
                        if isinstance(call, ast.Call) and call.func is node and call.args:
                            found |= {p for p in [self._prefix(call.args[0], file)] if p is not None}
            self._prefixes = tuple(sorted(found))
        return self._prefixes

    def _prefix(self, name: ast.expr, file: str) -> str | None:
        """The beginning of a computed name; None for a literal, which is looked for as a string."""
        match name:
            case ast.Constant():
                return None
            case ast.JoinedStr(values=[ast.Constant(value=str() as head), *_]):
                pass
            case ast.BinOp(op=ast.Add(), left=ast.Constant(value=str() as head)):
                pass
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str() as text)):
                head = text.partition("%")[0]
            case _:
                return ""
        package = ".".join(
            self.world.name_of(file).split(".")[: None if file.endswith("__init__.py") else -1]
        )
        return f"{package}{head}" if head.startswith(".") and not head.startswith("..") else head

    def _names_module(self, text: str, spellings: set[str], last: str) -> bool:
        if text == last or text.startswith("."):
            return text.rpartition(".")[2] == last
        return any(text == s or text.startswith((f"{s}.", f"{s}:")) for s in spellings)

    # Names ----------------------------------------------------------------------------------

    def function(self, ref: Function, depth: int = 0) -> Dead | None:
        """Why the function is never called; None where it is, or may be."""
        gone = self.module(ref.file, depth)
        if gone is not None and not gone.perhaps:
            return gone
        parts = ref.path.split(".")
        for cut in range(len(parts), 0, -1):
            path = ".".join(parts[:cut])
            node = next(iter(self.world.defined(ref.file, path)), None)
            inner = cut > 1 and not isinstance(
                next(iter(self.world.defined(ref.file, ".".join(parts[: cut - 1]))), None), ast.ClassDef
            )
            # An inner function lives as its function does.
            dead = None if node is None or inner else self._named(ref.file, path, depth)
            if dead is not None and not dead.perhaps:
                return dead
            gone = gone or dead
        return gone

    def _named(self, file: str, path: str, depth: int) -> Dead | None:
        key = (file, path)
        if key in self._names:
            return self._names[key]
        if depth > _MOST_DEPTH or key in self._asking:
            self._cut = self._cut or key in self._asking
            return Dead("", ()) if key in self._asking else None
        self._asking.add(key)
        cut, self._cut = self._cut, False
        dead = self._look(file, path, depth)
        self._asking.discard(key)
        if dead is None or not self._cut or not self._asking:
            self._names[key] = dead
        self._cut = cut or (self._cut and bool(self._asking))
        return dead

    def _look(self, file: str, path: str, depth: int) -> Dead | None:
        owner, _, name = path.rpartition(".")
        nodes = self.world.defined(file, path)
        if self._is_entry(file) and not any(part.startswith("_") for part in path.split(".")):
            # What a process starts in is called from outside of the tree, too.
            return None
        if self._called_by_others(file, owner, name, nodes):
            return None
        files = self.world.mentions(name)
        if len(files) > _MOST_FILES:
            return None
        shown: list[Step] = []
        first = nodes[0] if nodes else None
        method = bool(owner)
        perhaps, because = "", ""
        for other in files:
            found = self._mentioned(other, file, path, name, method, depth)
            if found is None:
                return None
            for why in found:
                shown += why.trail
                perhaps = perhaps or why.perhaps
                because = why.why or because
        perhaps = perhaps or self._called_by_computed_name(file, owner, name)
        step = self.world.step(file, first) if first is not None else Step(file, 1, "")
        if not shown:
            return Dead(f"{path} has no caller in the tree", (step,), perhaps)
        said = f": {because}" if because else _because(shown)
        return Dead(f"{path} is never used{said}", (step, *dict.fromkeys(shown)), perhaps)

    def _called_by_computed_name(self, file: str, owner: str, name: str) -> str:
        """Which `getattr`, `globals()` or the like with a name that is worked out may give it; empty if none."""
        own = self.world.index(file).words
        for word in ("globals", "vars", "locals", "__dict__", "__getattr__"):
            for node in own.get(word, ()) if not owner else ():
                if self._is_computed_item(node, file):
                    return self._may_give(file, node, name)
        for other in self._with_computed_getattr():
            for node in self.world.index(other).words.get("getattr", ()):
                call = self.world.parents(other).get(id(node))
                if not isinstance(call, ast.Call) or call.func is not node or len(call.args) < 2:
                    continue
                if isinstance(call.args[1], ast.Constant):
                    continue
                head = self._prefix(call.args[1], other) or ""
                if name.startswith(head) and self._may_hold(call, other, file, owner):
                    return self._may_give(other, call, name)
        return ""

    def _may_give(self, file: str, node: ast.AST, name: str) -> str:
        line = getattr(node, "lineno", 1)
        return f"whether `{self.world.line(file, line)}` ({file}:{line}) gives {name}"

    def _with_computed_getattr(self) -> list[str]:
        """The files with a `getattr` whose name is no literal, as far as their bytes tell without parsing."""
        if self._computed is None:
            self._computed = [
                file for file in self.world.mentions("getattr")
                if len(_LITERAL_GETATTR.findall(data := self.world.reading.data(file))) < data.count(b"getattr")
            ]  # fmt: skip
        return self._computed

    def _is_computed_item(self, node: ast.AST, file: str) -> bool:
        """Whether `globals()[name]`, or `.get(name)` of it, takes a name that is worked out."""
        parents = self.world.parents(file)
        up = parents.get(id(node))
        if isinstance(up, ast.Call):
            up = parents.get(id(up))
        if isinstance(up, ast.Subscript):
            return not isinstance(up.slice, ast.Constant)
        return isinstance(up, ast.Attribute) and up.attr in ("get", "values", "items")

    def _may_hold(self, call: ast.Call, other: str, file: str, owner: str) -> bool:
        """Whether what `getattr` looks into may be the module, or an object of the class."""
        of = call.args[0]
        parents = self.world.parents(other)
        called = isinstance(up := parents.get(id(call)), ast.Call) and up.func is call
        if isinstance(of, ast.Name) and of.id in ("self", "cls"):
            classes = [n for n in self._enclosing(call, other) if isinstance(n, ast.ClassDef)]
            if not owner or not classes:
                return False
            path = ".".join(n.name for n in reversed(classes))
            lines = {(c.file, c.path) for c in self.world.lineage(Class(other, path))}
            lines |= {(other, path)}
            return (file, owner) in lines or any(
                (c.file, c.path) == (other, path) for c in self.world.lineage(Class(file, owner))
            )
        if not owner:
            value = self.world.force(self.world.env(other).names.get(dotted(of).partition(".")[0], Val()))
            if "modules" in dotted(of.value if isinstance(of, ast.Subscript) else of):
                return True
            if isinstance(of, ast.Subscript):
                # Of a dict: one of modules can only hold what its own module knows as one.
                names = self.world.env(other).names.values()
                refs = [ref for value in names for ref in self.world.force(value).refs]
                return any(isinstance(ref, ModuleRef) and ref.file == file for ref in refs)
            return any(isinstance(r, ModuleRef) and r.file == file for r in value.refs)
        return called

    def _called_by_others(self, file: str, owner: str, name: str, nodes: list[ast.AST]) -> bool:
        """Whether somebody may call it without its name: dunders, registries, overrides of what is outside."""
        if name.startswith("__") and name.endswith("__"):
            return True
        for node in nodes:
            decorators = [
                dotted(d.func if isinstance(d, ast.Call) else d) for d in getattr(node, "decorator_list", ())
            ]
            if any(d.rpartition(".")[2] not in _PLAIN for d in decorators):
                return True
            if isinstance(node, ast.ClassDef) and node.keywords:
                return True
        if owner:
            cls = Class(file, owner)
            if self.world.class_of(cls) is not None:
                outside = [b for one in self.world.lineage(cls) for b in self.world.bases(one)
                           if not isinstance(b, Class)]  # fmt: skip
                plain = ("Enum", "object", "ABC", "Generic", "Protocol", "NamedTuple", "Exception")
                return any(getattr(b, "name", "?").rpartition(".")[2] not in plain for b in outside)
        return False

    def _mentioned(
        self, other: str, file: str, path: str, name: str, method: bool, depth: int
    ) -> list[Dead] | None:
        """Why each place of a file that mentions a name is dead; None as soon as one may be run."""
        if self.world.module(other) is None:
            return [self._unread(other)]
        shown: list[Dead] = []
        parents = self.world.parents(other)
        for node in self.world.index(other).words.get(name, ()):
            if not self._is_mention(node, name, parents):
                continue
            if other == file and self._inside(node, path, parents, other):
                continue
            if not method and self._means_another(node, other, file, path, name):
                continue
            why = self._excluded(other, node, depth + 1)
            if why is None and isinstance(node, ast.Name) and other != file and not method:
                why = self._unbound(node, other, name, parents, depth)
            if why is None:
                return None
            shown.append(why)
        return shown

    def _is_mention(self, node: ast.AST, name: str, parents: dict[int, ast.AST]) -> bool:
        match node:
            case ast.Name(id=word, ctx=ast.Load()):
                return word == name
            case ast.Attribute(attr=word, ctx=ast.Load()):
                return word == name
            case ast.Constant() if self._is_elsewhere(node, parents):
                return False
            case ast.Constant(value=str() as text):
                return (text == name or text.endswith((f".{name}", f":{name}"))) and not self._is_all(
                    node, parents
                )
        return False

    def _is_elsewhere(self, node: ast.AST, parents: dict[int, ast.AST]) -> bool:
        """Whether a string is the value of an enumeration's member that this platform never chooses."""
        match parents.get(id(node)):
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) as statement
            ):
                inside = isinstance(parents.get(id(statement)), ast.ClassDef)
                return inside and name in self.world.platform.never
        return False

    def _is_all(self, node: ast.AST, parents: dict[int, ast.AST]) -> bool:
        """Whether a string stands in `__all__`, which calls nothing, or alone, as a comment."""
        parent = parents.get(id(node))
        if isinstance(parent, ast.Expr):
            return True
        while isinstance(parent, (ast.List, ast.Tuple, ast.BinOp)):
            parent = parents.get(id(parent))
        targets = getattr(parent, "targets", None) or [getattr(parent, "target", None)]
        return any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets)

    def _inside(self, node: ast.AST, path: str, parents: dict[int, ast.AST], file: str) -> bool:
        """Whether a mention stands in the definition itself."""
        own = {id(n) for n in self.world.defined(file, path)}
        current: ast.AST | None = node
        while current is not None:
            if id(current) in own:
                return True
            current = parents.get(id(current))
        return False

    def _means_another(self, node: ast.AST, other: str, file: str, path: str, name: str) -> bool:
        """Whether the name is bound to something else where it is mentioned."""
        if not isinstance(node, ast.Name):
            return self._other_attribute(node, other, file, path)
        enclosing = self._enclosing(node, other)
        for function in enclosing:
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                bound = _bound_in(function, name)
                if bound == "imported":
                    return not self._imports_it(function, other, file, path, name)
                if bound:
                    return True
        value = self.world.env(other).names.get(name)
        if value is None:
            return False
        value = self.world.force(value)
        if value.open or not value.refs:
            return False
        return not any(
            isinstance(r, (Function, Class)) and (r.file, r.path) == (file, path) for r in value.refs
        )

    def _other_attribute(self, node: ast.AST, other: str, file: str, path: str) -> bool:
        """Whether `base.name` is of a module that has another such name."""
        if not isinstance(node, ast.Attribute):
            return False
        head, _, rest = dotted(node.value).partition(".")
        if not head or rest:
            return False
        value = self.world.env(other).names.get(head)
        if value is None or any(
            _bound_in(f, head) for f in self._enclosing(node, other) if not isinstance(f, ast.ClassDef)
        ):
            return False
        value = self.world.force(value)
        if value.open or not value.refs or not all(isinstance(r, ModuleRef) for r in value.refs):
            return False
        found = [self.world.attribute(r, node.attr) for r in value.refs]
        refs = [ref for one in found for ref in one.refs]
        if not refs or any(one.open for one in found):
            return False
        return not any(isinstance(r, (Function, Class)) and (r.file, r.path) == (file, path) for r in refs)

    def _imports_it(self, function: ast.AST, other: str, file: str, path: str, name: str) -> bool:
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
                late = next(a for a in node.names if (a.asname or a.name) == name)
                value = self.world._late(Late(other, node.module or "", node.level, late.name))
                if value.open or not value.refs:
                    return True
                if any(
                    isinstance(r, (Function, Class)) and (r.file, r.path) == (file, path) for r in value.refs
                ):
                    return True
        return False

    def _unbound(
        self, node: ast.AST, other: str, name: str, parents: dict[int, ast.AST], depth: int
    ) -> Dead | None:
        """Why a name that a file would import is not bound there: all its imports are excluded."""
        index = self.world.index(other)
        shown: list[Step] = []
        found = False
        if index.stores.get(name):
            return None
        for one in index.imports:
            if any(a.name == "*" for a in one.names):
                return None
            if any((a.asname or a.name) == name for a in one.names):
                found = True
                why = self._excluded(other, one, depth + 1)
                if why is None:
                    return None
                shown += why.trail
        if not found:
            return None
        step = self.world.step(
            other, node, f"{name} is not bound here: {self.world.line(other, getattr(node, 'lineno', 1))}"
        )
        return Dead("", (*shown, step))

    # Places ---------------------------------------------------------------------------------

    def _enclosing(self, node: ast.AST, file: str) -> list[ast.AST]:
        parents = self.world.parents(file)
        found: list[ast.AST] = []
        current = parents.get(id(node))
        while current is not None:
            if isinstance(current, _DEFINITIONS):
                found.append(current)
            current = parents.get(id(current))
        return found

    def line(self, file: str, line: int) -> Dead | None:
        """Why a line is never run: the function that holds it, or its module."""
        key = (file, line)
        if key not in self._lines:
            path, first = "", 0
            pending: list[tuple[str, ast.AST]] = [("", one) for one in self._body(file)]
            while pending:
                prefix, node = pending.pop()
                if not isinstance(node, _DEFINITIONS) or not node.lineno < line <= (node.end_lineno or 0):
                    continue
                if isinstance(node, ast.ClassDef):
                    pending = [(f"{prefix}{node.name}.", one) for one in node.body]
                elif line >= node.body[0].lineno:
                    path, first = f"{prefix}{node.name}", node.lineno
                    break
            self._lines[key] = self.function(Function(file, path, first)) if path else self.module(file)
        return self._lines[key]

    def _body(self, file: str) -> list[ast.stmt]:
        """The statements of a module, those in the blocks of its top level too."""
        module = self.world.module(file)
        found: list[ast.stmt] = []
        pending: list[ast.AST] = [module.tree] if module else []
        while pending:
            for name in ("body", "orelse", "finalbody", "handlers"):
                for one in getattr(pending[0], name, ()):
                    if isinstance(one, _DEFINITIONS):
                        found.append(one)
                    else:
                        pending.append(one)
            pending.pop(0)
        return found

    def place(self, file: str, node: ast.AST) -> Dead | None:
        """Why a place is never run: a test above it, its function, its module."""
        return self._excluded(file, node, 0)

    def _excluded(self, file: str, node: ast.AST, depth: int) -> Dead | None:
        line = getattr(node, "lineno", 1)
        for one in self.world.env(file).excluded:
            if one.first <= line <= one.last:
                return Dead(one.trail[-1].does if one.trail else "no way leads here", one.trail)
        why = self._guarded(file, node)
        if why is not None:
            return why
        enclosing = self._enclosing(node, file)
        if enclosing and isinstance(node, _DEFINITIONS) is False:
            path = ".".join(reversed([n.name for n in enclosing]))  # type: ignore[attr-defined]
            inner = enclosing[0]
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)) and not self._in_header(
                node, inner, file
            ):
                return self.function(Function(file, path, inner.lineno), depth)
        return self.module(file, depth)

    def _in_header(self, node: ast.AST, function: ast.FunctionDef | ast.AsyncFunctionDef, file: str) -> bool:
        """Whether a place is in a function's decorators, defaults or annotations: run where it is defined."""
        body = function.body
        line = getattr(node, "lineno", 1)
        return line < body[0].lineno and not (body[0].lineno <= line <= (body[-1].end_lineno or line))

    def _guarded(self, file: str, node: ast.AST) -> Dead | None:
        """Whether a test above the place fails, or the block was left before it, inside its function."""
        parents = self.world.parents(file)
        current, parent = node, parents.get(id(node))
        frame = self._frame(file, node)
        while parent is not None and not isinstance(parent, ast.Module):
            if isinstance(parent, (ast.If, ast.IfExp)) and current is not parent.test:
                body = parent.body if isinstance(parent.body, list) else [parent.body]
                taken = truth(self.tracer.ev(parent.test, {}, frame).const)
                if taken is not None and taken is not any(current is n for n in body):
                    trail = self.tracer.why(parent.test, {}, frame, taken)
                    return Dead(trail[-1].does, trail)
            for field in ("body", "orelse", "finalbody"):
                block = getattr(parent, field, None)
                if isinstance(block, list) and any(current is n for n in block):
                    gone = self._left_before(block, current, file, frame)
                    if gone is not None:
                        return gone
            current, parent = parent, parents.get(id(parent))
        return None

    def _left_before(self, block: list[ast.stmt], node: ast.AST, file: str, frame: Frame) -> Dead | None:
        """Why a block is left before a statement: by one above it, or by a branch that is always taken."""
        for statement in block:
            if statement is node:
                return None
            if isinstance(statement, _LEAVES):
                step = self.world.step(file, statement)
                return Dead(f"{file}:{step.line} has left before", (step,))
            if (
                isinstance(statement, ast.If)
                and isinstance(statement.body[-1], _LEAVES)
                and truth(self.tracer.ev(statement.test, {}, frame).const) is True
            ):
                trail = self.tracer.why(statement.test, {}, frame, True)
                step = self.world.step(file, statement.body[-1])
                return Dead(f"{file}:{step.line} has left before", (*trail, step))
        return None

    def _frame(self, file: str, node: ast.AST) -> Frame:
        """A frame in which the function's own names are unknown."""
        names: frozenset[str] = frozenset()
        for one in self._enclosing(node, file):
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names |= locals_of(one)
        return Frame(file, None, None, [], [], {}, set(), names)


def _because(shown: list[Step]) -> str:
    """What shows it, in the words of the last place; nothing where it is only used by itself."""
    return f": {shown[-1].does}" if shown else ", but by itself"


_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def _is_attribute(node: ast.AST, parents: dict[int, ast.AST]) -> bool:
    """Whether a string names an attribute: the second argument of `getattr` and its like."""
    match parents.get(id(node)):
        case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr" | "delattr"), args=[_, second, *_]):
            return second is node
    return False


def _bound_in(function: ast.AST, name: str) -> str:
    """How a function binds a name itself: `imported`, `bound`, or not."""
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or name not in locals_of(function):
        return ""
    if any(isinstance(a, ast.arg) and a.arg == name for a in ast.walk(function.args)):
        return "bound"
    for node in ast.walk(function):
        if isinstance(node, ast.alias) and (node.asname or node.name).split(".")[0] == name:
            return "imported"
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return "bound"
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and node is not function
            and node.name == name
        ):
            return "bound"
    return ""
