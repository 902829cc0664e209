"""Constants bound to a name: what `partition-size`, `triton-flag` and `q-chunk` have in common."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from muhmod.model import Arrival, Condition, Slot
from muhmod.site import MODULE_SCOPE, Module, Scope, fold, make_slot, own_expressions, statements


class Binding(NamedTuple):
    """A constant's binding: the bound name, its form, its slots, and the statement of its scope."""

    name: str
    form: str
    slots: list[Slot]
    outermost: int


def bindings(module: Module, scope: Scope, pattern: re.Pattern[str]) -> Iterator[Binding]:
    """Every binding of a matching name in one scope, without those of nested definitions.

    Assignments (annotated, chained, attribute, walrus), parameter defaults, launch keywords.
    """
    if scope.node is not None and not isinstance(scope.node, ast.ClassDef):
        yield from _defaults(module, scope.node.args, pattern)
    body = module.tree.body if scope.node is None else scope.node.body
    for index, outer in enumerate(body):
        for statement in statements([outer]):
            for name, value, form in _bound(statement, scope, pattern):
                yield Binding(name, form, _slots(module, name, value, statement), index)


def _bound(
    statement: ast.stmt, scope: Scope, pattern: re.Pattern[str]
) -> Iterator[tuple[str, ast.expr, str]]:
    targets: list[ast.expr] = []
    match statement:
        case ast.Assign(targets=targets, value=value):
            pass
        case ast.AnnAssign(target=one, value=ast.expr() as value):
            targets = [one]
        case ast.AugAssign(target=one, value=value):
            targets = [one]
    for target in targets:
        yield from _pairs(target, value, _place(scope), pattern)
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for expression in own_expressions(statement):
        for part in ast.walk(expression):
            match part:
                case ast.NamedExpr(target=ast.Name(id=name), value=value) if pattern.search(name):
                    yield name, value, "walrus"
                case ast.Call(func=ast.Subscript(), keywords=keywords):
                    for keyword in keywords:
                        literal = isinstance(keyword.value, (ast.Constant, ast.BinOp))
                        if keyword.arg and literal and pattern.search(keyword.arg):
                            yield keyword.arg, keyword.value, "launch-keyword"


def _pairs(
    target: ast.expr, value: ast.expr, place: str, pattern: re.Pattern[str]
) -> Iterator[tuple[str, ast.expr, str]]:
    match target, value:
        case ast.Tuple(elts=names), ast.Tuple(elts=values) if len(names) == len(values):
            for name, part in zip(names, values, strict=True):
                yield from _pairs(name, part, place, pattern)
        case (
            (ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name)),
            _,
        ) if pattern.search(name):
            kind = "conditional" if isinstance(value, ast.IfExp) else "literal"
            if kind == "literal" and fold(value) is None:
                kind = "call" if isinstance(value, ast.Call) else "expression"
            yield name, value, f"{place}-{kind}"


def _place(scope: Scope) -> str:
    if scope.path == MODULE_SCOPE:
        return "module"
    return "class" if isinstance(scope.node, ast.ClassDef) else "local"


def _defaults(module: Module, arguments: ast.arguments, pattern: re.Pattern[str]) -> Iterator[Binding]:
    positional = [*arguments.posonlyargs, *arguments.args]
    late = positional[len(positional) - len(arguments.defaults) :]
    pairs = [*zip(late, arguments.defaults, strict=True)]
    pairs += [
        (argument, default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is not None
    ]
    for argument, default in pairs:
        if pattern.search(argument.arg):
            slot = make_slot(module, argument.arg, default, default)
            yield Binding(argument.arg, "parameter-default", [slot], -1)


def _slots(module: Module, name: str, value: ast.expr, statement: ast.stmt) -> list[Slot]:
    """A slot for each arm of a conditional, under its test, else one."""
    segment: ast.stmt | ast.expr = statement
    if hasattr(statement, "body"):
        segment = value
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    also = tuple(ast.unparse(t) for t in targets if len(targets) > 1 and ast.unparse(t) != name)
    return [
        make_slot(module, name, arm, segment, arrivals=(Arrival(conditions),))._replace(also=also)
        for arm, conditions in _arms(value, ())
    ]


def _arms(
    value: ast.expr, conditions: tuple[Condition, ...]
) -> Iterator[tuple[ast.expr, tuple[Condition, ...]]]:
    if isinstance(value, ast.IfExp):
        text = ast.unparse(value.test)
        yield from _arms(value.body, (*conditions, Condition(text, True)))
        yield from _arms(value.orelse, (*conditions, Condition(text, False)))
    else:
        yield value, conditions
