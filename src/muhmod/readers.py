"""Who reads a dict that a function returns: each key read by name, each `**dict`, across a tree's files.

Followed are plain names, calls, `functools.partial`, copies, returns and arguments of functions that stand
in the tree. What cannot be followed is told, never passed over: a key that is added to the dict must be
taken by every reader, and arrive somewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import NamedTuple

from muhmod.errors import FileError
from muhmod.model import LAUNCH_OPTIONS
from muhmod.search import Reading
from muhmod.site import FunctionNode, Module, dotted, own_expressions

_BY_KEY = {"get", "pop", "setdefault"}
_COPIES = {"dict", "copy.copy", "copy.deepcopy", "deepcopy"}
# Calls that look at a dict and hand nothing on.
_LOOKS = {"len", "bool", "str", "repr", "print", "id", "isinstance"}
_BLOCKS = ("body", "orelse", "finalbody")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MOST_FUNCTIONS = 500


class Spread(NamedTuple):
    """A `**dict`: where (FILE:LINE), into what, and the names that it takes."""

    place: str
    into: str
    takes: frozenset[str]


class Readers(NamedTuple):
    """All readers: (key, FILE:LINE) of each key read by name, each spread, and what cannot be followed."""

    keys: tuple[tuple[str, str], ...] = ()
    spreads: tuple[Spread, ...] = ()
    unknown: tuple[str, ...] = ()

    def refusal(self, keys: Collection[str]) -> str:
        """Why the dict may not hold these keys: a reader refuses one, or it arrives nowhere; else empty."""
        if self.unknown:
            return f"not every reader of the dict can be followed: {self.unknown[0]}"
        for spread in self.spreads:
            refused = sorted({*keys} - spread.takes)
            if refused:
                return (
                    f"{spread.place} passes the dict on as keywords, and {spread.into} takes no {refused[0]}"
                )
        taken = {key for key, _ in self.keys} | {key for spread in self.spreads for key in spread.takes}
        nowhere = sorted({*keys} - taken)
        if nowhere:
            readers = "; ".join(f"{place} reads {key}" for key, place in self.keys) or "nothing reads it"
            return f"{nowhere[0]} arrives nowhere: of the dict, {readers}"
        return ""


def readers(
    reading: Reading, file: str, function: str, names: Collection[str] = (), *, returned: bool = True
) -> Readers:
    """The readers of what a function of `file` returns, and of what it holds under local names."""
    return _Follow(reading).run(file, function, names, returned=returned)


class _Function(NamedTuple):
    """A function of the tree, by its file and dotted path."""

    file: str
    path: str


class _Follow:
    """Follows dicts from the functions that make them through the functions that they are handed to."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.keys: dict[tuple[str, str], None] = {}
        self.spreads: dict[Spread, None] = {}
        self.unknown: dict[str, None] = {}
        self.makers: list[tuple[str, str]] = []
        self.given: dict[_Function, set[str]] = {}
        self.queue: list[_Function] = []
        self._imports: dict[str, dict[str, tuple[str, int, str]]] = {}

    def run(self, file: str, function: str, names: Collection[str], *, returned: bool) -> Readers:
        """Until nothing new is found."""
        if returned:
            self.make(file, function)
        if names:
            self.enqueue(_Function(file, function), names)
        steps = 0
        while self.queue and steps < _MOST_FUNCTIONS:
            steps += 1
            of = self.queue.pop()
            node = self._node(of)
            if node is not None:
                _Body(self, of, node).read()
        if self.queue:
            self.refuse(file, 1, "it goes through too many functions")
        return Readers(tuple(sorted(self.keys)), tuple(sorted(self.spreads)), tuple(self.unknown))

    # What is found --------------------------------------------------------------------------

    def make(self, file: str, name: str) -> None:
        """A function gives the dict to all that call it."""
        if (file, name) in self.makers:
            return
        self.makers.append((file, name))
        needle = name.rpartition(".")[2].encode()
        self.reading.matters(needle)
        for other in self.reading.files:
            if needle not in self.reading.data(other):
                continue
            module = self.module(other)
            if module is None:
                continue
            for local, target in self.imports(other).items():
                if target[2] == name and file in {f for f, _ in self.defined(other, local)}:
                    self.make(other, local)
            for scope in module.scopes():
                if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    self.enqueue(_Function(other, scope.path), ())
            top = ast.Module([s for s in module.tree.body if not isinstance(s, _DEFINITIONS)], [])
            for node in ast.walk(top):
                if isinstance(node, (ast.Name, ast.Attribute)) and (file, name) in self.defined(
                    other, dotted(node)
                ):
                    self.refuse(other, node.lineno, f"{name} is used outside of functions")

    def give(self, to: _Function, parameter: str) -> None:
        """A function is handed the dict under a parameter's name."""
        if parameter not in self.given.get(to, set()):
            self.enqueue(to, (parameter,))

    def enqueue(self, of: _Function, names: Collection[str]) -> None:
        """The function is to be read (again)."""
        self.given.setdefault(of, set()).update(names)
        if of not in self.queue:
            self.queue.append(of)

    def refuse(self, file: str, line: int, why: str) -> None:
        """A reader cannot be followed."""
        self.unknown.setdefault(f"{file}:{line}: {why}")

    # The tree -------------------------------------------------------------------------------

    def module(self, file: str) -> Module | None:
        """The parsed file; where it cannot be parsed, that is told."""
        try:
            return self.reading.source(file).module
        except FileError as error:
            self.refuse(file, 1, error.message)
            return None

    def _node(self, of: _Function) -> FunctionNode | None:
        module = self.module(of.file)
        for scope in module.scopes() if module else ():
            if scope.path == of.path and isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return scope.node
        return None

    def imports(self, file: str) -> dict[str, tuple[str, int, str]]:
        """What a file imports anywhere, its functions included, by local name."""
        if file not in self._imports:
            module = self.module(file)
            found: dict[str, tuple[str, int, str]] = {}
            for node in ast.walk(module.tree) if module else ():
                if isinstance(node, ast.ImportFrom):
                    found |= {a.asname or a.name: (node.module or "", node.level, a.name) for a in node.names}
                elif isinstance(node, ast.Import):
                    found |= {a.asname or a.name: (a.name, 0, "") for a in node.names}
            self._imports[file] = found
        return self._imports[file]

    def defined(self, file: str, name: str, hops: int = 8) -> list[tuple[str, str]]:
        """Where what a file calls by a dotted name is defined: (file, dotted path)."""
        module = self.module(file)
        if module is None or not hops:
            return []
        if module.defines(name):
            return [(file, name)]
        head, _, rest = name.partition(".")
        base, level, attr = self.imports(file).get(head, ("", 0, ""))
        if not (base or level):
            return []
        resolve = self.reading.from_file(file)
        inside = resolve(".".join(filter(None, (base, attr))), level)
        if inside is not None and rest:
            return self.defined(inside[0], rest, hops - 1)
        outer = resolve(base, level)
        if outer is not None and attr:
            return self.defined(outer[0], ".".join(filter(None, (attr, rest))), hops - 1)
        return []


