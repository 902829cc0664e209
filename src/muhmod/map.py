"""The map of a tree's injection points: tuning sites, calls of precompiled modules, kernels, what is missing.

Priority of a site, by the verdicts on its values (`muhmod.reach`): P0, one reaches a kernel; P1, one may,
for all that is known; P2, dead: each is stopped or overridden. Within one priority: living values that are
derived as limit or heuristic, then those that a pack sets as literals, then what no literal of the site sets;
then by kind and place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from muhmod import engine
from muhmod.engine import Options
from muhmod.errors import FileError, MuhmodError
from muhmod.launches import NEEDLES, Constexpr, Kernel, Kernels
from muhmod.markdown import text
from muhmod.missing import Absent, imports
from muhmod.model import Found, Reach, Slot, Step
from muhmod.names import Index
from muhmod.rulebook import Pack
from muhmod.search import Reading
from muhmod.tree import Tree
from muhmod.wrappers import Compiled, Stub, Wrapper, wrappers

SCHEMA = "muhmod/map/1"
# The verdict on a slot of a site.
Reached = Callable[[Found, Slot], Reach]

# Kinds of site whose values are derived, as limit or heuristic; and those that a pack sets as literals.
_DERIVED = ("prefill-tile", "moe-config", "autotune-configs", "shared-memory", "partition-size")
_KINDS = (*_DERIVED, "v1-override", "q-chunk", "triton-flag")


class Value(NamedTuple):
    """A slot of a site, whether it reaches a kernel, and the Triton kernel that its way ends at."""

    slot: Slot
    reach: Reach
    kernel: Kernel | None = None

    @property
    def alive(self) -> bool:
        """Whether it reaches a kernel, for all that is known."""
        return self.reach.verdict in ("reaches", "unknown")

    @property
    def text(self) -> str:
        """The present value on one line."""
        entry = self.slot.entry.show() if self.slot.entry is not None else ""
        return entry or " ".join(self.slot.text.split())


_DEAD = 2


class Point(NamedTuple):
    """A tuning site, its values and its priority (0 to 2)."""

    site: Found
    values: tuple[Value, ...]
    priority: int

    @property
    def dead(self) -> bool:
        """Whether each of its values is stopped or overridden."""
        return self.priority == _DEAD


class Map(NamedTuple):
    """The whole map of one tree."""

    tree: str
    points: tuple[Point, ...] = ()
    wrappers: tuple[Wrapper, ...] = ()
    stubs: tuple[Stub, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    absent: tuple[Absent, ...] = ()
    rules: str = ""
    platform: str = ""
    faults: tuple[FileError, ...] = ()

    @property
    def code(self) -> int:
        """The exit code: 4 where a file could not be read."""
        return max((fault.code for fault in self.faults), default=0)


def chart(
    reading: Reading,
    *,
    reached: Reached,
    pack: Pack | None = None,
    platform: str = "",
    sites: tuple[str, ...] = (),
    jobs: int = 1,
) -> Map:
    """The map of a tree. A file that cannot be read is named in `faults`; the others are mapped."""
    of = reading.tree
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
    launched = kernels.kernels()
    return Map(
        of.name, points(found, reached, launched), calls, stubs, launched, tuple(sorted(absent)),
        pack.name if pack else "", platform, tuple(unread[text] for text in sorted(unread)),
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


def points(found: Sequence[Found], reached: Reached, kernels: Sequence[Kernel]) -> tuple[Point, ...]:
    """The sites with the verdicts on their values, by priority."""
    rows = []
    for one in found:
        verdicts = ((slot, reached(one, slot)) for slot in one.slots)
        values = tuple(Value(slot, reach, _kernel_at(reach, kernels)) for slot, reach in verdicts)
        rows.append(Point(one, values, _priority(values)))
    return tuple(sorted(rows, key=_order))


def _priority(values: Sequence[Value]) -> int:
    if any(value.reach.verdict == "reaches" for value in values):
        return 0
    # Of a site without values nothing is known.
    return 1 if not values or any(value.alive for value in values) else _DEAD


def _order(point: Point) -> tuple[int, int, int, str, int, str]:
    site = point.site
    settable = any(value.alive and value.slot.editable for value in point.values)
    rank = 2 if not settable else 0 if site.site in _DERIVED else 1
    kind = _KINDS.index(site.site) if site.site in _KINDS else len(_KINDS)
    return point.priority, rank if not point.dead else 0, kind, site.file, site.line, site.scope


def _kernel_at(reach: Reach, kernels: Sequence[Kernel]) -> Kernel | None:
    """The kernel that is launched, or tuned, where a way arrives; None where it is no kernel of the tree."""
    if reach.verdict != "reaches" or not reach.path:
        return None
    last = reach.path[-1]
    there = [kernel for kernel in kernels if _runs(kernel, last)]
    # One line may launch several: the step says which one it is.
    said = last.does.partition(": ")[0].removeprefix("launch of ").rpartition(".")[2]
    return next((k for k in there if k.scope.rpartition(".")[2] == said), there[0] if there else None)


def _runs(kernel: Kernel, step: Step) -> bool:
    tuned = kernel.file == step.file and kernel.first <= step.line < kernel.line
    return tuned or any(
        launch.file == step.file and launch.line <= step.line <= launch.end_line for launch in kernel.launches
    )


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


class Line(NamedTuple):
    """A line below another one, how deep, and the verdict that it tells of a value."""

    depth: int
    text: str
    verdict: str = ""


def title(of: Map) -> str:
    """How many sites there are, by priority, and for which platform that holds."""
    count = Counter(point.priority for point in of.points)
    on = f" on {of.platform}" if of.platform else " (no platform declared)"
    return f"{len(of.points)} tuning sites{on}: {count[0]} alive, {count[1]} unknown, {count[_DEAD]} dead"


def outline(of: Map, *, verbose: bool = False) -> Iterator[Line]:
    """The sites, below each its values with their verdicts, below each value its way.

    `verbose`: every entry of an autotune list, each step of a way on its own line with what happens there.
    """
    for point in of.points:
        site = point.site
        dead = " dead" if point.dead else ""
        yield Line(0, f"P{point.priority}{dead}  {site.site}  {site.file}:{site.line}  {site.scope}")
        if site.problem:
            yield Line(1, f"unrewritable: {site.problem}")
        for name, value in _named(point, verbose):
            yield Line(1, f"{name}: {value.reach.verdict}: {value.reach.why}", value.reach.verdict)
            steps = way(site, value)
            if verbose:
                yield from (Line(2, f"{step.file}:{step.line}  {step.does}") for step in steps)
            else:
                yield Line(2, _places_of(steps))


def _named(point: Point, verbose: bool) -> Iterator[tuple[str, Value]]:
    """The values to be shown, by what they are called; entries of one list that fare alike as one."""
    entries = [value for value in point.values if value.slot.name.startswith("configs[")]
    if entries and not verbose:
        alike: dict[tuple[str, str], list[Value]] = {}
        for value in entries:
            alike.setdefault((value.reach.verdict, value.reach.why), []).append(value)
        yield from ((f"{len(values)} configs", values[0]) for values in alike.values())
    for value in point.values:
        if not entries or (value.slot.name != "configs" and (verbose or value not in entries)):
            name = f"{value.slot.name} ({value.slot.bound})" if value.slot.bound else value.slot.name
            yield f"{name} {value.text if len(value.text) <= 60 else f'{value.text[:59]}…'}", value


def way(site: Found, value: Value) -> tuple[Step, ...]:
    """The places from the literal on, as far as they are known; the kernel's own, where it arrives at one."""
    slot, kernel = value.slot, value.kernel
    path = value.reach.path or (Step(site.file, slot.line, f"{slot.bound or slot.name} = {value.text}"),)
    end = (Step(kernel.file, kernel.line, f"the kernel {kernel.scope}"),) if kernel else ()
    return (*path, *end)


