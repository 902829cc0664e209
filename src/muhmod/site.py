"""A parsed file as a site sees it: text, statements and scopes. Never a path, another site, or the lock."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from muhmod.errors import FileError
from muhmod.model import Arrival, Entry, Found, Keys, Scalar, Slot

FunctionNode: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"
Definition: TypeAlias = "FunctionNode | ast.ClassDef"
MODULE_SCOPE = "<module>"
_NEWLINE = re.compile(r"\r\n|\r|\n")
_SUPPRESS = r"#\s*muhmod:\s*skip\[([\w\-, ]+)\]\s*(.*)"


class Scope(NamedTuple):
    """A definition (None for the module itself) with its dotted path."""

    path: str
    node: Definition | None


class Module:
    """One file: decoded text and its `ast`, with char offsets for every node.

    Raises FileError where the text is no Python that this interpreter reads.
    """

    def __init__(self, text: str) -> None:
        self._set(text, _parse(text))

    def _set(self, text: str, parsed: ast.Module) -> None:
        self.text = text
        self.tree = parsed
        self._scopes: list[Scope] | None = None
        self._imports: dict[str, tuple[str, int, str]] | None = None
        self._functions: dict[str, FunctionNode | None] | None = None
        self._sole: dict[str, bool] = {}
        self._ascii = text.isascii()
        self._starts = [0, *(match.end() for match in _NEWLINE.finditer(text))]

    def edited(self, text: str, spans: list[tuple[int, int]]) -> Module:
        """The module of a text that was changed at `spans` (chars of the new text).

        Where no line moved, only the top-level statements around the changes are parsed again.
        """
        new = Module.__new__(Module)
        new._set(text, ast.Module(list(self.tree.body), []))
        if len(new._starts) != len(self._starts):
            return Module(text)
        changed = {new.line_of(at) for span in spans for at in span}
        for index, statement in enumerate(self.tree.body):
            first, last = _lines(statement)
            around = changed & {*range(first, last + 1)}
            if not around:
                continue
            neighbours = self.tree.body[max(0, index - 1) : index] + self.tree.body[index + 1 : index + 2]
            if any({first, last} & {*_lines(other)} for other in neighbours):
                return Module(text)
            end = new._starts[last] if last < len(new._starts) else len(text)
            alone = _parse("\n" * (first - 1) + text[new._starts[first - 1] : end]).body
            if len(alone) != 1:
                return Module(text)
            new.tree.body[index] = alone[0]
            changed -= around
        return Module(text) if changed else new

    def offset(self, line: int, column: int) -> int:
        """Char offset of an `ast` position (1-based line, UTF-8 column)."""
        start = self._starts[line - 1]
        if self._ascii or column == 0:
            return start + column
        end = self._starts[line] if line < len(self._starts) else len(self.text)
        return start + len(self.text[start:end].encode()[:column].decode())

    def line_of(self, offset: int) -> int:
        """The 1-based line that holds a char offset."""
        from bisect import bisect_right

        return bisect_right(self._starts, offset)

    def column_of(self, offset: int) -> int:
        """The 1-based column of a char offset in its line."""
        return offset - self._starts[self.line_of(offset) - 1] + 1

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The node's (start, end) char offsets, without decorators."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )

    def source(self, node: ast.expr | ast.stmt) -> str:
        """The node's exact source text."""
        start, end = self.span(node)
        return self.text[start:end]

    def line(self, number: int) -> str:
        """The text of a 1-based line, stripped, cut to what a message can hold."""
        end = self._starts[number] if number < len(self._starts) else len(self.text)
        text = self.text[self._starts[number - 1] : end].strip()
        return text if len(text) <= 80 else f"{text[:77]}…"

    def lines_with(self, word: str) -> list[int]:
        """The lines on which the word occurs, comments and strings included."""
        lines = []
        at = self.text.find(word)
        while at >= 0:
            lines.append(self.line_of(at))
            # Once a line is enough.
            at = self.text.find(word, self._starts[lines[-1]] if lines[-1] < len(self._starts) else at + 1)
        return lines

    def scopes(self) -> Iterator[Scope]:
        """The module, then every class and function in source order, outer before inner."""
        if self._scopes is None:
            self._scopes = [Scope(MODULE_SCOPE, None), *_definitions(self.tree.body, "")]
        yield from self._scopes

    def scopes_at(self, lines: list[int]) -> list[Scope]:
        """The innermost scope around each line, each scope once, in source order."""
        scopes = list(self.scopes())
        inner: dict[str, Scope] = {}
        for line in lines:
            around = [s for s in scopes if s.node is None or _covers(s.node, line)]
            inner.setdefault(f"{around[-1].path}:{getattr(around[-1].node, 'lineno', 0)}", around[-1])
        return list(inner.values())

    def defines(self, name: str) -> bool:
        """Whether a class or function of that dotted path stands in this module."""
        return any(scope.path == name for scope in self.scopes())

    def binds(self, name: str) -> bool:
        """Whether a statement at the top level binds the name: an import, a definition, an assignment."""
        for statement in statements(self.tree.body):
            targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
            assigned = any(isinstance(target, ast.Name) and target.id == name for target in targets)
            if assigned or getattr(statement, "name", "") == name or name in _imported_names(statement):
                return True
        return False

    def rebinds(self, path: str) -> int:
        """The line of a statement that binds a defined path, or what it stands in, anew; 0 for none."""
        by = self.globals_of(path.partition(".")[0])
        if by:
            return next(s.node.lineno for s in self.scopes() if s.path == by[0] and s.node is not None)
        return _rebinds(self.tree.body, path.split("."))

    def imports(self) -> dict[str, tuple[str, int, str]]:
        """What the module imports, by local name: (module, relative level, its name there).

        `import a.b` has no name there; `from a import *` stands under `a.*`.
        """
        if self._imports is None:
            self._imports = {}
            for statement in statements(self.tree.body):
                if isinstance(statement, ast.Import):
                    for alias in statement.names:
                        local = alias.asname or alias.name.split(".")[0]
                        self._imports[local] = (alias.name if alias.asname else local, 0, "")
                elif isinstance(statement, ast.ImportFrom):
                    for alias in statement.names:
                        base = statement.module or ""
                        local = f"{base}.*" if alias.name == "*" else alias.asname or alias.name
                        self._imports[local] = (base, statement.level, alias.name)
        return self._imports

    def function(self, name: str) -> FunctionNode | None:
        """The module's top-level function of that name; None where the name may mean anything else."""
        if self._functions is None:
            self._functions = {}
            for statement in statements(self.tree.body):
                if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    known = statement.name in self._functions
                    self._functions[statement.name] = None if known else statement
        found = self._functions.get(name)
        if found is not None and name not in self._sole:
            self._sole[name] = not any(_means_other(node, name, found) for node in ast.walk(self.tree))
        return found if found is not None and self._sole[name] else None

    def globals_of(self, name: str) -> list[str]:
        """The functions that bind a module-level name by a `global` statement."""
        if "global " not in self.text:
            return []
        return [
            scope.path
            for scope in self.scopes()
            if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and any(isinstance(s, ast.Global) and name in s.names for s in statements(scope.node.body))
        ]

    def suppressions(self) -> dict[int, tuple[tuple[str, ...], str]]:
        """`# muhmod: skip[site] reason` comments by line: the sites and the reason."""
        if "muhmod:" not in self.text:
            return {}
        import io
        import tokenize

        found: dict[int, tuple[tuple[str, ...], str]] = {}
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            match = re.search(_SUPPRESS, token.string) if token.type == tokenize.COMMENT else None
            if match:
                sites = tuple(part.strip() for part in match[1].split(","))
                found[token.start[0]] = (sites, match[2].strip())
        return found


