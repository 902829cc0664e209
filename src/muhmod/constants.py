"""Constants bound to a name: what `partition-size`, `triton-flag` and `q-chunk` have in common."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from muhmod.flow import Flow, Leaf
from muhmod.model import Arrival, Slot
from muhmod.site import MODULE_SCOPE, Module, Scope, make_slot, segment_of


class Binding(NamedTuple):
    """All bindings of one name in one scope, or one launch keyword: the name, its form, its slots.

    `problem` says why none of them can be edited.
    """

    name: str
    form: str
    slots: list[Slot]
    problem: str


def bindings(module: Module, scope: Scope, pattern: re.Pattern[str]) -> Iterator[Binding]:
    """Every name that matches and is bound in one scope, without those of nested definitions.

    Assignments (annotated, chained, augmented, unpacked, of attributes), walrus, parameter defaults
    and launch keywords.
    """
    function = None if isinstance(scope.node, ast.ClassDef) else scope.node
    flow = Flow(lambda cell: not cell[1] and pattern.search(cell[0]) is not None)
    flow.run(function.body if function is not None else _outside_definitions(module, scope), function)
    groups: dict[tuple[str, int], list[Leaf]] = {}
    for leaf in flow.leaves:
        launched = _is_launched(leaf)
        if not launched or not isinstance(leaf.node, (ast.Name, ast.Attribute, ast.Subscript)):
            groups.setdefault((leaf.cell[0], leaf.statement.lineno if launched else 0), []).append(leaf)
    for (name, launched_at), leaves in groups.items():
        form = "launch-keyword" if launched_at else _form(leaves[0], scope)
        problem = "" if launched_at else _problem(name, flow, module, scope)
        yield Binding(name, form, [_slot(module, leaf, flow) for leaf in leaves], problem)


def _outside_definitions(module: Module, scope: Scope) -> list[ast.stmt]:
    body = scope.node.body if isinstance(scope.node, ast.ClassDef) else module.tree.body
    return [s for s in body if not isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]


def _slot(module: Module, leaf: Leaf, flow: Flow) -> Slot:
    last = flow.final.cells.get(leaf.cell, frozenset()) if flow.final is not None else frozenset()
    uses = (use for use in flow.uses if use.cell[0] == leaf.cell[0])
    arrivals = [value.arrival for use in uses for value in use.values if value.leaf is leaf]
    arrivals += [value.arrival for value in last if value.leaf is leaf]
    ways = tuple(sorted(set(arrivals), key=repr))
    slot = make_slot(module, leaf.cell[0], leaf.node, segment_of(leaf.statement, leaf.node),
                     live=bool(ways), arrivals=ways or (Arrival(),))  # fmt: skip
    return slot._replace(also=_also(leaf))


def _also(leaf: Leaf) -> tuple[str, ...]:
    """The other targets of a chained assignment."""
    targets = leaf.statement.targets if isinstance(leaf.statement, ast.Assign) else []
    names = [ast.unparse(target) for target in targets] if len(targets) > 1 else []
    return tuple(name for name in names if name.rpartition(".")[2] != leaf.cell[0])


def _is_launched(leaf: Leaf) -> bool:
    return any(
        isinstance(call, ast.Call) and any(k.value is leaf.node for k in call.keywords)
        for call in ast.walk(leaf.statement)
    )


def _form(leaf: Leaf, scope: Scope) -> str:
    statement = leaf.statement
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return "parameter-default"
    for part in ast.walk(statement):
        if isinstance(part, ast.NamedExpr) and part.value is leaf.node:
            return "walrus"
        if isinstance(part, ast.IfExp) and leaf.node in (part.body, part.orelse):
            return f"{_place(scope)}-conditional"
    if isinstance(leaf.node, ast.Call):
        return f"{_place(scope)}-call"
    literal = isinstance(leaf.node, (ast.Constant, ast.BinOp, ast.UnaryOp))
    return f"{_place(scope)}-{'literal' if literal else 'expression'}"


def _place(scope: Scope) -> str:
    if scope.path == MODULE_SCOPE:
        return "module"
    return "class" if isinstance(scope.node, ast.ClassDef) else "local"


def _problem(name: str, flow: Flow, module: Module, scope: Scope) -> str:
    if name in flow.lost:
        return f"{name} is bound anew in a way that is not followed"
    elsewhere = module.globals_of(name) if scope.path == MODULE_SCOPE else []
    return f"{name} is bound anew by the function {elsewhere[0]}" if elsewhere else ""
