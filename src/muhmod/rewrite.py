"""One file's edits in, its new text out: the only module that knows LibCST.

`ast` has chosen the statement; LibCST parses that statement alone, a transformer changes the one
node that stands at the slot's place, and the statement's new code is spliced back. Everything
outside it is not touched, so it comes back byte for byte. Where LibCST and `ast` see different
nodes at that place, the edit is refused.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar, cast

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

from muhmod.errors import FileError, RefusedError
from muhmod.model import Edit, Entry, Scalar

Grammar = Literal["statement", "expression", "block"]
_TO_LINE_END = re.compile(r"[^\r\n]*")
_Node = TypeVar("_Node", bound=cst.CSTNode)
_Part = TypeVar("_Part", bound="cst.Arg | cst.BaseDictElement")


class Splice(NamedTuple):
    """Put `new` in the place of the chars from start to end."""

    edit: Edit
    start: int
    end: int
    new: str


def rewrite(text: str, edits: list[Edit]) -> list[Splice]:
    """What to put where so that all edits are made, in text order. Edits of one segment go together.

    Raises RefusedError where edits overlap or a node is not where it was found, and FileError
    where LibCST does not give a segment's own text back.
    """
    splices: list[Splice] = []
    segments: dict[tuple[int, int, Grammar], list[Edit]] = {}
    for edit in edits:
        if edit.op == "remove":
            start, end = remove_statement(text, edit.segment[0], edit.segment[1])
            splices.append(Splice(edit, start, end, ""))
        elif edit.op == "block":
            splices.append(_block(text, edit))
        else:
            segments.setdefault(edit.segment, []).append(edit)
    for (start, end, grammar), group in segments.items():
        try:
            splices += _segment(text[start:end], start, grammar, group)
        except cst.CSTValidationError as error:
            raise RefusedError(f"the new value cannot stand there: {error}") from None
    splices.sort(key=lambda s: s.start)
    for a, b in pairwise(splices):
        if b.start < a.end:
            raise RefusedError("two edits overlap")
    return splices


def spliced(text: str, splices: list[Splice]) -> str:
    """The text with all splices made."""
    for splice in reversed(splices):
        text = text[: splice.start] + splice.new + text[splice.end :]
    return text


def _segment(code: str, start: int, grammar: Grammar, edits: list[Edit]) -> list[Splice]:
    """LibCST makes the edits; what it gives must be the segment with just those nodes changed."""
    frame = _Frame(code, grammar)
    splices: list[Splice] = []
    for edit in sorted(edits, key=lambda e: (-e.start, e.op != "key")):
        if edit.op == "key":
            if edit not in [splice.edit for splice in splices]:
                added = [e for e in edits if e.op == "key" and e.payload == edit.payload]
                splices = [*frame.add(added, start), *splices]
            continue
        new = frame.apply(edit, edit.start - start, edit.end - start)
        splices.insert(0, Splice(edit, edit.start, edit.end, new))
    shifted = [s._replace(start=s.start - start, end=s.end - start) for s in splices]
    if spliced(code, shifted) != frame.code():
        raise FileError("LibCST changed more of the statement than the value")
    return splices


class _Frame:
    """A segment as LibCST reads it alone: a module of one statement, or one expression."""

    def __init__(self, code: str, grammar: Grammar) -> None:
        # An expression may span lines only within brackets, so it gets a pair.
        self.prefix, self.suffix = ("(", ")") if grammar == "expression" else ("", "")
        self.source = code
        self.module = self._parse()

    def _parse(self) -> cst.Module:
        source = self.prefix + self.source + self.suffix
        try:
            module = cst.parse_module(source)
        except cst.ParserSyntaxError as error:
            raise FileError(f"LibCST does not parse the statement: {error.message}") from None
        if module.code != source:
            raise FileError("LibCST does not give the statement back byte for byte")
        return module

    def apply(self, edit: Edit, start: int, end: int) -> str:
        """Change the node at these char offsets of the segment; gives the new node's code."""
        node = self._node_at(start, end)
        new = _entries(node, edit) if edit.op == "entries" else _literal(edit.new, node)
        self.module = self._with(node, new)
        return self.module.code_for_node(new.with_changes(lpar=(), rpar=()))

    def add(self, edits: list[Edit], start: int) -> list[Splice]:
        """Put keys behind the last of the display that the edits' payload spans; a splice for each."""
        first, last = cast("tuple[int, int]", edits[0].payload)
        node = old = self._node_at(first - start, last - start)
        splices: list[Splice] = []
        at = end = 0
        for edit in edits:
            before = self._parts(node)
            node = _with_item(node, edit.name.partition("#")[0], cst.parse_expression(edit.new))
            head, closing = self._parts(node)
            if not splices:
                at = first + len(before[0])
                end = last - len(closing)
            new = head[len(before[0]) :]
            if not (head.startswith(before[0]) and before[1].endswith(closing)):
                raise FileError("LibCST changed more of the dict than its last key")
            splices.append(Splice(edit, at, end, new))
            at = end
        self.module = self._with(old, node)
        return splices

    def _parts(self, node: cst.BaseExpression) -> tuple[str, str]:
        """A display's code up to the comma of its last item, if it has one, and the rest."""
        code = self.module.code_for_node(node.with_changes(lpar=(), rpar=()))
        closing = len(self.module.code_for_node(_closing(node))) + 1
        return code[:-closing], code[-closing:]

    def _with(self, old: cst.CSTNode, new: cst.CSTNode) -> cst.Module:
        match self.module.body:
            case [cst.SimpleStatementLine(body=[cst.Expr(value=value) as expr]) as line] if value is old:
                changed = line.with_changes(body=[expr.with_changes(value=new)])
                return self.module.with_changes(body=[changed])
        return cst.ensure_type(self.module.visit(_Replace(old, new)), cst.Module)

    def code(self) -> str:
        """The segment's new code."""
        code = self.module.code
        return code[len(self.prefix) : len(code) - len(self.suffix)]

    def _node_at(self, start: int, end: int) -> cst.BaseExpression:
        if (start, end) == (0, len(self.source)) and self.prefix:
            return self._whole()
        last = self._value() if end == len(self.source) else None
        if last is not None and self.module.code_for_node(last) == self.source[start:end]:
            return last
        code = self.module.code
        shift = len(self.prefix)
        first = len(code[: start + shift].encode())
        length = len(code[start + shift : end + shift].encode())
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        spans = wrapper.resolve(ByteSpanPositionProvider)
        for node, span in spans.items():
            if span.start == first and span.length == length and isinstance(node, cst.BaseExpression):
                return node
        raise _disagree(code[start + shift : end + shift])

    def _value(self) -> cst.BaseExpression | None:
        """What the statement binds or returns: the node that most edits are about."""
        match self.module.body:
            case [cst.SimpleStatementLine(body=[cst.Assign() | cst.AnnAssign() | cst.Return() as statement])]:
                return statement.value
        return None

    def _whole(self) -> cst.BaseExpression:
        """The one expression of the segment, without looking for its place."""
        match self.module.body:
            case [cst.SimpleStatementLine(body=[cst.Expr(value=value)])]:
                return value
        raise _disagree(self.source)


