"""Which arm does this hardware take, and how far does it reach: tests of the source, evaluated over facts.

A test that depends on what is not known here is neither true nor false: None.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from muhmod.derive.work import Work
from muhmod.errors import DerivationError
from muhmod.model import Arrival, Condition, Scalar

# Names that the sources use for what the facts know.
_NAMES = {
    "Lk": "head_dim", "Lq": "head_dim", "Lv": "head_dim", "head_dim": "head_dim",
    "head_size": "head_dim", "E": "num_experts", "num_experts": "num_experts",
    "topk": "experts_per_token", "top_k": "experts_per_token",
}  # fmt: skip
# Sizes that are compared in the same places and say nothing about the number of tokens.
_OTHER_SIZES = {"N", "K", "block_shape", "block_n", "block_k", "bit", "num_bits", "group_size",
                "hidden_size", "intermediate_size"}  # fmt: skip
_TOKENS = {"M", "num_tokens", "numel", "num_valid_tokens"}
_HEADS = {"q", "k", "v", "query", "key", "value"}
_DTYPES = {"float16": "float16", "half": "float16", "bfloat16": "bfloat16", "float32": "float32",
           "float": "float32"}  # fmt: skip
_ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.truediv, ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}  # fmt: skip
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip
_COMPARE: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.eq, ast.IsNot: operator.ne,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "int": int}
_PLATFORMS = ("cuda", "rocm", "cpu", "xpu", "hpu", "tpu", "neuron", "npu")


@lru_cache(maxsize=1024)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def holds(test: str, work: Work) -> bool | None:
    """Whether a test is true on this hardware with this model; None if that is not known."""
    if test not in work.tests:
        try:
            value = _evaluate(_parsed(test), work)
        except (SyntaxError, ArithmeticError, TypeError, ValueError):
            value = None
        work.tests[test] = None if value is None else bool(value)
    return work.tests[test]


def possible(arrival: Arrival, work: Work) -> bool:
    """Whether no test on the way is known to go the other way."""
    return not tests_against(arrival, work)


def tests_against(arrival: Arrival, work: Work) -> list[str]:
    """The tests on the way that are known to go the other way."""
    return [
        c.test for c in arrival.conditions if not c.checked and holds(c.test, work) not in (None, c.taken)
    ]


def reached(arrival: Arrival, work: Work, given: dict[str, Scalar]) -> bool:
    """Whether no test on the way is known to go the other way for these values of the source's names."""
    for condition in arrival.conditions:
        with suppress(SyntaxError):
            value = _evaluate(_parsed(condition.test), work, given)
            if not condition.checked and value is not None and bool(value) is not condition.taken:
                return False
    return True


def certain(arrival: Arrival, work: Work) -> bool:
    """Whether every test on the way is known to go this way."""
    return all(c.checked or holds(c.test, work) is c.taken for c in arrival.conditions)


def apply_transforms(value: int, arrival: Arrival, work: Work) -> int | None:
    """The value at the use, after the arithmetic on the way; None where that is not known."""
    result: Any = value
    for transform in arrival.transforms:
        result = _evaluate(_parsed(transform), work, {"_": result})
        if not isinstance(result, int):
            return None
    return int(result)


def computed(arrival: Arrival) -> str:
    """The arithmetic on the way that changes a value, as text; empty where there is none."""
    return next((t for t in arrival.transforms if t not in ("int(_)", "_")), "")


def upper_bound(conditions: tuple[Condition, ...], work: Work, limit: float) -> float:
    """The most tokens (`M`, or `numel / topk`) with which a path is taken, at most `limit`."""
    chosen = [(_parsed(c.test), c.taken) for c in conditions if not c.checked]
    bound = _all_passed(chosen, work, limit)
    for condition in conditions:
        if condition.checked:
            # It chooses nothing, so one that is not understood leaves the reach as it is.
            with suppress(DerivationError):
                bound = min(bound, _bound(_parsed(condition.test), condition.taken, work, limit))
    return bound


def _all_passed(tests: list[tuple[ast.expr, bool]], work: Work, limit: float) -> float:
    """The bound of tests that are all passed. One that is not understood only lets fewer through."""
    bound = limit
    unknown: DerivationError | None = None
    for test, taken in tests:
        try:
            bound = min(bound, _bound(test, taken, work, limit))
        except DerivationError as error:
            unknown = unknown or error
    if unknown is not None and bound == limit:
        raise unknown
    return bound


