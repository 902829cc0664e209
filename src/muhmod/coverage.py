"""Tuning literals that no rule owns, and equal sites that a rule misses: advice, not states."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from muhmod import tree
from muhmod.errors import FileError
from muhmod.search import Reading, Search, Source
from muhmod.site import dotted, fold

_NAME = re.compile(r"^_?(BLOCK(_\w+)?|\w+_BLOCK(_SIZE)?(_[A-Z])?|num_warps|NUM_WARPS|num_stages|NUM_STAGES"
                   r"|\w*WARP_SIZE\w*|\w*warp_size)$")  # fmt: skip
_BYTES = re.compile(
    rb"BLOCK|num_warps|NUM_WARPS|num_stages|NUM_STAGES|(?i:warp_size)|triton\.Config|Config\("
)


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
        where = f"{self.file}:{self.line}"
        if self.kind == "sibling":
            return f"{where}: {self.rule} does not set {self.name} = {self.value}"
        return f"{where}: {self.name} = {self.value}: no rule owns it"


def advice(reading: Reading, found: Mapping[str, Search], *, everything: bool = False) -> tuple[Advice, ...]:
    """Siblings first, then what no rule owns, in the files that were read; or in all files of the tree."""
    sources = _all(reading) if everything else [reading.sources[f] for f in sorted(reading.sources)]
    owned: dict[str, list[tuple[int, int]]] = {}
    for search in found.values():
        for source, one in search.bound:
            spans = [(slot.line, max(slot.line, slot.end_line)) for slot in one.slots]
            owned.setdefault(source.file, []).extend(spans or [(one.line, one.end_line)])
    out = [*_siblings(found)]
    for source in sources:
        taken = {(a.file, a.line, a.name) for a in out}
        inside = owned.get(source.file, [])
        out += [
            Advice("unowned", source.file, line, name, value)
            for line, name, value in dict.fromkeys(literals(source.module.tree))
            if not any(a <= line <= b for a, b in inside) and (source.file, line, name) not in taken
        ]
    return tuple(sorted(out))


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


def _siblings(found: Mapping[str, Search]) -> Iterator[Advice]:
    """Places of the same kind, with the same literal under the same name, that no rule binds."""
    claimed = {(source.file, one.site, one.line) for s in found.values() for source, one in s.bound}
    for rule, search in found.items():
        own = Counter((slot.name, slot.value) for _, one in search.bound for slot in one.slots)
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
            yield Advice("sibling", file, line, name, said, rule)


def literals(module: ast.Module) -> Iterator[tuple[int, str, str]]:
    """(line, name, value) of every tuning literal: a binding, keyword, default or dict entry, or a Config."""
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=targets, value=value):
                pairs = [(target, value) for target in targets]
            case (
                ast.AnnAssign(target=one, value=ast.expr() as value) | ast.NamedExpr(target=one, value=value)
            ):
                pairs = [(one, value)]
            case ast.Call(func=func, keywords=keywords):
                if dotted(func) == "triton.Config":
                    yield node.lineno, "triton.Config", "…"
                    continue
                for keyword in keywords:
                    yield from _literal(keyword.arg or "", keyword.value)
                continue
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield from _literal(key.value, value)
                continue
            case _:
                continue
        for target, value in pairs:
            name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
            yield from _literal(name, value)


def _literal(name: str, value: ast.expr) -> Iterator[tuple[int, str, str]]:
    folded = fold(value)
    if _NAME.match(name) and isinstance(folded, int) and not isinstance(folded, bool):
        yield value.lineno, name, ast.unparse(value)