def _disagree(code: str) -> RefusedError:
    return RefusedError(f"LibCST and ast disagree about {code[:60]!r}")


class _Replace(cst.CSTTransformer):
    """Puts `new` in the place of the one node `old`."""

    def __init__(self, old: cst.CSTNode, new: cst.CSTNode) -> None:
        super().__init__()
        self.old, self.new = old, new

    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode:
        return self.new if original_node is self.old else updated_node


def _literal(code: str, old: cst.BaseExpression) -> cst.BaseExpression:
    """The new expression, in the old one's parentheses."""
    return cst.parse_expression(code).with_changes(lpar=old.lpar, rpar=old.rpar)


def remove_statement(text: str, start: int, end: int) -> tuple[int, int]:
    """The span to cut so that the statement at (start, end) goes and nothing else does.

    Its whole lines where it stands alone on them; its part where `;` joins it to others. A
    comment behind it stays, on a line of its own. Raises RefusedError.
    """
    line_start = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    before = text[line_start:start].rstrip()
    rest = _TO_LINE_END.match(text, end)[0]  # type: ignore[index]
    after = rest.lstrip()
    if before:
        if not before.endswith(";"):
            raise RefusedError("the statement shares its line with the head of its block")
        return line_start + len(before.rstrip("; \t")), end
    if after.startswith(";") and after[1:].strip() and not after[1:].lstrip().startswith("#"):
        return start, end + len(rest) - len(after[1:].lstrip())
    comment = after.lstrip("; \t")
    if comment:
        return start, end + len(rest) - len(comment)
    cut = end + len(rest)
    newline = 2 if text.startswith("\r\n", cut) else min(1, len(text) - cut)
    return line_start, cut + newline


