"""Which dict displays make a function's dict, and which of them could take one more key.

A display arrives at a use where a key that is added to it would: so one is, in a copy of the function, and
the flow is asked. All that may stand in the dict's place must be a display, or no key can be added for all.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeAlias

from muhmod.flow import Flow, Use
from muhmod.model import OPTIONS, TILE_KEYS, Arrival, Display, Keys, Slot
from muhmod.site import FunctionNode, Module, own_expressions, segment_kind, segment_of, statements

_Made: TypeAlias = "ast.Dict | ast.Call"
_COPIES = ("copy", "deepcopy")
_ARRIVES = ("return", "launch", "escape")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class _Binding(NamedTuple):
    """A dict's expression, the names that it is bound to or put into (none: it is returned), its place."""

    names: tuple[str, ...]
    value: ast.expr
    statement: ast.stmt


def keys_of(module: Module, body: list[ast.stmt], function: ast.stmt | None) -> Keys:
    """The displays with a tile key of a function's body, and whether all that makes its dict is one."""
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return Keys(refused="this is no function that hands a dict on")
    own = [s for s in statements(body) if not isinstance(s, _DEFINITIONS)]
    bindings = [binding for statement in own for binding in _bindings(statement)]
    made = {id(d): (d, b) for b in bindings for d in _displays(b.value) if {*_items(d)} & {*TILE_KEYS}}
    marked = _marked(module, body, function, [display for display, _ in made.values()])
    displays, used = [], []
    for (display, binding), (ways, options) in zip(made.values(), marked.ways, strict=True):
        if ways:
            used.append(binding)
            displays.append(_display(module, display, binding.statement, ways, options))
    # What is returned is the dict, or none of it is.
    bindings = [b for b in bindings if b.names or marked.returned]
    names = _names(bindings, used)
    refused = _stranger(bindings, names, function, own) or _loose(own, made) or marked.scattered
    return Keys(tuple(displays), tuple(sorted(names)), marked.returned, refused)


def _bindings(statement: ast.stmt) -> Iterator[_Binding]:
    match statement:
        case ast.Return(value=ast.expr() as value):
            yield _Binding((), value, statement)
        case ast.Assign(targets=targets, value=value) if all(isinstance(t, ast.Name) for t in targets):
            yield _Binding(tuple(t.id for t in targets if isinstance(t, ast.Name)), value, statement)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield _Binding((name,), value, statement)
        case ast.AugAssign(target=ast.Name(id=name), op=ast.BitOr(), value=value):
            yield _Binding((name,), value, statement)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="update")) as call):
            yield _Binding((name,), call, statement)
    for expression in own_expressions(statement):
        for part in ast.walk(expression):
            if isinstance(part, ast.NamedExpr):
                yield _Binding((part.target.id,), part.value, statement)


def _displays(value: ast.expr) -> Iterator[_Made]:
    """The displays whose items go into the dict that the expression makes."""
    match value:
        case ast.Dict():
            yield value
        case ast.Call(func=ast.Name(id="dict") | ast.Attribute(attr="update"), keywords=keywords) if any(
            k.arg for k in keywords
        ):
            yield value
    for part in _parts(value):
        yield from _displays(part)


def _parts(value: ast.expr) -> list[ast.expr]:
    """The expressions of which one that makes a dict is made."""
    match value:
        case ast.Dict(keys=keys, values=values):
            return [v for k, v in zip(keys, values, strict=True) if k is None]
        case ast.Call(func=ast.Name(id="dict") | ast.Attribute(attr="update"), args=args, keywords=keywords):
            return [*args, *(k.value for k in keywords if k.arg is None)]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[only]) if name in _COPIES:
            return [only]
        case ast.Call(func=ast.Attribute(value=inner, attr="copy"), args=[]):
            return [inner]
        case ast.IfExp(body=body, orelse=orelse):
            return [body, orelse]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return [left, right]
        case ast.NamedExpr(value=inner):
            return [inner]
    return []