def _bound(test: ast.expr, taken: bool, work: Work, limit: float) -> float:
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _bound(operand, not taken, work, limit)
        case ast.BoolOp(op=op, values=values):
            known = _evaluate(test, work)
            if known is not None and bool(known) is not taken:
                return 0
            narrows = isinstance(op, ast.And) is taken
            # A part that is known to fail cannot be the way through an `or`.
            if narrows:
                return _all_passed([(v, taken) for v in values], work, limit)
            parts = [_bound(v, taken, work, limit) for v in values if _truth(v, work) in (None, taken)]
            return max(parts, default=limit)
        case ast.Compare(left=left, ops=[ast.In()], comparators=[right]) if _tokens(left, work):
            return _largest(right, taken, work, limit)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            pairs = zip([left, *comparators], ops, comparators, strict=False)
            bounds = [_compare_bound(a, op, b, taken, work, limit) for a, op, b in pairs]
            return min(bounds) if taken else max(bounds)
    if _evaluate(test, work) is None:
        _refuse_tokens(test)
    return limit


def _largest(values: ast.expr, taken: bool, work: Work, limit: float) -> float:
    known = _evaluate(values, work)
    if not taken or not isinstance(known, tuple):
        return limit
    return float(max((v for v in known if isinstance(v, (int, float))), default=limit))


def _truth(node: ast.expr, work: Work) -> bool | None:
    value = _evaluate(node, work)
    return None if value is None else bool(value)


_NEGATED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
_MIRRORED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Eq: ast.Eq,
}  # fmt: skip


def _compare_bound(
    left: ast.expr, op: ast.cmpop, right: ast.expr, taken: bool, work: Work, limit: float
) -> float:
    kind = type(op) if taken else _NEGATED.get(type(op), type(op))
    counted = _tokens(left, work)
    if counted is None:
        counted, left, right = _tokens(right, work), right, left
        kind = _MIRRORED.get(kind, kind)
    value = _evaluate(right, work)
    if counted is None or not isinstance(value, (int, float)):
        _refuse_unknown(left, op, right, work)
        return limit
    # counted is (M * times) // divisor, so the largest M follows from the largest numerator.
    if kind in (ast.LtE, ast.Eq):
        return float((counted.divisor * (value + 1) - 1 if counted.floors else counted.divisor * value)
                     / counted.times)  # fmt: skip
    if kind is ast.Lt:
        return float((counted.divisor * value - 1) / counted.times)
    return limit


class _Counted(NamedTuple):
    """(M * times) / divisor, rounded down where `floors`."""

    times: float = 1.0
    divisor: float = 1.0
    floors: bool = False


def _refuse_unknown(left: ast.expr, op: ast.cmpop, right: ast.expr, work: Work) -> None:
    """A size compared with a number may be the tokens under another name: no bound may be guessed."""
    if _evaluate(left, work) is None or _evaluate(right, work) is None:
        _refuse_tokens(ast.Tuple([left, right], ast.Load()))
    if not isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        return
    for side, other in ((left, right), (right, left)):
        known = _evaluate(other, work)
        names = {n.id for n in ast.walk(side) if isinstance(n, ast.Name)}
        if isinstance(known, (int, float)) and _evaluate(side, work) is None and not names & _OTHER_SIZES:
            raise DerivationError(
                f"what `{ast.unparse(side)}` counts is not known, so neither is how far its arm reaches",
                "the tokens are called M, num_tokens or numel in the sources that muhmod knows",
            )


def _refuse_tokens(node: ast.expr) -> None:
    """A test of the tokens that is not understood leaves its arm's reach unknown."""
    if any(isinstance(n, ast.Name) and n.id in _TOKENS for n in ast.walk(node)):
        raise DerivationError(
            f"how many tokens `{ast.unparse(node)}` lets through is not known",
            "bounds are understood as comparisons of M, numel, their multiples and shares, with numbers",
        )


def _tokens(node: ast.expr, work: Work) -> _Counted | None:
    """How the expression counts the tokens; None where it is no multiple or share of them."""
    match node:
        case ast.Name(id="M" | "num_tokens"):
            return _Counted()
        case ast.Name(id="numel" | "num_valid_tokens"):
            return _Counted(float(work.integer("experts_per_token")))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for part, other in ((left, right), (right, left)):
                counted, factor = _tokens(part, work), _evaluate(other, work)
                if counted and counted.divisor == 1 and isinstance(factor, (int, float)) and factor > 0:
                    return counted._replace(times=counted.times * factor)
        case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Div() as op, right=right):
            counted, factor = _tokens(left, work), _evaluate(right, work)
            if counted and not counted.floors and isinstance(factor, (int, float)) and factor > 0:
                floors = isinstance(op, ast.FloorDiv)
                return counted._replace(divisor=counted.divisor * factor, floors=floors)
    return None