def _block(text: str, edit: Edit) -> Splice:
    """A statement of its own put in, or in the place of the old one, in front of a function's last.

    The segment is the function. LibCST must read the new statement as an `if`, and all others as before.
    """
    start, end, _ = edit.segment
    made = Splice(edit, edit.start, edit.end, edit.new)
    before = _Frame(text[start:end], "block").module
    moved = made._replace(start=edit.start - start, end=edit.end - start)
    after = _Frame(spliced(text[start:end], [moved]), "block").module
    *old, last = _body(before)
    if edit.start < edit.end:
        old = old[:-1]
    *rest, new, behind = _body(after)
    same = len(rest) == len(old) and all(
        a.deep_equals(b) for a, b in zip([*old, last], [*rest, behind], strict=True)
    )
    if not (same and isinstance(new, cst.If)):
        raise FileError("LibCST reads the new block otherwise than as one statement more")
    return made


def _body(module: cst.Module) -> list[cst.BaseStatement]:
    match module.body:
        case [cst.FunctionDef(body=cst.IndentedBlock(body=body))]:
            return [*body]
    raise RefusedError("LibCST and ast disagree about the function")


# Keys of a display ----------------------------------------------------------------------------


def _closing(node: cst.BaseExpression) -> cst.BaseParenthesizableWhitespace:
    """What stands between a display's last item, its comma included, and its bracket."""
    match node:
        case cst.Dict(rbrace=bracket):
            return bracket.whitespace_before
        case cst.Call(args=[*_, cst.Arg(comma=cst.Comma(whitespace_after=gap))]):
            return gap
        case cst.Call(args=[*_, cst.Arg(whitespace_after_arg=gap)]):
            return gap
    raise _disagree("the dict")


def _with_item(node: cst.BaseExpression, key: str, value: cst.BaseExpression) -> cst.BaseExpression:
    """The display with one item more, set off and spelled as its last; comments behind that stay there."""
    match node:
        case cst.Dict(elements=[*rest, cst.DictElement(key=cst.SimpleString(quote=quote)) as last]):
            comma, end = _between(_gap(rest[-1]) if rest else node.lbrace.whitespace_after, _closing(node))
            new = last.with_changes(key=cst.SimpleString(f"{quote}{key}{quote}"), value=value)
            bracket = node.rbrace.with_changes(whitespace_before=end)
            return node.with_changes(elements=[*rest, last.with_changes(comma=comma), new], rbrace=bracket)
        case cst.Call(args=[*args, cst.Arg(keyword=cst.Name()) as end_]):
            comma, end = _between(_gap(args[-1]) if args else node.whitespace_before_args, _closing(node))
            closed: dict[str, cst.CSTNode] = {"whitespace_after_arg": end}
            if isinstance(end_.comma, cst.Comma):
                closed = {"comma": cst.Comma(whitespace_after=end)}
            held = end_.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
            added = end_.with_changes(keyword=cst.Name(key), value=value, **closed)
            return node.with_changes(args=[*args, held, added])
    raise _disagree("the dict")


