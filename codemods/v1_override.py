"""The literal that shuts the choice between paged attention V1 and V2.

Unit: none (a truth value). V2 splits long sequences over more blocks; a literal after the
heuristic keeps it from ever being chosen. Special here: the edit removes a statement.
"""

from __future__ import annotations

import ast
import re

from muhmod.flow import Flow, Leaf
from muhmod.model import Found, Slot
from muhmod.site import Module, Resolve, Scope, Site, bodies, dotted, fold, make_slot, nowhere, statements

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

    def find(self, module: Module, resolve: Resolve = nowhere) -> list[Found]:
        """One site a function."""
        scopes = module.scopes_at(module.lines_with("use_v1"))
        return [found for scope in scopes if (found := self._site(scope, module)) is not None]

    def _site(self, scope: Scope, module: Module) -> Found | None:
        if not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        flow = Flow(lambda cell: cell == ("use_v1", "")).run(scope.node.body, scope.node)
        if not flow.leaves or not _is_heuristic(scope.node, flow.leaves):
            return None
        literals = [leaf for leaf in flow.leaves if _truth(leaf.node) is not None]
        heuristics = [leaf for leaf in flow.leaves if leaf not in literals]
        forced = _forced(flow, literals)
        named = any(isinstance(leaf.node, ast.Name) for leaf in heuristics)
        if not forced and heuristics and not named:
            return self._satisfied(scope, flow.leaves, literals, module)
        problem = _why_not_removable(scope.node, forced, heuristics)
        slots = [_shown(module, leaf, "replaced by the literal on every path") for leaf in heuristics]
        if problem:
            slots += [_shown(module, leaf, problem) for leaf in literals]
            return self.found(scope, "forced", slots, module, problem=problem)
        override = forced[0]
        slots.append(make_slot(module, "use_v1", override.node, override.statement))
        return self.found(scope, "literal-override", slots, module)

    def _satisfied(self, scope: Scope, leaves: list[Leaf], literals: list[Leaf], module: Module) -> Found:
        slots = [_shown(module, leaf, "", True) for leaf in leaves]
        why = (
            "the literal is a fallback beside the heuristic, not an override of it"
            if literals
            else "no literal overrides the heuristic"
        )
        form = "fallback-literal" if literals else "heuristic"
        return self.found(scope, form, slots, module, satisfied=why)


def _forced(flow: Flow, literals: list[Leaf]) -> list[Leaf]:
    """The literals of the uses that nothing but literals reaches: there the heuristic has no say."""
    values = [use.values for use in flow.uses if use.cell[0] in ("use_v1", "return")]
    if not values and flow.final is not None:
        values = [flow.final.cells.get(("use_v1", ""), frozenset())]
    forced: dict[int, Leaf] = {}
    for held in values:
        leaves = {value.leaf.number: value.leaf for value in held}
        if leaves and all(leaf in literals for leaf in leaves.values()):
            forced |= leaves
    return list(forced.values())


def _truth(node: ast.expr) -> bool | None:
    """The truth value of an expression that is the same whatever the names in it are; else None."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _truth(operand)
            return None if inner is None else not inner
        case ast.BoolOp(op=op, values=values):
            decisive = isinstance(op, ast.Or)
            parts = [_truth(value) for value in values]
            if decisive in parts:
                return decisive
            return None if None in parts else not decisive
        case ast.IfExp(body=body, orelse=orelse):
            return _truth(body) if _truth(body) is _truth(orelse) else None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return True if True in (_truth(left), _truth(right)) else None
        case ast.Call(func=ast.Name(id="bool"), args=[argument]):
            return _truth(argument)
        case ast.NamedExpr(value=value):
            return _truth(value)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            one, other = fold(left), fold(right)
            return None if one is None or other is None else one == other
    if isinstance(node, ast.Constant):
        return bool(node.value)
    known = fold(node)
    return None if known is None else bool(known)


def _is_heuristic(node: ast.FunctionDef | ast.AsyncFunctionDef, leaves: list[Leaf]) -> bool:
    if any(_HEURISTIC_NAMES & _names(leaf.node) for leaf in leaves):
        return True
    return any(isinstance(part, ast.Call) and _LAUNCHER.search(dotted(part.func)) for part in ast.walk(node))


def _names(node: ast.expr) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _why_not_removable(
    node: ast.FunctionDef | ast.AsyncFunctionDef, forced: list[Leaf], heuristics: list[Leaf]
) -> str:
    """Why the literals that force the choice cannot simply go; empty where the one literal can."""
    names = [leaf.node.id for leaf in heuristics if isinstance(leaf.node, ast.Name)]
    if names:
        return f"use_v1 is set from the name {names[0]}"
    if not heuristics:
        return "use_v1 is set by literals alone: there is no heuristic that could choose"
    if len(forced) != 1:
        return "several literals force the choice"
    statement = forced[0].statement
    match statement:
        case ast.Assign(targets=[ast.Name()], value=ast.Constant(value=True)):
            pass
        case ast.AnnAssign(target=ast.Name(), value=ast.Constant(value=True)):
            pass
        case _:
            return f"`{ast.unparse(statement)[:60]}` is no plain `use_v1 = True`"
    block = next((b for b in _blocks(node) if statement in b), [])
    if len(block) < 2:
        return "the literal is the only statement of its block"
    if any(isinstance(s, ast.Delete) and "use_v1" in ast.unparse(s) for s in statements(node.body)):
        return "use_v1 is deleted in between"
    if not _bound_before(node, statement, heuristics):
        return "without the literal use_v1 would not be bound on every path"
    return ""


def _bound_before(
    node: ast.FunctionDef | ast.AsyncFunctionDef, statement: ast.stmt, heuristics: list[Leaf]
) -> bool:
    """Whether a heuristic stands before the literal in its own block or in one around it."""
    bound = [leaf.statement for leaf in heuristics]
    for block in _blocks(node):
        for index, one in enumerate(block):
            if one is statement or statement in statements([one]):
                return any(before in bound for before in block[:index]) or any(
                    statement in inner and _bound_in(inner, statement, bound) for inner in _blocks(node)
                )
    return False


def _bound_in(block: list[ast.stmt], statement: ast.stmt, bound: list[ast.stmt]) -> bool:
    return any(before in bound for before in block[: block.index(statement)])


def _blocks(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[list[ast.stmt]]:
    """The function's own block, then all blocks inside it."""
    return [node.body, *(block for inner in statements(node.body) for block in bodies(inner))]


def _shown(module: Module, leaf: Leaf, note: str, live: bool = False) -> Slot:
    """A slot that is shown and never edited."""
    return make_slot(module, "use_v1", leaf.node, leaf.statement, live=live, reason=note or "left as it is")


SITE = V1Override()
