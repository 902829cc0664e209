"""The injection-point map of a tree: tuning sites, wrappers of precompiled calls, Triton kernels, what is missing.

Priority of a site, by what is known of its values: P0, one reaches a kernel; P1, one may (its reach is unknown
or was not computed); P2, none does: stopped, overridden or overwritten on every path. Within one priority: what
a kernel is launched with, then what chooses among kernels, then limits and flags (`_KINDS`); then by place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from muhmod import engine, tree
from muhmod.engine import Options
from muhmod.errors import FileError, MuhmodError
from muhmod.launches import NEEDLES, Kernel, Kernels
from muhmod.model import Found, Reach, Slot
from muhmod.names import Index, import_lines
from muhmod.rulebook import Pack
from muhmod.search import Reading
from muhmod.tree import Tree
from muhmod.wrappers import Compiled, Stub, Wrapper, wrappers

SCHEMA = "muhmod/map/1"
# What is known of a slot's way to a kernel; None where it was not looked for.
Reached = Callable[[Found, Slot], Reach | None]

_KINDS = ("prefill-tile", "moe-config", "autotune-configs", "v1-override", "shared-memory", "partition-size",
          "q-chunk", "triton-flag")  # fmt: skip
_OWN_IMPORT = re.compile(rb"[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import\b(.*)|import[ \t]+(.+))", re.DOTALL)
_WORD = re.compile(rb"\w+")
_EXTENSION = re.compile(r"_(?:\w*_)?C(?:_\w+)?")
_BUILT = {"_version", "commit_id", "vllm_flash_attn"}


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


class Absent(NamedTuple):
    """What ought to be there by the tree's imports or by the rules: its name, why, and who says so."""

    kind: str  # "import" or "rule"
    name: str
    file: str
    why: str
    places: tuple[tuple[str, int], ...] = ()


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
    absent = [*_imports(index), *(_rules(of, pack) if pack else ())]
    unread = {str(fault): fault for fault in (*faults, *index.faults.values())}
    return Map(
        of.name, points(found, reached), calls, stubs, kernels.kernels(), tuple(sorted(absent)),
        pack.name if pack else "", tuple(unread[text] for text in sorted(unread)),
    )  # fmt: skip


def _matters(index: Index, compiled: Compiled, file: str) -> bool:
    """Whether a file may define a kernel, or name something precompiled; its fault is kept if it cannot be read."""
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


# What is missing ------------------------------------------------------------------------------


def _imports(index: Index) -> Iterator[Absent]:
    """The modules of the tree's own package that are imported and are not there."""
    missing: dict[str, list[tuple[str, int, str]]] = {}
    for file in index.reading.files:
        try:
            data = index.reading.data(file)
        except FileError:
            continue
        if _may_miss(index, file, data):
            for name, line, guard in _missing(index, file):
                missing.setdefault(name, []).append((file, line, guard))
    for name, rows in missing.items():
        guards = {guard for _, _, guard in rows}
        guarded = f"; each import stands {' or '.join(sorted(guards))}" if "" not in guards else ""
        file = "/".join(name.split(".")[1:]) + ".py"
        places = tuple(sorted({(importer, line) for importer, line, _ in rows}))
        yield Absent("import", name, file, f"{_built(name)}{guarded}", places)


def _built(name: str) -> str:
    last = name.rpartition(".")[2]
    if _EXTENSION.fullmatch(last):
        return "no such module in the tree; by its name an extension that is built"
    if last in _BUILT:
        return "no such module in the tree; it is written when the package is built"
    return "imported, and no such module in the tree"


