"""Every Triton kernel of a tree: its constexpr parameters, and who launches it with which values.

A kernel is a function under `triton.jit`, by whatever name that is imported; or handed to it. A launch is
`kernel[grid](…)`, `kernel.run(…)`, or a call of what a partial made of one; directly, through aliases,
dicts, conditional expressions, other files' imports, or a function that is handed the kernel.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from muhmod.model import LAUNCH_OPTIONS
from muhmod.names import Index, Names, Parameter
from muhmod.site import MODULE_SCOPE, FunctionNode

NEEDLES = (b"triton", b"gluon")
_BY_NAME = ("run", "warmup")
_LONGEST = 120


class Constexpr(NamedTuple):
    """A `tl.constexpr` parameter: its line, and the text of its default."""

    name: str
    line: int
    default: str = ""


class Launch(NamedTuple):
    """One launch: where, in which function, what each constexpr and launch option is given, as text.

    `through`: the function that was handed the kernel, where the launch stands there.
    """

    file: str
    line: int
    scope: str
    values: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    through: str = ""
    end_line: int = 0


class Kernel(NamedTuple):
    """A Triton kernel. `tuned`: what of its parameters Triton itself sets; `callers`: kernels that call it.

    `first`: the line of its first decorator; `mentions`: where its name stands otherwise, as FILE:LINE, if
    nothing launches or calls it.
    """

    file: str
    line: int
    end_line: int
    scope: str
    constexprs: tuple[Constexpr, ...] = ()
    tuned: str = ""
    launches: tuple[Launch, ...] = ()
    callers: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()
    first: int = 0

    @property
    def status(self) -> str:
        """Who runs it, in a few words."""
        if self.launches:
            places = len({(launch.file, launch.line) for launch in self.launches})
            return f"launched at {places} place{'s' if places > 1 else ''}"
        if self.callers:
            return "called by other kernels"
        if self.mentions:
            return "no launch found; its name is read elsewhere"
        return "nobody launches it"


class _Jitted(NamedTuple):
    """A kernel's definition before its launches are known."""

    of: Names
    node: FunctionNode
    path: str
    heuristics: frozenset[str]
    # The keys that its configs set, and `autotune` itself.
    autotuned: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.of.name}.{self.path}"


def is_triton(names: Iterable[str], what: str) -> bool:
    """Whether one of the meanings is Triton's own function of that name."""
    roots = ("triton", "gluon") if what == "jit" else ("triton",)
    return any(n == f"{root}.{what}" or n.endswith(f".{root}.{what}") for n in names for root in roots)


