"""What a site looked like: its literals, the tests above them, the definition around them.

Layout, comments and docstrings do not count, and the literals that the rule sets are left blank in
the definition, so that what muhmod wrote is no change of it. Stable over Python versions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeAlias

from muhmod.model import LADDER, Found, Slot
from muhmod.site import Module, own_expressions, statements

_NAME = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*")
_Holder: TypeAlias = "ast.stmt | ast.ExceptHandler | ast.match_case"
_Block: TypeAlias = "list[ast.stmt]"
_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")
# Fields that say nothing of the meaning, or that not every Python knows.
_LEFT_OUT = {"ctx", "kind", "type_comment", "type_params", "returns", "simple"}
_BRANCHES = {"orelse": "else", "finalbody": "finally"}


class Word(NamedTuple):
    """One statement of a definition: `Assign:config.1f2e3d4c`, its line now and what is shown of it."""

    text: str
    line: int
    shown: str = ""


class Print(NamedTuple):
    """A site's fingerprint.

    `slots`: (name, normalised text) of each literal that the rule sets, in source order; `guards`:
    for each of them the tests above it, outermost first; `body`: one word a statement.
    """

    slots: tuple[tuple[str, str], ...]
    guards: tuple[tuple[str, ...], ...]
    body: tuple[Word, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The body's words without their lines."""
        return tuple(word.text for word in self.body)


class Place(NamedTuple):
    """A bound site as it stands now.

    `at`: char offset of its first slot; `lines`, `keys`: of each slot that the rule sets, its line and
    its name in edits; `digest`: sha256 of the file.
    """

    rule: str
    site: str
    file: str
    scope: str
    form: str
    line: int
    at: int
    lines: tuple[int, ...]
    keys: tuple[str, ...]
    digest: str
    print: Print


def governed(found: Found, names: Collection[str], *, remove: bool = False) -> list[Slot]:
    """The slots that a rule sets, by their names; or those that it removes."""
    return [
        slot for slot in found.slots if (slot.editable if remove else slot.name in names and not slot.passing)
    ]


def take(
    module: Module, found: Found, names: Collection[str], *, remove: bool = False, adds: Collection[str] = ()
) -> Print:
    """The fingerprint of a found site. `names`: the slots that the rule sets; `remove`: it removes them.

    `adds`: those that it adds to dicts that lack them, so that the dict is the same with them.
    """
    slots = governed(found, names, remove=remove)
    paths = [path for slot in slots if (path := _path(module, slot)) is not None]
    within = _definition(module, found)
    outside = [path for path in paths if within is None or path[0] is not _top(module, within)]
    outer = [path[0] for path in outside]
    outer += _binding_again(module, [path[-1] for path in outside], outer)
    roots = [*dict.fromkeys(outer), *([within] if within is not None else [])]
    blank = _Blank(module, slots, remove, adds)
    words = [word for root in roots for word in _words(root, blank, named=root is not within)]
    around = _guards_of(module, within) if outside and within is not None else ()
    guards = tuple((*around, *_guards(module, slot)) for slot in slots)
    asked = {name for chain in guards for test in chain for name in _NAME.findall(test)}
    asked |= {name for d in getattr(within, "decorator_list", ()) for name in _NAME.findall(ast.unparse(d))}
    return Print(
        tuple((slot.name, normalised(slot.text)) for slot in slots),
        guards,
        (*_headers(module, found, blank), *_meanings(module, asked, blank), *words),
    )


def _meanings(module: Module, names: set[str], blank: _Blank) -> Iterator[Word]:
    """What the module makes of the names in a site's tests and decorators: imports, assignments, classes."""
    from hashlib import sha256

    imports = module.imports()
    for name in sorted(names & {*imports}):
        yield Word(f"Import:{name}.{sha256(repr(imports[name]).encode()).hexdigest()[:8]}", 1)
    bindings = (ast.Assign, ast.AnnAssign, ast.AugAssign)
    for statement in statements(module.tree.body):
        bound = _stored(statement) if isinstance(statement, bindings) else {getattr(statement, "name", "")}
        if bound & names and isinstance(statement, (*bindings, ast.ClassDef)):
            yield _word(statement, blank, True)


def _headers(module: Module, found: Found, blank: _Blank) -> list[Word]:
    """The classes around the definition: their names, bases and decorators, not what else is in them."""
    parts = found.scope.split(".")
    above = {".".join(parts[:count]) for count in range(1, len(parts))}
    return [_word(s.node, blank, True) for s in module.scopes() if s.path in above and s.node is not None]


def _binding_again(module: Module, holders: list[ast.stmt], known: list[ast.stmt]) -> list[ast.stmt]:
    """The other top-level statements that bind the names of those that hold a module's literals."""
    names = {name for holder in holders for name in _stored(holder)}
    others = [top for top in module.tree.body if top not in known] if names else []
    return [top for top in others if any(names & _stored(inner) for inner in statements([top]))]