# Gives the file and module of a dotted name (and its relative level) as one file would import it.
Resolve: TypeAlias = "Callable[[str, int], tuple[str, Module] | None]"


def nowhere(name: str, level: int) -> tuple[str, Module] | None:
    """The Resolve of a file that stands alone."""
    return None


class Site:
    """Base of the codemods. A site finds its places in one module and says what each slot holds.

    A file is parsed only if it holds `needle` and then `pattern`: the first is cheap on bytes.
    """

    name: ClassVar[str]
    sets: ClassVar[str]
    needle: ClassVar[bytes]
    pattern: ClassVar[re.Pattern[bytes]]

    def find(self, module: Module, resolve: Resolve = nowhere) -> list[Found]:
        """Every place of this site in the module, in source order. `resolve` finds other modules."""
        raise NotImplementedError

    def keys(self, module: Module, found: Found) -> Keys:
        """The dicts of a found place that may be given a key more; asked only where a rule sets such."""
        return Keys()

    def wanted(self, data: bytes) -> bool:
        """Whether the file may hold this site at all: bytes only, no parsing."""
        return self.needle in data and self.pattern.search(data) is not None

    def found(self, scope: Scope, form: str, slots: list[Slot], module: Module, **why: str) -> Found:
        """A Found over its slots' statements; decorated definitions count from their slots."""
        lines = [module.line_of(slot.segment[0]) for slot in slots] or [
            scope.node.lineno if scope.node else 1
        ]
        ends = [module.line_of(slot.segment[1] - 1) for slot in slots] or lines
        if slots and not any(slot.editable for slot in slots) and not why.get("satisfied"):
            why["problem"] = why.get("problem") or slots[0].reason
        return Found(
            self.name, scope.path, min(lines), max(ends), form, tuple(slots), why.get("problem", ""),
            why.get("satisfied", ""),
        )  # fmt: skip


