"""Changes as upstream makes them, to the text around a site: what mutation tests are made of. Pure.

Each is a function from a spot to a change, or None where there is nothing of the kind at that spot.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from muhmod.site import MODULE_SCOPE, Module

_Span: TypeAlias = "tuple[int, int]"
_Test: TypeAlias = "ast.If | ast.IfExp"


class Splice(NamedTuple):
    """Chars `start` to `end` of a text become `new`."""

    start: int
    end: int
    new: str


class Spot(NamedTuple):
    """A site in one text.

    `scope`, `nth`: its definition, and which one of that path; `spans`: (start, end) chars of the literals
    that a rule sets there; `names`: their slots' names; `stem`: the file's name without `.py`; `taken`:
    texts that no changed literal may have.
    """

    module: Module
    scope: str
    nth: int
    spans: tuple[_Span, ...]
    names: tuple[str, ...]
    stem: str
    taken: frozenset[str] = frozenset()


class Change(NamedTuple):
    """What becomes of a file: splices of its text, what is added to its stem, new files by such a suffix."""

    splices: tuple[Splice, ...] = ()
    suffix: str = ""
    extra: tuple[tuple[str, str], ...] = ()

    def files(self, text: str) -> dict[str, str]:
        """The texts of all files that are concerned, by the suffix of their stem."""
        return {**dict(self.extra), self.suffix: spliced(text, self.splices)}


Mutate: TypeAlias = "Callable[[Spot], Change | None]"


class Mutation(NamedTuple):
    """A change of a kind that upstream makes.

    `keeps`: an edit of the site is still right after it (in the right place, or refused); where it is
    False, the literal, the tests above it or the name are not what was pinned, so only a refusal is right.
    `layout`: it changes layout, so that results are compared without theirs.
    """

    name: str
    change: Mutate
    keeps: bool
    layout: bool = False


def spliced(text: str, splices: tuple[Splice, ...]) -> str:
    """The text with its splices, which do not overlap."""
    parts, at = [], 0
    for splice in sorted(splices, key=lambda s: s.start):
        parts += [text[at : splice.start], splice.new]
        at = splice.end
    return "".join([*parts, text[at:]])


def both(first: Mutate, second: Mutate) -> Mutate:
    """The two changes of the same text at once."""

    def change(spot: Spot) -> Change | None:
        one, other = first(spot), second(spot)
        if one is None or other is None:
            return None
        return Change(one.splices + other.splices, one.suffix or other.suffix, one.extra + other.extra)

    return change


# Twins and decoys ------------------------------------------------------------------------------


def twin_above(spot: Spot) -> Change | None:
    """The definition again above itself, under another name."""
    return _inserted(spot, _copies(spot, renamed=True), above=True)


def twin_below(spot: Spot) -> Change | None:
    """The definition again below itself, under another name."""
    return _inserted(spot, _copies(spot, renamed=True), above=False)


def twin_elsewhere(spot: Spot) -> Change:
    """The whole file again beside itself."""
    return Change(extra=(("_twin", spot.module.text),))


def second_above(spot: Spot) -> Change | None:
    """The definition again above itself, under the same name: the lower one counts."""
    return _inserted(spot, _copies(spot, renamed=False), above=True)


def second_below(spot: Spot) -> Change | None:
    """The definition again below itself, under the same name: the new one counts."""
    return _inserted(spot, _copies(spot, renamed=False), above=False)


def take_name(spot: Spot) -> Change | None:
    """The definition is called otherwise; above it another one, with other literals, has its name."""
    renamed, changed = rename_definition(spot), change_literals(spot)
    if renamed is None or changed is None:
        return None
    copies = []
    for statement, _ in _copies(spot, renamed=False):
        start, end = _lines(spot.module, statement)
        inner = [
            Splice(s.start - start, s.end - start, s.new) for s in changed.splices if start <= s.start < end
        ]
        copies.append((statement, spliced(spot.module.text[start:end], tuple(inner))))
    return both(lambda _: renamed, lambda _: _inserted(spot, copies, above=True))(spot)


def decoy_comments(spot: Spot) -> Change | None:
    """The definition as comments above itself."""
    commented = [
        (statement, "".join(f"# {line}" for line in chunk.splitlines(keepends=True)))
        for statement, chunk in _copies(spot, renamed=False)
    ]
    return _inserted(spot, commented, above=True)


def decoy_string(spot: Spot) -> Change | None:
    """The definition as a string above itself."""
    text = "".join(chunk for _, chunk in _copies(spot, renamed=False))
    top = _top(spot)
    if not text or top is None or "'''" in text:
        return None
    at = _lines(spot.module, top)[0]
    return Change((Splice(at, at, f"_DECOY = r'''\n{text}'''\n\n\n"),))


def _copies(spot: Spot, *, renamed: bool) -> list[tuple[ast.stmt, str]]:
    """The site's statements with their text, each bound name set apart where asked for."""
    own = _own(spot)
    names = {name for statement in own for name in _bound(spot, statement)}
    if renamed and not names:
        return []
    found = []
    for statement in own:
        start, end = _lines(spot.module, statement)
        chunk = spot.module.text[start:end]
        found.append((statement, _renamed(chunk, names, "_twin") if renamed else chunk))
    return found


