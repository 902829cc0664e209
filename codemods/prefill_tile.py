"""The tile of chunked prefill with a cached prefix (`context_attention_fwd`).

Units: rows and columns of the score tile (BLOCK, BLOCK_M, BLOCK_N), warps (NUM_WARPS), pipeline
stages (num_stages). The Q and K tiles live in shared memory, which decides whether it launches.
"""

from __future__ import annotations

import ast
import re

from muhmod.flow import Flow, Leaf, State
from muhmod.model import Found, Slot
from muhmod.site import Module, Scope, Site, dotted, make_slot

BOUND = {"BLOCK", "BLOCK_M", "BLOCK_N", "BASE_BLOCK", "TRITON_BLOCK_SIZE", "NUM_WARPS",
         "num_warps", "NUM_STAGES", "num_stages"}  # fmt: skip
LAUNCHED = {"BLOCK", "BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "num_unroll_cache",
            "num_unroll_request", "kpack", "waves_per_eu", "matrix_instr_nonkdim"}  # fmt: skip


class PrefillTile(Site):
    """Host-side bindings and launch keywords of the tile, in the module of context_attention_fwd."""

    name = "prefill-tile"
    sets = "tile, warps and stages of the prefix prefill kernel"
    needle = b"context_attention_fwd"
    pattern = re.compile(rb"\bdef\s+context_attention_fwd\b")

    def find(self, module: Module) -> list[Found]:
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
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        outer: Flow,
        module: Module,
    ) -> Found | None:
        if not _may_launch(node, module):
            return None
        flow = Flow(lambda cell: True, outer.final or State()).run(node.body, node)
        slots = [
            slot for leaf in [*outer.leaves, *flow.leaves] if (slot := _slot(module, leaf, flow)) is not None
        ]
        if not slots:
            return None
        slots.sort(key=lambda slot: slot.start)
        lost = sorted(flow.lost & BOUND)
        why = {"problem": f"{lost[0]} is bound anew in a way that is not followed"} if lost else {}
        return self.found(scope, _form(slots, flow), slots, module, **why)


def _may_launch(node: ast.FunctionDef | ast.AsyncFunctionDef, module: Module) -> bool:
    """Whether a host function's text has a `kernel[grid](`; device functions have none."""
    if any(dotted(d).endswith("jit") for d in node.decorator_list):
        return False
    return re.search(r"\]\s*\(", module.source(node)) is not None


def _module_flow(module: Module) -> Flow:
    """Module-level tile constants, without looking into definitions."""
    kinds = (ast.Assign, ast.AnnAssign, ast.If, ast.Try)
    body: list[ast.stmt] = [s for s in module.tree.body if isinstance(s, kinds)]
    return Flow(lambda cell: cell[0] in BOUND).run(body)


def _slot(module: Module, leaf: Leaf, flow: Flow) -> Slot | None:
    launched = {
        use.cell[1] or use.cell[0]
        for use in flow.uses
        if use.kind == "launch" and any(value.leaf is leaf for value in use.values)
    } & LAUNCHED
    name = leaf.cell[1] or leaf.cell[0]
    if name not in BOUND and not launched:
        return None
    if name not in BOUND | LAUNCHED:
        name = sorted(launched)[0]
    # A launch that takes it by position shows as a mere read: alive, by ways that are not told apart.
    arrivals = flow.arrivals(leaf, ("launch",)) or flow.arrivals(leaf)
    segment = leaf.statement if not hasattr(leaf.statement, "body") else leaf.node
    return make_slot(module, name, leaf.node, segment, live=bool(arrivals), arrivals=arrivals or ())


def _form(slots: list[Slot], flow: Flow) -> str:
    if any(a.conditions for s in slots for a in s.arrivals):
        return "conditional"
    inline = {leaf.cell[0] for leaf in flow.leaves if isinstance(leaf.statement, ast.Expr)}
    return "launch-keywords" if inline & {"BLOCK_M", "BLOCK_N"} else "literal"


SITE = PrefillTile()