def make_slot(
    module: Module,
    name: str,
    node: ast.expr,
    segment: ast.stmt | ast.expr,
    *,
    entry: Entry | None = None,
    live: bool = True,
    arrivals: tuple[Arrival, ...] = (Arrival(),),
    reason: str = "",
) -> Slot:
    """A slot over `node`, to be edited inside `segment`; a reason makes it read-only."""
    start, end = module.span(node)
    value = fold(node)
    if value is None and not reason and entry is None:
        reason = f"{describe(node)} is no literal"
    return Slot(
        name=name,
        start=start,
        end=end,
        line=node.lineno,
        end_line=node.end_lineno or node.lineno,
        text=module.text[start:end],
        value=value,
        editable=not reason,
        reason=reason,
        live=live,
        arrivals=arrivals,
        entry=entry,
        segment=(*module.span(segment), segment_kind(segment)),
        column=module.column_of(start),
        end_column=module.column_of(end),
    )


def is_plain(function: FunctionNode) -> bool:
    """Whether a call of the function gives what its body returns: no decorator but a cache's."""
    names = [dotted(d.func if isinstance(d, ast.Call) else d) for d in function.decorator_list]
    cached = all(name.rpartition(".")[2] in ("cache", "lru_cache") for name in names)
    return cached and isinstance(function, ast.FunctionDef)


def segment_of(statement: ast.stmt, node: ast.expr) -> ast.stmt | ast.expr:
    """What LibCST is handed for an edit of the node: its statement, or the node where that has a block."""
    return node if hasattr(statement, "body") else statement


def segment_kind(node: ast.stmt | ast.expr) -> Literal["statement", "expression", "block"]:
    """Which LibCST grammar entry reads the node's text on its own."""
    if isinstance(node, ast.expr):
        return "expression"
    return "block" if hasattr(node, "body") else "statement"


_FOLD: dict[type[ast.operator], Callable[[int, int], int | None]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b if b else None,
    ast.LShift: lambda a, b: a << b if 0 <= b < 64 else None,
    ast.Pow: lambda a, b: a**b if 0 <= b < 64 and abs(a) < 2**16 else None,
}