def _inserted(spot: Spot, copies: list[tuple[ast.stmt, str]], *, above: bool) -> Change | None:
    splices = []
    for statement, chunk in copies:
        start, end = _lines(spot.module, statement)
        if above:
            splices.append(Splice(start, start, f"{_ended(chunk)}\n"))
        else:
            gap = "" if spot.module.text[:end].endswith("\n") else "\n"
            splices.append(Splice(end, end, f"{gap}\n{chunk}"))
    return Change(tuple(splices)) if splices else None


# Names and places ------------------------------------------------------------------------------


def rename_definition(spot: Spot) -> Change | None:
    """The function, or the module's own name, is called otherwise, everywhere in the file."""
    definition = _definition(spot)
    names = _bound(spot, definition) if definition is not None else []
    return _named_anew(spot, names)


def rename_class(spot: Spot) -> Change | None:
    """The outermost class or function around it is called otherwise."""
    first, _, rest = spot.scope.partition(".")
    return _named_anew(spot, [first]) if rest else None


def rebind(spot: Spot) -> Change | None:
    """The name that the definition binds is bound again below it."""
    definition = _definition(spot)
    names = _bound(spot, definition) if definition is not None else []
    if definition is None or not names:
        return None
    line = f"{_indent(spot.module, definition)}{names[0]} = upstream_has({names[0]})\n"
    return _inserted(spot, [(definition, line)], above=False)


def rebind_from_outside(spot: Spot) -> Change | None:
    """The method is set anew at the end of the file."""
    if "." not in spot.scope:
        return None
    text = spot.module.text
    gap = "" if text.endswith("\n") else "\n"
    return Change((Splice(len(text), len(text), f"{gap}\n\n{spot.scope} = upstream_has({spot.scope})\n"),))


def overwrite(spot: Spot) -> Change | None:
    """The variable that holds the literal is bound again behind it."""
    statement = _statement(spot)
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            line = f"{_indent(spot.module, statement)}{name} = upstream_has({name})\n"
            return _inserted(spot, [(statement, line)], above=False)
    return None


def rename_variable(spot: Spot) -> Change | None:
    """The variable that holds the literal is called otherwise."""
    names = {node.id for node in ast.walk(spot.module.tree) if isinstance(node, ast.Name)}
    return _named_anew(spot, [name for name in spot.names if name in names][:1])


def rename_file(spot: Spot) -> Change:
    """The file is called otherwise."""
    return Change(suffix="_renamed")


def leave_copy(spot: Spot) -> Change | None:
    """The file is called otherwise; in its old place is a copy whose definition is called otherwise."""
    copy = rename_definition(spot)
    if copy is None:
        return None
    return Change(suffix="_moved", extra=(("", spliced(spot.module.text, copy.splices)),))


def move_definition(spot: Spot) -> Change | None:
    """The definition goes to a file of its own, with the imports; the old file imports it."""
    tops = _tops(spot)
    names = [name for top in tops for name in _bound(spot, top)]
    # A name that is bound twice is read in between: that stays behind.
    if not names or len({*names}) < len(names):
        return None
    imports = [
        node for node in spot.module.tree.body
        if node not in tops and any(isinstance(n, (ast.Import, ast.ImportFrom)) for n in ast.walk(node))
        and not isinstance(node, (ast.FunctionDef, ast.ClassDef))
    ]  # fmt: skip
    chunks = [_chunk(spot.module, node) for node in [*imports, *tops]]
    cuts = [Splice(*_lines(spot.module, top), "") for top in tops[1:]]
    start, end = _lines(spot.module, tops[0])
    link = Splice(start, end, f"from .{spot.stem}_moved import {', '.join(names)}\n")
    return Change((link, *cuts), extra=(("_moved", "\n".join(map(_ended, chunks))),))


