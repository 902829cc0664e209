"""Guards: a closed set of conditions on the tree, each with the place that shows it.

A guard that cannot be evaluated does not hold, and says so.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable

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
    shown = f"{rule.symbol} is implemented"
    try:
        holds, evidence = _implemented(rule.symbol, found, module, resolve, modules, package, set())
    except MuhmodError as error:
        holds, evidence = False, f"not proven: {error.message}"
    return GuardResult(shown, holds, evidence)


def _implemented(
    symbol: str,
    found: Found,
    module: Module,
    resolve: Resolver,
    modules: tuple[str, ...],
    package: str,
    seen: set[str],
) -> tuple[bool, str]:
    """Follows the site's own call of `symbol` to its definition and reads the body."""
    origin = _origin(symbol, found, module, package)
    if origin is None:
        return False, f"not proven: {found.file} has no call of {symbol} that can be followed"
    where, name = origin
    target = (found.file, module) if where == "" else resolve(where)
    if target is None:
        if where.split(".")[0] in modules:
            return True, f"{where}.{name} comes from a module that the pack declares present"
        return False, f"not proven: {where} is not in the tree"
    return _body(target[0], target[1], name, resolve, modules, package, seen)


def _body(
    file: str,
    module: Module,
    name: str,
    resolve: Resolver,
    modules: tuple[str, ...],
    package: str,
    seen: set[str],
) -> tuple[bool, str]:
    if f"{file}:{name}" in seen:
        return False, f"not proven: {name} of {file} leads back to itself"
    seen.add(f"{file}:{name}")
    node = _definition(module, name)
    if node is None:
        origin = _imports(module.tree.body, file, package).get(name.split(".")[0])
        if origin is None:
            return False, f"not proven: {name} is not defined in {file}"
        target = resolve(origin[0])
        if target is None:
            return _outside(origin[0], f"{file} takes {name} from {origin[0]}", modules)
        return _body(target[0], target[1], origin[1] or name, resolve, modules, package, seen)
    stub = _stub(node)
    if stub:
        return False, f"{file}:{stub[0]} {stub[1]}"
    for statement in statements(node.body):
        for wanted in _imported(statement, file, package):
            if not _known(wanted, resolve, modules):
                place = f"{file}:{statement.lineno}"
                return False, f"not proven: {place} imports {wanted}, which is not in the tree"
    call = _only_call(node)
    if call is not None and _definition(module, dotted(call.func)) is not None:
        return _body(file, module, dotted(call.func), resolve, modules, package, seen)
    return True, f"{file}:{node.lineno} has a body"


def _outside(where: str, shown: str, modules: tuple[str, ...]) -> tuple[bool, str]:
    if where.split(".")[0] in modules:
        return True, f"{shown}, which the pack declares present"
    return False, f"not proven: {shown}, which is not in the tree"


def _origin(symbol: str, found: Found, module: Module, package: str) -> tuple[str, str] | None:
    """The (module, name) behind the site's call of `symbol`; module "" is the site's own."""
    scope = next((s for s in module.scopes() if s.path == found.scope), None)
    body = scope.node.body if scope and scope.node else module.tree.body
    imports = _imports([*module.tree.body, *body], found.file, package)
    for statement in statements(body):
        for part in ast.walk(statement):
            if not isinstance(part, ast.Call):
                continue
            name = dotted(part.func)
            head, _, last = name.rpartition(".")
            if last != symbol:
                continue
            if not head:
                if symbol not in imports:
                    return "", symbol
                where, original = imports[symbol]
                return where, original or symbol
            first, _, rest = head.partition(".")
            if first in imports:
                where, original = imports[first]
                path = ".".join(filter(None, (where, original)))
                return ".".join(filter(None, (path, rest))), symbol
            return "", name
    return None


def _imports(body: list[ast.stmt], file: str, package: str) -> dict[str, tuple[str, str]]:
    """Local name: (module, name inside it or ""), for the imports of a block."""
    found: dict[str, tuple[str, str]] = {}
    for statement in statements(body):
        match statement:
            case ast.Import(names=names):
                for alias in names:
                    local = alias.asname or alias.name.split(".")[0]
                    found[local] = (alias.name if alias.asname else local, "")
            case ast.ImportFrom(names=names):
                base = _absolute(statement, file, package)
                for alias in names:
                    found[alias.asname or alias.name] = (base, alias.name)
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


def _known(name: str, resolve: Resolver, modules: tuple[str, ...]) -> bool:
    top = name.split(".")[0]
    return top in modules or top in sys.stdlib_module_names or resolve(name) is not None


def _definition(module: Module, name: str) -> FunctionNode | None:
    """The last definition of that dotted path: the one that Python binds."""
    nodes = [
        scope.node
        for scope in module.scopes()
        if scope.path == name and isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    return nodes[-1] if nodes else None


def _stub(node: FunctionNode) -> tuple[int, str] | None:
    """Line and words for a body that does nothing or only raises; None for a real one."""
    body = [s for s in node.body if not _is_nothing(s)]
    if not body:
        return node.lineno, f"{node.name} has an empty body"
    match body[-1] if all(_is_harmless(s) for s in body[:-1]) else None:
        case ast.Raise(exc=exc) as statement:
            name = dotted(exc.func if isinstance(exc, ast.Call) else exc) if exc else "an error"
            return statement.lineno, f"{node.name} only raises {name}"
        case ast.Return(value=ast.Constant(value=None) | None) as statement:
            return statement.lineno, f"{node.name} only returns None"
        case ast.Return(value=value) as statement if _says_not_implemented(value):
            return statement.lineno, f"{node.name} only returns NotImplemented"
        case ast.Assert(test=ast.Constant(value=False)) as statement:
            return statement.lineno, f"{node.name} only asserts False"
    return None


def _says_not_implemented(value: ast.expr | None) -> bool:
    name = dotted(value.func if isinstance(value, ast.Call) else value) if value else ""
    return name in ("NotImplemented", "NotImplementedError")


def _is_nothing(statement: ast.stmt) -> bool:
    """pass, `...`, a docstring."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _is_harmless(statement: ast.stmt) -> bool:
    """What may stand before the raise of a stub: messages, logging, warnings, names for them."""
    match statement:
        case ast.Assign(value=value):
            return isinstance(value, (ast.Constant, ast.JoinedStr))
        case ast.Expr(value=ast.Call(func=func)):
            return dotted(func).split(".")[0] in ("logger", "logging", "warnings", "print", "log")
        case ast.Delete():
            return True
    return False


def _only_call(node: FunctionNode) -> ast.Call | None:
    """The call that a body hands everything to, where it does nothing else."""
    match [s for s in node.body if not _is_nothing(s)]:
        case [ast.Expr(value=ast.Call() as call)] | [ast.Return(value=ast.Call() as call)]:
            return call
    return None