class Kernels:
    """The kernels of the files that an index holds; their launches, once it holds all that matter."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.found: dict[str, _Jitted] = {}
        for module in index.modules.values():
            for one in self._jitted(module):
                self.found[one.name] = one

    def is_kernel(self, names: set[str]) -> bool:
        """Whether one of the meanings is a kernel."""
        return not self.found.keys().isdisjoint(names)

    # Which functions are kernels --------------------------------------------------------------

    def _jitted(self, module: Names) -> Iterator[_Jitted]:
        wrapped = self._wrapped_by_calls(module)
        for node, path in module.functions:
            if isinstance(node, ast.ClassDef):
                continue
            scope = path.rpartition(".")[0] or MODULE_SCOPE
            marks = [(d, scope) for d in node.decorator_list] + wrapped.get(f"{module.name}.{path}", [])
            if self._under(module, marks, "jit") is not None:
                sets = (
                    self._under(module, marks, what) or frozenset() for what in ("heuristics", "autotune")
                )
                yield _Jitted(module, node, path, *sets)

    def _under(self, module: Names, marks: list[tuple[ast.expr, str]], what: str) -> frozenset[str] | None:
        """The string keys in the marks of that kind, and its name; None where there is no such mark."""
        found = [mark for mark, scope in marks if is_triton(self._marked(module, mark, scope), what)]
        return frozenset({what, *(key for mark in found for key in _string_keys(mark))}) if found else None

    def _wrapped_by_calls(self, module: Names) -> dict[str, list[tuple[ast.expr, str]]]:
        """The functions that are handed to jit, autotune or heuristics by a call, with those callees."""
        found: dict[str, list[tuple[ast.expr, str]]] = {}
        for call, scope in module.calls:
            marks = self._marked(module, call.func, scope)
            if call.args and any(is_triton(marks, what) for what in ("jit", "autotune", "heuristics")):
                for name in self.index.meanings(module, call.args[0], scope, loose=True):
                    found.setdefault(name, []).append((call.func, scope))
        return found

    def _marked(self, module: Names, mark: ast.expr, scope: str) -> set[str]:
        while isinstance(mark, ast.Call):
            mark = mark.func
        names = module.meanings(mark, scope, loose=True)
        if not names and isinstance(mark, ast.Attribute):
            return set()
        return self.index.final(names, loose=True) if not is_triton(names, mark_name(mark)) else names

    # Who launches them ------------------------------------------------------------------------

    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels with their launches, by file and line."""
        launches: dict[str, set[Launch]] = {name: set() for name in self.found}
        callers: dict[str, set[str]] = {name: set() for name in self.found}
        handed: dict[tuple[str, str], list[tuple[Names, ast.Call, str]]] = {}
        for module in self.index.modules.values():
            for call, scope in module.calls:
                inside = self._inside(module, scope)
                for kernel, callee in self._launched(module, call, scope):
                    launches[kernel].add(self._launch(kernel, module, call, scope, callee))
                if inside:
                    for name in self.index.meanings(module, call.func, scope) & self.found.keys():
                        callers[name].add(inside)
                elif isinstance(call.func, ast.Subscript) and isinstance(call.func.value, ast.Name):
                    for binding, where in module.bindings(call.func.value.id, scope):
                        if isinstance(binding, Parameter):
                            key = (f"{module.name}.{where}", binding.name)
                            handed.setdefault(key, []).append((module, call, scope))
        self._through(handed, launches)
        return tuple(
            sorted(self._kernel(one, launches[name], callers[name]) for name, one in self.found.items())
        )

    def _inside(self, module: Names, scope: str) -> str:
        """The kernel that a scope stands in, if it stands in one."""
        parts = scope.split(".")
        outer = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((path for path in outer if f"{module.name}.{path}" in self.found), "")

    def _launched(self, module: Names, call: ast.Call, scope: str) -> Iterator[tuple[str, ast.expr]]:
        """The kernels that a call launches, with the expression that binds further arguments."""
        match call.func:
            case ast.Subscript(value=value):
                launched: ast.expr = value
            case ast.Attribute(value=value, attr=attr) if attr in _BY_NAME and any(
                k.arg == "grid" for k in call.keywords
            ):
                launched = value
            case ast.Name(id=name):
                for binding, where in module.bindings(name, scope):
                    if isinstance(binding, ast.expr):
                        for kernel in self._under_grid(module, binding, where):
                            yield kernel, binding
                return
            case _:
                return
        for name in sorted(self.index.meanings(module, launched, scope, loose=True) & self.found.keys()):
            yield name, launched

    def _under_grid(self, module: Names, binding: ast.expr, scope: str) -> Iterator[str]:
        """The kernels under a `[grid]` in what a name is bound to, without being launched there."""
        called = {id(n.func) for n in ast.walk(binding) if isinstance(n, ast.Call)}
        for node in ast.walk(binding):
            if isinstance(node, ast.Subscript) and id(node) not in called:
                means = self.index.meanings(module, node.value, scope)
                yield from sorted(means & self.found.keys())

    def _through(
        self,
        handed: dict[tuple[str, str], list[tuple[Names, ast.Call, str]]],
        launches: dict[str, set[Launch]],
    ) -> None:
        """Launches in functions that are handed the kernel, by each call that hands one."""
        functions = {function for function, _ in handed}
        for module in self.index.modules.values() if handed else ():
            for call, scope in module.calls:
                for function in self.index.meanings(module, call.func, scope) & functions:
                    for (of, parameter), places in handed.items():
                        given = self._argument(call, of, parameter) if of == function else None
                        if given is None:
                            continue
                        means = self.index.meanings(module, given, scope, loose=True)
                        for kernel in means & self.found.keys():
                            for where, launch, inner in places:
                                made = self._launch(kernel, where, launch, inner, launch.func)
                                by = f"{module.file}:{call.lineno}"
                                launches[kernel].add(made._replace(through=f"handed over at {by}"))

    def _argument(self, call: ast.Call, function: str, parameter: str) -> ast.expr | None:
        for keyword in call.keywords:
            if keyword.arg == parameter:
                return keyword.value
        at = self.index.at(function)
        assert at is not None
        module, path = at
        bound = module.bound.get(path, {}).get(parameter, [])
        places = [one.position for one in bound if isinstance(one, Parameter)]
        place = places[0] if places else -1
        if isinstance(call.func, ast.Attribute) and "." in path and "self" in module.bound[path]:
            place -= 1
        plain = not any(isinstance(arg, ast.Starred) for arg in call.args)
        return call.args[place] if plain and 0 <= place < len(call.args) else None

    def _launch(self, kernel: str, module: Names, call: ast.Call, scope: str, callee: ast.expr) -> Launch:
        one = self.found[kernel]
        given = _given(call, one.node)
        if callee is not call.func:
            for inner in ast.walk(callee):
                if isinstance(inner, ast.Call):
                    given = {**{k.arg: short(k.value) for k in inner.keywords if k.arg}, **given}
        values = [(p.name, given.get(p.name) or _unsaid(p, one, call)) for p in constexprs(one.node)]
        options = [(name, given[name]) for name in LAUNCH_OPTIONS if name in given]
        end = call.end_lineno or call.lineno
        return Launch(module.file, call.lineno, scope, tuple(values), tuple(options), "", end)

    def _kernel(self, one: _Jitted, launches: set[Launch], callers: set[str]) -> Kernel:
        tuned = [*(["triton.autotune"] if one.autotuned else [])]
        tuned += (
            [f"triton.heuristics: {', '.join(sorted(one.heuristics - {'heuristics'}))}"]
            if one.heuristics
            else []
        )
        mentions = () if launches or callers else tuple(self._mentions(one))
        first = min([one.node.lineno, *(mark.lineno for mark in one.node.decorator_list)])
        return Kernel(
            one.of.file, one.node.lineno, one.node.end_lineno or one.node.lineno, one.path,
            constexprs(one.node), "; ".join(tuned), tuple(sorted(launches)), tuple(sorted(callers)), mentions,
            first,
        )  # fmt: skip

    def _mentions(self, one: _Jitted) -> list[str]:
        """Where the name of a kernel, or of the class that it stands in, is read: that might launch it."""
        outer = one.path.rpartition(".")[0]
        wanted = {one.name, f"{one.of.name}.{outer}"} if outer else {one.name}
        found = set()
        for module in self.index.modules.values():
            for name in {path.rpartition(".")[2] for path in wanted}:
                for node, scope in module.reads.get(name, ()):
                    means = self.index.meanings(module, node, scope)
                    # An attribute of what cannot be told may be a method of that name.
                    if wanted & means or (outer and not means and module is one.of):
                        found.add((module.file, node.lineno))
        own = range(one.node.lineno, (one.node.end_lineno or one.node.lineno) + 1)
        return [f"{file}:{n}" for file, n in sorted(found) if file != one.of.file or n not in own]