def _evaluate(node: ast.expr, work: Work, given: dict[str, Scalar] | None = None) -> Any:
    """The expression's value over facts, or None where it depends on more, or has none."""
    try:
        return _value(node, work, given)
    except (ArithmeticError, TypeError, ValueError, IndexError, KeyError, AttributeError):
        return None


def _value(node: ast.expr, work: Work, given: dict[str, Scalar] | None = None) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if given and name in given:
                return given[name]
            return _fact(_NAMES[name], work) if name in _NAMES else None
        case ast.Tuple(elts=elts) | ast.List(elts=elts) | ast.Set(elts=elts):
            parts = [_evaluate(e, work, given) for e in elts]
            return None if any(p is None for p in parts) else tuple(parts)
        case ast.UnaryOp(op=op, operand=operand):
            inner = _evaluate(operand, work, given)
            if inner is None:
                return None
            return _UNARY[type(op)](inner)
        case ast.BoolOp(op=op, values=values):
            return _bool_op(isinstance(op, ast.And), [_evaluate(v, work, given) for v in values])
        case ast.IfExp(test=test, body=body, orelse=orelse):
            known = _evaluate(test, work, given)
            return None if known is None else _evaluate(body if known else orelse, work, given)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _evaluate(left, work, given), _evaluate(right, work, given)
            known_op = _ARITHMETIC.get(type(op))
            if a is None or b is None or known_op is None or (known_op is operator.pow and abs(b) > 64):
                return None
            return known_op(a, b)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _compare([left, *comparators], ops, work, given)
        case ast.Call():
            return _call(node, work, given)
        case ast.Attribute(attr=attr):
            return _attribute(node, attr, work)
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=index):
            # The last axis of Q, K and V is the head.
            last = isinstance(index, ast.UnaryOp) and ast.unparse(index) == "-1"
            return _fact("head_dim", work) if last and name in _HEADS else None
    return None


def _bool_op(is_and: bool, parts: list[Any]) -> bool | None:
    decisive = not is_and
    if any(p is not None and bool(p) is decisive for p in parts):
        return decisive
    return None if any(p is None for p in parts) else is_and


def _compare(
    operands: list[ast.expr], ops: list[ast.cmpop], work: Work, given: dict[str, Scalar] | None
) -> bool | None:
    if isinstance(ops[0], (ast.Is, ast.IsNot)) and _is_none(operands[1]):
        return _is_hip(operands[0], isinstance(ops[0], ast.IsNot), work)
    values = [_evaluate(o, work, given) for o in operands]
    if any(v is None for v in values):
        return None
    pairs = zip(values, ops, values[1:], strict=False)
    return all(bool(_COMPARE[type(op)](a, b)) for a, op, b in pairs)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_hip(node: ast.expr, negated: bool, work: Work) -> bool | None:
    """`torch.version.hip is not None` says ROCm."""
    if not (isinstance(node, ast.Attribute) and node.attr == "hip"):
        return None
    platform = _fact("platform", work)
    return None if platform is None else (platform == "rocm") is negated


def _attribute(node: ast.Attribute, attr: str, work: Work) -> Any:
    owner = node.value
    if isinstance(owner, ast.Name) and owner.id == "torch" and attr in _DTYPES:
        return _DTYPES[attr]
    if attr == "dtype" and isinstance(owner, ast.Name) and owner.id in _HEADS | {"hidden_states"}:
        return _fact("dtype", work)
    return None


def _call(node: ast.Call, work: Work, given: dict[str, Scalar] | None) -> Any:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    arguments = [_evaluate(a, work, given) for a in node.args]
    if name in _CALLS and arguments and None not in arguments:
        return _CALLS[name](*arguments)
    if name == "has_device_capability" and arguments and arguments[0] is not None:
        return _has_capability(arguments[0], work)
    if name == "get_device_capability":
        capability = _fact("compute_capability", work)
        return None if capability is None else divmod(capability, 10)
    if name == "is_cuda_alike":
        platform = _fact("platform", work)
        return None if platform is None else platform in ("cuda", "rocm")
    if name.startswith("is_") and name[3:] in _PLATFORMS:
        platform = _fact("platform", work)
        return None if platform is None else platform == name[3:]
    if name == "is_hip":
        platform = _fact("platform", work)
        return None if platform is None else platform == "rocm"
    return None


def _has_capability(wanted: Any, work: Work) -> bool | None:
    platform, capability = _fact("platform", work), _fact("compute_capability", work)
    if isinstance(wanted, tuple):
        wanted = wanted[0] * 10 + (wanted[1] if len(wanted) > 1 else 0)
    if platform is not None and platform != "cuda":
        return None
    return None if capability is None else bool(capability >= wanted)


def _fact(name: str, work: Work) -> Any:
    value = work.facts.get(name)
    if value is not None:
        work.fact(name)
    return value
