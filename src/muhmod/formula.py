"""The language of formula guards: arithmetic and comparisons over names, a closed part of Python's.

`parse` refuses what is outside of it, before there is any value; `evaluate` says what it reckoned with.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

from muhmod.model import Scalar

_LONGEST = 1000
_LARGEST = 10**30
_ARITHMETIC: dict[type[ast.operator], tuple[str, Any]] = {
    ast.Add: ("+", operator.add), ast.Sub: ("-", operator.sub), ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv), ast.FloorDiv: ("//", operator.floordiv), ast.Mod: ("%", operator.mod),
}  # fmt: skip
# Each comparison with its sign, and the sign of its contrary.
_COMPARISONS: dict[type[ast.cmpop], tuple[str, str, Any]] = {
    ast.Lt: ("<", ">=", operator.lt), ast.LtE: ("<=", ">", operator.le),
    ast.Gt: (">", "<=", operator.gt), ast.GtE: (">=", "<", operator.ge),
    ast.Eq: ("==", "!=", operator.eq), ast.NotEq: ("!=", "==", operator.ne),
}  # fmt: skip
_CALLS = {"min": min, "max": max}
# A rule's name before a slot's: its hyphens are no minus signs.
_SITE = re.compile(r"\b[A-Za-z_][\w-]*\.(?=[A-Za-z_])")


class Undecided(Exception):
    """A formula that has no truth here, and why."""


def parse(text: str) -> ast.expr:
    """The formula's expression. Raises ValueError, in words, for what is outside of the language."""
    if len(text) > _LONGEST:
        raise ValueError(f"a formula has at most {_LONGEST} characters")
    try:
        node = ast.parse(plain(text), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"is no expression: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError):
        raise ValueError("is no expression that can be read") from None
    _check(node)
    if not _may_be_true(node):
        raise ValueError(f"`{text}` is a number or a word, neither true nor false: it needs a comparison")
    return node


def plain(text: str) -> str:
    """A formula, or a rule's name, with the hyphens of rules' names as underscores."""
    return _SITE.sub(lambda match: match[0].replace("-", "_"), text.strip())


def names(node: ast.expr) -> list[str]:
    """The names that it asks for, each once: `fact`, `slot` or `rule.slot`."""
    return list(dict.fromkeys(_names(node)))


def evaluate(node: ast.expr, values: Mapping[str, Scalar]) -> tuple[bool, str]:
    """Whether it is true of these values, and the numbers that show it. Raises Undecided."""
    try:
        result, shown = _truth(node, values)
    except ZeroDivisionError:
        raise Undecided(f"{_shown(node, values)} divides by zero") from None
    except (ArithmeticError, RecursionError):
        raise Undecided(f"{_shown(node, values)} cannot be reckoned") from None
    return result, shown


# What is in the language --------------------------------------------------------------------------


def _check(node: ast.expr) -> None:
    match node:
        case ast.Name() | ast.Attribute(value=ast.Name()):
            return
        case ast.Constant(value=bool() | int() | float() | str() as value):
            if isinstance(value, (int, float)) and not abs(value) <= _LARGEST:
                raise ValueError(f"{str(value)[:40]} is out of range")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            _check(left)
            _check(right)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
            _check(operand)
        case ast.BoolOp(values=parts):
            for part in parts:
                _check(part)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(o) in _COMPARISONS for o in ops):
            for part in (left, *others):
                _check(part)
        case ast.Call(func=ast.Name(id="min" | "max"), args=[_, *_] as args, keywords=[]):
            for argument in args:
                _check(argument)
        case _:
            raise ValueError(
                f"`{ast.unparse(node)[:60]}` is outside of the language: "
                "+ - * / // %, comparisons, and, or, not, min(), max(), parentheses"
            )


def _may_be_true(node: ast.expr) -> bool:
    match node:
        case ast.Compare() | ast.Name() | ast.Attribute() | ast.Constant(value=bool()):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _may_be_true(operand)
        case ast.BoolOp(values=values):
            return all(_may_be_true(value) for value in values)
    return False


def _names(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Call):
        children: list[ast.expr] = node.args
    elif isinstance(node, (ast.Name, ast.Attribute)):
        yield ast.unparse(node)
        return
    else:
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    for child in children:
        yield from _names(child)


