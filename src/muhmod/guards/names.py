"""Whether a name exists, and what a constant is: what binds it in its module or class, and nothing else."""

from __future__ import annotations

import ast
from typing import NamedTuple

from muhmod.guards.around import Around, Verdict, split, unproven
from muhmod.guards.functions import imports_of
from muhmod.model import Found, Scalar
from muhmod.site import Module, dotted, fold, own_expressions, statements


class _Doubt(Exception):
    """Why a name cannot be followed to one value."""


class _Bound(NamedTuple):
    """One binding of a constant: where, as it is written, and its value."""

    place: str
    text: str
    value: Scalar

    def shown(self, name: str) -> str:
        """`file.py:3 N = 4 * M = 512`."""
        through = "" if self.text == repr(self.value) else f" = {self.text}"
        return f"{self.place} {name}{through} = {self.value!r}"


# Whether it exists --------------------------------------------------------------------------------


def exists(symbol: str, found: Found, module: Module, of: Around) -> Verdict:
    """Whether a name is defined or bound: a bare one beside the site, a dotted one in its module."""
    parts = symbol.split(".")
    for cut in range(len(parts) - 1, -1, -1):
        target = of.resolve(".".join(parts[:cut])) if cut else (found.file, module)
        name = ".".join(parts[cut:])
        line = _line_of(target[1], name) if target else 0
        if target and line:
            return Verdict(True, f"{target[0]}:{line} has {name}")
    file, inside, name = split(symbol, found, module, of)
    if inside is None:
        return unproven(f"{symbol} is nowhere in the tree, but what is compiled is not seen")
    doubt = _hidden(file, inside, name)
    return unproven(doubt) if doubt else Verdict(False, f"{name} is nowhere in {file}")


def _line_of(module: Module, name: str) -> int:
    """The line on which a dotted name of the module is defined, bound or imported; 0 where it is not."""
    for scope in module.scopes():
        if scope.path == name and scope.node is not None:
            return scope.node.lineno
    head, _, last = name.rpartition(".")
    for block in [scope.node.body for scope in module.scopes() if scope.path == head and scope.node]:
        for line in _lines(block, last):
            return line
    for statement in statements(module.tree.body):
        match statement:
            case ast.Assign(targets=targets) if any(dotted(target) == name for target in targets):
                return statement.lineno
            case ast.AnnAssign(target=target, value=ast.expr()) if dotted(target) == name:
                return statement.lineno
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                if any((alias.asname or alias.name) == name for alias in names):
                    return statement.lineno
    return next(iter(_lines(module.tree.body, name)), 0)


def _hidden(file: str, module: Module, name: str) -> str:
    """Why a name that no statement binds may still be there; empty where it is missing."""
    for statement in statements(module.tree.body):
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            return f"{file}:{statement.lineno} takes all names of {statement.module or '.'}"
    first, _, rest = name.partition(".")
    if module.defines("__getattr__") or module.globals_of(first):
        return f"{file} makes names as it runs"
    if not rest or not _line_of(module, first):
        return ""
    nodes = [scope.node for scope in module.scopes() if scope.path == first]
    plain = all(
        isinstance(node, ast.ClassDef) and not (node.bases or node.keywords or node.decorator_list)
        for node in nodes
    )
    if nodes and plain and "." not in rest and not module.defines(f"{first}.__getattr__"):
        return ""
    return f"{file}:{_line_of(module, first)} {first} may have {rest} from elsewhere"


# What it is ---------------------------------------------------------------------------------------


def equals(symbol: str, value: Scalar, found: Found, module: Module, of: Around) -> Verdict:
    """Whether a constant of a module or class has the value, wherever it is bound."""
    file, inside, name = split(symbol, found, module, of)
    if inside is None:
        return unproven(f"{symbol} is nowhere in the tree")
    try:
        bound = _bindings(file, inside, name, of, ())
    except _Doubt as doubt:
        return unproven(str(doubt))
    if any(not _same(one.value, bound[0].value) for one in bound):
        values = ", ".join(f"{one.value!r} in {one.place}" for one in bound)
        times = "twice" if len(bound) == 2 else f"{len(bound)} times"
        return unproven(f"{name} is bound {times}: {values}")
    return Verdict(_same(bound[0].value, value), bound[0].shown(name))


def _same(a: Scalar, b: Scalar) -> bool:
    """Equal, and of one kind: a flag is no number, and a word is none."""
    return a == b and isinstance(a, bool) == isinstance(b, bool) and isinstance(a, str) == isinstance(b, str)