def _items(display: _Made) -> dict[str, ast.expr]:
    """The items whose keys are literals."""
    if isinstance(display, ast.Call):
        return {k.arg: k.value for k in display.keywords if k.arg}
    pairs = zip(display.keys, display.values, strict=True)
    return {str(k.value): v for k, v in pairs if isinstance(k, ast.Constant)}


def _is_whole(display: _Made) -> bool:
    return {*TILE_KEYS} <= {*_items(display)}


# What arrives ---------------------------------------------------------------------------------


class _Marked(NamedTuple):
    """For each display: how it arrives, and how each option that it lacks would. See `Keys` for the rest."""

    ways: list[tuple[tuple[Arrival, ...], dict[str, tuple[Arrival, ...]]]]
    returned: bool
    scattered: str


def _marked(module: Module, body: list[ast.stmt], function: FunctionNode, displays: list[_Made]) -> _Marked:
    """The flow of a copy of the function in which each display holds a mark and the options that it lacks."""
    if not displays:
        return _Marked([], False, "")
    copies: dict[int, object] = {}
    body, function = copy.deepcopy((body, function), copies)
    added: list[dict[str, ast.expr]] = []
    for number, display in enumerate(displays):
        # A partial dict stays without, so that it hides none of those that it is spread over.
        lacking = [key for key in OPTIONS if key not in _items(display)] if _is_whole(display) else []
        copied = copies[id(display)]
        assert isinstance(copied, (ast.Dict, ast.Call))
        added.append({key: _put(copied, key) for key in (_mark(number), *lacking)})
    flow = Flow(lambda cell: True, function=module.function).run(body, function)
    leaves = {id(leaf.node): leaf for leaf in flow.leaves}
    ways = []
    for number, nodes in enumerate(added):
        found = {
            key: flow.arrivals(leaves[id(node)]) if id(node) in leaves else () for key, node in nodes.items()
        }
        ways.append((found.pop(_mark(number)), found))
    marks = {id(nodes[_mark(number)]): number for number, nodes in enumerate(added)}
    returned = any(
        use.kind == "return" and any(id(value.leaf.node) in marks for value in use.values)
        for use in flow.uses
    )
    whole = {number for number, display in enumerate(displays) if _is_whole(display)}
    return _Marked(ways, returned, _scattered(flow.uses, {m: n for m, n in marks.items() if n in whole}))


def _mark(number: int) -> str:
    return f"display {number}"


def _put(display: _Made, key: str) -> ast.expr:
    value = ast.copy_location(ast.Constant(1), display)
    if isinstance(display, ast.Call):
        display.keywords.append(ast.keyword(key, value))
    else:
        display.keys.append(ast.copy_location(ast.Constant(key), display))
        display.values.append(value)
    return value


def _scattered(uses: list[Use], whole: Collection[int]) -> str:
    """The line of a tile that arrives whole, but by no display that names all of it; empty for none."""
    places: dict[int, list[Use]] = {}
    for use in uses:
        if use.kind in _ARRIVES:
            places.setdefault(id(use.node), []).append(use)
    for group in places.values():
        arriving = [(use.cell[1] or use.cell[0], value) for use in group for value in use.values]
        by_key = {key: [value for name, value in arriving if name == key] for key in TILE_KEYS}
        marked = [value.arrival for _, value in arriving if id(value.leaf.node) in whole]
        first, *others = by_key.values()
        for value in first:
            complete = all(any(together(value.arrival, o.arrival) for o in other) for other in others)
            if complete and not any(together(value.arrival, way) for way in marked):
                return f"line {value.leaf.node.lineno}: no one display holds the tile in M, N and K"
    return ""


def together(one: Arrival, other: Arrival) -> bool:
    """Whether no test on the way of one goes the other way on that of the other."""
    return not {c._replace(taken=not c.taken) for c in one.conditions} & {*other.conditions}


# What a display can take ----------------------------------------------------------------------