def fold(node: ast.expr) -> Scalar | None:
    """The value of a literal or of integer arithmetic over literals; None for all else."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = fold(operand)
            return -inner if isinstance(inner, (int, float)) else None
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _FOLD:
            a, b = fold(left), fold(right)
            if type(a) is int and type(b) is int:
                return _FOLD[type(op)](a, b)
    return None


def describe(node: ast.expr) -> str:
    """What kind of expression this is, in words a user knows."""
    match node:
        case ast.Call():
            return f"the call {ast.unparse(node.func)}(…)"
        case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
            return "a comprehension"
        case ast.Name(id=name):
            return f"the name {name}"
        case ast.Attribute() | ast.Subscript():
            return f"the expression {ast.unparse(node)}"
        case _:
            return f"the expression {ast.unparse(node)[:60]}"


def dotted(node: ast.expr) -> str:
    """`a.b.c` for a name or attribute chain, else an empty string."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            head = dotted(value)
            return f"{head}.{attr}" if head else ""
    return ""


_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Import, ast.ImportFrom,
           ast.Assert, ast.Raise, ast.Pass, ast.Delete)  # fmt: skip
# Statements whose inner statements are not those of the block around.
_NO_BLOCKS = (*_SIMPLE, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bodies(statement: ast.stmt | ast.ExceptHandler | ast.match_case) -> Iterator[list[ast.stmt]]:
    """The statement lists directly inside a compound statement."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(statement, field, None)
        if isinstance(block, list):
            yield block
    for field in ("handlers", "cases"):
        for part in getattr(statement, field, None) or ():
            yield from bodies(part)


def statements(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement of a block, nested blocks included, but not of nested definitions."""
    for statement in block:
        yield statement
        if not isinstance(statement, _NO_BLOCKS):
            for inner in bodies(statement):
                yield from statements(inner)


def own_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement itself, not those of the statements in its blocks."""
    for _, value in ast.iter_fields(statement):
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, ast.expr):
                yield item
            elif isinstance(item, ast.withitem):
                yield item.context_expr


def read_early(node: FunctionNode, wanted: set[str]) -> tuple[str, int, int] | None:
    """The first wanted name, where it is local, that a function reads above all that binds it.

    Gives the name, the line that reads it and the first that binds it. By the order of the lines; a loop
    around both, and reads in inner functions, are no evidence.
    """
    outside = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
    if wanted <= outside:
        return None
    reads: dict[str, tuple[int, int]] = {}
    binds: dict[str, tuple[int, int]] = {}
    loops: list[tuple[int, int]] = []
    for part in _own_nodes(node):
        match part:
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                outside |= {*names}
            case ast.For() | ast.AsyncFor() | ast.While():
                loops.append((part.lineno, part.end_lineno or part.lineno))
            case ast.Name(id=name, ctx=context):
                place = (part.lineno, part.col_offset)
                into = reads if isinstance(context, ast.Load) else binds
                into[name] = min(into.get(name, place), place)
            case ast.alias():
                name = (part.asname or part.name).split(".")[0]
                binds[name] = min(binds.get(name, (part.lineno, 0)), (part.lineno, 0))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                binds[name] = min(binds.get(name, (part.lineno, 0)), (part.lineno, 0))
            case ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name):
                binds[name] = min(binds.get(name, (part.lineno, 0)), (part.lineno, 0))
            case ast.MatchStar(name=str() as name) | ast.MatchMapping(rest=str() as name):
                outside.add(name)
    for name, (line, _) in sorted(reads.items(), key=lambda item: item[1]):
        bound = binds.get(name, (0, 0))[0]
        around = any(a <= line and bound <= b for a, b in loops)
        if name in wanted and name not in outside and bound > line and not around:
            return name, line, bound
    return None


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's body in any order, without the insides of what has a scope of its own."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp,
             ast.DictComp, ast.GeneratorExp)  # fmt: skip
    for statement in getattr(node, "body", ()):
        pending: list[ast.AST] = [statement]
        while pending:
            part = pending.pop()
            yield part
            if not isinstance(part, inner):
                pending += ast.iter_child_nodes(part)


def _definitions(block: list[ast.stmt], prefix: str) -> Iterator[Scope]:
    for statement in block:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            path = f"{prefix}{statement.name}"
            yield Scope(path, statement)
            yield from _definitions(statement.body, f"{path}.")
        elif not isinstance(statement, _SIMPLE):
            for inner in bodies(statement):
                yield from _definitions(inner, prefix)


def _means_other(node: ast.AST, name: str, function: FunctionNode) -> bool:
    """Whether the node binds a function's name to something else, anywhere in the module."""
    match node:
        case ast.Name(id=other, ctx=ast.Store() | ast.Del()) | ast.arg(arg=other):
            return other == name
        case ast.FunctionDef(name=other) | ast.AsyncFunctionDef(name=other) | ast.ClassDef(name=other):
            return other == name and node is not function
        case ast.alias():
            return (node.asname or node.name) == name
    return False


def _rebinds(block: list[ast.stmt], parts: list[str]) -> int:
    defined: ast.stmt | None = None
    paths = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    for statement in statements(block):
        if getattr(statement, "name", "") == parts[0]:
            # A second one in the same block; in another branch it is an alternative, counted elsewhere.
            if _is_companion(statement, parts[0]):
                continue
            if defined in block and statement in block:
                return statement.lineno
            defined = statement
        elif defined and _is_bound_by(statement, paths):
            return statement.lineno
    return _rebinds(getattr(defined, "body", []), parts[1:]) if defined and parts[1:] else 0


def _is_companion(statement: ast.stmt, name: str) -> bool:
    """A further part of one thing: an overload, a property's setter, a registered variant."""
    decorators = [dotted(d) for d in getattr(statement, "decorator_list", ())]
    return any(d.endswith("overload") or d.startswith(f"{name}.") for d in decorators)


def _is_bound_by(statement: ast.stmt, paths: list[str]) -> bool:
    """Whether a statement itself binds or deletes one of the paths, or changes the autotuner of the last."""
    bound = {*_imported_names(statement), *(h.name for h in getattr(statement, "handlers", ()) if h.name)}
    targets = [i.optional_vars for i in getattr(statement, "items", ()) if i.optional_vars is not None]
    for expression in (*own_expressions(statement), *targets):
        for node in ast.walk(expression):
            if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
                bound.add(dotted(node))
            elif isinstance(node, ast.Call) and dotted(node.func).startswith(f"{paths[-1]}.configs."):
                return True
    for case in getattr(statement, "cases", ()):
        for node in ast.walk(case.pattern):
            bound |= {getattr(node, "name", None) or "", getattr(node, "rest", None) or ""}
    return bool(bound & {*paths, "*", f"{paths[-1]}.configs"})


def _imported_names(statement: ast.stmt) -> list[str]:
    if not isinstance(statement, (ast.Import, ast.ImportFrom)):
        return []
    return [alias.asname or alias.name for alias in statement.names]


def _covers(node: Definition, line: int) -> bool:
    first, last = _lines(node)
    return first <= line <= last


def _lines(node: ast.stmt) -> tuple[int, int]:
    """The first and last line of a statement, decorators included."""
    decorators = [d.lineno for d in getattr(node, "decorator_list", ())]
    return min([node.lineno, *decorators]), node.end_lineno or node.lineno


def _parse(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise FileError(
            f"does not parse: line {error.lineno}: {error.msg}",
            "mend the file, or run muhmod on a Python that reads its syntax",
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise FileError(f"does not parse: {error}", "mend or remove the file") from None
