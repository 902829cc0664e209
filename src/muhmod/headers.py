"""C++ tuning headers: structs of `static constexpr` values as facts. The only module that knows tree-sitter.

Read with a real C++ grammar (extra `[headers]`). The grammar stumbles over some valid code (`__has_include`,
a braced default of a parameter); that matters only where it hides a value, and then the header is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from muhmod.errors import FileError, UsageError
from muhmod.model import Scalar

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

SUFFIXES = (".cuh", ".cu", ".h", ".hh", ".hpp", ".hxx", ".inl")
_FOLDED = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv,
           "%": operator.mod, "<<": operator.lshift, ">>": operator.rshift}  # fmt: skip
_STRUCTS = ("struct_specifier", "class_specifier")


class Value(NamedTuple):
    """One constant: a number or a flag, else its text (an enumerator, a braced list), and its line."""

    name: str
    value: Scalar
    line: int


class Struct(NamedTuple):
    """A struct with constants; `scope` is its namespaces and outer structs."""

    file: str
    scope: str
    name: str
    line: int
    values: tuple[Value, ...]


class Header(NamedTuple):
    """One file's structs, in order; `unread` are lines that the grammar did not understand, no constants."""

    file: str
    structs: tuple[Struct, ...]
    unread: tuple[int, ...]


def read(folder: Path) -> list[Header]:
    """Every header below a folder, by name. Raises UsageError and FileError."""
    if not folder.is_dir():
        raise UsageError(f"no folder {folder}", "give the folder that holds the headers")
    paths = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not paths:
        raise UsageError(f"no header in {folder}", f"looked for {', '.join(SUFFIXES)}")
    parser = _parser()
    return [_header(parser, path, path.relative_to(folder).as_posix()) for path in paths]


def _parser() -> Parser:
    try:
        import tree_sitter
        import tree_sitter_cpp
    except ImportError:
        raise UsageError("the C++ grammar is not installed", "pip install 'muhmod[headers]'") from None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))


def _header(parser: Parser, path: Path, name: str) -> Header:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {name}: {error.strerror}") from None
    root = parser.parse(source).root_node
    unread = tuple(sorted({_line(node) for node in _broken(root, name)}))
    return Header(name, tuple(_structs(root, name, ())), unread)


def _broken(node: Node, name: str) -> Iterator[Node]:
    """What the grammar did not understand. Raises UsageError where a constant may be hidden in it."""
    if node.is_missing or node.type == "ERROR":
        owner = _owner(node)
        if owner or node.type == "}" or b"constexpr" in (node.text or b""):
            what = f"`{node.type}` is missing" if node.is_missing else "this is no C++ that the grammar knows"
            raise UsageError(f"{name}:{_line(node)}: {f'{owner}: ' if owner else ''}{what}")
        yield node
    elif node.has_error:
        for child in node.children:
            yield from _broken(child, name)


def _owner(node: Node) -> str:
    """The struct around a node, if a declaration of its own is what is broken; functions do not count."""
    above = node.parent
    while above is not None and above.type not in ("function_definition", "parameter_list"):
        if above.type in _STRUCTS:
            return _text(above.child_by_field_name("name"))
        above = above.parent
    return ""


def _structs(node: Node, file: str, scope: tuple[str, ...]) -> Iterator[Struct]:
    for child in node.named_children:
        inner = scope
        if child.type == "namespace_definition" or child.type in _STRUCTS:
            name = _text(child.child_by_field_name("name"))
            inner = (*scope, name) if name else scope
        body = child.child_by_field_name("body")
        if child.type in _STRUCTS and body is not None:
            values = tuple(_values(body))
            if values:
                yield Struct(file, "::".join(scope), inner[-1] if inner else "", _line(child), values)
        yield from _structs(child, file, inner)


def _values(body: Node) -> Iterator[Value]:
    known: dict[str, Scalar] = {}
    for field in body.named_children:
        words = {_text(child) for child in field.named_children}
        if field.type != "field_declaration" or not {"static", "constexpr"} <= words:
            continue
        names = field.children_by_field_name("declarator")
        # Several declarators share a declaration: each default belongs to the name before it.
        for declarator in names:
            default = _default(field, declarator)
            if default is not None:
                name = _text(declarator)
                known[name] = _value(default, known)
                yield Value(name, known[name], _line(declarator))


def _default(field: Node, declarator: Node) -> Node | None:
    behind = [child for child in field.named_children if child.start_byte >= declarator.end_byte]
    if not behind or field.field_name_for_child(field.children.index(behind[0])) != "default_value":
        return None
    return behind[0]


def _value(node: Node, known: dict[str, Scalar]) -> Scalar:
    folded = _folded(node, known)
    return " ".join(_text(node).split()) if folded is None else folded


def _folded(node: Node, known: dict[str, Scalar]) -> Scalar | None:
    """The number or flag of an expression over literals and the struct's earlier constants."""
    match node.type:
        case "number_literal":
            return _number(_text(node))
        case "true" | "false":
            return node.type == "true"
        case "identifier":
            value = known.get(_text(node))
            return None if isinstance(value, str) else value
        case "parenthesized_expression":
            return _folded(node.named_children[0], known)
        case "unary_expression":
            inner = _folded(node.named_children[-1], known)
            return -inner if _text(node).startswith("-") and isinstance(inner, (int, float)) else None
        case "binary_expression":
            left, right = (_folded(child, known) for child in node.named_children[:2])
            apply = _FOLDED.get(_text(node.child_by_field_name("operator")))
            if (
                apply
                and type(left) is int
                and type(right) is int
                and (right or apply is not operator.floordiv)
            ):
                return int(apply(left, right))
    return None


def _number(text: str) -> int | float | None:
    digits = text.replace("'", "")
    plain = digits.lower().rstrip("ul") if "x" not in digits.lower() else digits.rstrip("uUlL")
    for read_as in (lambda: int(plain, 0), lambda: int(plain, 8), lambda: float(digits.rstrip("fFlL"))):
        try:
            return read_as()
        except ValueError:
            continue
    return None


def _text(node: Node | None) -> str:
    return (node.text or b"").decode("utf-8", "replace") if node is not None else ""


def _line(node: Node) -> int:
    return node.start_point[0] + 1
