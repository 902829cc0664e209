"""Which list displays a list is made of, through names, functions, filters and concatenation.

Nothing is evaluated: a list is followed to the displays that stand in the same file, with the
tests under which each goes into it, or the reason is told why it cannot be.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple, NoReturn, TypeAlias

from muhmod.model import Condition
from muhmod.site import FunctionNode, Module, Resolve, describe, dotted, fold, is_plain, statements

_MOST_HOPS = 16
_MOST_WAYS = 16
# Calls that give their list argument back, whole or in part.
_SAME = {"list", "sorted", "tuple", "copy", "deepcopy"}
_FORMS = ("list-function", "filter-call", "concatenation", "conditional-list", "list-variable")

# What a name stands for: an expression, and the names of the place where that stands.
Names: TypeAlias = "dict[str, tuple[ast.expr, Names]]"


class Way(NamedTuple):
    """One list that the whole may be: the tests that lead to it, and the displays that it is made of."""

    conditions: tuple[Condition, ...]
    displays: tuple[ast.List, ...]


class Lists(NamedTuple):
    """All ways, and the form; or the reason why the list cannot be followed to displays."""

    form: str
    ways: tuple[Way, ...] = ()
    problem: str = ""

    @property
    def displays(self) -> tuple[ast.List, ...]:
        """Each display once, in the order of the source."""
        every = {id(d): d for way in self.ways for d in way.displays}
        return tuple(sorted(every.values(), key=lambda d: (d.lineno, d.col_offset)))


class _UnfollowedError(Exception):
    """The list leads to something that cannot be followed."""

    def __init__(self, form: str, reason: str) -> None:
        super().__init__(reason)
        self.form, self.reason = form, reason


def lists(value: ast.expr, module: Module, resolve: Resolve) -> Lists:
    """The displays behind an expression of a module's top level."""
    walk = _Walk(module, resolve)
    try:
        ways = walk.ways(value, {}, 0)
    except _UnfollowedError as error:
        return Lists(error.form, problem=error.reason)
    return Lists(next((form for form in _FORMS if form in walk.seen), "inline-list"), tuple(ways))


