"""Whether a function is implemented, or provably a stub: all that a name may be bound to is read.

The two are no opposites: what cannot be read, or may do something, is neither.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable

from muhmod.guards.around import Around, Verdict, split, unproven
from muhmod.model import Found
from muhmod.site import FunctionNode, Module, dotted, statements


def implemented(symbol: str, found: Found, module: Module, of: Around) -> Verdict:
    """Follows every call that the site makes of `symbol`, or its dotted name, to definitions; reads them.

    With `of.wanted` False it is asked whether all of them are stubs: a verdict then is True only of what
    may be none.
    """
    if "." in symbol:
        file, inside, name = split(symbol, found, module, of)
        if inside is None:
            return _outside(symbol, f"{symbol} is nowhere in the tree", of)
        return _body(file, inside, name, of, set())
    origins = _origins(symbol, found, module, of)
    if not origins:
        return unproven(f"{found.file} has no call of {symbol} that can be followed")
    verdicts = []
    for where, name in origins:
        target = (found.file, module) if where == "" else of.resolve(where)
        if target is None:
            verdicts.append(_outside(where, f"{name} comes from {where}", of))
        else:
            verdicts.append(_body(target[0], target[1], name, of, set()))
    return _every(verdicts, of)


def _every(verdicts: list[Verdict], of: Around) -> Verdict:
    """The first verdict that is not the wanted one, else the last."""
    return next((v for v in verdicts if not v.proven or v.holds is not of.wanted), verdicts[-1])


def _body(file: str, module: Module, name: str, of: Around, seen: set[str]) -> Verdict:
    """Whether all that the name may be bound to in the module does something."""
    if f"{file}:{name}" in seen:
        return unproven(f"{name} of {file} leads back to itself")
    seen.add(f"{file}:{name}")
    nodes = _definitions(module, name)
    imported = imports_of(module.tree.body, file, of.package).get(name.split(".")[0], [])
    rebound = module.rebinds(name) if "." not in name and nodes else 0
    if rebound:
        return unproven(f"{name} is bound again in {file}:{rebound}")
    if not nodes and not imported:
        return unproven(f"{name} is not defined in {file}")
    if nodes:
        return _every([_does_something(file, module, node, of, seen) for node in nodes], of)
    verdicts = []
    for where, original in imported:
        target = of.resolve(where)
        if target is None:
            verdicts.append(_outside(where, f"{file} takes {name} from {where}", of))
        else:
            verdicts.append(_body(target[0], target[1], original or name, of, seen))
    return _every(verdicts, of)


def _does_something(file: str, module: Module, node: FunctionNode, of: Around, seen: set[str]) -> Verdict:
    stub = _stub(node)
    if stub and not of.wanted and (doubt := _doubt(node)):
        return unproven(f"{file}:{node.lineno} {doubt}")
    if stub:
        return Verdict(False, f"{file}:{stub[0]} {stub[1]}")
    for statement in statements(node.body):
        for wanted in _imported(statement, file, of.package):
            if not _known(wanted, of):
                place = f"{file}:{statement.lineno}"
                return unproven(f"{place} imports {wanted}, which is not in the tree")
    imports = imports_of([*module.tree.body, *node.body], file, of.package)
    for call in _calls(node):
        root = dotted(call.func).split(".")[0]
        for where, _ in imports.get(root, []):
            if not _known(where, of):
                place = f"{file}:{call.lineno}"
                return unproven(f"{place} calls into {where}, which is not in the tree")
    only = _only_call(node)
    return _delegate(file, module, node, only, imports, of, seen) if only else _real(file, node)


def _delegate(
    file: str,
    module: Module,
    node: FunctionNode,
    call: ast.Call,
    imports: dict[str, list[tuple[str, str]]],
    of: Around,
    seen: set[str],
) -> Verdict:
    """A body that hands everything to one call is as good as what it calls, where that can be read."""
    name = dotted(call.func)
    if not of.wanted and (node.decorator_list or len(_calls(node)) > 1):
        return _real(file, node)
    if _definitions(module, name):
        return _body(file, module, name, of, seen)
    root, _, rest = name.partition(".")
    verdicts = []
    for where, original in imports.get(root, []):
        inside = ".".join(filter(None, (where, original if rest else "")))
        target = of.resolve(inside)
        if target is not None and _definitions(target[1], rest or original):
            verdicts.append(_body(target[0], target[1], rest or original, of, seen))
        else:
            verdicts.append(_real(file, node))
    return _every(verdicts or [_real(file, node)], of)


def _real(file: str, node: FunctionNode) -> Verdict:
    return Verdict(True, f"{file}:{node.lineno} has a body")


def _outside(where: str, shown: str, of: Around) -> Verdict:
    if where.split(".")[0] in of.modules:
        return Verdict(True, f"{shown}, which the pack declares present")
    return unproven(f"{shown}, which is not in the tree")


def _origins(symbol: str, found: Found, module: Module, of: Around) -> list[tuple[str, str]]:
    """The (module, name) behind each of the site's calls of `symbol`; module "" is the site's own."""
    scope = next((s for s in module.scopes() if s.path == found.scope), None)
    body = scope.node.body if scope and scope.node else module.tree.body
    imports = imports_of([*module.tree.body, *body], found.file, of.package)
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


def imports_of(body: list[ast.stmt], file: str, package: str) -> dict[str, list[tuple[str, str]]]:
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


def _known(name: str, of: Around) -> bool:
    top = name.split(".")[0]
    return top in of.modules or top in sys.stdlib_module_names or of.resolve(name) is not None


def _definitions(module: Module, name: str) -> list[FunctionNode]:
    """Every function of that dotted path."""
    return [
        scope.node
        for scope in module.scopes()
        if scope.path == name and isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def _doubt(node: FunctionNode) -> str:
    """Why a body that does nothing may be more than a stub; empty where it is none."""
    others = [name for name in (dotted(d) or dotted(getattr(d, "func", d)) or "an expression"
                                for d in node.decorator_list)
              if name.rpartition(".")[2] not in _PLAIN]  # fmt: skip
    if others:
        return f"{node.name} is decorated by {others[0]}, which may put something else in its place"
    for statement in statements(node.body):
        if isinstance(statement, ast.Return) and not _is_nothing(statement.value):
            return f"{node.name} gives {ast.unparse(statement)[7:][:60]}"
        if any(isinstance(part, (ast.Await, ast.Yield, ast.YieldFrom)) for part in ast.walk(statement)):
            return f"{node.name} waits or yields"
    return ""


# Decorators under which a function that does nothing still does nothing.
_PLAIN = ("staticmethod", "classmethod", "abstractmethod", "property", "override", "final", "no_grad",
          "inference_mode")  # fmt: skip


def _is_nothing(value: ast.expr | None) -> bool:
    empty = isinstance(value, ast.Constant) and value.value in (None, ...)
    return value is None or empty or _says_not_implemented(value)


# How a block may end: by an error, having done nothing, having done something; having left or not.
_RAISES, _IDLE, _WORKS = "raises", "idle", "works"


def _stub(node: FunctionNode) -> tuple[int, str] | None:
    """Line and words for a body that on no path does anything and ends well; None for a real one."""
    ends, left = _ends(node.body)
    if _WORKS in ends | left:
        return None
    raises = [s for s in statements(node.body) if isinstance(s, ast.Raise)]
    # The one that all ways come to says most.
    raised = next((s for s in raises if s in node.body), next(iter(raises), None))
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
