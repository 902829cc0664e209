"""The map of a tree's injection points: tuning sites, calls of precompiled modules, kernels, what is missing.

Priority of a site, by what is known of its values: P0, one reaches a kernel; P1, one may (its reach is
unknown or was not computed); P2, none does: stopped, overridden or overwritten on every path. Within one
priority: what a kernel is launched with, then what chooses among kernels, then limits and flags (`_KINDS`);
then by place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from muhmod import engine, tree
from muhmod.engine import Options
from muhmod.errors import FileError, MuhmodError
from muhmod.launches import NEEDLES, Constexpr, Kernel, Kernels
from muhmod.markdown import text
from muhmod.missing import Absent, imports
from muhmod.model import Found, Reach, Slot
from muhmod.names import Index
from muhmod.rulebook import Pack
from muhmod.search import Reading
from muhmod.tree import Tree
from muhmod.wrappers import Compiled, Stub, Wrapper, wrappers

SCHEMA = "muhmod/map/1"
# What is known of a slot's way to a kernel; None where it was not looked for.
Reached = Callable[[Found, Slot], Reach | None]

_KINDS = ("prefill-tile", "moe-config", "autotune-configs", "v1-override", "shared-memory", "partition-size",
          "q-chunk", "triton-flag")  # fmt: skip


class Value(NamedTuple):
    """A slot of a site with what is known of its reach."""

    slot: Slot
    reach: Reach | None = None

    @property
    def verdict(self) -> str:
        """One word: that of the reach, `overridden` for what is overwritten on every path, else empty."""
        if self.reach is not None:
            return self.reach.verdict
        return "" if self.slot.live else "overridden"

    @property
    def text(self) -> str:
        """The present value on one line."""
        entry = self.slot.entry.show() if self.slot.entry is not None else ""
        return entry or " ".join(self.slot.text.split())


class Point(NamedTuple):
    """A tuning site, its values and its priority (0 to 2)."""

    site: Found
    values: tuple[Value, ...]
    priority: int


class Map(NamedTuple):
    """The whole map of one tree."""

    tree: str
    points: tuple[Point, ...] = ()
    wrappers: tuple[Wrapper, ...] = ()
    stubs: tuple[Stub, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    absent: tuple[Absent, ...] = ()
    rules: str = ""
    faults: tuple[FileError, ...] = ()

    @property
    def code(self) -> int:
        """The exit code: 4 where a file could not be read."""
        return max((fault.code for fault in self.faults), default=0)

    @property
    def has_reach(self) -> bool:
        """Whether the reach of any value was looked for."""
        return any(value.reach is not None for point in self.points for value in point.values)


def chart(
    of: Tree,
    *,
    pack: Pack | None = None,
    sites: tuple[str, ...] = (),
    reached: Reached | None = None,
    jobs: int = 1,
) -> Map:
    """The map of a tree. A file that cannot be read is named in `faults`; the others are mapped."""
    reading = Reading(of, tree.PACKAGES if of.name not in tree.PACKAGES else ())
    found, faults = engine.sites(of, sites, jobs=jobs)
    index = Index(reading)
    compiled = Compiled(reading, pack.modules if pack else ())
    for file in reading.files:
        if _matters(index, compiled, file):
            index.add(file)
    compiled.learn(index)
    kernels = Kernels(index)
    index.grow(lambda names: kernels.is_kernel(names) or any(map(compiled.is_compiled, names)))
    calls, stubs = wrappers(index, compiled, _fed(found))
    absent = [*imports(index), *(_rules(of, pack) if pack else ())]
    unread = {str(fault): fault for fault in (*faults, *index.faults.values())}
    return Map(
        of.name, points(found, reached), calls, stubs, kernels.kernels(), tuple(sorted(absent)),
        pack.name if pack else "", tuple(unread[text] for text in sorted(unread)),
    )  # fmt: skip


def _matters(index: Index, compiled: Compiled, file: str) -> bool:
    """Whether a file may define a kernel or name something precompiled; its fault is kept."""
    try:
        data = index.reading.data(file)
    except FileError as error:
        index.faults[file] = error
        return False
    kernel = b"jit" in data and any(needle in data for needle in NEEDLES)
    return kernel or compiled.wanted(data, index.imported(file))


def _fed(found: Sequence[Found]) -> dict[str, dict[str, str]]:
    """For each file the names that its tuning sites bind, with the site."""
    fed: dict[str, dict[str, str]] = {}
    for one in found:
        for slot in one.slots:
            for name in (slot.bound or slot.name, *slot.also):
                if name.isidentifier() and name != "return":
                    fed.setdefault(one.file, {}).setdefault(name, one.site)
    return fed


# Sites ----------------------------------------------------------------------------------------


def points(found: Sequence[Found], reached: Reached | None) -> tuple[Point, ...]:
    """The sites with their values' reach, by priority."""
    rows = []
    for one in found:
        values = tuple(Value(slot, reached(one, slot) if reached else None) for slot in one.slots)
        rows.append(Point(one, values, _priority(values)))
    return tuple(sorted(rows, key=_order))


