"""The tile of chunked prefill with a cached prefix (`context_attention_fwd`).

Units: rows and columns of the score tile (BLOCK, BLOCK_M, BLOCK_N), warps (NUM_WARPS), pipeline
stages (num_stages). The Q and K tiles live in shared memory, which decides whether it launches.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from muhmod.flow import Cell, Flow, Leaf, State, read_only
from muhmod.model import Found, Slot
from muhmod.site import FunctionNode, Module, Resolve, Scope, Site, dotted, make_slot, nowhere, segment_of

BOUND = {"BLOCK", "BLOCK_M", "BLOCK_N", "BASE_BLOCK", "TRITON_BLOCK_SIZE", "NUM_WARPS",
         "num_warps", "NUM_STAGES", "num_stages"}  # fmt: skip
LAUNCHED = {"BLOCK", "BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "num_unroll_cache",
            "num_unroll_request", "kpack", "waves_per_eu", "matrix_instr_nonkdim"}  # fmt: skip
SQUARE = {"BLOCK_M", "BLOCK_N"}
# The names of roles, for what sources call otherwise.
ROLES = {"BASE_BLOCK": "BLOCK", "num_warps": "NUM_WARPS", "NUM_STAGES": "num_stages"}


class PrefillTile(Site):
    """Host-side bindings and launch keywords of the tile, in the module of context_attention_fwd."""

    name = "prefill-tile"
    sets = "tile, warps and stages of the prefix prefill kernel"
    needle = b"context_attention_fwd"
    pattern = re.compile(rb"\bdef\s+context_attention_fwd\b")

    def find(self, module: Module, resolve: Resolve = nowhere) -> list[Found]:
        """One site a host function that launches a kernel."""
        if all(scope.path.rpartition(".")[2] != "context_attention_fwd" for scope in module.scopes()):
            return []
        outer = _module_flow(module)
        return [
            found
            for scope in module.scopes()
            if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and (found := self._site(scope, scope.node, outer, module)) is not None
        ]

    def _site(
        self,
        scope: Scope,
        node: FunctionNode,
        outer: Flow,
        module: Module,
    ) -> Found | None:
        if not _may_launch(node, module):
            return None
        flow = Flow(lambda cell: True, outer.final or State(), module.function).run(node.body, node)
        slots = [
            slot
            for leaf in [*outer.leaves, *flow.leaves]
            if (slot := _slot(module, leaf, flow, node)) is not None
        ]
        if not slots:
            return None
        shown = {slot.start for slot in slots}
        for passing, cell in flow.feeding(("launch",), lambda cell: _name(cell) in BOUND | LAUNCHED):
            slot = _named(read_only(module, _name(cell), passing))
            slots += [slot] if slot.start not in shown else []
        slots.sort(key=lambda slot: slot.start)
        problem = _problem(slots, flow, module)
        return self.found(scope, _form(slots, flow), slots, module, problem=problem)


def _name(cell: Cell) -> str:
    """What a cell is called at a launch: a keyword, or a key of the options spread there."""
    return cell[1] or cell[0]


def _problem(slots: list[Slot], flow: Flow, module: Module) -> str:
    if flow.rebound:
        return next(iter(flow.rebound.values()))
    lost = sorted(flow.lost & {*BOUND, *(slot.bound or slot.name for slot in slots)})
    if lost:
        return f"{lost[0]} is bound anew in a way that is not followed"
    for slot in slots:
        by = module.globals_of(slot.bound or slot.name)
        if by:
            return f"{slot.bound or slot.name} is bound anew by the function {by[0]}"
    return ""


def _may_launch(node: FunctionNode, module: Module) -> bool:
    """Whether a host function's text has a `kernel[grid](`; device functions have none."""
    if any(dotted(d).endswith("jit") for d in node.decorator_list):
        return False
    return re.search(r"\]\s*\(", module.source(node)) is not None


def _module_flow(module: Module) -> Flow:
    """Module-level tile constants, without looking into definitions."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    body = [s for s in module.tree.body if not isinstance(s, definitions)]
    return Flow(lambda cell: True, function=module.function).run(body, closures=False)


def _slot(module: Module, leaf: Leaf, flow: Flow, node: FunctionNode) -> Slot | None:
    launched = {
        _name(use.cell)
        for use in flow.uses
        if use.kind == "launch" and any(value.leaf is leaf for value in use.values)
    } & LAUNCHED
    name = _name(leaf.cell)
    if name not in BOUND and not launched:
        return None
    # A launch that takes it by position shows as a mere read: alive, by ways that are not told apart.
    arrivals = flow.arrivals(leaf, ("launch",)) or flow.arrivals(leaf)
    slot = make_slot(module, name, leaf.node, segment_of(leaf.statement, leaf.node),
                     live=bool(arrivals), arrivals=arrivals or ())  # fmt: skip
    slot = _named(slot, launched)
    shared = name not in BOUND | LAUNCHED and _is_read_outside(name, leaf, node, module)
    return slot._replace(also=(*slot.also, f"{name} for others")) if shared else slot


def _named(slot: Slot, launched: Iterable[str] = ()) -> Slot:
    """The slot under the name of its role, which rules use, with the source's own name beside it.

    The role is what the name says, unless it is launched as something else.
    """
    roles = {ROLES.get(name, name) for name in launched}
    role = ROLES.get(slot.name, slot.name)
    if roles >= SQUARE or (role == "BLOCK" and roles & SQUARE):
        roles = {"BLOCK", *roles} - SQUARE
    if role not in roles and (roles or role not in BOUND | LAUNCHED):
        role = min(roles)
    return slot._replace(
        name=role, bound=slot.name if role != slot.name else "", also=tuple(sorted(roles - {role}))
    )


def _is_read_outside(name: str, leaf: Leaf, node: FunctionNode, module: Module) -> bool:
    """Whether a module-level name is also read by what is not this function."""
    within = {id(part) for part in ast.walk(node)}
    if id(leaf.node) in within:
        return False
    return any(
        isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Load)
        and id(part) not in within
        for part in ast.walk(module.tree)
    )  # fmt: skip


def _form(slots: list[Slot], flow: Flow) -> str:
    if any(a.conditions for s in slots for a in s.arrivals):
        return "conditional"
    inline = {leaf.cell[0] for leaf in flow.leaves if isinstance(leaf.statement, ast.Expr)}
    return "launch-keywords" if inline & {"BLOCK_M", "BLOCK_N"} else "literal"


SITE = PrefillTile()