class _Walk:
    """Follows one list. `seen`: what it went through."""

    def __init__(self, module: Module, resolve: Resolve) -> None:
        self.module, self.resolve = module, resolve
        self.seen: set[str] = set()

    def ways(self, value: ast.expr, names: Names, hops: int) -> list[Way]:
        """Every list that the expression may be."""
        if hops > _MOST_HOPS:
            _refuse("expression", "the list leads through too many names")
        match value:
            case ast.List(elts=elts):
                starred = [e.value for e in elts if isinstance(e, ast.Starred)]
                if starred:
                    self.seen.add("concatenation")
                own = [Way((), (value,))] if len(starred) < len(elts) or not elts else [Way((), ())]
                return self._joined([own, *(self.ways(part, names, hops + 1) for part in starred)])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                self.seen.add("concatenation")
                return self._joined([self.ways(part, names, hops + 1) for part in (left, right)])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.seen.add("conditional-list")
                return [
                    way._replace(conditions=(condition, *way.conditions))
                    for part, condition in _arms(test, body, orelse)
                    for way in self.ways(part, names, hops + 1)
                ]
            case ast.Name(id=name):
                return self._name(name, value, names, hops)
            case ast.Subscript(value=inner, slice=ast.Constant(value=int() as index)):
                return self._items(inner, index, names, hops)
            case ast.Call():
                return self._call(value, names, hops)
            case ast.ListComp(elt=ast.Name(id=name), generators=[ast.comprehension(is_async=0) as one]) if (
                isinstance(one.target, ast.Name) and one.target.id == name
            ):
                self.seen.add("filter-call")
                return self.ways(one.iter, names, hops + 1)
            case ast.ListComp() | ast.GeneratorExp():
                _refuse("comprehension", "the list is a comprehension")
        _refuse("expression", f"the list is {describe(value)}")

    def _joined(self, parts: list[list[Way]]) -> list[Way]:
        ways = [
            Way(conditions, tuple(d for way in one for d in way.displays))
            for one in product(*parts)
            if _agree(conditions := tuple(c for way in one for c in way.conditions))
        ]
        if len(ways) > _MOST_WAYS:
            _refuse("expression", "the list may be made in too many ways")
        return ways

    def _name(self, name: str, value: ast.expr, names: Names, hops: int) -> list[Way]:
        if name in names:
            inner, around = names[name]
            return self.ways(inner, around, hops + 1)
        self.seen.add("list-variable")
        return [
            way._replace(conditions=(*conditions, *way.conditions))
            for conditions, inner in self._bound(name, value)
            for way in self.ways(inner, {}, hops + 1)
        ]

    def _bound(self, name: str, value: ast.expr) -> list[tuple[tuple[Condition, ...], ast.expr]]:
        """What a module-level name, bound by plain statements and read once, may stand for."""
        self._refuse_imported(name, "list-variable")
        mentions = [n for n in ast.walk(self.module.tree) if isinstance(n, ast.Name) and n.id == name]
        block = [s for s in self.module.tree.body if _binds(s, name)]
        if not block:
            _refuse("list-variable", f"the list is the name {name}, which the module does not bind")
        if sum(isinstance(n.ctx, ast.Load) for n in mentions) > 1 or self.module.globals_of(name):
            _refuse("list-variable", f"the list is {describe(value)}, which is used in more than one place")
        ends = list(self._run(block, {}, (), 0))
        found = [(conditions, names.get(name)) for conditions, names, _ in ends]
        if len(block) > 1 or any(inner is None for _, inner in found):
            _refuse("list-variable", f"the list is {describe(value)}, which is bound in more than one place")
        return [(conditions, inner[0]) for conditions, inner in found if inner is not None]

    def _refuse_imported(self, name: str, form: str) -> None:
        """A list of another file is told, and not followed."""
        where = self.module.imports().get(name)
        stars = [(base, level) for base, level, attr in self.module.imports().values() if attr == "*"]
        if where is None and (_line_of(self.module, name) or not stars):
            return
        for base, level in [where[:2]] if where else stars:
            found = self.resolve(base, level)
            wanted = where[2] if where else name
            if found is not None and (line := _line_of(found[1], wanted)):
                _refuse(form, f"the list comes from {found[0]}:{line} {wanted}, another file")
        if where is not None:
            source = f"{'.' * where[1]}{where[0]}"
            _refuse(form, f"the list comes from the name {where[2]} of the module {source}")

    # Calls --------------------------------------------------------------------------------

    def _call(self, call: ast.Call, names: Names, hops: int) -> list[Way]:
        name = dotted(call.func)
        last = name.rpartition(".")[2]
        if name == "filter" and len(call.args) == 2:
            self.seen.add("filter-call")
            return self.ways(call.args[1], names, hops + 1)
        if last in _SAME and len(call.args) == 1:
            return self.ways(call.args[0], names, hops + 1)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "copy" and not call.args:
            return self.ways(call.func.value, names, hops + 1)
        self.seen.add("filter-call" if call.args else "list-function")
        return [
            way._replace(conditions=(*conditions, *way.conditions))
            for conditions, around, value in self._results(call, names, hops)
            for way in self.ways(value, around, hops + 1)
        ]

    def _results(
        self, call: ast.Call, names: Names, hops: int
    ) -> Iterator[tuple[tuple[Condition, ...], Names, ast.expr]]:
        """What a call of one of the module's functions may return, each with the names it is over."""
        name = dotted(call.func)
        self._refuse_imported(name, "call")
        function = self.module.function(name)
        if function is None:
            _refuse("call", f"the list is {describe(call)}")
        calls = [n for n in ast.walk(self.module.tree) if isinstance(n, ast.Name) and n.id == name]
        if len(calls) > 1:
            _refuse("call", f"the list is {describe(call)}, which is used in more than one place")
        if not is_plain(function):
            _refuse("call", f"the list is {describe(call)}, which is decorated")
        given = _arguments(function, call, names)
        for conditions, around, value in self._run(function.body, given, (), hops):
            if value is None:
                _refuse("call", f"the list is {describe(call)}, which may return nothing")
            yield conditions, around, value

    def _items(self, value: ast.expr, index: int, names: Names, hops: int) -> list[Way]:
        """One item of a tuple."""
        if hops > _MOST_HOPS:
            _refuse("expression", "the list leads through too many names")
        match value:
            case ast.Tuple(elts=elts) if index < len(elts):
                return self.ways(elts[index], names, hops + 1)
            case ast.Name(id=name) if name in names:
                return self._items(names[name][0], index, names[name][1], hops + 1)
            case ast.Name(id=name):
                return [
                    way._replace(conditions=(*conditions, *way.conditions))
                    for conditions, inner in self._bound(name, value)
                    for way in self._items(inner, index, {}, hops + 1)
                ]
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return [
                    way._replace(conditions=(condition, *way.conditions))
                    for part, condition in _arms(test, body, orelse)
                    for way in self._items(part, index, names, hops + 1)
                ]
            case ast.Call():
                self.seen.add("list-function")
                return [
                    way._replace(conditions=(*conditions, *way.conditions))
                    for conditions, around, inner in self._results(value, names, hops)
                    for way in self._items(inner, index, around, hops + 1)
                ]
        _refuse("expression", f"the list is an item of {describe(value)}")

    def _run(
        self, body: list[ast.stmt], names: Names, conditions: tuple[Condition, ...], hops: int
    ) -> Iterator[tuple[tuple[Condition, ...], Names, ast.expr | None]]:
        """Every way through plain statements: the tests passed, the names bound, what is returned."""
        for number, statement in enumerate(body):
            match statement:
                case ast.Return(value=value):
                    yield conditions, names, value
                    return
                case ast.If(test=test, body=inner, orelse=orelse):
                    rest = body[number + 1 :]
                    known = fold(test)
                    for part, taken in ((inner, True), (orelse, False)):
                        if known is None or bool(known) is taken:
                            passed = () if known is not None else (Condition(ast.unparse(test), taken),)
                            yield from self._run([*part, *rest], names, (*conditions, *passed), hops)
                    return
                case ast.Assign(targets=[target], value=value):
                    names = names | _bindings(target, value, names)
                case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                    names = names | _bindings(target, value, names)
                case ast.Raise():
                    return
                case ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Assert():
                    pass
                case ast.Expr(value=value) if not _mentions_any(value, names):
                    pass
                case _:
                    _refuse("call", f"the list is made by `{ast.unparse(statement).splitlines()[0][:60]}`")
        yield conditions, names, None