def _priority(values: Sequence[Value]) -> int:
    verdicts = {value.verdict for value in values}
    if "reaches" in verdicts:
        return 0
    return 1 if not verdicts or verdicts & {"", "unknown"} else 2


def _order(point: Point) -> tuple[int, int, str, int, str]:
    site = point.site
    kind = _KINDS.index(site.site) if site.site in _KINDS else len(_KINDS)
    return point.priority, kind, site.file, site.line, site.scope


def _rules(of: Tree, pack: Pack) -> Iterator[Absent]:
    """The places that a rule of the pack names and that the tree does not have."""
    try:
        rows = engine.plan(of, pack, Options()).sites
    except MuhmodError as error:
        yield Absent("rule", pack.name, "", f"the rules cannot be held against the tree: {error.message}")
        return
    scopes = {rule.name: rule.scope for rule in pack.rules}
    for row in rows:
        name = row.rule or row.site
        if row.state in ("lost", "absent"):
            nearest = f"; nearest: {row.candidates[0]}" if row.candidates else ""
            yield Absent("rule", name, "", f"{row.state}: {row.reason or scopes.get(name, '')}{nearest}")


# For people -----------------------------------------------------------------------------------


class Table(NamedTuple):
    """One part of the map as text: a title that counts, and rows of cells; a cell may hold several lines."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(of: Map, *, verbose: bool = False) -> list[Table]:
    """The map as tables; `verbose`: every entry of an autotune list, every argument."""
    rows = [
        (
            f"P{p.priority}",
            p.site.site,
            f"{p.site.file}:{p.site.line}\n{p.site.scope}",
            "\n".join(_values(p, verbose)),
        )
        for p in of.points
    ]
    calls = [(_at(w), w.scope, f"{w.calls}{_as(w, verbose)}", _arguments(w, verbose)) for w in of.wrappers]
    kernels = [
        (_at(k), k.scope, " ".join(_constexpr(c) for c in k.constexprs), _launchers(k)) for k in of.kernels
    ]
    missing = [(one.kind, one.name, one.why, _places(one)) for one in of.absent]
    what = "" if of.has_reach else " (reach not computed)"
    return [
        Table(f"{len(rows)} tuning sites{what}", ("", "site", "place", "values"), tuple(rows)),
        Table(f"{len(calls)} calls into precompiled modules", ("place", "in", "calls", "tunable"),
              tuple(calls)),
        Table(f"{len(of.stubs)} wrappers beside them only raise", ("place", "wrapper"),
              tuple((_at(stub), stub.scope) for stub in of.stubs)),
        Table(f"{len(kernels)} Triton kernels", ("place", "kernel", "constexpr", "who launches it"),
              tuple(kernels)),
        Table(f"{len(missing)} missing", ("by", "name", "why", "where"), tuple(missing)),
    ]  # fmt: skip


def _at(one: Wrapper | Kernel | Stub) -> str:
    return f"{one.file}:{one.line}"


def _values(point: Point, verbose: bool) -> Iterator[str]:
    entries = [value for value in point.values if value.slot.name.startswith("configs[")]
    if entries and not verbose:
        verdicts = sorted({value.verdict for value in entries} - {""})
        yield f"{len(entries)} configs{_verdict(verdicts)}"
    for value in point.values:
        if value.slot.name == "configs" and entries:
            continue
        if value not in entries or verbose:
            name = f"{value.slot.name} ({value.slot.bound})" if value.slot.bound else value.slot.name
            text = value.text if len(value.text) <= 60 else f"{value.text[:59]}…"
            yield f"{name} {text}{_verdict([value.verdict] if value.verdict else [])}"
    if point.site.problem:
        yield f"unrewritable: {point.site.problem}"


def _verdict(verdicts: Sequence[str]) -> str:
    return f"  [{', '.join(verdicts)}]" if verdicts else ""


def _as(wrapper: Wrapper, verbose: bool) -> str:
    """What becomes of the callee where it is not called; `verbose`: and its full name."""
    how = "" if wrapper.how == "calls" else f" ({wrapper.how})"
    return f"{how}\n= {wrapper.target}" if verbose and wrapper.target != wrapper.calls else how


def _arguments(wrapper: Wrapper, verbose: bool) -> str:
    lines = [
        f"{f'{a.name}=' if a.name else ''}{a.text}{f'  ({a.tunable})' if a.tunable else ''}"
        for a in (wrapper.arguments if verbose else wrapper.tunable)
    ]
    return "\n".join(lines)


def _constexpr(one: Constexpr) -> str:
    return f"{one.name}={one.default}" if one.default else one.name


def _launchers(kernel: Kernel) -> str:
    lines = [kernel.status, *([kernel.tuned] if kernel.tuned else [])]
    for one in kernel.launches:
        given = " ".join(f"{name}={text}" for name, text in (*one.values, *one.options))
        through = f", {one.through}" if one.through else ""
        lines.append(f"{one.file}:{one.line} in {one.scope}{through}: {given}")
    lines += [f"called by {', '.join(kernel.callers)}"] if kernel.callers and not kernel.launches else []
    return "\n".join([*lines, *(f"read at {place}" for place in kernel.mentions)])


def _places(one: Absent) -> str:
    return "\n".join(f"{file}:{line}" for file, line in one.places)


def markdown(of: Map) -> Iterator[str]:
    """The map as Markdown, line by line."""
    yield f"# Injection points of {text(of.tree)}"
    for table in tables(of):
        yield f"\n## {text(table.title)}\n"
        if table.rows:
            yield f"| {' | '.join(table.columns)} |"
            yield f"|{'---|' * len(table.columns)}"
        for row in table.rows:
            yield f"| {' | '.join('<br>'.join(text(line) for line in cell.split(chr(10))) for cell in row)} |"
    if of.faults:
        yield "\n## Not read\n"
        yield from (f"- {text(fault.message)}" for fault in of.faults)


# For programs ---------------------------------------------------------------------------------


def document(of: Map) -> dict[str, Any]:
    """The JSON of `muhmod map`."""
    return {
        "schema": SCHEMA,
        "command": "map",
        "tree": of.tree,
        **({"rules": of.rules} if of.rules else {}),
        "exit": {"code": of.code, "reasons": [fault.message for fault in of.faults]},
        "sites": [_point(point) for point in of.points],
        "wrappers": [_wrapper(wrapper) for wrapper in of.wrappers],
        "stubs": [stub._asdict() for stub in of.stubs],
        "kernels": [_kernel(kernel) for kernel in of.kernels],
        "missing": [
            {"kind": one.kind, "name": one.name, "why": one.why}
            | ({"file": one.file} if one.file else {})
            | ({"places": [{"file": file, "line": line} for file, line in one.places]} if one.places else {})
            for one in of.absent
        ],
    }


def _point(point: Point) -> dict[str, Any]:
    site = point.site
    out: dict[str, Any] = {
        "site": site.site, "file": site.file, "scope": site.scope, "line": site.line,
        "end_line": site.end_line, "form": site.form, "priority": point.priority,
        "slots": [_value(value) for value in point.values],
    }  # fmt: skip
    return out | ({"state": "unrewritable", "reason": site.problem} if site.problem else {})


def _value(value: Value) -> dict[str, Any]:
    slot, reach = value.slot, value.reach
    out: dict[str, Any] = {
        "name": slot.name, "line": slot.line, "column": slot.column, "end_line": slot.end_line,
        "end_column": slot.end_column, "value": value.text,
    }  # fmt: skip
    if slot.bound:
        out["bound"] = slot.bound
    if slot.reason:
        out["note"] = slot.reason
    out["reach"] = value.verdict or "not computed"
    if reach is not None:
        out |= {"why": reach.why, "path": [step._asdict() for step in reach.path]}
    return out


def _wrapper(wrapper: Wrapper) -> dict[str, Any]:
    return wrapper._asdict() | {
        "arguments": [
            {key: text for key, text in argument._asdict().items() if text} for argument in wrapper.arguments
        ]
    }


def _kernel(kernel: Kernel) -> dict[str, Any]:
    return {
        "file": kernel.file, "line": kernel.line, "end_line": kernel.end_line, "scope": kernel.scope,
        "constexprs": [{k: v for k, v in one._asdict().items() if v != ""} for one in kernel.constexprs],
        **({"tuned": kernel.tuned} if kernel.tuned else {}),
        "status": kernel.status,
        "launches": [
            {"file": one.file, "line": one.line, "end_line": one.end_line, "scope": one.scope,
             "values": dict(one.values), "options": dict(one.options)}
            | ({"through": one.through} if one.through else {})
            for one in kernel.launches
        ],
        "callers": list(kernel.callers),
        "mentions": list(kernel.mentions),
    }  # fmt: skip