class _Body:
    """One function, with the names in it that hold the dict, or a function that makes it."""

    def __init__(self, follow: _Follow, of: _Function, node: FunctionNode) -> None:
        self.follow, self.of, self.node = follow, of, node
        self.dicts = {*follow.given.get(of, ())}
        self.makers: set[str] = set()
        self.statements = list(_reached(node.body))

    def read(self) -> None:
        """Find every use of the dict in what of the function is reached."""
        before = -1
        while before != len(self.dicts) + len(self.makers):
            before = len(self.dicts) + len(self.makers)
            for statement in self.statements:
                self._bind(statement)
        for statement in self.statements:
            self._statement(statement)
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._closure(statement)

    def _closure(self, inner: FunctionNode) -> None:
        """A function in the function sees the dict by its name."""
        seen = {n.id for n in ast.walk(inner) if isinstance(n, ast.Name)}
        for name in sorted(seen & self.dicts):
            self.follow.give(_Function(self.of.file, f"{self.of.path}.{inner.name}"), name)
        for name in sorted(seen & self.makers):
            self._refuse(inner.body[0], f"{name}, which makes the dict, is seen by an inner function")

    def _bind(self, statement: ast.stmt) -> None:
        for node in (n for e in own_expressions(statement) for n in ast.walk(e)):
            if isinstance(node, ast.NamedExpr):
                self._name(node.target, node.value)
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._name(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._name(target, value)

    def _name(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name) and target.id != self.node.name:
            kind = self._kind(value)
            if kind:
                (self.dicts if kind == "dict" else self.makers).add(target.id)

    def _kind(self, node: ast.expr) -> str:
        """`dict` for the dict, `maker` for what gives it when called, else nothing."""
        match node:
            case ast.Name(id=name) if name in self.dicts:
                return "dict"
            case ast.Name() | ast.Attribute():
                name = dotted(node)
                known = name in self.makers or (
                    bool(name)
                    and any(name.endswith(maker.rpartition(".")[2]) for _, maker in self.follow.makers)
                    and any(one in self.follow.makers for one in self._targets(node))
                )
                return "maker" if known else ""
            case ast.Call(func=func, args=args):
                if self._kind(func) == "maker":
                    return "dict"
                first = self._kind(args[0]) if args else ""
                name = dotted(func)
                if first == "maker" and name.rpartition(".")[2] in ("partial", "lru_cache", "cache"):
                    return "maker"
                if first == "dict" and name in _COPIES:
                    return "dict"
                if isinstance(func, ast.Attribute) and func.attr == "copy":
                    return self._kind(func.value)
            case ast.IfExp(body=body, orelse=orelse):
                return self._kind(body) or self._kind(orelse)
            case ast.BoolOp(values=values):
                return next(filter(None, map(self._kind, values)), "")
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return "dict" if "dict" in (self._kind(left), self._kind(right)) else ""
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                return self._kind(value)
            case ast.Dict(keys=keys, values=values):
                spread = any(k is None and self._kind(v) for k, v in zip(keys, values, strict=True))
                return "dict" if spread else ""
        return ""

    # Uses -----------------------------------------------------------------------------------

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Return(value=ast.expr() as value) if self._kind(value):
                if self._kind(value) == "maker":
                    self._refuse(value, "a function that makes the dict is returned")
                else:
                    self.follow.make(self.of.file, self.of.path)
                self._inside(value)
                return
            case ast.Assign(targets=targets, value=value) if self._kind(value):
                for target in targets:
                    if not isinstance(target, ast.Name):
                        self._refuse(target, f"it is kept in `{ast.unparse(target)}`")
                self._inside(value)
                for target in targets:
                    self._use(target)
                return
            case ast.AnnAssign(target=ast.Name(), value=ast.expr() as value) if self._kind(value):
                self._inside(value)
                return
            case ast.For(iter=over) | ast.AsyncFor(iter=over) if self._kind(over) == "dict":
                self._refuse(over, "its keys are gone through in a loop")
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                for name in {*names} & self.dicts:
                    self.follow.refuse(self.of.file, statement.lineno, f"{name} is shared by functions")
        for expression in own_expressions(statement):
            self._use(expression, alone=isinstance(statement, (ast.Expr, ast.If, ast.While, ast.Assert)))

    def _use(self, node: ast.expr, *, alone: bool = False) -> None:
        """An expression, and the dict in it. `alone`: that the value is the dict means nothing here."""
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            return
        if self._kind(node) and not alone:
            self._refuse(node, f"`{ast.unparse(node)[:60]}` goes where it cannot be followed")
        self._inside(node)

    def _inside(self, node: ast.expr) -> None:
        match node:
            case ast.Name():
                pass
            case ast.Call():
                self._call(node)
            case ast.Subscript(value=value, slice=index) if self._kind(value) == "dict":
                self._read(index, node)
                self._inside(value)
            case ast.Compare(left=left, comparators=comparators):
                for part in (left, *comparators):
                    self._use(part, alone=True)
            case ast.BoolOp(values=values):
                for part in values:
                    self._use(part, alone=True)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                for part in (test, body, orelse):
                    self._use(part, alone=True)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                for part in (left, right):
                    self._use(part, alone=True)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._use(operand, alone=True)
            case ast.FormattedValue(value=value) | ast.NamedExpr(value=value) | ast.Await(value=value):
                self._use(value, alone=True)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    self._use(value, alone=key is None)
            case ast.Lambda(body=body):
                self._use(body)
            case _:
                for child in _children(node):
                    self._use(child)

    def _read(self, index: ast.expr, node: ast.expr) -> None:
        """`dict[key]`: a read of a key, a write (no reader), or of a key that is not known."""
        stored = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        if isinstance(index, ast.Constant):
            if not stored:
                self.follow.keys.setdefault((str(index.value), f"{self.of.file}:{node.lineno}"))
        else:
            self._refuse(node, f"the key `{ast.unparse(index)[:40]}` is not known")

    def _call(self, call: ast.Call) -> None:
        func = call.func
        name = dotted(func)
        if isinstance(func, ast.Attribute) and self._kind(func.value) == "dict":
            if func.attr in _BY_KEY and call.args:
                self._read(call.args[0], call)
            elif func.attr not in ("copy", "update"):
                self._refuse(call, f"its keys are gone through by {func.attr}()")
            self._inside(func.value)
        elif self._kind(func) != "maker":
            self._use(func)
        handled = name in _COPIES or name in _LOOKS or name.rpartition(".")[0].endswith(("logger", "log"))
        partial = name.rpartition(".")[2] in ("partial", "lru_cache", "cache")
        for number, argument in enumerate(call.args):
            kind = self._kind(argument)
            if kind == "dict" and not handled:
                self._pass(call, argument, number)
            elif kind == "maker" and not partial:
                self._refuse(argument, f"the function {ast.unparse(argument)} is handed on")
            self._inside(argument)
        for keyword in call.keywords:
            kind = self._kind(keyword.value)
            if kind == "dict" and keyword.arg is None:
                self._spread(call)
            elif kind == "dict" and not handled:
                self._pass(call, keyword.value, keyword.arg or "")
            elif kind == "maker":
                self._refuse(keyword.value, f"the function {ast.unparse(keyword.value)} is handed on")
            self._inside(keyword.value)

    def _pass(self, call: ast.Call, argument: ast.expr, to: int | str) -> None:
        """The dict is an argument: of a function in the tree it is followed into."""
        targets = self._targets(call.func)
        if not targets:
            self._refuse(argument, f"it is handed to {ast.unparse(call.func)[:60]}, which is not in the tree")
        if isinstance(to, int) and any(isinstance(a, ast.Starred) for a in call.args[:to]):
            self._refuse(argument, "it is handed on behind *arguments")
            return
        for file, path in targets:
            function = _Function(file, path)
            node = self.follow._node(function)
            parameter = _parameter(node, to, bound=isinstance(call.func, ast.Attribute)) if node else ""
            if parameter:
                self.follow.give(function, parameter)
            else:
                self._refuse(argument, f"it is handed to {path} of {file}, which names no such parameter")

    def _spread(self, call: ast.Call) -> None:
        launch = isinstance(call.func, ast.Subscript)
        func = call.func.value if isinstance(call.func, ast.Subscript) else call.func
        name = ast.unparse(func)
        nodes = [self.follow._node(_Function(*target)) for target in self._targets(func)]
        if not nodes or None in nodes:
            self._refuse(call, f"it is passed on as keywords to {name}, which is not in the tree")
        for node in nodes:
            if node is None:
                continue
            takes = frozenset(a.arg for a in (*node.args.args, *node.args.kwonlyargs))
            jit = any("jit" in ast.unparse(d) for d in node.decorator_list)
            if node.args.kwarg or (launch and not jit):
                self._refuse(call, f"it is passed on as keywords to {name}, which may do anything with them")
            place = f"{self.of.file}:{call.lineno}"
            self.follow.spreads.setdefault(Spread(place, name, takes.union(LAUNCH_OPTIONS if launch else ())))

    def _targets(self, func: ast.expr) -> list[tuple[str, str]]:
        """Where a called name is defined in the tree."""
        name = dotted(func)
        if name.startswith(("self.", "cls.")) and "." in self.of.path:
            name = f"{self.of.path.rpartition('.')[0]}.{name.partition('.')[2]}"
        inner = f"{self.of.path}.{name}"
        if not name:
            return []
        return self.follow.defined(self.of.file, inner) or self.follow.defined(self.of.file, name)

    def _refuse(self, node: ast.expr | ast.stmt, why: str) -> None:
        self.follow.refuse(self.of.file, node.lineno, why)


def _children(node: ast.AST) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif not isinstance(child, (ast.expr_context, ast.operator)):
            yield from _children(child)


def _parameter(node: FunctionNode, to: int | str, *, bound: bool) -> str:
    """The parameter that an argument is bound to; empty where none of that name or number is."""
    positional = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    if isinstance(to, str):
        return to if to in (*positional, *(a.arg for a in node.args.kwonlyargs)) else ""
    shift = int(bound and positional[:1] in (["self"], ["cls"]))
    return positional[to + shift] if to + shift < len(positional) else ""


def _reached(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block that control can come to, inner ones too, nested definitions not."""
    for statement in block:
        yield statement
        if not isinstance(statement, _DEFINITIONS):
            for part in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                for field in _BLOCKS:
                    inner = getattr(part, field, None)
                    if isinstance(inner, list):
                        yield from _reached(inner)
        if ends(statement):
            return


def ends(statement: ast.stmt) -> bool:
    """Whether nothing behind the statement in its block is reached."""
    match statement:
        case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
            return True
        case ast.If(body=body, orelse=orelse):
            return any(map(ends, body)) and any(map(ends, orelse))
    return False