def _display(
    module: Module,
    display: _Made,
    statement: ast.stmt,
    ways: tuple[Arrival, ...],
    options: dict[str, tuple[Arrival, ...]],
) -> Display:
    segment = segment_of(statement, display)
    last = max((module.span(value)[1] for value in _items(display).values()), default=0)
    line = module.line_of(max(0, last - 1))
    why = _closed(module, display)
    rooms = tuple(
        Slot(
            name, last, last, line, line, "", editable=not why, reason=why, arrivals=arrivals,
            segment=(*module.span(segment), segment_kind(segment)), room=module.span(display),
        )
        for name, arrivals in options.items() if arrivals
    )  # fmt: skip
    return Display(display.lineno, _is_whole(display), ways, rooms)


def _closed(module: Module, display: _Made) -> str:
    """Why no key can be added behind the display's last; empty where one can."""
    if isinstance(display, ast.Call):
        spread = any(k.arg is None for k in display.keywords) or bool(display.args)
        return f"line {display.lineno}: the dict is made of another one too" if spread else ""
    for key in display.keys:
        if key is None:
            return f"line {display.lineno}: the dict is made of another one too"
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            return f"line {key.lineno}: the key `{module.source(key)[:40]}` is no string"
    return ""


def _names(bindings: list[_Binding], used: list[_Binding]) -> set[str]:
    """The names that hold the dict, by any way: bound to a display, or to what holds it."""
    names = {name for binding in used for name in binding.names}
    before = -1
    while before != len(names):
        before = len(names)
        for binding in bindings:
            held = {part.id for part in _leaves(binding.value) if isinstance(part, ast.Name)}
            if names & {*binding.names} or not binding.names:
                # What is spread into the dict is part of it.
                names |= {name for name in held if any(name in b.names for b in bindings)}
            if held & names:
                names |= {*binding.names}
    return names


def _leaves(value: ast.expr) -> Iterator[ast.expr]:
    """What an expression is made of in the end: displays, names, and all else."""
    parts = _parts(value)
    if isinstance(value, ast.Dict) or not parts:
        yield value
    for part in parts:
        yield from _leaves(part)


def _stranger(bindings: list[_Binding], names: set[str], function: FunctionNode, own: list[ast.stmt]) -> str:
    """What stands in the dict's place and is no display of the function; empty for nothing."""
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.arg in names:
            return f"line {argument.lineno}: {argument.arg} may be the caller's"
    ours = [b for b in bindings if {*b.names} & names or not b.names]
    for binding in ours:
        for part in _leaves(binding.value):
            if not _is_known(part, names):
                return f"line {part.lineno}: `{ast.unparse(part)[:60]}` is no dict display"
    told = {id(binding.statement) for binding in ours}
    for statement in own:
        for name in sorted(_stored(statement) & names) if id(statement) not in told else ():
            return f"line {statement.lineno}: {name} is bound to what is no dict display"
    return ""


def _is_known(part: ast.expr, names: set[str]) -> bool:
    """A display, a name of the dict, or a constant (None, that is)."""
    match part:
        case ast.Dict() | ast.Constant():
            return True
        case ast.Call(func=ast.Name(id="dict") | ast.Attribute(attr="update"), args=[]):
            return True
        case ast.Name(id=name):
            return name in names
    return False


def _stored(statement: ast.stmt) -> set[str]:
    """The names that a statement itself binds."""
    parts: list[ast.AST] = [*own_expressions(statement)]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        parts += [item.optional_vars for item in statement.items if item.optional_vars]
    imported = statement.names if isinstance(statement, (ast.Import, ast.ImportFrom)) else ()
    nodes = [node for part in parts for node in ast.walk(part)]
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return stored | {(alias.asname or alias.name).split(".")[0] for alias in imported}


def _loose(own: list[ast.stmt], made: Collection[int]) -> str:
    """A whole tile's display that is bound to no name and not returned; empty for none."""
    for statement in own:
        for expression in own_expressions(statement):
            for part in ast.walk(expression):
                if isinstance(part, ast.Dict) and _is_whole(part) and id(part) not in made:
                    return f"line {part.lineno}: the dict goes where it cannot be followed"
    return ""