def move_down(spot: Spot) -> Change | None:
    """The definition goes to the end of its file."""
    tops = _tops(spot)
    text = spot.module.text
    if not tops or tops[-1] is spot.module.tree.body[-1]:
        return None
    cuts = [Splice(*_lines(spot.module, top), "") for top in tops]
    moved = "".join(f"\n\n{_ended(_chunk(spot.module, top))}" for top in tops)
    gap = "" if text.endswith("\n") else "\n"
    return Change((*cuts, Splice(len(text), len(text), gap + moved)))


def lines_above(spot: Spot) -> Change | None:
    """Comments at the head of the file: all lines move down."""
    if not spot.module.tree.body:
        return None
    at = _lines(spot.module, spot.module.tree.body[0])[0]
    return Change((Splice(at, at, "# one more line\n" * 9),))


def _named_anew(spot: Spot, names: list[str]) -> Change | None:
    text = spot.module.text
    found = [match.span() for name in names for match in re.finditer(rf"\b{name}\b", text)]
    return Change(tuple(Splice(end, end, "_v2") for _, end in found)) if found else None


# Literals and tests ----------------------------------------------------------------------------


def change_literals(spot: Spot) -> Change | None:
    """Every literal of the site has another value."""
    return _other_values(spot, spot.spans)


def change_one_literal(spot: Spot) -> Change | None:
    """The last of several literals has another value."""
    return _other_values(spot, spot.spans[-1:]) if len(spot.spans) > 1 else None


def change_sibling(spot: Spot) -> Change | None:
    """A number of the same definition that the rule does not set has another value."""
    definition = _definition(spot)
    if definition is None:
        return None
    spans = [
        s for s in map(spot.module.span, _numbers(definition)) if not any(_within(s, o) for o in spot.spans)
    ]
    return _other_values(spot, tuple(spans[:1]))


def negate_guard(spot: Spot) -> Change | None:
    """The innermost test above the literal is turned round."""
    return _negated(spot, _above(spot)[-1:])


def negate_outer_guard(spot: Spot) -> Change | None:
    """The outermost of several tests above the literal is turned round."""
    tests = _above(spot)
    return _negated(spot, tests[:1]) if len(tests) > 1 else None


def negate_neighbour(spot: Spot) -> Change | None:
    """A test of the definition that is not above the literal is turned round: the nearest before it."""
    definition, above = _definition(spot), _above(spot)
    if definition is None or not spot.spans:
        return None
    others = [n for n in ast.walk(definition) if isinstance(n, ast.If) and n not in above]
    others.sort(key=lambda n: (n.lineno > spot.module.line_of(spot.spans[0][0]), -n.lineno))
    return _negated(spot, others[:1])


def swap_arms(spot: Spot) -> Change | None:
    """The two arms of the innermost test above the literal change places."""
    for node in _above(spot)[-1:]:
        if isinstance(node, ast.IfExp):
            first, second = spot.module.span(node.body), spot.module.span(node.orelse)
            new = [f"({spot.module.text[slice(*span)]})" for span in (second, first)]
        else:
            other = node.orelse
            if len(other) == 1 and spot.module.source(other[0]).startswith("elif"):
                other = other[0].body  # type: ignore[attr-defined]
            if not other or node.body[0].lineno == node.lineno:
                return None
            first, second = _block(spot.module, node.body), _block(spot.module, other)
            new = [spot.module.text[slice(*span)] for span in (second, first)]
            if other[0].col_offset != node.body[0].col_offset:
                return None
        return Change((Splice(*first, new[0]), Splice(*second, new[1])))
    return None