def mark_name(mark: ast.expr) -> str:
    """The last part of a decorator's name."""
    return mark.attr if isinstance(mark, ast.Attribute) else getattr(mark, "id", "")


def constexprs(node: FunctionNode) -> tuple[Constexpr, ...]:
    """The parameters that are annotated as constexpr, in order."""
    positional = [*node.args.posonlyargs, *node.args.args]
    defaults: dict[str, ast.expr] = {}
    late = positional[len(positional) - len(node.args.defaults) :]
    defaults |= {arg.arg: value for arg, value in zip(late, node.args.defaults, strict=True)}
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    defaults |= {arg.arg: value for arg, value in pairs if value is not None}
    return tuple(
        Constexpr(arg.arg, arg.lineno, short(defaults[arg.arg]) if arg.arg in defaults else "")
        for arg in (*positional, *node.args.kwonlyargs)
        if arg.annotation is not None and "constexpr" in ast.unparse(arg.annotation)
    )


def short(node: ast.expr) -> str:
    """An expression's text on one line, cut to what a table can hold."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _given(call: ast.Call, node: FunctionNode) -> dict[str, str]:
    """What a launch gives each parameter, by name."""
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    given: dict[str, str] = {}
    for name, value in zip(names, call.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        given[name] = short(value)
    return given | {keyword.arg: short(keyword.value) for keyword in call.keywords if keyword.arg}


def _unsaid(parameter: Constexpr, one: _Jitted, call: ast.Call) -> str:
    """Where a constexpr comes from that a launch does not name."""
    if parameter.name in one.heuristics:
        return "(triton.heuristics)"
    spread = [short(keyword.value) for keyword in call.keywords if keyword.arg is None]
    if parameter.name in one.autotuned or (one.autotuned and not spread):
        return "(triton.autotune)"
    if spread:
        return f"(**{', **'.join(spread)})"
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        return "(by position)"
    return f"(default {parameter.default})" if parameter.default else "(not given)"


def _string_keys(mark: ast.expr) -> Iterator[str]:
    """The keys of the dicts in a decorator: what heuristics sets."""
    for node in ast.walk(mark):
        if isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value
