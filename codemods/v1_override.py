"""The literal that shuts the choice between paged attention V1 and V2.

Unit: none (a truth value). V2 splits long sequences over more blocks; a literal after the
heuristic keeps it from ever being chosen. Special here: the edit removes a statement.
"""

from __future__ import annotations

import ast
import re

from muhmod.flow import Arriving, Flow, Leaf
from muhmod.model import Found, Slot
from muhmod.site import Module, Scope, Site, dotted, fold, make_slot, statements

_LAUNCHER = re.compile(r"paged_attention_v[12]$")
_HEURISTIC_NAMES = {"max_num_partitions", "max_seq_len", "num_seqs", "num_heads"}


class V1Override(Site):
    """Assignments to use_v1 in a function that computes the paged-attention heuristic.

    The engine's switch of the same name is another thing: its function neither weighs
    partitions nor calls a paged-attention launcher.
    """

    name = "v1-override"
    sets = "whether paged attention V1 is forced"
    needle = b"use_v1"
    pattern = re.compile(rb"\buse_v1\b")

    def find(self, module: Module) -> list[Found]:
        """One site a function."""
        scopes = module.scopes_at(module.lines_with("use_v1"))
        return [found for scope in scopes if (found := self._site(scope, module)) is not None]

    def _site(self, scope: Scope, module: Module) -> Found | None:
        if not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        flow = Flow(lambda cell: cell == ("use_v1", "")).run(scope.node.body)
        if not flow.leaves or not _is_heuristic(scope.node, flow.leaves):
            return None
        heuristics = [leaf for leaf in flow.leaves if fold(leaf.node) is None]
        literals = [leaf for leaf in flow.leaves if fold(leaf.node) is not None]
        arriving = _at_uses(flow)
        override = _dominating(arriving, literals) if heuristics else None
        if override is None:
            return self._satisfied(scope, flow.leaves, arriving, module)
        slot = make_slot(module, "use_v1", override.node, override.statement)
        kept = [_shown(module, leaf, "replaced by the literal on every path") for leaf in heuristics]
        problem = _why_not_removable(scope.node, override)
        return self.found(scope, "literal-override", [*kept, slot], module, problem=problem)

    def _satisfied(self, scope: Scope, leaves: list[Leaf], arriving: list[Arriving], module: Module) -> Found:
        slots = [_shown(module, leaf, "", any(a.leaf is leaf for a in arriving)) for leaf in leaves]
        fallback = any(fold(leaf.node) is not None for leaf in leaves)
        form = "fallback-literal" if fallback else "heuristic"
        why = (
            "the literal is a fallback beside the heuristic, not an override of it"
            if fallback
            else "no literal overrides the heuristic"
        )
        return self.found(scope, form, slots, module, satisfied=why)


def _is_heuristic(node: ast.FunctionDef | ast.AsyncFunctionDef, leaves: list[Leaf]) -> bool:
    if any(_HEURISTIC_NAMES & _names(leaf.node) for leaf in leaves):
        return True
    return any(isinstance(part, ast.Call) and _LAUNCHER.search(dotted(part.func)) for part in ast.walk(node))


def _names(node: ast.expr) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _at_uses(flow: Flow) -> list[Arriving]:
    """What use_v1 may hold where it is used: tests, calls, returns; else at the end."""
    values = [v for use in flow.uses if use.cell[0] in ("use_v1", "return") for v in use.values]
    if not values and flow.final is not None:
        values = list(flow.final.cells.get(("use_v1", ""), ()))
    return values


def _dominating(arriving: list[Arriving], literals: list[Leaf]) -> Leaf | None:
    """The literal that is all that arrives, if there is one."""
    leaves = {value.leaf.number: value.leaf for value in arriving}
    if len(leaves) != 1:
        return None
    (leaf,) = leaves.values()
    return leaf if leaf in literals else None


def _why_not_removable(node: ast.FunctionDef | ast.AsyncFunctionDef, override: Leaf) -> str:
    statement = override.statement
    if not (
        (isinstance(statement, ast.Assign) and len(statement.targets) == 1)
        or isinstance(statement, ast.AnnAssign)
    ):
        return "the literal shares its statement with another binding"
    if statement not in node.body and not any(
        statement in block and len(block) > 1 for block in _blocks(node)
    ):
        return "the literal is the only statement of its block"
    return ""


def _blocks(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[list[ast.stmt]]:
    from muhmod.site import bodies

    return [block for inner in statements(node.body) for block in bodies(inner)]


def _shown(module: Module, leaf: Leaf, note: str, live: bool = False) -> Slot:
    """A slot that is shown and never edited."""
    return make_slot(module, "use_v1", leaf.node, leaf.statement, live=live, reason=note or "left as it is")


SITE = V1Override()
