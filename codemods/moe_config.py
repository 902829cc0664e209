"""The default tile configuration of the fused MoE kernel, where no tuned file exists.

Units: rows (BLOCK_SIZE_M, tokens of one expert), columns (N), depth (K), M-blocks that share
weights in L2 (GROUP_SIZE_M), and launch options. Special here: dicts are overwritten by ladders,
so a slot counts only if its value survives to a use.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right

from muhmod.displays import keys_of
from muhmod.flow import Flow, Leaf, read_only
from muhmod.model import LADDER, Arrival, Found, Keys, Room, Slot, Spelling
from muhmod.site import Module, Resolve, Scope, Site, make_slot, nowhere, segment_of, statements

TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
USED = ("return", "launch", "read", "escape")
KEYS = {*TILE, "GROUP_SIZE_M", "SPLIT_K", "num_warps", "num_stages"}


class MoeConfig(Site):
    """Dict displays and key writes with a BLOCK_SIZE_ key, and the names that feed them."""

    name = "moe-config"
    sets = "tile, group, warps and stages of the fused MoE kernel"
    needle = b"BLOCK_SIZE_"
    pattern = re.compile(rb"['\"]BLOCK_SIZE_[MNK]['\"]|\bBLOCK_SIZE_[MNK]\s*=")

    def find(self, module: Module, resolve: Resolve = nowhere) -> list[Found]:
        """One site a function (or the module) that decides a configuration."""
        lines = module.lines_with("BLOCK_SIZE_")
        sites = [self._site(scope, lines, module) for scope in module.scopes_at(lines)]
        return [found for found in sites if found is not None]

    def keys(self, module: Module, found: Found) -> Keys:
        """The displays that make the dict of the site's function."""
        function = next((s.node for s in module.scopes_at([found.line])), None)
        body = function.body if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
        ladder = _standing(body)
        return keys_of(module, [s for s in body if s is not ladder], function)

    def _site(self, scope: Scope, lines: list[int], module: Module) -> Found | None:
        if scope.node is None:
            definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            body: list[ast.stmt] = [s for s in module.tree.body if not isinstance(s, definitions)]
        else:
            body = scope.node.body
        ladder = _standing(body)
        body = [statement for statement in body if statement is not ladder]
        if not _decides(body, lines):
            return None
        function = None if isinstance(scope.node, ast.ClassDef) else scope.node
        flow = Flow(lambda cell: True, function=module.function).run(body, function)
        slots: dict[int, Slot] = {}
        for leaf in flow.leaves:
            keys = _keys(leaf, flow)
            if keys:
                slots[id(leaf.node)] = _slot(module, leaf, keys, flow)
        for passing, cell in flow.feeding(USED, lambda cell: cell[1] in KEYS):
            slots.setdefault(id(passing.node), read_only(module, cell[1], passing))
        for key, item, statement in _loose_displays(body, flow):
            slots.setdefault(id(item), make_slot(module, key, item, statement))
        if not slots:
            return None
        ordered = sorted(slots.values(), key=lambda slot: slot.start)
        problem = "; ".join(dict.fromkeys([*flow.odd, *flow.rebound.values()]))
        found = self.found(scope, _form(body), ordered, module, **({"problem": problem} if problem else {}))
        if isinstance(function, ast.FunctionDef):
            found = found._replace(room=_room(module, function, body, ladder))
        return found.with_room() if ladder is not None else found


def _decides(body: list[ast.stmt], lines: list[int]) -> bool:
    """Whether the block itself, on one of the lines, holds a tile key's display or a write to one."""
    return any(
        _tile_display(part) or _tile_write(part)
        for statement in statements(body)
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and bisect_left(lines, statement.lineno) < bisect_right(lines, statement.end_lineno or 0)
        for part in _walk_own(statement)
    )


def _walk_own(statement: ast.stmt) -> list[ast.AST]:
    from muhmod.site import own_expressions

    return [part for expression in own_expressions(statement) for part in _without_configs(expression)]