def _places_of(steps: Sequence[Step]) -> str:
    """`a.py:3 > :9 > b.py:2`: a file is said once for the places in it that follow each other."""
    places = [(step.file, step.line) for step in steps]
    kept = [place for at, place in enumerate(places) if not at or place != places[at - 1]]
    return " > ".join(
        f"{'' if at and file == kept[at - 1][0] else file}:{line}" for at, (file, line) in enumerate(kept)
    )


def tables(of: Map, *, verbose: bool = False) -> list[Table]:
    """What the map holds beside the sites, as tables; `verbose`: every argument."""
    calls = [(_at(w), w.scope, f"{w.calls}{_as(w, verbose)}", _arguments(w, verbose)) for w in of.wrappers]
    kernels = [
        (_at(k), k.scope, " ".join(_constexpr(c) for c in k.constexprs), _launchers(k)) for k in of.kernels
    ]
    missing = [(one.kind, one.name, one.why, _places(one)) for one in of.absent]
    return [
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
    yield f"\n## {text(title(of))}\n"
    yield from (f"{'  ' * line.depth}- {text(line.text)}" for line in outline(of))
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
        "platform": of.platform,
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
        "end_line": site.end_line, "form": site.form, "priority": point.priority, "dead": point.dead,
        "slots": [_value(site, value) for value in point.values],
    }  # fmt: skip
    return out | ({"state": "unrewritable", "reason": site.problem} if site.problem else {})


def _value(site: Found, value: Value) -> dict[str, Any]:
    slot, reach = value.slot, value.reach
    out: dict[str, Any] = {
        "name": slot.name, "line": slot.line, "column": slot.column, "end_line": slot.end_line,
        "end_column": slot.end_column, "value": value.text,
    }  # fmt: skip
    if slot.bound:
        out["bound"] = slot.bound
    if slot.reason:
        out["note"] = slot.reason
    out |= {"reach": reach.verdict, "why": reach.why, "path": [step._asdict() for step in way(site, value)]}
    return out | ({"kernel": value.kernel.scope} if value.kernel else {})


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