def _stored(statement: ast.stmt) -> set[str]:
    """The names that a statement itself binds."""
    nodes = [node for expression in own_expressions(statement) for node in ast.walk(expression)]
    return {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}


def _guards_of(module: Module, definition: ast.stmt) -> tuple[str, ...]:
    """The tests that a definition stands under."""
    start, _ = module.span(definition)
    return _guards(module, Slot("", start, start, definition.lineno, definition.lineno, ""))


def normalised(text: str) -> str:
    """An expression's text without its layout and comments."""
    if not text.strip():
        return ""
    try:
        return ast.unparse(ast.parse(f"({text}\n)", mode="eval"))
    except SyntaxError:
        return " ".join(text.split())


class _Blank:
    """Which expressions and statements the rule itself sets: they are no part of the fingerprint."""

    def __init__(self, module: Module, slots: list[Slot], remove: bool, adds: Collection[str] = ()) -> None:
        self.module = module
        self.adds = adds
        self.expressions = set() if remove else {(slot.start, slot.end) for slot in slots}
        self.statements = {slot.segment[:2] for slot in slots} if remove else set()
        self.ladders = {(slot.line, slot.end_line) for slot in slots if slot.name == LADDER and slot.text}
        self.lines = {slot.line for slot in slots}

    def expression(self, node: ast.expr) -> bool:
        """Whether the node is a literal of the rule's."""
        return node.lineno in self.lines and self.module.span(node) in self.expressions

    def without_added(self, node: object) -> object:
        """A display without the items that the rule may have added."""
        match node:
            case ast.Dict(keys=keys, values=values) if self.adds:
                pairs = [(k, v) for k, v in zip(keys, values, strict=True)
                         if not (isinstance(k, ast.Constant) and self._is_added(k.value, v))]  # fmt: skip
                return ast.copy_location(ast.Dict([k for k, _ in pairs], [v for _, v in pairs]), node)
            case ast.Call(func=func, args=args, keywords=keywords) if self.adds:
                kept = [k for k in keywords if not self._is_added(k.arg, k.value)]
                return ast.copy_location(ast.Call(func, args, kept), node)
        return node

    def _is_added(self, key: object, value: ast.expr) -> bool:
        return key in self.adds and self.expression(value)

    def statement(self, node: ast.stmt) -> bool:
        """Whether the statement is one that the rule removes, or the ladder that it emits."""
        if (node.lineno, node.end_lineno) in self.ladders:
            return True
        return node.lineno in self.lines and self.module.span(node) in self.statements


def _definition(module: Module, found: Found) -> ast.stmt | None:
    """The innermost definition of the site's scope that holds it."""
    nodes = [scope.node for scope in module.scopes() if scope.path == found.scope and scope.node is not None]
    around = [node for node in nodes if _first_line(node) <= found.line <= (node.end_lineno or 0)]
    return next(iter(around or nodes), None)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _top(module: Module, node: ast.stmt) -> ast.stmt | None:
    """The top-level statement that holds a node."""
    for statement in module.tree.body:
        if _first_line(statement) <= node.lineno <= (statement.end_lineno or 0):
            return statement
    return None


# The statements on the way to a slot ----------------------------------------------------------


def _path(module: Module, slot: Slot) -> list[ast.stmt] | None:
    path = [statement for statement, _ in _descent(module, slot)]
    return path or None


def _descent(module: Module, slot: Slot) -> Iterator[tuple[ast.stmt, str]]:
    """Each statement around the slot, outermost first, with the branch of it that was entered."""
    block: _Block = module.tree.body
    while block:
        holder = next((s for s in block if _holds(module, s, slot)), None)
        if holder is None:
            return
        block, said = _branch(module, holder, slot)
        yield holder, said


def _holds(module: Module, statement: ast.stmt, slot: Slot) -> bool:
    if not _first_line(statement) <= slot.line <= (statement.end_lineno or 0):
        return False
    start, end = module.span(statement)
    return bool(getattr(statement, "decorator_list", ())) or start <= slot.start < max(end, start + 1)


def _branch(module: Module, statement: ast.stmt, slot: Slot) -> tuple[_Block, str]:
    """The block of the statement that holds the slot, and the test that leads into it."""
    head = _head(statement)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list) and any(_holds(module, inner, slot) for inner in block):
            return block, f"{_BRANCHES[name]} of {head}" if name in _BRANCHES else head
    for handler in getattr(statement, "handlers", ()):
        if any(_holds(module, inner, slot) for inner in handler.body):
            return handler.body, f"except {ast.unparse(handler.type) if handler.type else ''}".rstrip()
    for case in getattr(statement, "cases", ()):
        if any(_holds(module, inner, slot) for inner in case.body):
            guard = f" if {ast.unparse(case.guard)}" if case.guard else ""
            return case.body, f"{head}: case {ast.unparse(case.pattern)}{guard}"
    return [], ""