def _without_configs(node: ast.AST) -> list[ast.AST]:
    """The nodes below, but not those inside a `triton.Config(…)`, which is an autotune site's."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == ("Config"):
        return []
    return [node, *(x for child in ast.iter_child_nodes(node) for x in _without_configs(child))]


def _tile_display(node: ast.AST) -> bool:
    match node:
        case ast.Dict(keys=keys):
            return any(isinstance(k, ast.Constant) and k.value in TILE for k in keys)
        case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
            return any(k.arg in TILE for k in keywords)
        case ast.Call(func=ast.Attribute(attr="update"), keywords=keywords):
            return any(k.arg in TILE for k in keywords)
    return False


def _tile_write(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value in TILE
    )


# The ladder ------------------------------------------------------------------------------------
# A generated ladder is the `if` before the last return that computes an expert's rows by these names.
_COMPUTED = {"rows", "active", "need"}
# What it computes besides: the dict may be called none of these.
_LOCALS = {*_COMPUTED, "tile", "block_m", "block_n", "block_k", "group", "warps", "stages"}
_SIZES = (("M",), ("E",), ("N",), ("K",), ("topk", "top_k"))
# What a test may be about if its branches are those of sizes, quantisation or another card.
_KNOWN = {"M", "E", "N", "K", "topk", "top_k", "dtype", "is_marlin", "block_shape", "current_platform"}
_ELEMENTS = ("float16", "bfloat16")


def _standing(body: list[ast.stmt]) -> ast.stmt | None:
    """The generated ladder that stands in a function's body."""
    match body:
        case [*_, ast.If(body=inner) as ladder, ast.Return()]:
            bound = {t.id for s in inner if isinstance(s, ast.Assign) for t in s.targets
                     if isinstance(t, ast.Name)}  # fmt: skip
            return ladder if bound >= _COMPUTED else None
    return None


def _room(module: Module, function: ast.FunctionDef, body: list[ast.stmt], ladder: ast.stmt | None) -> Room:
    """The room behind the last statement of the decision; its slot says why none can be."""
    parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    last = body[-1]
    before = body[-2] if len(body) > 1 else function
    first = (before.end_lineno or 0) + 1
    line, end_line = (ladder.lineno, ladder.end_lineno or 0) if ladder else (first, first - 1)
    start, end = (module.offset(line, 0), module.offset(end_line + 1, 0)) if last.lineno >= first else (0, 0)
    displays = _displays_of(body)
    reason = _no_room(module, body, parameters) or ("" if last.lineno >= first and displays else _NOT_ALONE)
    slot = Slot(
        LADDER, start, end, line, max(line, end_line), module.text[start:end],
        editable=not reason, reason=reason, segment=(*module.span(function), "block"),
        column=1, end_column=1,
    )  # fmt: skip
    if reason:
        return Room(slot)
    key = next(key for display in displays for key in display.keys if isinstance(key, ast.Constant))
    quote = module.source(key)[-1]
    at = module.span(last)[0]
    indent = module.text[module.offset(last.lineno, 0) : at]
    known = [next(name for name in names if name in parameters) for names in _SIZES]
    listed = ", ".join(f"{quote}{element}{quote}" for element in _ELEMENTS)
    marlin = " and not is_marlin" if "is_marlin" in parameters else ""
    assert isinstance(last, ast.Return) and isinstance(last.value, ast.Name)
    spelling = Spelling(
        indent=indent,
        step=indent[function.col_offset :] or "    ",
        quote=quote,
        newline="\r\n" if module.text[:at].endswith("\r\n" + indent) else "\n",
        test=f"dtype in (None, {listed}){marlin}",
        target=last.value.id,
        names=tuple((names[0], name) for names, name in zip(_SIZES, known, strict=True) if names[0] != name),
    )
    held = set.intersection(
        *({str(k.value) for k in d.keys if isinstance(k, ast.Constant)} for d in displays)
    )
    return Room(slot, spelling, tuple(sorted(held)))