def change_threshold(spot: Spot) -> Change | None:
    """A bound in a test above the literal, or else in another test of its definition, is another one."""
    definition = _definition(spot)
    tests: list[ast.AST] = [node.test for node in reversed(_above(spot))]
    tests += (
        [n.test for n in ast.walk(definition) if isinstance(n, (ast.If, ast.IfExp))] if definition else []
    )
    for test in tests:
        for node in ast.walk(test):
            match node:
                case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()], comparators=[right]):
                    start, end = spot.module.span(right)
                    if isinstance(right, ast.Constant):
                        return _other_values(spot, ((start, end),))
                    return Change((Splice(start, end, f"({spot.module.text[start:end]}) + 1"),))
    return None


def _other_values(spot: Spot, spans: tuple[_Span, ...]) -> Change | None:
    splices = []
    for span in spans:
        constant = _constant(spot.module, span)
        if constant is None:
            return None
        new = next(text for text in _others(constant.value) if text not in spot.taken)
        splices.append(Splice(*spot.module.span(constant), new))
    return Change(tuple(splices)) if splices else None


def _others(value: object) -> Iterator[str]:
    match value:
        case bool():
            yield repr(not value)
        case int() | float():
            yield from (repr(value * 2 or 1), repr(value * 4 or 3), repr(value * 8 or 5), repr(value + 7))
    yield from (repr(f"{value}_v2"), repr(f"{value}_v3"))


def _constant(module: Module, span: _Span) -> ast.Constant | None:
    """The constant of a literal, or the number in it that is most like one."""
    inside = [
        node
        for node in _holding(module, span)
        if isinstance(node, ast.Constant) and _within(module.span(node), span)
    ]
    inside.sort(key=lambda n: (type(n.value) is not int, type(n.value) is not bool, n.lineno, n.col_offset))
    return inside[0] if inside else None


def _holding(module: Module, span: _Span) -> Iterator[ast.AST]:
    """All nodes that share lines with a span, outer before inner."""
    first, last = module.line_of(span[0]), module.line_of(span[1])
    nodes: list[ast.AST] = [*module.tree.body]
    for node in nodes:
        if isinstance(node, (ast.stmt, ast.expr)):
            if last < _first_line(node) or (node.end_lineno or 0) < first:
                continue
            yield node
        nodes += ast.iter_child_nodes(node)


def _numbers(root: ast.AST) -> list[ast.Constant]:
    found = [n for n in ast.walk(root) if isinstance(n, ast.Constant) and type(n.value) is int]
    return sorted(found, key=lambda n: (n.lineno, n.col_offset))


def _above(spot: Spot) -> list[_Test]:
    """The tests that the first literal stands under, outermost first."""
    if not spot.spans:
        return []
    span, found = spot.spans[0], []
    for node in _holding(spot.module, span):
        match node:
            case ast.If():
                arms = [_block(spot.module, block) for block in (node.body, node.orelse) if block]
            case ast.IfExp():
                arms = [spot.module.span(node.body), spot.module.span(node.orelse)]
            case _:
                continue
        if any(_within(span, arm) for arm in arms):
            found.append(node)
    return sorted(found, key=lambda n: (n.lineno, n.col_offset))


def _negated(spot: Spot, tests: list[_Test] | list[ast.If]) -> Change | None:
    for node in tests:
        start, end = spot.module.span(node.test)
        return Change((Splice(start, start, "not ("), Splice(end, end, ")")))
    return None


# Statements ------------------------------------------------------------------------------------


def wrap_if(spot: Spot) -> Change | None:
    """The statement goes under a new `if`."""
    return _wrapped(spot, _statement(spot), "if UPSTREAM_WANTS_IT:\n", "")


def wrap_try(spot: Spot) -> Change | None:
    """The statement goes into a `try`."""
    return _wrapped(spot, _statement(spot), "try:\n", "except RuntimeError:\n    raise\n")


def wrap_definition(spot: Spot) -> Change | None:
    """The definition goes under a new `if`."""
    definition = _definition(spot)
    if not spot.spans or definition is _statement(spot):
        return None
    return _wrapped(spot, definition, "if UPSTREAM_WANTS_IT:\n", "")


def vanish(spot: Spot) -> Change | None:
    """The statement is gone."""
    statement = _statement(spot)
    if statement is None:
        return None
    start, end = _lines(spot.module, statement)
    return Change((Splice(start, end, f"{_indent(spot.module, statement)}pass\n"),))