def _bindings(file: str, module: Module, name: str, of: Around, seen: tuple[str, ...]) -> list[_Bound]:
    """Every value that the name is bound to. Raises _Doubt where one of them does not fold."""
    if f"{file}:{name}" in seen:
        raise _Doubt(f"{name} of {file} leads back to itself")
    seen = (*seen, f"{file}:{name}")
    head, _, last = name.rpartition(".")
    block = _block(file, module, head)
    elsewhere = [] if head else module.globals_of(name)
    if elsewhere:
        raise _Doubt(f"{name} is bound anew by the function {elsewhere[0]} of {file}")
    for node in ast.walk(module.tree) if head else ():
        if isinstance(node, ast.Attribute) and dotted(node) == name and not isinstance(node.ctx, ast.Load):
            raise _Doubt(f"{file}:{node.lineno} binds {name} anew")
    star = _lines(block, "*")
    if star:
        raise _Doubt(f"{file}:{star[0]} takes all names of another module")
    values = [pair for statement in statements(block) for pair in _values(statement, last)]
    lines = _lines(block, last)
    if len(lines) > len(values):
        imported = [] if values or head else imports_of(module.tree.body, file, of.package).get(last, [])
        if len(imported) == len(lines) == 1:
            return _imported(f"{file}:{lines[0]}", *imported[0], of, seen)
        odd = next(line for line in lines if line not in [line for line, _ in values])
        raise _Doubt(f"{file}:{odd} binds {name} in a way that is not followed")
    if not values:
        raise _Doubt(f"{name} is bound nowhere in {file}")
    return [
        _Bound(f"{file}:{line}", ast.unparse(value), _folded(f"{file}:{line}", value, file, module, of, seen))
        for line, value in values
    ]


def _block(file: str, module: Module, head: str) -> list[ast.stmt]:
    """The body of the module, or of the class `head`. Raises _Doubt."""
    if not head:
        return module.tree.body
    nodes = [scope.node for scope in module.scopes() if scope.path == head]
    if len(nodes) != 1 or not isinstance(nodes[0], ast.ClassDef):
        what = f"is defined {len(nodes)} times" if len(nodes) > 1 else "is no class"
        raise _Doubt(f"{head} {what} in {file}")
    return nodes[0].body


def _imported(place: str, where: str, original: str, of: Around, seen: tuple[str, ...]) -> list[_Bound]:
    target = of.resolve(where)
    if target is None or not original:
        raise _Doubt(f"{place} takes it from {where}, which is not in the tree")
    return _bindings(*target, original, of, seen)


def _values(statement: ast.stmt, name: str) -> list[tuple[int, ast.expr]]:
    """What a plain assignment binds the name to: (line, value)."""
    match statement:
        case ast.Assign(targets=targets, value=value):
            out = []
            for target in targets:
                if isinstance(target, ast.Name) and target.id == name:
                    out.append((statement.lineno, value))
                elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
                    plain = not any(isinstance(e, ast.Starred) for e in (*target.elts, *value.elts))
                    pairs = zip(target.elts, value.elts, strict=False) if plain else ()
                    out += [(statement.lineno, v) for t, v in pairs if dotted(t) == name]
            return out
        case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
            return [(statement.lineno, value)]
    return []


def _lines(block: list[ast.stmt], name: str) -> list[int]:
    """The line of each place of a block that binds or deletes a bare name, in whatever way."""
    out = []
    for statement in statements(block):
        if isinstance(statement, ast.AnnAssign) and statement.value is None:
            continue
        parts: list[ast.AST] = [*own_expressions(statement)]
        parts += [item.optional_vars for item in getattr(statement, "items", ()) if item.optional_vars]
        parts += [case.pattern for case in getattr(statement, "cases", ())]
        names = [handler.name for handler in getattr(statement, "handlers", ())]
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names, parts = [statement.name], []
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            names = [alias.asname or alias.name.split(".")[0] for alias in statement.names]
        for node in (node for part in parts for node in ast.walk(part)):
            names.append(_stored(node))
        out += [statement.lineno] * names.count(name)
    return out


def _stored(node: ast.AST) -> str:
    """The bare name that a node binds or deletes; empty for none."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            return name
    return ""


def _folded(
    place: str, value: ast.expr, file: str, module: Module, of: Around, seen: tuple[str, ...]
) -> Scalar:
    """The value of an expression over literals and other constants. Raises _Doubt."""

    def known(node: ast.expr) -> ast.expr:
        if isinstance(node, ast.BinOp):
            return ast.BinOp(known(node.left), node.op, known(node.right))
        if isinstance(node, ast.UnaryOp):
            return ast.UnaryOp(node.op, known(node.operand))
        if not isinstance(node, (ast.Name, ast.Attribute)) or not dotted(node):
            return node
        bound = _bindings_of(dotted(node), file, module, of, seen)
        if any(not _same(one.value, bound[0].value) for one in bound):
            raise _Doubt(f"{place} takes {dotted(node)}, which is bound {len(bound)} times")
        return ast.Constant(bound[0].value)

    result = fold(known(value))
    if result is None:
        raise _Doubt(f"{place} binds it to `{ast.unparse(value)[:60]}`, which is no constant")
    return result


def _bindings_of(name: str, file: str, module: Module, of: Around, seen: tuple[str, ...]) -> list[_Bound]:
    """The bindings of a name as an expression in the file calls it."""
    head, _, rest = name.partition(".")
    imported = imports_of(module.tree.body, file, of.package).get(head, []) if rest else []
    if len(imported) != 1:
        return _bindings(file, module, name, of, seen)
    where = ".".join(filter(None, imported[0]))
    target = of.resolve(where)
    if target is not None:
        return _bindings(*target, rest, of, seen)
    original = f"{imported[0][1]}.{rest}" if imported[0][1] else ""
    return _imported(file, imported[0][0], original, of, seen)