# What it comes to ---------------------------------------------------------------------------------


def _truth(node: ast.expr, values: Mapping[str, Scalar]) -> tuple[bool, str]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compared([left, *others], ops, values)
        case ast.BoolOp(op=op, values=parts):
            return _joined(isinstance(op, ast.And), parts, values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            result, shown = _truth(operand, values)
            return not result, shown
    value = _value(node, values)
    if not isinstance(value, bool):
        raise Undecided(f"{ast.unparse(node)} is {value!r}, neither true nor false")
    return value, f"{ast.unparse(node)} is {str(value).lower()}"


def _joined(every: bool, parts: list[ast.expr], values: Mapping[str, Scalar]) -> tuple[bool, str]:
    """As Python does: what the parts before decide is not asked any more."""
    said = []
    for part in parts:
        result, shown = _truth(part, values)
        if result is not every:
            return result, shown
        said.append(shown)
    return every, (" and " if every else ", ").join(said)


def _compared(parts: list[ast.expr], ops: list[ast.cmpop], values: Mapping[str, Scalar]) -> tuple[bool, str]:
    """The whole chain where it is true, else the first pair that is not, with the sign that is."""
    said = _side(parts[0], values)
    for left, op, right in zip(parts, ops, parts[1:], strict=False):
        sign, contrary, holds = _COMPARISONS[type(op)]
        a, b = _value(left, values), _value(right, values)
        _check_kinds(a, b, ordered=not isinstance(op, (ast.Eq, ast.NotEq)))
        if not holds(a, b):
            return False, f"{_side(left, values)} {contrary} {_side(right, values)}"
        said += f" {sign} {_side(right, values)}"
    return True, said


def _check_kinds(a: Scalar, b: Scalar, *, ordered: bool) -> None:
    kinds = [kind for kind in (_kind(a), _kind(b)) if ordered is False or kind != "a number"]
    if ordered and kinds:
        raise Undecided(f"{a!r} and {b!r} have no order: {kinds[0]} is no number")
    if not ordered and len({*kinds}) > 1:
        raise Undecided(f"{a!r} is {kinds[0]} and {b!r} is {kinds[1]}: they cannot be compared")


def _kind(value: Scalar) -> str:
    return "a flag" if isinstance(value, bool) else "a word" if isinstance(value, str) else "a number"


def _value(node: ast.expr, values: Mapping[str, Scalar]) -> Scalar:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name() | ast.Attribute():
            return values[ast.unparse(node)]
        case ast.BinOp(left=left, op=op, right=right):
            return _finite(_ARITHMETIC[type(op)][1](_number(left, values), _number(right, values)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, values)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _number(operand, values)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _CALLS[name](_number(argument, values) for argument in args)
    return _truth(node, values)[0]


def _number(node: ast.expr, values: Mapping[str, Scalar]) -> int | float:
    value = _value(node, values)
    if isinstance(value, (bool, str)):
        raise Undecided(f"{ast.unparse(node)} is {value!r}, no number")
    return value


def _finite(value: int | float) -> int | float:
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    return value


def _side(node: ast.expr, values: Mapping[str, Scalar]) -> str:
    """`4 * 64 = 256`, or `256` alone."""
    shown, result = _shown(node, values), _text(_value(node, values))
    return result if shown == result else f"{shown} = {result}"


def _shown(node: ast.expr, values: Mapping[str, Scalar]) -> str:
    """The expression with the values in the place of the names."""

    class Filled(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return ast.Name(_text(values[name.id])) if name.id in values else name

        def visit_Attribute(self, name: ast.Attribute) -> ast.expr:
            return ast.Name(_text(values[key])) if (key := ast.unparse(name)) in values else name

    return ast.unparse(Filled().visit(ast.parse(ast.unparse(node), mode="eval").body))


def _text(value: Scalar) -> str:
    return (
        str(value).lower() if isinstance(value, bool) else f"{value:g}" if _is_short(value) else repr(value)
    )


def _is_short(value: Scalar) -> bool:
    return isinstance(value, float) and float(f"{value:g}") == value
