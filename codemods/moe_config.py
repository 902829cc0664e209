"""The default tile configuration of the fused MoE kernel, where no tuned file exists.

Units: rows (BLOCK_SIZE_M, tokens of one expert), columns (N), depth (K), M-blocks that share
weights in L2 (GROUP_SIZE_M), and launch options. Special here: dicts are overwritten by ladders,
so a slot counts only if its value survives to a use.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right

from muhmod.flow import Flow, Leaf, read_only
from muhmod.model import Arrival, Found, Slot
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

    def _site(self, scope: Scope, lines: list[int], module: Module) -> Found | None:
        if scope.node is None:
            definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            body: list[ast.stmt] = [s for s in module.tree.body if not isinstance(s, definitions)]
        else:
            body = scope.node.body
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
        return self.found(scope, _form(body), ordered, module, **({"problem": problem} if problem else {}))


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