def grow(spot: Spot) -> Change | None:
    """A statement is new in the definition."""
    match _definition(spot):
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            at = _lines(spot.module, body[-1])[0]
            return Change((Splice(at, at, f"{_indent(spot.module, body[-1])}upstream_counts = 1\n"),))
    return None


def extract_helper(spot: Spot) -> Change | None:
    """The expression that holds the literal is what a new function returns."""
    statement, top = _statement(spot), _top(spot)
    match statement:
        case (
            ast.Assign(value=value)
            | ast.AnnAssign(value=ast.expr() as value)
            | ast.Return(value=ast.expr() as value)
        ):
            pass
        case _:
            return None
    start, end = spot.module.span(value)
    if top is None or not _within(spot.spans[0], (start, end)):
        return None
    names = ", ".join(sorted(_locals(spot) & {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}))
    at = _lines(spot.module, top)[0]
    helper = f"def _extracted({names}):\n    return ({spot.module.text[start:end]})\n\n\n"
    return Change((Splice(at, at, helper), Splice(start, end, f"_extracted({names})")))


def extract_constant(spot: Spot) -> Change | None:
    """The literal is a constant of the module."""
    top = _top(spot)
    if top is None or not spot.spans:
        return None
    start, end = spot.spans[0]
    at = _lines(spot.module, top)[0]
    constant = f"_EXTRACTED = ({spot.module.text[start:end]})\n\n\n"
    return Change((Splice(at, at, constant), Splice(start, end, "_EXTRACTED")))


def reformat(spot: Spot) -> Change | None:
    """The definition in another layout, without comments."""
    splices = []
    for statement in _own(spot):
        start, end = _lines(spot.module, statement)
        text = textwrap.indent(ast.unparse(statement), _indent(spot.module, statement))
        splices.append(Splice(start, end, f"{text}\n"))
    return Change(tuple(splices)) if splices else None


def _wrapped(spot: Spot, statement: ast.stmt | None, head: str, foot: str) -> Change | None:
    if statement is None:
        return None
    start, end = _lines(spot.module, statement)
    indent = _indent(spot.module, statement)
    inner = textwrap.indent(_ended(spot.module.text[start:end]), "    ")
    return Change((Splice(start, end, f"{indent}{head}{inner}{textwrap.indent(foot, indent)}"),))


def _locals(spot: Spot) -> set[str]:
    """The names that the definition binds."""
    definition = _definition(spot)
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return set()
    nodes = [*ast.walk(definition)]
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {n.arg for n in nodes if isinstance(n, ast.arg)}


# Where things stand ----------------------------------------------------------------------------


def _definition(spot: Spot) -> ast.stmt | None:
    """The site's class or function; for a module's own site the statement that holds it."""
    if spot.scope == MODULE_SCOPE:
        return next(iter(_around(spot.module, spot.spans[0])), None) if spot.spans else None
    nodes = [s.node for s in spot.module.scopes() if s.path == spot.scope and s.node is not None]
    return nodes[spot.nth] if spot.nth < len(nodes) else None


def _own(spot: Spot) -> list[ast.stmt]:
    """The definition, and the statements outside it that hold literals of the site, in source order."""
    definition = _definition(spot)
    if definition is None:
        return []
    found = [definition]
    for span in spot.spans:
        around = _around(spot.module, span)
        outside = next((s for s in around if not _inside(definition, s)), None)
        if definition not in around and outside is not None and outside not in found:
            found.append(outside)
    return sorted(found, key=lambda s: s.lineno)


def _tops(spot: Spot) -> list[ast.stmt]:
    """The top-level statements of the site."""
    own = _own(spot)
    return [top for top in spot.module.tree.body if any(_inside(one, top) for one in own)]


def _top(spot: Spot) -> ast.stmt | None:
    return next(iter(_tops(spot)), None)


def _statement(spot: Spot) -> ast.stmt | None:
    """The innermost statement that holds the first literal."""
    return _around(spot.module, spot.spans[0])[-1] if spot.spans else None


def _around(module: Module, span: _Span) -> list[ast.stmt]:
    """The statements that hold a span, outermost first."""
    nodes = [n for n in _holding(module, span) if isinstance(n, ast.stmt)]
    held = [n for n in nodes if _within(span, _lines(module, n))]
    return sorted(held, key=lambda n: (_first_line(n), -(n.end_lineno or 0), n.col_offset))


