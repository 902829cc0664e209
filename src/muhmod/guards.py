"""Guards: a closed set of conditions on the tree, each with the place that shows it.

A guard that cannot be evaluated does not hold, and says so.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

from muhmod.errors import MuhmodError
from muhmod.model import Found, GuardResult
from muhmod.rulebook import GuardRule
from muhmod.site import FunctionNode, Module, dotted, statements

# Gives the module of a dotted name inside the tree, with its file; None where there is none.
Resolver = Callable[[str], "tuple[str, Module] | None"]


def evaluate(
    rule: GuardRule,
    found: Found,
    module: Module,
    resolve: Resolver,
    modules: tuple[str, ...],
    package: str,
) -> GuardResult:
    """Whether the guard holds for a found site in `module`. `modules`: what the target has."""
    shown = f"{rule.symbol} {_SAYS[rule.guard]}"
    decide = _exists if rule.guard == "exists" else _implemented
    try:
        holds, evidence = decide(rule.symbol, found, module, _Tree(resolve, modules, package))
    except MuhmodError as error:
        holds, evidence = False, f"not proven: {error.message}"
    return GuardResult(shown, holds, evidence)


# How the evidence of a guard begins that can neither be shown to hold nor to fail.
UNPROVEN = "not proven: "
_SAYS = {"implemented": "is implemented", "exists": "exists"}


class _Tree(NamedTuple):
    """What a guard looks into: the tree by dotted name, and what the target environment has."""

    resolve: Resolver
    modules: tuple[str, ...]
    package: str


def _exists(symbol: str, found: Found, module: Module, of: _Tree) -> tuple[bool, str]:
    """Whether a name is defined or bound: a bare one beside the site, a dotted one in its module."""
    parts = symbol.split(".")
    for cut in range(len(parts) - 1, -1, -1):
        target = of.resolve(".".join(parts[:cut])) if cut else (found.file, module)
        name = ".".join(parts[cut:])
        line = _line_of(target[1], name) if target else 0
        if target and line:
            return True, f"{target[0]}:{line} has {name}"
    return False, f"{symbol} is nowhere in {found.file if len(parts) == 1 else 'the tree'}"


def _line_of(module: Module, name: str) -> int:
    """The line on which a dotted name of the module is defined, bound or imported; 0 where it is not."""
    for scope in module.scopes():
        if scope.path == name and scope.node is not None:
            return scope.node.lineno
    for statement in statements(module.tree.body):
        match statement:
            case ast.Assign(targets=targets) if any(dotted(target) == name for target in targets):
                return statement.lineno
            case ast.AnnAssign(target=target) if dotted(target) == name:
                return statement.lineno
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                if any((alias.asname or alias.name) == name for alias in names):
                    return statement.lineno
    return 0


def _implemented(symbol: str, found: Found, module: Module, of: _Tree) -> tuple[bool, str]:
    """Follows every call that the site makes of `symbol` to its definitions, and reads their bodies."""
    origins = _origins(symbol, found, module, of)
    if not origins:
        return False, f"not proven: {found.file} has no call of {symbol} that can be followed"
    evidence = ""
    for where, name in origins:
        target = (found.file, module) if where == "" else of.resolve(where)
        if target is None:
            holds, evidence = _outside(where, f"{name} comes from {where}", of.modules)
        else:
            holds, evidence = _body(target[0], target[1], name, of, set())
        if not holds:
            return False, evidence
    return True, evidence


def _body(file: str, module: Module, name: str, of: _Tree, seen: set[str]) -> tuple[bool, str]:
    """Whether all that the name may be bound to in the module does something."""
    if f"{file}:{name}" in seen:
        return False, f"not proven: {name} of {file} leads back to itself"
    seen.add(f"{file}:{name}")
    nodes = _definitions(module, name)
    imported = _imports(module.tree.body, file, of.package).get(name.split(".")[0], [])
    rebound = module.rebinds(name) if "." not in name and nodes else 0
    if rebound:
        return False, f"not proven: {name} is bound again in {file}:{rebound}"
    if not nodes and not imported:
        return False, f"not proven: {name} is not defined in {file}"
    evidence = ""
    for node in nodes:
        holds, evidence = _does_something(file, module, node, of, seen)
        if not holds:
            return False, evidence
    for where, original in imported if not nodes else ():
        target = of.resolve(where)
        if target is None:
            holds, evidence = _outside(where, f"{file} takes {name} from {where}", of.modules)
        else:
            holds, evidence = _body(target[0], target[1], original or name, of, seen)
        if not holds:
            return False, evidence
    return True, evidence


def _does_something(
    file: str, module: Module, node: FunctionNode, of: _Tree, seen: set[str]
) -> tuple[bool, str]:
    stub = _stub(node)
    if stub:
        return False, f"{file}:{stub[0]} {stub[1]}"
    for statement in statements(node.body):
        for wanted in _imported(statement, file, of.package):
            if not _known(wanted, of):
                place = f"{file}:{statement.lineno}"
                return False, f"not proven: {place} imports {wanted}, which is not in the tree"
    imports = _imports([*module.tree.body, *node.body], file, of.package)
    for call in _calls(node):
        root = dotted(call.func).split(".")[0]
        for where, _ in imports.get(root, []):
            if not _known(where, of):
                place = f"{file}:{call.lineno}"
                return False, f"not proven: {place} calls into {where}, which is not in the tree"
    only = _only_call(node)
    return _delegate(file, module, node, only, imports, of, seen) if only else _real(file, node)


def _delegate(
    file: str,
    module: Module,
    node: FunctionNode,
    call: ast.Call,
    imports: dict[str, list[tuple[str, str]]],
    of: _Tree,
    seen: set[str],
) -> tuple[bool, str]:
    """A body that hands everything to one call is as good as what it calls, where that can be read."""
    name = dotted(call.func)
    if _definitions(module, name):
        return _body(file, module, name, of, seen)
    root, _, rest = name.partition(".")
    for where, original in imports.get(root, []):
        inside = ".".join(filter(None, (where, original if rest else "")))
        target = of.resolve(inside)
        if target is not None and _definitions(target[1], rest or original):
            holds, evidence = _body(target[0], target[1], rest or original, of, seen)
            if not holds:
                return False, evidence
    return _real(file, node)


def _real(file: str, node: FunctionNode) -> tuple[bool, str]:
    return True, f"{file}:{node.lineno} has a body"


def _outside(where: str, shown: str, modules: tuple[str, ...]) -> tuple[bool, str]:
    if where.split(".")[0] in modules:
        return True, f"{shown}, which the pack declares present"
    return False, f"not proven: {shown}, which is not in the tree"


def _origins(symbol: str, found: Found, module: Module, of: _Tree) -> list[tuple[str, str]]:
    """The (module, name) behind each of the site's calls of `symbol`; module "" is the site's own."""
    scope = next((s for s in module.scopes() if s.path == found.scope), None)
    body = scope.node.body if scope and scope.node else module.tree.body
    imports = _imports([*module.tree.body, *body], found.file, of.package)
    origins: dict[tuple[str, str], None] = {}
    for call in _calls_in(body):
        head, _, last = dotted(call.func).rpartition(".")
        if last != symbol:
            continue
        if not head:
            for where, original in imports.get(symbol, [("", symbol)]):
                origins[where, original or symbol] = None
            continue
        first, _, rest = head.partition(".")
        for where, original in imports.get(first, []):
            origins[".".join(filter(None, (where, original, rest))), symbol] = None
        if first not in imports:
            origins["", f"{head}.{symbol}"] = None
    return list(origins)


def _calls_in(body: list[ast.stmt]) -> list[ast.Call]:
    return [part for s in body for part in ast.walk(s) if isinstance(part, ast.Call)]


def _calls(node: FunctionNode) -> list[ast.Call]:
    return _calls_in(node.body)


def _imports(body: list[ast.stmt], file: str, package: str) -> dict[str, list[tuple[str, str]]]:
    """Local name: every (module, name inside it or "") that an import of the block binds it to."""
    found: dict[str, list[tuple[str, str]]] = {}
    for statement in statements(body):
        match statement:
            case ast.Import(names=names):
                for alias in names:
                    local = alias.asname or alias.name.split(".")[0]
                    found.setdefault(local, []).append((alias.name if alias.asname else local, ""))
            case ast.ImportFrom(names=names):
                base = _absolute(statement, file, package)
                for alias in names:
                    found.setdefault(alias.asname or alias.name, []).append((base, alias.name))
    return found


def _absolute(node: ast.ImportFrom, file: str, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = [package, *file.split("/")[:-1]]
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *filter(None, [node.module])])


def _imported(statement: ast.stmt, file: str, package: str) -> list[str]:
    match statement:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom():
            return [_absolute(statement, file, package)]
    return []


def _known(name: str, of: _Tree) -> bool:
    top = name.split(".")[0]
    return top in of.modules or top in sys.stdlib_module_names or of.resolve(name) is not None


def _definitions(module: Module, name: str) -> list[FunctionNode]:
    """Every function of that dotted path."""
    return [
        scope.node
        for scope in module.scopes()
        if scope.path == name and isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


# How a block may end: by an error, having done nothing, having done something; having left or not.
_RAISES, _IDLE, _WORKS = "raises", "idle", "works"


def _stub(node: FunctionNode) -> tuple[int, str] | None:
    """Line and words for a body that on no path does anything and ends well; None for a real one."""
    ends, left = _ends(node.body)
    if _WORKS in ends | left:
        return None
    raised = next((s for s in statements(node.body) if isinstance(s, ast.Raise)), None)
    if _IDLE not in ends | left and raised is not None and raised.exc is not None:
        name = dotted(raised.exc.func if isinstance(raised.exc, ast.Call) else raised.exc)
        return raised.lineno, f"{node.name} only raises {name or 'an error'}"
    return node.lineno, f"{node.name} does nothing that could be its work"


def _ends(block: list[ast.stmt], before: str = _IDLE) -> tuple[set[str], set[str]]:
    """(how the block may run through, how it may leave the function)."""
    now, left = {before}, set[str]()
    for statement in block:
        after: set[str] = set()
        for state in now:
            through, gone = _end(statement, state)
            after |= through
            left |= gone
        now = after
    return now, left


def _end(node: ast.stmt, before: str) -> tuple[set[str], set[str]]:
    match node:
        case ast.Raise():
            return set(), {_RAISES}
        case ast.Assert(test=ast.Constant(value=value)) if not value:
            return set(), {_RAISES}
        case ast.Expr(value=ast.Call(func=func)) if dotted(func) in ("sys.exit", "exit", "os._exit"):
            return set(), {_RAISES}
        case ast.Return(value=value):
            return set(), {_WORKS if before == _WORKS or _is_result(value) else _IDLE}
        case ast.If(test=test, body=body, orelse=orelse):
            known = test.value if isinstance(test, ast.Constant) else None
            parts = [
                b for b, taken in ((body, True), (orelse, False)) if known is None or bool(known) is taken
            ]
            return _union(_ends(part, before) for part in parts)
        case ast.With(body=body) | ast.AsyncWith(body=body):
            return _ends(body, before)
        case ast.For(body=body) | ast.AsyncFor(body=body) | ast.While(body=body):
            return _union([({before}, set()), _ends(body, before)])
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
            tried = _ends([*body, *orelse, *final], before)
            return _union([tried, *(_ends([*h.body, *final], before) for h in handlers)])
        case ast.Match(cases=cases):
            return _union(_ends(case.body, before) for case in cases)
    return {before if _is_harmless(node) else _WORKS}, set()


def _union(parts: Iterable[tuple[set[str], set[str]]]) -> tuple[set[str], set[str]]:
    every = list(parts)
    return set().union(*(p[0] for p in every)), set().union(*(p[1] for p in every))


def _is_result(value: ast.expr | None) -> bool:
    """Whether a returned value may be a result: no constant, no NotImplemented, no parameter as it came."""
    if value is None or isinstance(value, ast.Constant) or _says_not_implemented(value):
        return False
    return not isinstance(value, ast.Name)


def _says_not_implemented(value: ast.expr | None) -> bool:
    name = dotted(value.func if isinstance(value, ast.Call) else value) if value else ""
    return name in ("NotImplemented", "NotImplementedError")


_TALK = {"debug", "info", "warn", "warning", "error", "critical", "exception", "log", "print",
         "warn_once", "warning_once", "info_once"}  # fmt: skip


def _is_harmless(statement: ast.stmt) -> bool:
    """What does no work: messages and what is made for them, imports, checks, shapes, inner definitions."""
    match statement:
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
            if not all(isinstance(t, (ast.Name, ast.Tuple)) for t in targets):
                return False
            return all(_is_talk(c) for c in ast.walk(value) if isinstance(c, ast.Call))
        case ast.Expr(value=ast.Call() as call):
            return _is_talk(call)
        case ast.Expr() | ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Delete():
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Global() | ast.Nonlocal():
            return True
        case ast.AnnAssign():
            return True
    return False


def _is_talk(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in _TALK or name in ("format", "join", "str", "repr", "len", "init_logger", "getLogger")


def _only_call(node: FunctionNode) -> ast.Call | None:
    """The call that a body hands everything to, where it does nothing else."""
    match [s for s in node.body if not _is_harmless(s)]:
        case [ast.Expr(value=ast.Call() as call)] | [ast.Return(value=ast.Call() as call)]:
            return call
        case [ast.Assign(value=ast.Call() as call), ast.Return(value=ast.Name())]:
            return call
    return None
