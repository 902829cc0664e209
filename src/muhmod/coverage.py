"""Tuning literals that no rule owns, and equal sites that a rule misses: advice, not states."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from muhmod import tree
from muhmod.errors import FileError
from muhmod.model import Found
from muhmod.rulebook import Rule
from muhmod.search import Reading, Search, Source
from muhmod.site import Module, dotted, fold

_NAME = re.compile(r"^_?(BLOCK(_\w+)?|\w+_BLOCK(_SIZE)?(_[A-Z])?|num_warps|NUM_WARPS|num_stages|NUM_STAGES"
                   r"|\w*WARP_SIZE\w*|\w*warp_size)$")  # fmt: skip
_BYTES = re.compile(rb"BLOCK|(?i:num_warps|num_stages|warp_size)|triton\.Config")
_WORD = re.compile(r"BLOCK|(?i:num_warps|num_stages|warp_size)|triton\.Config")


class Advice(NamedTuple):
    """One place that a rule might have been meant for. `rule`: the one that owns its like."""

    kind: Literal["sibling", "unowned"]
    file: str
    line: int
    name: str
    value: str
    rule: str = ""

    def show(self) -> str:
        """One line for a person."""
        return f"{self.file}:{self.line}: {self.said()}"

    def said(self) -> str:
        """What is so there."""
        if self.kind == "sibling":
            return f"{self.rule} does not set {self.name} = {self.value}"
        return f"{self.name} = {self.value}: no rule owns it"


def advice(
    reading: Reading, rules: Sequence[Rule], found: Mapping[str, Search], *, everything: bool = False
) -> tuple[Advice, ...]:
    """Siblings first, then what no rule owns, in the files that were read; or in all files of the tree."""
    sources = _all(reading) if everything else [reading.sources[f] for f in sorted(reading.sources)]
    owned: dict[str, list[tuple[int, int]]] = {}
    for rule in rules:
        for source, one in found[rule.name].bound:
            owned.setdefault(source.file, []).extend(_owned(rule, one))
    out = [*_siblings(rules, found)]
    for source in sources:
        taken = {(a.file, a.line, a.name) for a in out}
        inside = owned.get(source.file, [])
        out += [
            Advice("unowned", source.file, line, name, value)
            for line, name, value in dict.fromkeys(literals(source.module))
            if not any(a <= line <= b for a, b in inside) and (source.file, line, name) not in taken
        ]
    return tuple(sorted(out))


def _owned(rule: Rule, one: Found) -> list[tuple[int, int]]:
    """The lines of the literals that the rule sets or removes."""
    return [
        (slot.line, max(slot.line, slot.end_line))
        for slot in one.slots
        if rule.remove or {slot.name, *slot.also} & {*rule.slots} or slot.name.startswith("configs")
    ]


def _all(reading: Reading) -> Iterator[Source]:
    for file in reading.files:
        try:
            if file in reading.sources:
                yield reading.sources[file]
                continue
            data = tree.read(reading.tree, file)
            if _BYTES.search(data) and not tree.is_generated(data):
                yield reading.source(file, data)
        except FileError:
            continue


def _siblings(rules: Sequence[Rule], found: Mapping[str, Search]) -> Iterator[Advice]:
    """Places of the same kind, with the same literal under the same name, that no rule binds."""
    claimed = {(source.file, one.site, one.line) for s in found.values() for source, one in s.bound}
    for rule in rules:
        search = found[rule.name]
        slots = (slot for _, one in search.bound for slot in one.slots if slot.name in rule.slots)
        own = Counter((slot.name, slot.value) for slot in slots)
        equal = {
            (source.file, slot.line, slot.name, slot.value)
            for source, one in search.others
            for slot in one.slots
            if slot.value is not None and (slot.name, slot.value) in own
            and (source.file, one.site, one.line) not in claimed
        }  # fmt: skip
        like = Counter((name, value) for _, _, name, value in equal)
        for file, line, name, value in equal:
            covered = own[name, value]
            total = covered + like[name, value]
            said = f"{value}; the rule covers {covered} of {total} equal sites"
            yield Advice("sibling", file, line, name, said, rule.name)


def literals(module: Module) -> Iterator[tuple[int, str, str]]:
    """(line, name, value) of every tuning literal: a binding, keyword, default or dict entry, or a Config."""
    lines = [module.line_of(match.start()) for match in _WORD.finditer(module.text)]
    for node in _over(module.tree, lines):
        for name, value in _named(node):
            folded = fold(value)
            if _NAME.match(name) and isinstance(folded, int) and not isinstance(folded, bool):
                yield value.lineno, name, ast.unparse(value)
        if isinstance(node, ast.Call) and dotted(node.func) == "triton.Config":
            yield node.lineno, "triton.Config", "…"


def _over(node: ast.AST, lines: list[int]) -> Iterator[ast.AST]:
    """The nodes that cover one of the lines (sorted), outer before inner; but nothing inside a Config."""
    for child in ast.iter_child_nodes(node):
        first, last = getattr(child, "lineno", None), getattr(child, "end_lineno", None)
        if first is not None and last is not None:
            first = min([first, *(d.lineno for d in getattr(child, "decorator_list", ()))])
            if bisect_left(lines, first) == bisect_right(lines, last):
                continue
        yield child
        if not (isinstance(child, ast.Call) and dotted(child.func) == "triton.Config"):
            yield from _over(child, lines)


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names that a node gives values, with those."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((_name(target), value) for target in targets)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield _name(target), value
        case ast.NamedExpr(target=target, value=value):
            yield _name(target), value
        case ast.Call(keywords=keywords):
            yield from ((keyword.arg or "", keyword.value) for keyword in keywords)
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, value
        case ast.arguments():
            late = [*node.posonlyargs, *node.args][-len(node.defaults) :] if node.defaults else []
            yield from ((arg.arg, default) for arg, default in zip(late, node.defaults, strict=True))
            yield from (
                (arg.arg, default)
                for arg, default in zip(node.kwonlyargs, node.kw_defaults, strict=True)
                if default is not None
            )


def _name(target: ast.expr) -> str:
    return target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