def _may_miss(index: Index, file: str, data: bytes) -> bool:
    """Whether the text of a file's imports names a module of the package that is not there."""
    for line in import_lines(data).split(b"\0"):
        match = _OWN_IMPORT.match(line)
        if match is None:
            continue
        bases = [match[1]] if match[1] else [part.split()[0] for part in match[3].split(b",") if part.split()]
        for base in bases:
            name = _absolute(index, file, base.decode("ascii", "replace"))
            words = [word.decode() for word in _WORD.findall(match[2] or b"")] if match[1] else []
            if any(True for _ in _gone(index, name, words)):
                return True
    return False


def _absolute(index: Index, file: str, base: str) -> str:
    name = base.lstrip(".")
    level = len(base) - len(name)
    if not level:
        return index.own(name)
    folders = [index.top, *file.split("/")[:-1]]
    return ".".join([*folders[: len(folders) - level + 1], *filter(None, [name])])


def _gone(index: Index, name: str, names: Sequence[str]) -> Iterator[str]:
    """Which of a module of the package, and the modules imported from it by name, are not in the tree."""
    top, _, inner = name.partition(".")
    if top != index.top:
        return
    if not index.exists(inner):
        yield name
        return
    words = index.package_words(inner)
    if words is None or b"__getattr__" in words or b"*" in words:
        return
    for one in names:
        if one.isidentifier() and one.encode() not in words and not index.exists(f"{inner}.{one}".lstrip(".")):
            yield f"{name}.{one}"


def _missing(index: Index, file: str) -> Iterator[tuple[str, int, str]]:
    """(module, line, what guards the import) of each import of a file that leads nowhere."""
    try:
        parsed = index.reading.source(file).module.tree
    except FileError as error:
        index.faults.setdefault(file, error)
        return
    for node, guard in _guarded(parsed, ""):
        if isinstance(node, ast.Import):
            for alias in node.names:
                for name in _gone(index, index.own(alias.name), ()):
                    yield name, node.lineno, guard
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(index, file, "." * node.level + (node.module or ""))
            for name in _gone(index, base, [alias.name for alias in node.names]):
                yield name, node.lineno, guard


def _guarded(node: ast.AST, guard: str) -> Iterator[tuple[ast.stmt, str]]:
    """Every import statement, with what it stands under that lets it fail or never run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, guard
        elif isinstance(child, ast.Try):
            for statement in child.body:
                inside = guard or "in a try"
                if isinstance(statement, (ast.Import, ast.ImportFrom)):
                    yield statement, inside
                else:
                    yield from _guarded(statement, inside)
            rest = ast.Module([*child.orelse, *child.finalbody], [])
            handlers = ast.Module([s for handler in child.handlers for s in handler.body], [])
            yield from _guarded(rest, guard)
            yield from _guarded(handlers, guard)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _guarded(ast.Module(child.body, []), guard or "under TYPE_CHECKING")
            yield from _guarded(ast.Module(child.orelse, []), guard)
        elif isinstance(child, (ast.With, ast.AsyncWith)) and "suppress" in ast.unparse(child.items[0]):
            yield from _guarded(ast.Module(child.body, []), guard or "in a suppress")
        elif not isinstance(child, ast.expr):
            yield from _guarded(child, guard)


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
        "site": site.site, "file": site.file, "scope": site.scope, "line": site.line, "end_line": site.end_line,
        "form": site.form, "priority": point.priority, "slots": [_value(value) for value in point.values],
    }  # fmt: skip
    return out | ({"state": "unrewritable", "reason": site.problem} if site.problem else {})


def _value(value: Value) -> dict[str, Any]:
    slot, reach = value.slot, value.reach
    out: dict[str, Any] = {"name": slot.name, "line": slot.line, "column": slot.column, "end_line": slot.end_line,
                           "end_column": slot.end_column, "value": value.text}  # fmt: skip
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
            {"file": one.file, "line": one.line, "scope": one.scope, "values": dict(one.values),
             "options": dict(one.options)} | ({"through": one.through} if one.through else {})
            for one in kernel.launches
        ],
        "callers": list(kernel.callers),
        "mentions": list(kernel.mentions),
    }  # fmt: skip