_NOT_ALONE = "the function's last return does not stand alone behind a decision"


def _displays_of(body: list[ast.stmt]) -> list[ast.Dict]:
    """The whole dicts that the decision binds: all that name a tile in N."""
    return [
        s.value
        for s in statements(body)
        if isinstance(s, (ast.Assign, ast.AnnAssign)) and isinstance(s.value, ast.Dict)
        and any(isinstance(k, ast.Constant) and k.value == "BLOCK_SIZE_N" for k in s.value.keys)
    ]  # fmt: skip


def _no_room(module: Module, body: list[ast.stmt], parameters: list[str]) -> str:
    """Why no ladder can stand before the last return; empty where one can."""
    missing = [names[0] for names in (*_SIZES, ("dtype",)) if not {*names} & {*parameters}]
    if missing:
        return f"the function is not told {', '.join(missing)}"
    last = body[-1]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Name):
        return "the function does not end in a return of its dict by name"
    if last.value.id in _LOCALS:
        return f"the dict is called {last.value.id}, as a name of the ladder"
    bound = {
        n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    for statement in statements(body):
        if isinstance(statement, ast.If) and not (_ends(statement.body) and not statement.orelse):
            names = {n.id for n in ast.walk(statement.test) if isinstance(n, ast.Name)}
            other = sorted(names - _KNOWN - bound)
            if other:
                return f"line {statement.lineno} tests {other[0]}, which a ladder would pass over"
    return ""


def _ends(block: list[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], (ast.Return, ast.Raise))


def _keys(leaf: Leaf, flow: Flow) -> list[str]:
    """The configuration keys that a leaf is bound to or arrives at, its own first."""
    used = {
        use.cell[1]
        for use in flow.uses
        if use.cell[1] in KEYS and any(value.leaf is leaf for value in use.values)
    }
    own = leaf.cell[1]
    return ([own] if own in KEYS else []) + sorted(used - {own})


def _slot(module: Module, leaf: Leaf, keys: list[str], flow: Flow) -> Slot:
    key, *others = keys
    arrivals = flow.arrivals(leaf)
    seen = any(use.cell[1] == key for use in flow.uses)
    return make_slot(
        module,
        key,
        leaf.node,
        segment_of(leaf.statement, leaf.node),
        live=bool(arrivals) or not seen,
        arrivals=arrivals or (Arrival(),),
    )._replace(also=tuple(others))


def _loose_displays(body: list[ast.stmt], flow: Flow) -> list[tuple[str, ast.expr, ast.stmt]]:
    """Items of displays that the flow did not see as a binding: in lists, in comprehensions."""
    known = {id(leaf.node) for leaf in flow.leaves}
    found: list[tuple[str, ast.expr, ast.stmt]] = []
    for statement in statements(body):
        if hasattr(statement, "body"):
            continue
        for part in _walk_own(statement):
            if isinstance(part, ast.Dict) and _tile_display(part):
                found += [
                    (key.value, item, statement)
                    for key, item in zip(part.keys, part.values, strict=True)
                    if isinstance(key, ast.Constant)
                    and key.value in KEYS
                    and id(item) not in known
                    and isinstance(item, ast.Constant)
                ]
    return found


def _form(body: list[ast.stmt]) -> str:
    parts = [part for s in statements(body) if not _is_definition(s) for part in _walk_own(s)]
    displays = [part for part in parts if _tile_display(part)]
    if any(_tile_write(part) for part in parts):
        return "dict-then-ladder" if displays else "subscript"
    named = any(
        isinstance(value, ast.Name)
        for display in displays
        if isinstance(display, ast.Dict)
        for value in display.values
    )
    return "dict-of-names" if named else "dict"


def _is_definition(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


SITE = MoeConfig()