def _head(statement: ast.stmt) -> str:
    match statement:
        case ast.If(test=test):
            return f"if {ast.unparse(test)}"
        case ast.While(test=test):
            return f"while {ast.unparse(test)}"
        case ast.For(target=target, iter=over) | ast.AsyncFor(target=target, iter=over):
            return f"for {ast.unparse(target)} in {ast.unparse(over)}"
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return f"with {', '.join(ast.unparse(item) for item in items)}"
        case ast.Match(subject=subject):
            return f"match {ast.unparse(subject)}"
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return ""
        case ast.Try():
            return "try"
    return ""


def _guards(module: Module, slot: Slot) -> tuple[str, ...]:
    """The tests above a slot: of statements, then of conditional expressions."""
    steps = [*_descent(module, slot)]
    chain = [said for _, said in steps if said]
    for expression in own_expressions(steps[-1][0]) if steps else ():
        chain += _arms(module, expression, slot)
    return tuple(chain)


def _arms(module: Module, node: ast.AST, slot: Slot) -> list[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.IfExp):
            for arm, word in ((inner.body, "if"), (inner.orelse, "else of if")):
                start, end = module.span(arm)
                if start <= slot.start and slot.end <= end:
                    return [f"{word} {ast.unparse(inner.test)}", *_arms(module, arm, slot)]
    return []


# Words ----------------------------------------------------------------------------------------


def _words(statement: ast.stmt, blank: _Blank, *, named: bool = True) -> Iterator[Word]:
    """The words of a statement and of all in it. A definition's own name may be left out."""
    if _is_talk(statement) or blank.statement(statement):
        return
    yield _word(statement, blank, named)
    yield from _inner(statement, blank)


def _inner(node: _Holder, blank: _Blank) -> Iterator[Word]:
    blocks = [(name, getattr(node, name, None) or []) for name in _BLOCKS]
    for name, block in blocks:
        if block and name in _BRANCHES:
            yield Word(_BRANCHES[name], block[0].lineno)
        for inner in block:
            if isinstance(inner, ast.stmt):
                yield from _words(inner, blank)
            else:
                yield _word(inner, blank, True)
                yield from _inner(inner, blank)
    if any(block for _, block in blocks):
        yield Word("end", getattr(node, "end_lineno", 0) or 0)


def _word(node: _Holder, blank: _Blank, named: bool) -> Word:
    node = _statement(node)
    name = _name_of(node) if named else ""
    meaning = _fields(node, blank, () if named else ("name",))
    from hashlib import sha256

    digest = sha256(meaning.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    line = getattr(node, "lineno", 0)
    text = f"{type(node).__name__}{':' + name if name else ''}.{digest}"
    return Word(text, line, blank.module.line(line) if line else "")


def _fields(node: ast.AST, blank: _Blank, but: Collection[str] = ()) -> str:
    """The fields that mean something, but for blocks of statements: those have words of their own."""
    blocks = () if isinstance(node, ast.expr) else _BLOCKS
    pairs = [(name, getattr(node, name, None)) for name in node._fields]
    return " ".join(
        f"{name}={_canonical(value, blank)}"
        for name, value in pairs
        if value not in (None, []) and name not in _LEFT_OUT and name not in blocks and name not in but
    )


def _canonical(value: object, blank: _Blank) -> str:
    value = _plainly(blank.without_added(value))
    if isinstance(value, ast.expr) and blank.expression(value):
        return "_"
    if isinstance(value, ast.AST):
        return f"({type(value).__name__} {_fields(value, blank)})"
    if isinstance(value, list):
        return f"[{' '.join(_canonical(item, blank) for item in value)}]"
    return repr(value)


def _plainly(value: object) -> object:
    """Spellings that mean the same, or nothing to a value, made one: keywords' order, annotations."""
    match value:
        case ast.Call(keywords=keywords) if len(keywords) > 1 and all(k.arg for k in keywords):
            ordered = sorted(keywords, key=lambda keyword: keyword.arg or "")
            return ast.copy_location(ast.Call(value.func, value.args, ordered), value)
        case ast.arg(annotation=ast.expr() as note) if "constexpr" not in ast.unparse(note):
            return ast.copy_location(ast.arg(value.arg, None), value)
    return value


def _statement(node: _Holder) -> _Holder:
    """A statement as its plainest equal: no annotation, no word of an error, `return` for `return None`."""
    match node:
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            return ast.copy_location(ast.Assign([target], value), node)
        case ast.Return(value=ast.Constant(value=None)):
            return ast.copy_location(ast.Return(None), node)
        case ast.Raise(exc=ast.Call(func=func)):
            return ast.copy_location(ast.Raise(func, node.cause), node)
        case ast.Assert(test=test):
            return ast.copy_location(ast.Assert(test, None), node)
    return node


def _name_of(node: _Holder) -> str:
    match node:
        case ast.Assign(targets=[ast.Name(id=name), *_]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
    return ""


def _is_talk(statement: ast.stmt) -> bool:
    """What does nothing: a bare constant (a docstring, a comment by another name), or `pass`."""
    if isinstance(statement, ast.Pass):
        return True
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