def _between(
    lead: cst.BaseParenthesizableWhitespace, closing: cst.BaseParenthesizableWhitespace
) -> tuple[cst.Comma, cst.BaseParenthesizableWhitespace]:
    """The comma behind what was the last item, set off as that was (`lead`); what closes the display now."""
    plain = _plain_gap([lead]) if isinstance(lead, cst.ParenthesizedWhitespace) else lead
    between = _set_off(_indented(closing, plain), plain)
    return cst.Comma(whitespace_after=between), _without_comments(closing)


# Autotune lists -------------------------------------------------------------------------------


def _entries(node: cst.BaseExpression, edit: Edit) -> cst.BaseExpression:
    """The list with entries dropped and added. Comments between entries all stay."""
    if not isinstance(node, cst.List):
        raise RefusedError("LibCST and ast disagree about the list")
    kept_, added, is_part, gone = cast(
        "tuple[tuple[bool, ...], tuple[Entry, ...], bool, tuple[str, ...]]", edit.payload
    )
    elements = list(node.elements)
    flags = iter(kept_)
    # A starred part is a list of its own: it stays.
    keep = tuple(isinstance(element, cst.StarredElement) or next(flags) for element in elements)
    leads = [node.lbracket.whitespace_after, *(_gap(e) for e in elements[:-1])]
    plain = _plain_gap(leads)
    closing = node.rbracket.whitespace_before
    trailing_comma = bool(elements) and isinstance(elements[-1].comma, cst.Comma)

    rows: list[tuple[cst.BaseParenthesizableWhitespace, cst.BaseElement]] = []
    carried: list[cst.BaseParenthesizableWhitespace] = []
    template = _template(elements, keep).visit(_Uncommented()) if added else None
    for element, lead, kept in zip(elements, leads, keep, strict=True):
        carried.append(lead)
        if kept:
            rows.append((_joined(carried), element))
            carried = []
    end = closing
    if added:
        # What stands behind the last entry of old stays behind it, before the new ones.
        behind = _joined([*carried, _indented(closing, plain)])
        first = _set_off(behind, plain) if rows else behind
        rows += [
            (plain, cst.Element(_clone(cst.ensure_type(template, cst.Call), entry, gone))) for entry in added
        ]
        rows[-len(added)] = (first, rows[-len(added)][1])
        end = _without_comments(closing)
        carried = []
    if not rows:
        if not is_part or any(_comment_lines(gap) for gap in [*carried, end]):
            raise RefusedError("no entry would be left in the list")
        none = cst.SimpleWhitespace("")
        return node.with_changes(
            elements=[], lbracket=node.lbracket.with_changes(whitespace_after=none),
            rbracket=node.rbracket.with_changes(whitespace_before=none),
        )  # fmt: skip
    return _rebuilt(node, rows, _before_bracket(carried, end, plain), trailing_comma)