def _inside(node: ast.stmt, outer: ast.stmt) -> bool:
    return _first_line(outer) <= _first_line(node) and (node.end_lineno or 0) <= (outer.end_lineno or 0)


def _within(span: _Span, outer: _Span) -> bool:
    return outer[0] <= span[0] and span[1] <= outer[1]


def _first_line(node: ast.stmt | ast.expr) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _lines(module: Module, node: ast.stmt) -> _Span:
    """A statement's whole lines, decorators and last line end included."""
    end = module.text.find("\n", module.span(node)[1])
    return module.offset(_first_line(node), 0), len(module.text) if end < 0 else end + 1


def _block(module: Module, block: list[ast.stmt]) -> _Span:
    return _lines(module, block[0])[0], _lines(module, block[-1])[1]


def _chunk(module: Module, node: ast.stmt) -> str:
    return module.text[slice(*_lines(module, node))]


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _indent(module: Module, node: ast.stmt) -> str:
    start = module.offset(_first_line(node), 0)
    return module.text[start : start + len(module.text[start:]) - len(module.text[start:].lstrip(" \t"))]


def _bound(spot: Spot, statement: ast.stmt) -> list[str]:
    """The names that a statement of the site binds."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name), *_]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    stored = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    inner = {n.name for n in getattr(statement, "body", ()) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    return [*dict.fromkeys(name for name in spot.names if name in stored), *sorted(inner)]


def _renamed(text: str, names: set[str], suffix: str) -> str:
    return re.sub(rf"\b({'|'.join(map(re.escape, sorted(names)))})\b", rf"\1{suffix}", text)


# The list --------------------------------------------------------------------------------------

MUTATIONS = (
    Mutation("lines above", lines_above, True),
    Mutation("twin above", twin_above, True),
    Mutation("twin below", twin_below, True),
    Mutation("twin in another file", twin_elsewhere, True),
    Mutation("second definition above", second_above, True),
    Mutation("second definition below", second_below, False),
    Mutation("name taken by another", take_name, False),
    Mutation("name bound again below", rebind, False),
    Mutation("method set from outside", rebind_from_outside, False),
    Mutation("variable bound again below", overwrite, False),
    Mutation("decoys in comments", decoy_comments, True),
    Mutation("decoy in a string", decoy_string, True),
    Mutation("definition renamed", rename_definition, False),
    Mutation("class renamed", rename_class, False),
    Mutation("variable renamed", rename_variable, False),
    Mutation("file renamed", rename_file, True),
    Mutation("definition to another file", move_definition, True),
    Mutation("file renamed, a renamed copy left", leave_copy, True),
    Mutation("definition to the file's end", move_down, True),
    Mutation("literals changed", change_literals, False),
    Mutation("one literal changed", change_one_literal, False),
    Mutation("another literal of it changed", change_sibling, True),
    Mutation("guard turned round", negate_guard, False),
    Mutation("outer guard turned round", negate_outer_guard, False),
    Mutation("neighbouring test turned round", negate_neighbour, False),
    Mutation("arms swapped", swap_arms, False),
    Mutation("threshold changed", change_threshold, False),
    Mutation("statement in an if", wrap_if, False),
    Mutation("statement in a try", wrap_try, False),
    Mutation("definition in an if", wrap_definition, False),
    Mutation("statement gone", vanish, False),
    Mutation("statement added", grow, True),
    Mutation("expression to a helper", extract_helper, True),
    Mutation("literal to a constant", extract_constant, True),
    Mutation("reformatted", reformat, True, layout=True),
    Mutation("twin above, literals changed", both(twin_above, change_literals), False),
    Mutation("twin below, literals changed", both(twin_below, change_literals), False),
    Mutation("twin in another file, literals changed", both(twin_elsewhere, change_literals), False),
    Mutation("decoys, literals changed", both(decoy_comments, change_literals), False),
    Mutation("decoy in a string, literals changed", both(decoy_string, change_literals), False),
    Mutation("twin above, guard turned round", both(twin_above, negate_guard), False),
    Mutation("twin above, statement gone", both(twin_above, vanish), False),
    Mutation("twin above, definition renamed", both(twin_above, rename_definition), False),
    Mutation("file renamed, literals changed", both(rename_file, change_literals), False),
)