def _refuse(form: str, reason: str) -> NoReturn:
    raise _UnfollowedError(form, reason)


def _arms(test: ast.expr, body: ast.expr, orelse: ast.expr) -> list[tuple[ast.expr, Condition]]:
    text = ast.unparse(test)
    return [(body, Condition(text, True)), (orelse, Condition(text, False))]


def _agree(conditions: tuple[Condition, ...]) -> bool:
    """Whether no test is passed both ways."""
    return len({c.test for c in conditions}) == len({*conditions})


def _bindings(target: ast.expr, value: ast.expr, names: Names) -> Names:
    """The names that a plain assignment binds; an unpacked one is an item of the value."""
    if isinstance(target, ast.Name):
        return {target.id: (value, names)}
    if isinstance(target, (ast.Tuple, ast.List)):
        return {
            part.id: (_item(value, index), names)
            for index, part in enumerate(target.elts)
            if isinstance(part, ast.Name)
        }
    return {}


def _item(value: ast.expr, index: int) -> ast.expr:
    return ast.copy_location(ast.Subscript(value, ast.Constant(index), ast.Load()), value)


def _arguments(function: FunctionNode, call: ast.Call, names: Names) -> Names:
    arguments = function.args
    given: Names = {}
    positional = [*arguments.posonlyargs, *arguments.args]
    late = positional[len(positional) - len(arguments.defaults) :]
    given |= {a.arg: (d, {}) for a, d in zip(late, arguments.defaults, strict=True)}
    given |= {a.arg: (d, {}) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d}
    given |= {a.arg: (value, names) for a, value in zip(positional, call.args, strict=False)}
    return given | {k.arg: (k.value, names) for k in call.keywords if k.arg}


def _binds(statement: ast.stmt, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
        for one in statements([statement])
        for node in ast.walk(one)
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    )


def _mentions_any(value: ast.expr, names: Names) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(value))


def _line_of(module: Module, name: str) -> int:
    """The line on which a module binds a top-level name; 0 for none."""
    for statement in statements(module.tree.body):
        if getattr(statement, "name", "") == name or _binds(statement, name):
            return statement.lineno
    return 0