def _indented(
    closing: cst.BaseParenthesizableWhitespace, plain: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    """The gap before the bracket, as one whose comments stand where entries do."""
    if isinstance(closing, cst.ParenthesizedWhitespace) and isinstance(plain, cst.ParenthesizedWhitespace):
        return closing.with_changes(indent=plain.indent, last_line=plain.last_line)
    return closing


def _before_bracket(
    carried: list[cst.BaseParenthesizableWhitespace],
    closing: cst.BaseParenthesizableWhitespace,
    plain: cst.BaseParenthesizableWhitespace,
) -> cst.BaseParenthesizableWhitespace:
    """What stands before the closing bracket once the last entries are gone: their comments, and its own."""
    comments = [line for gap in [*carried[1:], _indented(closing, plain)] for line in _comment_lines(gap)]
    if not carried:
        return closing
    first = carried[0]
    if not isinstance(closing, cst.ParenthesizedWhitespace):
        return _joined(carried) if comments or _comment_lines(first) else closing
    if not isinstance(first, cst.ParenthesizedWhitespace):
        bare = cst.TrailingWhitespace(newline=closing.first_line.newline)
        return closing.with_changes(first_line=bare, empty_lines=comments)
    own = [line for line in first.empty_lines if line.comment is not None]
    return closing.with_changes(first_line=first.first_line, empty_lines=[*own, *comments])


def _set_off(
    gap: cst.BaseParenthesizableWhitespace, plain: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    """The gap's comments in the layout of the list's own gaps."""
    if not isinstance(gap, cst.ParenthesizedWhitespace) or not _comment_lines(gap):
        return plain
    if not isinstance(plain, cst.ParenthesizedWhitespace):
        return gap
    lines = [line for line in gap.empty_lines if line.comment is not None]
    return plain.with_changes(first_line=gap.first_line, empty_lines=lines)


def _without_comments(gap: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    if not isinstance(gap, cst.ParenthesizedWhitespace):
        return gap
    first = cst.TrailingWhitespace(newline=gap.first_line.newline)
    return gap.with_changes(first_line=first, empty_lines=[])


def _rebuilt(
    node: cst.List,
    rows: list[tuple[cst.BaseParenthesizableWhitespace, cst.BaseElement]],
    end_gap: cst.BaseParenthesizableWhitespace,
    trailing_comma: bool,
) -> cst.List:
    elements = []
    for index, (_, element) in enumerate(rows):
        last = index + 1 == len(rows)
        after = end_gap if last else rows[index + 1][0]
        comma: cst.Comma | cst.MaybeSentinel = cst.Comma(whitespace_after=after)
        if last:
            comma = cst.Comma() if trailing_comma else cst.MaybeSentinel.DEFAULT
        elements.append(element.with_changes(comma=comma))
    rbracket = node.rbracket.with_changes(whitespace_before=end_gap)
    lbracket = node.lbracket.with_changes(whitespace_after=rows[0][0])
    return node.with_changes(elements=elements, lbracket=lbracket, rbracket=rbracket)


def _gap(element: cst.BaseElement | cst.BaseDictElement | cst.Arg) -> cst.BaseParenthesizableWhitespace:
    """The white space behind an element's comma."""
    comma = element.comma
    return comma.whitespace_after if isinstance(comma, cst.Comma) else cst.SimpleWhitespace("")


def _plain_gap(leads: list[cst.BaseParenthesizableWhitespace]) -> cst.BaseParenthesizableWhitespace:
    """The gap between entries, without comments: as the list's own."""
    for lead in leads[1:] + leads[:1]:
        if isinstance(lead, cst.ParenthesizedWhitespace):
            first = cst.TrailingWhitespace(newline=lead.first_line.newline)
            return lead.with_changes(first_line=first, empty_lines=[])
    return cst.SimpleWhitespace(" ")


def _joined(gaps: list[cst.BaseParenthesizableWhitespace]) -> cst.BaseParenthesizableWhitespace:
    """The gaps around dropped entries as one: where the first begins, with the comments of all.

    A comment behind a dropped entry gets a line of its own.
    """
    first, *rest = gaps
    comments = [line for gap in rest for line in _comment_lines(gap)]
    if not rest or not comments:
        return first
    if not isinstance(first, cst.ParenthesizedWhitespace):
        last = rest[-1]
        if not isinstance(last, cst.ParenthesizedWhitespace):
            raise _disagree("the comments between the list's entries")
        bare = cst.TrailingWhitespace(newline=last.first_line.newline)
        return last.with_changes(first_line=bare, empty_lines=comments)
    return first.with_changes(empty_lines=[*first.empty_lines, *comments])


def _comment_lines(gap: cst.BaseParenthesizableWhitespace) -> list[cst.EmptyLine]:
    if not isinstance(gap, cst.ParenthesizedWhitespace):
        return []
    lines = [line for line in gap.empty_lines if line.comment is not None]
    if gap.first_line.comment is None:
        return lines
    own = cst.EmptyLine(indent=gap.indent, whitespace=gap.last_line, comment=gap.first_line.comment)
    return [own, *lines]


def _template(elements: list[cst.BaseElement], keep: tuple[bool, ...]) -> cst.BaseExpression:
    """The entry whose spelling new ones follow: a kept one where there is one."""
    own = [pair for pair in zip(elements, keep, strict=True) if isinstance(pair[0], cst.Element)]
    for element, kept in own:
        if kept:
            return element.value
    if not own:
        raise RefusedError("the list is empty: there is no entry whose spelling could be followed")
    return own[0][0].value


def _clone(template: cst.BaseExpression, entry: Entry, gone: tuple[str, ...]) -> cst.BaseExpression:
    """A `triton.Config(…)` spelled like the template, with the entry's values.

    Keys of the dict that the template lacks are left out, since its kernel need not take them;
    launch options that it lacks are added; keys that the entry lacks keep their value, but for those that
    are `gone`: the platform refuses them.
    """
    match template:
        case cst.Call(args=[cst.Arg(value=cst.Dict() as display) as first, *options]):
            values = dict(entry.values + entry.options)
            left = gone if not {*gone} & {*values} else ()
            pairs = _without([(_key(item), item) for item in display.elements], left)
            named = _without([(o.keyword.value if o.keyword else "", o) for o in options], left)
            held = {name for name, _ in named}
            elements = [_with_value(item, name, values) for name, item in pairs]
            arguments = [
                first.with_changes(value=display.with_changes(elements=elements)),
                *(_with_value(option, name, values) for name, option in named),
            ]
            for name, value in entry.options:
                if name not in held:
                    arguments = _with_option(arguments, name, value)
            return template.with_changes(args=arguments)
    raise _disagree("the list's entries")


def _without(pairs: list[tuple[str, _Part]], names: tuple[str, ...]) -> list[tuple[str, _Part]]:
    """The items but for those of these names; what closes the last stays with the one that is last then."""
    kept = [(name, part) for name, part in pairs if name not in names]
    if kept and kept[-1] is not pairs[-1]:
        name, part = kept[-1]
        kept[-1] = (name, cast("_Part", part.with_changes(comma=pairs[-1][1].comma)))
    return kept


class _Uncommented(cst.CSTTransformer):
    """Drops comments: what an entry says of itself is not true of its copies."""

    def leave_ParenthesizedWhitespace(
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.ParenthesizedWhitespace:
        """Without its comments."""
        return cst.ensure_type(_without_comments(updated_node), cst.ParenthesizedWhitespace)


def _with_option(arguments: list[cst.Arg], name: str, value: Scalar) -> list[cst.Arg]:
    """The arguments and one more keyword, set off as the others are."""
    *_, last = arguments
    between = arguments[-2].comma if len(arguments) > 1 else cst.MaybeSentinel.DEFAULT
    if not isinstance(between, cst.Comma):
        between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(_scalar(value), keyword=cst.Name(name), equal=equal, comma=last.comma,
                  whitespace_after_arg=last.whitespace_after_arg)  # fmt: skip
    closing = last.with_changes(comma=between, whitespace_after_arg=cst.SimpleWhitespace(""))
    return [*arguments[:-1], closing, new]


def _key(item: cst.BaseDictElement) -> str:
    key = item.key if isinstance(item, cst.DictElement) else None
    return str(key.evaluated_value) if isinstance(key, cst.SimpleString) else ""


def _with_value(node: _Node, key: str, values: dict[str, Scalar]) -> _Node:
    if key not in values:
        return node
    return node.with_changes(value=_scalar(values[key]))


def _scalar(value: Scalar) -> cst.BaseExpression:
    """The node of a literal; the parser only for what needs it."""
    if isinstance(value, bool):
        return cst.Name(str(value))
    if isinstance(value, int) and value >= 0:
        return cst.Integer(str(value))
    return cst.parse_expression(repr(value))
