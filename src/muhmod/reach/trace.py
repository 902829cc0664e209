"""Follows a value forward: an abstract interpreter over functions, with what each name may be.

Branches that the platform or a constant excludes are not taken; loops are widened; what is not understood and
holds the value is told (`Loose`), never dropped. Where a value is put (`Sink`), what it is replaced by (`Kill`)
and where nobody takes it further (`End`) are kept with the way that led there.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from muhmod.model import LAUNCH_OPTIONS, Step
from muhmod.reach.value import (
    ANY,
    CALLED,
    SOMETHING,
    UNKNOWN,
    Class,
    Closure,
    External,
    Function,
    Marks,
    Member,
    ModuleRef,
    Numbered,
    Partial,
    Trail,
    Val,
    Where,
    arithmetic,
    compare,
    derived,
    join,
    joined,
    known,
    onward,
    refer,
    stepped,
    truth,
)
from muhmod.reach.world import Env, Excluded, Late, World
from muhmod.site import FunctionNode, dotted, own_expressions, statements

# Packages from outside that compute, and launch nothing that is tuned from here.
PURE = frozenset({"torch", "numpy", "np", "math", "triton", "transformers", "pydantic", "packaging", "regex",
                  "msgspec", "cloudpickle", "prometheus_client", "tqdm", "PIL", "yaml", "huggingface_hub",
                  "safetensors", "typing_extensions", "psutil", "einops", "compressed_tensors", "ray",
                  "zmq", "fastapi", "openai", "lark", "cachetools", "opentelemetry", "jinja2",
                  "scipy", "pandas", "requests", "aiohttp", "uvloop", "gguf", "tokenizers"})  # fmt: skip
# Of these and of the standard library, what only computes with what it is given.
_COMPUTING = frozenset({"builtins", "torch", "numpy", "np", "math", "triton", "functools", "itertools", "copy",
                        "collections", "operator", "typing", "typing_extensions", "dataclasses", "enum", "json",
                        "einops", "regex", "re", "string", "warnings", "contextlib", "time"})  # fmt: skip
_TRANSPARENT = {"staticmethod", "classmethod", "property", "lru_cache", "cache", "inference_mode", "no_grad",
                "abstractmethod", "override", "wraps", "jit", "heuristics", "autotune", "compile", "cached_property",
                "contextmanager", "overload", "singledispatch", "deprecated", "deprecate_args",
                "deprecate_kwargs", "setter", "disable", "allow_in_graph", "final", "dataclass",
                "run_once", "libentry", "with_nvml_context", "dont_specialize"}  # fmt: skip
_WRAPPING = {"jit", "heuristics", "lru_cache", "cache", "compile", "inference_mode", "no_grad", "wraps"}
_TALK = {"debug", "info", "warning", "error", "critical", "exception", "log", "print", "warn", "info_once",
         "warning_once", "debug_once"}  # fmt: skip
_LOOKS = {"print", "len", "isinstance", "type", "id", "repr", "hasattr", "issubclass", "callable", "hash"}
_COPIES = {"dict", "copy.copy", "copy.deepcopy", "copy", "deepcopy", "list", "tuple", "sorted", "reversed", "set",
           "iter", "frozenset", "typing.cast", "cast", "MappingProxyType", "types.MappingProxyType"}  # fmt: skip
_DYNAMIC = {"setattr", "exec", "eval", "globals", "vars", "locals", "__import__"}
# Methods of tensors, strings, numbers and containers: never looked for in the tree on an unknown receiver.
_PLAIN_METHODS = frozenset({
    *dir(str), *dir(dict), *dir(list), *dir(set), *dir(int), *dir(float), *dir(bytes),
    "view", "to", "size", "stride", "numel", "reshape", "float", "half", "int", "long", "item", "contiguous",
    "transpose", "permute", "expand", "squeeze", "unsqueeze", "narrow", "chunk", "flatten", "new_empty",
    "new_zeros", "dim", "type", "cuda", "cpu", "fill_", "zero_", "copy_", "masked_fill", "max", "min", "sum",
    "mean", "argmax", "tolist", "data_ptr", "element_size", "is_contiguous", "detach", "clone", "unflatten",
    "repeat", "repeat_interleave", "mul_", "add_", "div_", "t", "any", "all", "bool", "cumsum", "sort", "topk",
})  # fmt: skip
_MOST_DEPTH = 40
_MOST_RUNS = 2000
_MOST_FILES = 60


class Sink(NamedTuple):
    """Where the value arrives. `kind` is launch, call, autotune or imports; `control`: it only decides that."""

    kind: str
    what: str
    trail: Trail
    within: Function | None
    file: str
    control: bool = False
    maybe: str = ""
    of: Function | None = None


class Loose(NamedTuple):
    """A use that cannot be followed, and what would have to be known."""

    why: str
    trail: Trail
    within: Function | None
    file: str


class End(NamedTuple):
    """Where nobody takes the value further, or something else is put in its place."""

    kind: str
    why: str
    trail: Trail
    within: Function | None
    file: str


class Left(NamedTuple):
    """Where a value is kept when its function has been run. `kind` is returns, puts, field or global."""

    kind: str
    of: object
    name: str
    where: Where


class Findings(NamedTuple):
    """All that a trace found."""

    sinks: tuple[Sink, ...] = ()
    loose: tuple[Loose, ...] = ()
    ends: tuple[End, ...] = ()
    flows: tuple[Trail, ...] = ()

    def after(self, before: Sequence[Trail]) -> Findings:
        """The same for a value that came by these ways, each in the place of its number."""

        def led(trail: Trail) -> Trail:
            if not trail or trail[0].file:
                return trail
            whole = before[trail[0].line]
            for step in trail[1:]:
                whole = onward(whole, step)
            return whole

        return Findings(
            tuple(one._replace(trail=led(one.trail)) for one in self.sinks),
            tuple(one._replace(trail=led(one.trail)) for one in self.loose),
            tuple(one._replace(trail=led(one.trail)) for one in self.ends),
            tuple(led(trail) for trail in self.flows),
        )


State = dict[str, Val]


class Frame(NamedTuple):
    """A body under interpretation. `maybe`: why it is not sure that the body runs on this value."""

    file: str
    function: Function | None
    owner: Class | None
    returned: list[Val]
    closures: list[ast.AST]
    ever: State
    shared: set[str]
    local: frozenset[str] | None
    env: Env | None = None
    maybe: str = ""
    depth: int = 0
    outer: State | None = None
    # Which object each parameter came as.
    taken: dict[str, int] = {}  # noqa: RUF012


class Tracer:
    """Interprets functions of one world, with the value under trace put at `origins` (by node id)."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.interpret = self.interpret_module
        self.origins: dict[int, Trail] = {}
        self.returns: dict[Function, Marks] = {}
        # What functions put into what they are given, by parameter.
        self.puts: dict[Function, dict[str, Marks]] = {}
        self.fields: dict[str, list[tuple[Class | None, Marks]]] = {}
        self.sinks: dict[Sink, None] = {}
        self.loose: dict[Loose, None] = {}
        self.ends: dict[End, None] = {}
        self.flows: list[Trail] = []
        # New sources of the value found while running: to be looked for by their readers.
        self.new: list[tuple[str, object]] = []
        self.runs = 0
        self.control: Trail | None = None
        self._memo: dict[object, Val] = {}
        self._running: set[object] = set()
        self._closures: dict[int, tuple[Frame, ast.AST]] = {}
        self._partials: dict[int, Partial] = {}
        self._named: dict[str, list[Function]] = {}
        self._numbers = 0
        self._tracing = False

    def begin(self, origins: Mapping[int, Trail]) -> None:
        """Forget what was found, and trace other nodes."""
        self.origins = dict(origins)
        self.returns.clear()
        self.puts.clear()
        self.fields.clear()
        self.world.globals.clear()
        self.sinks.clear()
        self.loose.clear()
        self.ends.clear()
        self.flows.clear()
        self.new.clear()
        self._memo.clear()
        self.runs = 0
        self._tracing = True

    def found(self) -> Findings:
        """What was found since `begin`."""
        return Findings((*self.sinks,), (*self.loose,), (*self.ends,), (*self.flows,))

    def add(self, other: Findings) -> None:
        """Take over what another trace found."""
        self.sinks |= dict.fromkeys(other.sinks)
        self.loose |= dict.fromkeys(other.loose)
        self.ends |= dict.fromkeys(other.ends)
        self.flows += other.flows

    def left(self) -> dict[Left, Trail]:
        """The places outside of what was run that hold the value now, each with the way there."""
        rows = [
            *(("returns", ref, "", marks) for ref, marks in self.returns.items()),
            *(("puts", ref, name, marks) for ref, own in self.puts.items() for name, marks in own.items()),
            *(("field", of, attr, marks) for attr, held in self.fields.items() for of, marks in held),
            *(("global", key, "", marks) for key, marks in self.world.globals.items()),
        ]
        return {Left(kind, of, name, where): trail for kind, of, name, marks in rows
                for where, trail in marks.items()}  # fmt: skip

    def resume(self, places: Sequence[Left]) -> None:
        """Begin with the value in these places; the way to each is a step that bears its number alone."""
        self.begin({})
        for number, (kind, of, name, where) in enumerate(places):
            marks: Marks = {where: (Step("", number, ""),)}
            match kind, of:
                case "returns", Function():
                    self.returns[of] = joined(self.returns.get(of, {}), marks)
                    self.new.append(("returns", of))
                case "puts", Function():
                    own = self.puts.setdefault(of, {})
                    own[name] = joined(own.get(name, {}), marks)
                    self.new.append(("returns", of))
                case "field", Class() | None:
                    self._field(of, name, marks)
                case "global", (str() as file, str() as word):
                    self._global(file, word, marks)
        self.new[:] = dict.fromkeys(self.new)

    # Bodies ---------------------------------------------------------------------------------

    def interpret_module(self, file: str, env: Env) -> None:
        """Fill an environment: what the top level binds when nothing is traced through it."""
        traced, self._tracing = self._tracing, False
        origins, self.origins = self.origins, {}
        control, self.control = self.control, None
        try:
            self._module(file, env)
        finally:
            self._tracing, self.origins, self.control = traced, origins, control

    def run_module(self, file: str) -> None:
        """Run a module's top level for what it does with the value."""
        self._module(file, Env({}, {}, []))

    def _module(self, file: str, env: Env) -> None:
        module = self.world.module(file)
        if module is None:
            return
        frame = Frame(file, None, None, [], [], {}, set(), None, env)
        try:
            state = self._block(module.tree.body, env.names, frame)
        except RecursionError:
            self._lost(frame, module.tree, {(): ()}, "the module is nested too deeply")
            return
        if state is not None and state is not env.names:
            env.names.update(state)
        for name, value in env.names.items() if self._tracing else ():
            if value.marks:
                self._global(file, name, value.marks)

    def _global(self, file: str, name: str, marks: Marks) -> None:
        before = self.world.globals.get((file, name), {})
        after = joined(before, marks)
        if set(after) != set(before):
            self.world.globals[file, name] = after
            self.new.append(("global", (file, name)))

    def function(
        self,
        ref: Function,
        given: Mapping[str, Val] | None = None,
        *,
        maybe: str = "",
        depth: int = 0,
        outer: State | None = None,
    ) -> Val:
        """Run a function. `given`: what is known of its parameters. Gives what it returns."""
        node = self.world.function(ref)
        if node is None:
            return Val()
        # Another call may give other constants: what runs is what may run for any.
        given = {name: value._replace(const=UNKNOWN) for name, value in (given or {}).items()}
        # Two calls with the value in the same places run alike.
        shape = tuple(
            (name, tuple(sorted(value.marks)), value.refs)
            for name, value in sorted(given.items()) if value.marks or value.refs
        )  # fmt: skip
        key = (ref.file, ref.path, node.lineno, shape, self.control is not None, bool(maybe))
        if key in self._memo:
            return self._memo[key]
        marks = joined(*(value.marks for value in given.values()))
        if depth > _MOST_DEPTH or self.runs > _MOST_RUNS:
            self._lost(self._frame(ref, node, maybe, depth, outer), node, marks, f"where {node.name} puts it")
            return Val(marks=marks)
        if key in self._running:
            # Recursion: it may give back all that it was given.
            return Val(marks=marks)
        self._running.add(key)
        self.runs += 1
        try:
            result = self._function(ref, node, given, maybe, depth, outer)
        except RecursionError:
            self._lost(self._frame(ref, node, maybe, depth, outer), node, marks, f"where {node.name} puts it")
            result = Val()
        finally:
            self._running.discard(key)
        self._memo[key] = result
        return result

    def _frame(self, ref: Function, node: FunctionNode, maybe: str, depth: int, outer: State | None) -> Frame:
        owner = ref.path.rpartition(".")[0]
        cls = Class(ref.file, owner) if owner and self.world.class_of(Class(ref.file, owner)) else None
        return Frame(
            ref.file, ref, cls, [], [], {}, _shared(node), locals_of(node), None, maybe, depth, outer, {}
        )

    def _function(
        self,
        ref: Function,
        node: FunctionNode,
        given: Mapping[str, Val],
        maybe: str,
        depth: int,
        outer: State | None,
    ) -> Val:
        frame = self._frame(ref, node, maybe, depth, outer)
        state: State = {}
        self._parameters(node, given, state, frame)
        before = len(self.flows), len(self.sinks), len(self.loose)
        end = self._block(node.body, state, frame)
        self._inner(frame, end)
        result = join(*frame.returned) if frame.returned else known(None)
        if end is not None and frame.returned:
            result = join(result, known(None))
        for name, value in given.items():
            if (
                value.marks
                and (len(self.flows), len(self.sinks), len(self.loose)) == before
                and not result.marks
            ):
                self._end("ignored", node, value.marks, frame, f"{node.name} takes {name} no further")
        return result

    def _parameters(self, node: FunctionNode, given: Mapping[str, Val], state: State, frame: Frame) -> None:
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        late = positional[len(positional) - len(arguments.defaults) :]
        defaults = dict(zip((a.arg for a in late), arguments.defaults, strict=True))
        defaults |= {
            a.arg: d
            for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if d is not None
        }
        every = [*positional, *arguments.kwonlyargs]
        for argument in every:
            default = Val()
            if argument.arg in defaults:
                # A caller may give another: the default is one possibility.
                default = self.ev(defaults[argument.arg], {}, frame)._replace(const=UNKNOWN, open=True)
            value = given.get(argument.arg, default)
            # What is put into it is seen by the caller.
            self._numbers += 1
            frame.taken[argument.arg] = self._numbers
            state[argument.arg] = value._replace(same=value.same | {self._numbers})
        for extra in filter(None, (arguments.vararg, arguments.kwarg)):
            state[extra.arg] = given.get(extra.arg, Val())
        decorators = {dotted(d).rpartition(".")[2] for d in node.decorator_list}
        if frame.owner and positional and "staticmethod" not in decorators:
            own = frame.owner._replace(instance="classmethod" not in decorators)
            state[positional[0].arg] = Val(refs=(own,)).marked(given.get(positional[0].arg, Val()).marks)

    def _inner(self, frame: Frame, end: State | None) -> None:
        """Lambdas and inner functions see the names around them, whenever they are called."""
        if not any(value.marks for value in frame.ever.values()):
            return
        state = {**frame.ever, **(end or {})}
        for node in frame.closures:
            self._closure(node, state, frame, {})

    def _closure(self, node: ast.AST, state: State, frame: Frame, given: Mapping[str, Val]) -> Val:
        if frame.depth > _MOST_DEPTH:
            self._lost(frame, node, self._all(state.values()), "where an inner function puts it")
            return Val()
        inner = frame._replace(
            depth=frame.depth + 1, returned=[], closures=[], ever={}, outer=state, taken={}
        )
        if isinstance(node, ast.Lambda):
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            return self.ev(node.body, {**state, **{n: given.get(n, Val()) for n in names}}, inner)
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if frame.function is None:
            return Val()
        ref = Function(frame.file, f"{frame.function.path}.{node.name}", node.lineno)
        inner = inner._replace(function=ref, local=locals_of(node), owner=None, shared=_shared(node))
        own: State = {}
        self._parameters(node, given, own, inner)
        end = self._block(node.body, own, inner)
        self._inner(inner, end)
        return join(*inner.returned) if inner.returned else known(None)

    # Statements -----------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], state: State | None, frame: Frame) -> State | None:
        control = self.control
        try:
            for number, node in enumerate(body):
                if state is None:
                    self._excluded(body[number:], frame, ())
                    return None
                state = self._statement(node, state, frame)
        finally:
            self.control = control
        return state

    def _excluded(self, body: Sequence[ast.stmt], frame: Frame, trail: Trail) -> None:
        if frame.env is not None and body:
            last = body[-1].end_lineno or body[-1].lineno
            frame.env.excluded.append(Excluded(body[0].lineno, last, trail))

    def _statement(self, node: ast.stmt, state: State, frame: Frame) -> State | None:
        match node:
            case ast.Assign(targets=targets, value=value):
                result = self.ev(value, state, frame)
                for target in targets:
                    self._bind(target, result, node, state, frame)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self._bind(target, self.ev(value, state, frame), node, state, frame)
            case ast.AugAssign(target=target, op=op, value=value):
                before = self.ev(_load(target), state, frame)
                added = self.ev(value, state, frame)
                result = derived([before, added]).marked(joined(before.marks, added.marks))
                result = result._replace(const=arithmetic(op, before.const, added.const))
                self._bind(target, result, node, state, frame, again=True)
            case ast.Expr(value=value):
                self.ev(value, state, frame)
            case ast.Return(value=value):
                result = self.ev(value, state, frame) if value is not None else known(None)
                result = result.stepped(self.world.step(frame.file, node))
                if self.control is not None and not result.marks and result.const is not None:
                    result = result.marked({(): onward(self.control, self.world.step(frame.file, node))})
                frame.returned.append(result)
                self._flow(result)
                return None
            case ast.Raise():
                return None
            case ast.Assert(test=test):
                self.ev(test, state, frame)
            case ast.If(test=test, body=body, orelse=orelse):
                return self._if(test, body, orelse, state, frame)
            case (
                ast.For(target=target, iter=over, body=body, orelse=orelse)
                | ast.AsyncFor(target=target, iter=over, body=body, orelse=orelse)
            ):
                return self._loop(target, self.ev(over, state, frame), body, orelse, node, state, frame)
            case ast.While(test=test, body=body, orelse=orelse):
                return self._loop(None, self.ev(test, state, frame), body, orelse, node, state, frame)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    given = self.ev(item.context_expr, state, frame)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, given._replace(const=UNKNOWN), node, state, frame)
                return self._with(items, body, state, frame)
            case ast.Try():
                return self._try(node, state, frame)
            case ast.Match(subject=subject, cases=cases):
                return self._match(self.ev(subject, state, frame), cases, state, frame)
            case ast.Import() | ast.ImportFrom():
                self._import(node, state, frame)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define(node, state, frame)
            case ast.ClassDef():
                self._class(node, state, frame)
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        state.pop(target.id, None)
                    elif isinstance(target, ast.Subscript):
                        marks = self.ev(target.slice, state, frame).marks
                        self._affect(target.value, marks, node, state, frame)
            case ast.Continue() | ast.Break():
                # Widened: what follows may run on this state too.
                return state
            case _ if type(node).__name__ == "TryStar":
                return self._try(node, state, frame)  # type: ignore[arg-type]
        return state

    def _with(
        self, items: list[ast.withitem], body: list[ast.stmt], state: State, frame: Frame
    ) -> State | None:
        """A block that a context manager may leave early without an error, where it is none that is known not to."""
        calls = [
            i.context_expr.func if isinstance(i.context_expr, ast.Call) else i.context_expr for i in items
        ]
        names = [dotted(call) for call in calls]
        plain = all(
            name == "open" or (name.partition(".")[0] in PURE and "suppress" not in name) for name in names
        )
        if plain:
            return self._block(body, state, frame)
        before = dict(state)
        after = _merge(before, self._block(body, state, frame))
        return self._same_table(state, after, frame)

    @staticmethod
    def _same_table(state: State, after: State | None, frame: Frame) -> State | None:
        """What is known now; a module's names are one table, seen by all who import it."""
        if frame.env is None or after is None:
            return after
        if after is not state:
            now = dict(after)
            state.clear()
            state.update(now)
        return state

    def _if(
        self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], state: State, frame: Frame
    ) -> State | None:
        value = self.ev(test, state, frame)
        taken = truth(value.const)
        marks = derived([value]).marks or value.marks
        outer = self.control
        if marks:
            step = self.world.step(frame.file, test)
            trail = onward(min(marks.values(), key=len), step)
            self._flow(value)
            self.control = min(filter(None, (outer, trail)), key=len)
        if taken is not None:
            dropped = orelse if taken else body
            self._excluded(dropped, frame, self.why(test, state, frame, taken))
            if marks and self._tracing:
                self._gated(dropped, frame)
            result = self._block(body if taken else orelse, state, frame)
            self.control = outer
            return result
        left = self._block(body, dict(state), frame)
        right = self._block(orelse, dict(state), frame)
        if not (marks and (left is None) != (right is None)):
            # Where one branch leaves, what follows is decided by the test too.
            self.control = outer
        result = _merge(left, right)
        return self._same_table(state, result, frame)

    def _gated(self, dropped: list[ast.stmt], frame: Frame) -> None:
        """Imports in a branch that the value itself keeps from being taken: they are decided by it."""
        assert self.control is not None
        for statement in statements(dropped):
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                step = self.world.step(frame.file, statement)
                self._sink("imports", step.does, onward(self.control, step), frame, control=True)

    def _loop(
        self,
        target: ast.expr | None,
        over: Val,
        body: list[ast.stmt],
        orelse: list[ast.stmt],
        node: ast.stmt,
        state: State,
        frame: Frame,
    ) -> State | None:
        for name in _stored(body):
            if name in state:
                state[name] = state[name]._replace(const=UNKNOWN)
        if target is None and truth(over.const) is False:
            self._excluded(body, frame, ())
            return self._block(orelse, state, frame)
        outer = self.control
        marks = derived([over]).marks
        if marks:
            self.control = onward(min(marks.values(), key=len), self.world.step(frame.file, node))
        for _ in range(3):
            inner = dict(state)
            if target is not None:
                item = over.within(ANY)
                self._bind(target, item._replace(const=UNKNOWN), node, inner, frame)
            after = self._block(body, inner, frame)
            if after is None:
                break
            merged = _merge(dict(state), after)
            assert merged is not None
            settled = all(
                name in state and set(value.marks) == set(state[name].marks) and set(value.refs) == set(state[name].refs)
                for name, value in merged.items()
            )  # fmt: skip
            state.update(merged)
            if settled:
                break
        self.control = outer
        return self._block(orelse, state, frame) if orelse else state

    def _try(self, node: ast.Try, state: State, frame: Frame) -> State | None:
        before = dict(state)
        # An error may come at any statement: what the body binds, it may have bound.
        after = self._block(node.body, dict(state), frame)
        middle = (_merge(dict(before), after) if after is not None else before) or {}
        for name in _stored(node.body):
            if name in middle:
                middle[name] = middle[name]._replace(const=UNKNOWN, open=True)
        ends = [self._block(node.orelse, after, frame) if after is not None else None]
        for handler in node.handlers:
            caught = dict(middle)
            if handler.name:
                caught[handler.name] = Val()
            ends.append(self._block(handler.body, caught, frame))
        result: State | None = None
        for end in ends:
            result = _merge(result, end)
        if node.finalbody:
            final = self._block(node.finalbody, result if result is not None else dict(middle), frame)
            result = final if result is not None else None
        return self._same_table(state, result, frame)

    def _match(self, subject: Val, cases: list[ast.match_case], state: State, frame: Frame) -> State | None:
        result: State | None = dict(state)
        outer = self.control
        marks = derived([subject]).marks
        if marks:
            self.control = min(marks.values(), key=len)
        for case in cases:
            inner = dict(state)
            for part in ast.walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if isinstance(name, str):
                    inner[name] = Val(marks=joined(subject.marks, subject.within(ANY).marks))
            if case.guard is not None:
                self.ev(case.guard, inner, frame)
            result = _merge(result, self._block(case.body, inner, frame))
        self.control = outer
        return result

    def _import(self, node: ast.Import | ast.ImportFrom, state: State, frame: Frame) -> None:
        if self.control is not None:
            said = self.world.step(frame.file, node)
            self._sink("imports", said.does, onward(self.control, said), frame, control=True)
        for alias in node.names:
            if isinstance(node, ast.Import):
                local = alias.asname or alias.name.split(".")[0]
                late = Late(frame.file, alias.name if alias.asname else local, 0, "")
            else:
                local = alias.asname or alias.name
                late = Late(
                    frame.file, node.module or "", node.level, "" if alias.name == "*" else alias.name
                )
            value = refer(late)
            if local == "*" and "*" in state:
                value = join(state["*"], value)
            state[local] = value
            if frame.env is not None:
                frame.env.lines[local] = node.lineno
            if self._tracing and local != "*":
                found = self.world.force(value)
                if found.marks:
                    self._flow(found)

    def _define(self, node: FunctionNode, state: State, frame: Frame) -> None:
        path = f"{frame.function.path}.{node.name}" if frame.function else node.name
        if frame.owner and frame.function is None:
            path = f"{frame.owner.path}.{node.name}"
        ref = Function(frame.file, path, node.lineno)
        for decorator in node.decorator_list:
            self.decorated = ref
            self.ev(decorator, state, frame)
            self.decorated = None
        if frame.function is not None:
            state[node.name] = self._made(node, state, frame)
        else:
            state[node.name] = refer(ref)
        if frame.env is not None:
            frame.env.lines[node.name] = node.lineno

    decorated: Function | None = None

    def _class(self, node: ast.ClassDef, state: State, frame: Frame) -> None:
        path = f"{frame.owner.path}.{node.name}" if frame.owner and frame.function is None else node.name
        if frame.function is not None:
            path = f"{frame.function.path}.{node.name}"
        ref = Class(frame.file, path)
        inner = frame._replace(owner=ref, function=None, env=None)
        body = self._block(node.body, dict(state), inner) or {}
        names = {name: value for name, value in body.items() if value is not state.get(name)}
        for name, value in names.items() if self._tracing else ():
            if value.marks:
                self._field(ref, name, value.marks)
        self.classes[ref.file, ref.path] = names
        state[node.name] = refer(ref)
        if frame.env is not None:
            frame.env.lines[node.name] = node.lineno

    @property
    def classes(self) -> dict[tuple[str, str], dict[str, Val]]:
        """What class bodies bind, by file and path."""
        return self.world._classes

    # Binding --------------------------------------------------------------------------------

    def _bind(
        self, target: ast.expr, value: Val, node: ast.stmt, state: State, frame: Frame, *, again: bool = False
    ) -> None:
        step = self.world.step(frame.file, target)
        value = value.stepped(step)
        if self.control is not None and not value.marks and self._tracing:
            value = value.marked({(): onward(self.control, step)})
        match target:
            case ast.Name(id=name):
                self._name(name, value, node, state, frame, again=again)
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                starred = next((i for i, e in enumerate(elts) if isinstance(e, ast.Starred)), None)
                for index, element in enumerate(elts):
                    if isinstance(element, ast.Starred):
                        self._bind(element.value, Val(marks=value.marks), node, state, frame)
                    else:
                        part = f"[{index}]" if starred is None or index < starred else ANY
                        inner = value.within(part)
                        if (
                            isinstance(value.const, tuple)
                            and len(value.const) == len(elts)
                            and starred is None
                        ):
                            inner = inner._replace(const=value.const[index])
                        self._bind(element, inner, node, state, frame)
            case ast.Subscript(value=container, slice=index):
                self._affect(container, self.ev(index, state, frame).marks, node, state, frame)
                self._put(container, self._key(index, state, frame), value, node, state, frame, again=again)
            case ast.Attribute(value=of, attr=attr):
                owner = self.ev(of, state, frame)
                classes = [ref for ref in owner.refs if isinstance(ref, Class)]
                modules = [ref for ref in owner.refs if isinstance(ref, ModuleRef)]
                if value.marks and self._tracing:
                    self._flow(value)
                    if any(isinstance(ref, External) for ref in owner.refs):
                        self._lost(frame, node, value.marks, f"who reads `{ast.unparse(target)[:60]}`")
                    for module in modules:
                        self._global(module.file, attr, value.marks)
                    owners: list[Class | None] = [*classes] or ([None] if not modules else [])
                    for cls in owners:
                        self._field(cls, attr, value.marks)
                if isinstance(of, ast.Name) and of.id in state:
                    before, _ = state[of.id].without(f".{attr}")
                    state[of.id] = before.marked(value.under(f".{attr}"))
            case ast.Starred(value=inner_target):
                self._bind(inner_target, value, node, state, frame)

    def _name(
        self, name: str, value: Val, node: ast.stmt, state: State, frame: Frame, *, again: bool
    ) -> None:
        if not value.same and any(value.marks):
            self._numbers += 1
            value = value._replace(same=frozenset({self._numbers}))
        before = state.get(name)
        if before is not None and before.marks and not again and self._tracing:
            for where, trail in before.marks.items():
                if where not in value.marks:
                    self._end(
                        "replaced", node, {where: trail}, frame, self.world.line(frame.file, node.lineno)
                    )
        if frame.function is not None and name in frame.shared and value.marks and self._tracing:
            if name in self.world.env(frame.file).names:
                self._global(frame.file, name, value.marks)
            else:
                self._lost(frame, node, value.marks, f"who reads {name} of the function around")
        state[name] = value
        if value.marks:
            known_ = frame.ever.get(name)
            frame.ever[name] = join(known_, value) if known_ else value
        if frame.env is not None:
            frame.env.lines[name] = node.lineno

    def _put(
        self,
        container: ast.expr,
        part: str,
        value: Val,
        node: ast.stmt,
        state: State,
        frame: Frame,
        *,
        again: bool = False,
    ) -> None:
        """`container[key] = value`."""
        held = self.ev(container, state, frame)
        if isinstance(container, ast.Name) and container.id in state:
            before = state[container.id]
            gone: Marks = {}
            if part != ANY:
                before, gone = before.without(part)
                for other, one in state.items():
                    if other != container.id and len(held.same) == 1 and one.same == held.same:
                        state[other], _ = one.without(part)
            if gone and not again and self._tracing:
                fresh = {w: t for w, t in gone.items() if w not in value.under(part)}
                self._end("replaced", node, fresh, frame, self.world.line(frame.file, node.lineno))
            state[container.id] = before.marked(value.under(part))._replace(const=UNKNOWN)
            if value.marks:
                frame.ever[container.id] = join(frame.ever.get(container.id, Val()), state[container.id])
            for other, one in state.items():
                if value.marks and other != container.id and one.same & held.same:
                    state[other] = one.marked(value.under(part))
            if container.id in frame.shared and value.marks:
                self._global(frame.file, container.id, state[container.id].marks)
            self._given_back(held, value.under(part), frame)
            self._to_object([held, value] if value.marks else [], node, frame)
        elif value.marks and self._tracing:
            self._flow(value)
            inner = Val(marks=value.under(part))
            if isinstance(container, (ast.Attribute, ast.Subscript)):
                self._bind(container, inner.marked(held.marks), node, state, frame, again=True)
            elif isinstance(container, ast.Name):
                self._global(frame.file, container.id, inner.marks)
            else:
                self._lost(frame, node, value.marks, f"it is kept in `{ast.unparse(container)[:60]}`")

    def _given_back(self, held: Val, marks: Marks, frame: Frame) -> None:
        """Something is put into what may be an argument: the caller has it too."""
        if not marks or frame.function is None or not self._tracing:
            return
        for name, number in frame.taken.items():
            if number in held.same:
                own = self.puts.setdefault(frame.function, {})
                before = own.get(name, {})
                after = joined(before, marks)
                if set(after) != set(before):
                    own[name] = after
                    self._flow(Val(marks=marks))
                    self.new.append(("returns", frame.function))

    def _field(self, cls: Class | None, attr: str, marks: Marks) -> None:
        own = cls._replace(instance=False) if cls else None
        rows = self.fields.setdefault(attr, [])
        for number, (of, before) in enumerate(rows):
            if of == own:
                after = joined(before, marks)
                if set(after) != set(before):
                    rows[number] = (of, after)
                    self.new.append(("field", attr))
                return
        rows.append((own, marks))
        self.new.append(("field", attr))

    # Expressions ----------------------------------------------------------------------------

    def ev(self, node: ast.expr, state: State, frame: Frame) -> Val:
        """What an expression may be."""
        value = self._ev(node, state, frame)
        if self._tracing and id(node) in self.origins:
            value = value.marked({(): self.origins[id(node)]})
        for ref in value.refs if self.returns else ():
            # Whoever gets the function gets what it gives.
            if isinstance(ref, Function) and ref._replace(bound=False) in self.returns:
                value = value.marked(Val(marks=self._gives(ref)).under(CALLED))
        return value

    def _ev(self, node: ast.expr, state: State, frame: Frame) -> Val:
        match node:
            case ast.Constant(value=value):
                return known(value)
            case ast.Name(id=name):
                return self._load(name, state, frame)
            case ast.Attribute():
                return self._attribute(node, state, frame)
            case ast.Subscript():
                return self._subscript(node, state, frame)
            case ast.Call():
                return self._call(node, state, frame)
            case ast.Dict(keys=keys, values=values):
                return self._dict(keys, values, state, frame)
            case ast.Tuple(elts=elts) | ast.List(elts=elts) | ast.Set(elts=elts):
                return self._sequence(node, elts, state, frame)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choice(test, body, orelse, state, frame)
            case ast.BoolOp(op=op, values=values):
                return self._bool(op, values, state, frame)
            case ast.UnaryOp(op=op, operand=operand):
                inner = self.ev(operand, state, frame)
                result = derived([inner])
                if isinstance(op, ast.Not):
                    decided = truth(inner.const)
                    return result._replace(const=UNKNOWN if decided is None else not decided)
                if isinstance(op, ast.USub) and isinstance(inner.const, int):
                    return result._replace(const=-inner.const)
                return result
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self.ev(left, state, frame), self.ev(right, state, frame)
                self._to_object([a, b], node, frame)
                nested = {w: t for v in (a, b) for w, t in v.marks.items() if w}
                nested = {((ANY, *w[1:]) if w[0][1:-1].isdigit() else w): t for w, t in nested.items()}
                return (
                    derived([a, b])
                    .marked(nested)
                    ._replace(const=arithmetic(op, a.const, b.const), same=frozenset())
                )
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._compare(left, ops, comparators, state, frame)
            case ast.Lambda():
                return self._made(node, state, frame)
            case ast.NamedExpr(target=target, value=value):
                result = self.ev(value, state, frame)
                state[target.id] = result
                if result.marks:
                    frame.ever[target.id] = result
                return result
            case (
                ast.ListComp(elt=elt, generators=generators)
                | ast.SetComp(elt=elt, generators=generators)
                | ast.GeneratorExp(elt=elt, generators=generators)
            ):
                inner_state = self._comprehension(generators, state, frame)
                return Val(marks=self.ev(elt, inner_state, frame).under(ANY))
            case ast.DictComp(key=key, value=value, generators=generators):
                inner_state = self._comprehension(generators, state, frame)
                self.ev(key, inner_state, frame)
                return Val(marks=self.ev(value, inner_state, frame).under(ANY))
            case ast.Starred(value=value) | ast.Await(value=value):
                return self.ev(value, state, frame)
            case ast.Yield(value=value):
                if value is not None:
                    result = self.ev(value, state, frame)
                    frame.returned.append(Val(marks=result.under(ANY)))
                    self._flow(result)
                return Val()
            case ast.YieldFrom(value=value):
                frame.returned.append(self.ev(value, state, frame))
                return Val()
            case ast.Slice(lower=lower, upper=upper, step=step):
                return derived(self.ev(e, state, frame) for e in (lower, upper, step) if e is not None)
        return derived(
            self.ev(child, state, frame)
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
        )

    def _made(self, node: FunctionNode | ast.Lambda, state: State, frame: Frame) -> Val:
        """A lambda or an inner function: marked by what a call of it gives, since it may leave this body."""
        self._numbers += 1
        self._closures[self._numbers] = (frame, node)
        if not any(one is node for one in frame.closures):
            frame.closures.append(node)
        result = refer(Closure(self._numbers))
        key = ("made", id(node))
        if not self._tracing or key in self._running:
            return result
        self._running.add(key)
        try:
            given = self._closure(node, {**frame.ever, **state}, frame, {})
        finally:
            self._running.discard(key)
        return result.marked(given.under(CALLED))

    def _to_object(self, values: list[Val], node: ast.AST, frame: Frame) -> None:
        """An operator on an object of the tree's calls a method that is not looked for."""
        if any(isinstance(ref, Class) for value in values for ref in value.refs):
            self._lost(frame, node, self._all(values), "what the object's operator does with it")

    def _load(self, name: str, state: State, frame: Frame) -> Val:
        if name in state:
            return self.world.force(state[name])
        if frame.local is not None and name in frame.local and name not in frame.shared:
            # Bound elsewhere in this function, not on this way.
            return frame.ever.get(name, Val())
        if frame.outer is not None and name in frame.outer:
            return self.world.force(frame.outer[name])
        if frame.env is not None:
            return self._builtin(name)
        value = self.world.look(frame.file, name)
        if not value.refs and not value.marks and value.const is UNKNOWN and value.open is False:
            return self._builtin(name)
        if name not in self.world.env(frame.file).names and hasattr(builtins, name):
            return refer(External(f"builtins.{name}"))
        return value

    def _builtin(self, name: str) -> Val:
        return refer(External(f"builtins.{name}")) if hasattr(builtins, name) else Val(open=True)

    def _attribute(self, node: ast.Attribute, state: State, frame: Frame) -> Val:
        full = dotted(node)
        said = self.world.named(full) if full else None
        if said is not None:
            return said
        of = self.ev(node.value, state, frame)
        return self.attribute(of, node.attr)

    def attribute(self, of: Val, attr: str) -> Val:
        """`of.attr`."""
        parts = [of.within(f".{attr}")]
        for ref in of.refs:
            match ref:
                case Class():
                    parts.append(self._of_class(ref, attr))
                case ModuleRef() | External():
                    parts.append(self.world.attribute(ref, attr))
        if not of.refs or of.open or not all(isinstance(r, (Class, ModuleRef, External)) for r in of.refs):
            for _, marks in self.fields.get(attr, ()):
                parts.append(Val(marks=marks))
        if len(parts) > 1 and not parts[0].marks:
            parts = parts[1:]
        return join(*parts)

    def _of_class(self, ref: Class, attr: str) -> Val:
        if not ref.instance and self.world.is_enumeration(ref) and attr.isupper():
            return known(Member(attr))
        methods = self.world.methods(ref, attr)
        marks: Marks = {}
        mine = {(c.file, c.path) for c in self.world.lineage(ref)}
        for of, held in self.fields.get(attr, ()):
            related = of is None or (of.file, of.path) in mine or any(
                (c.file, c.path) == (ref.file, ref.path) for c in self.world.lineage(of)
            )  # fmt: skip
            if related:
                marks = joined(marks, held)
        if methods:
            node = self.world.function(methods[0])
            names = {dotted(d).rpartition(".")[2] for d in node.decorator_list} if node else set()
            if names & {"property", "cached_property"}:
                return join(*(self._enter(m._replace(bound=True), [], {}, "") for m in methods))
            bound = ref.instance or "classmethod" in names
            bound = bound and "staticmethod" not in names
            refs = tuple(m._replace(bound=bound) for m in methods)
            return refer(*refs).marked(marks)
        if marks:
            return Val(marks=marks)
        for cls in self.world.lineage(ref):
            self.world.env(cls.file)
            value = self.classes.get((cls.file, cls.path), {}).get(attr)
            if value is not None:
                # An instance, or a subclass, may hold another.
                return self.world.force(value)._replace(const=UNKNOWN, open=True)
        return Val(open=True)

    def _key(self, index: ast.expr, state: State, frame: Frame) -> str:
        if isinstance(index, ast.Slice):
            self.ev(index, state, frame)
            return ANY
        key = self.ev(index, state, frame).const
        return f"[{key}]" if isinstance(key, (str, int)) and not isinstance(key, bool) else ANY

    def _subscript(self, node: ast.Subscript, state: State, frame: Frame) -> Val:
        of = self.ev(node.value, state, frame)
        if isinstance(node.slice, ast.Slice):
            index = self.ev(node.slice, state, frame)
            marks = {(ANY, *w[1:]) if w else w: t for w, t in of.marks.items()}
            return Val(marks=joined(marks, derived([index]).marks))
        part = self._key(node.slice, state, frame)
        result = of.within(part)
        index_marks = derived([self.ev(node.slice, state, frame)]).marks
        if index_marks:
            result = result.marked(index_marks)
        if isinstance(of.const, tuple) and part != ANY:
            try:
                return result._replace(const=of.const[int(part[1:-1])])
            except (ValueError, IndexError):
                pass
        return result

    def _dict(self, keys: list[ast.expr | None], values: list[ast.expr], state: State, frame: Frame) -> Val:
        self._numbers += 1
        result = Val(open=False, same=frozenset({self._numbers}))
        for key, value in zip(keys, values, strict=True):
            inner = self.ev(value, state, frame)
            if key is None:
                result = result.marked(inner.marks)
                continue
            part = self._key(key, state, frame)
            if part != ANY:
                result, gone = result.without(part)
                if gone and self._tracing:
                    self._end("replaced", value, gone, frame, self.world.line(frame.file, value.lineno))
            result = result.marked(inner.under(part))
        return result

    def _sequence(self, node: ast.expr, elts: list[ast.expr], state: State, frame: Frame) -> Val:
        self._numbers += 1
        marks: Marks = {}
        values = []
        spread = False
        for index, element in enumerate(elts):
            value = self.ev(element, state, frame)
            values.append(value)
            if isinstance(element, ast.Starred):
                spread = True
                marks = joined(marks, {(ANY, *w[1:]) if w else w: t for w, t in value.marks.items()})
            else:
                marks = joined(
                    marks, value.under(ANY if spread or isinstance(node, ast.Set) else f"[{index}]")
                )
        const: object = UNKNOWN
        if not spread and all(v.const is not UNKNOWN for v in values):
            const = tuple(v.const for v in values)
        return Val(const, marks, (), False, frozenset({self._numbers}))

    def _choice(self, test: ast.expr, body: ast.expr, orelse: ast.expr, state: State, frame: Frame) -> Val:
        value = self.ev(test, state, frame)
        taken = truth(value.const)
        if taken is not None:
            dropped = orelse if taken else body
            if self._tracing and any(id(n) in self.origins for n in ast.walk(dropped)):
                trail = next(self.origins[id(n)] for n in ast.walk(dropped) if id(n) in self.origins)
                way = (*trail, *self.why(test, state, frame, taken))
                self._end("excluded", test, {(): way}, frame, _says(way, "the other arm is taken"))
            result = self.ev(body if taken else orelse, state, frame)
        else:
            result = join(self.ev(body, state, frame), self.ev(orelse, state, frame))
        return result.marked(derived([value]).marks)

    def _bool(self, op: ast.boolop, values: list[ast.expr], state: State, frame: Frame) -> Val:
        stops = isinstance(op, ast.Or)
        parts: list[Val] = []
        const: object = not stops
        for value in values:
            part = self.ev(value, state, frame)
            parts.append(part)
            decided = truth(part.const)
            if decided is stops:
                # A known part decides; what is unknown before it could only give the same truth.
                const = part.const if len(parts) == 1 else stops
                break
            if decided is None:
                const = UNKNOWN
            elif const is not UNKNOWN:
                const = part.const
        else:
            if const is not UNKNOWN:
                const = parts[-1].const
        merged = join(*parts)
        return merged._replace(const=const).marked(derived(parts).marks)

    def _compare(
        self,
        left: ast.expr,
        ops: list[ast.cmpop],
        comparators: list[ast.expr],
        state: State,
        frame: Frame,
    ) -> Val:
        values = [self.ev(left, state, frame), *(self.ev(c, state, frame) for c in comparators)]
        consts = [value.const for value in values]
        never = self.world.platform.never
        devices = self.world.platform.devices
        if devices and any(_is_device(n) for n in (left, *comparators)):
            consts = [_elsewhere(const, devices) for const in consts]
            never |= devices
        results = [compare(op, a, b, never) for op, a, b in zip(ops, consts, consts[1:], strict=False)]
        const: object = UNKNOWN
        if any(r is False for r in results):
            const = False
        elif all(r is True for r in results):
            const = True
        return derived(values)._replace(const=const)

    def _comprehension(self, generators: list[ast.comprehension], state: State, frame: Frame) -> State:
        inner = dict(state)
        for generator in generators:
            over = self.ev(generator.iter, inner, frame).within(ANY)
            for name in ast.walk(generator.target):
                if isinstance(name, ast.Name):
                    inner[name.id] = Val(marks=over.marks)
            if isinstance(generator.target, ast.Tuple):
                for index, element in enumerate(generator.target.elts):
                    if isinstance(element, ast.Name):
                        inner[element.id] = over.within(f"[{index}]")
            for test in generator.ifs:
                self.ev(test, inner, frame)
        return inner

    # Calls ----------------------------------------------------------------------------------

    def _call(self, node: ast.Call, state: State, frame: Frame) -> Val:
        last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        asked = self._asked(last, node, state, frame)
        if asked is not None:
            return asked
        if isinstance(node.func, ast.Subscript):
            return self._launch(node, state, frame)
        args = [self.ev(a, state, frame) for a in node.args]
        spread = [isinstance(a, ast.Starred) for a in node.args]
        keywords: dict[str, Val] = {}
        for keyword in node.keywords:
            value = self.ev(keyword.value, state, frame)
            if keyword.arg is None:
                keywords["**"] = join(keywords["**"], value) if "**" in keywords else value
            else:
                keywords[keyword.arg] = value
        if isinstance(node.func, ast.Attribute):
            receiver = self.ev(node.func.value, state, frame)
            own = self._container(node, receiver, args, keywords, state, frame)
            if own is not None:
                return own
            func = self._attribute(node.func, state, frame)
        else:
            receiver = Val()
            func = self.ev(node.func, state, frame)
        return self.invoke(node, func, receiver, args, keywords, any(spread), state, frame)

    def _asked(self, last: str, node: ast.Call, state: State, frame: Frame) -> Val | None:
        """What the declared platform answers to a question about itself."""
        platform = self.world.platform
        if last in platform.asks and (not last.startswith("is_") or not (node.args or node.keywords)):
            return known(platform.asks[last])
        if last in ("has_device_capability", "is_device_capability") and platform.capability and node.args:
            wanted = self.ev(node.args[0], state, frame).const
            if isinstance(wanted, tuple) and len(wanted) == 2 and all(type(x) is int for x in wanted):
                wanted = wanted[0] * 10 + wanted[1]
            if type(wanted) is int:
                have = platform.capability
                return known(have >= wanted if last.startswith("has") else have == wanted)
        if last == "get_device_capability" and platform.capability:
            return known(divmod(platform.capability, 10))
        if last == "find_spec" and node.args:
            name = self.ev(node.args[0], state, frame).const
            if isinstance(name, str) and name.split(".")[0] in platform.modules:
                return known(SOMETHING)
        return None

    def _launch(self, node: ast.Call, state: State, frame: Frame) -> Val:
        """`kernel[grid](…)`."""
        assert isinstance(node.func, ast.Subscript)
        kernel = self.ev(node.func.value, state, frame)
        args = [self.ev(a, state, frame) for a in node.args]
        keywords = [(k.arg, self.ev(k.value, state, frame)) for k in node.keywords]
        grid = self.ev(node.func.slice, state, frame)
        values = [*args, *(value for _, value in keywords), grid]
        kernels = [ref for ref in kernel.refs if isinstance(ref, Function) and self._is_kernel(ref)]
        outside = [ref for ref in kernel.refs if isinstance(ref, External)]
        closures = [ref for ref in kernel.refs if isinstance(ref, (Closure, Function)) and ref not in kernels]
        options = {name for name, _ in keywords} & {*LAUNCH_OPTIONS}
        name = ast.unparse(node.func.value)[:60]
        maybe = ""
        if not kernels and not outside and not options:
            maybe = f"which kernel `{name}` is"
            if closures or kernel.open is False:
                # A container of functions: called like any other.
                func = kernel.within(ANY)
                return self.invoke(node, Val(refs=kernel.refs, marks=func.marks), Val(), args,
                                   {k or "**": v for k, v in keywords}, False, state, frame)  # fmt: skip
        step = self.world.step(frame.file, node, f"launch of {name}: {self._said(node, frame)}")
        of = kernels[0] if kernels else None
        arrived = self._arrived(values)
        for trail in arrived:
            self._sink("launch", name, onward(trail, step), frame, maybe=maybe, of=of)
        if self.control is not None and not arrived:
            self._sink("launch", name, onward(self.control, step), frame, control=True, maybe=maybe, of=of)
        return Val()

    def _said(self, node: ast.AST, frame: Frame) -> str:
        return self.world.line(frame.file, getattr(node, "lineno", 1))

    def _arrived(self, values: Iterable[Val]) -> list[Trail]:
        """The ways by which the value arrives in arguments: itself, or in a dict or sequence of them."""
        found: dict[Where, Trail] = {}
        for value in values:
            for where, trail in value.marks.items():
                if where not in found or len(trail) < len(found[where]):
                    found[where] = trail
        return sorted(found.values(), key=len)[:1]

    def _is_kernel(self, ref: Function) -> bool:
        node = self.world.function(ref)
        names = (
            [dotted(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list] if node else []
        )
        return any(n.rpartition(".")[2] in ("jit", "autotune", "heuristics") for n in names)

    def invoke(
        self,
        node: ast.Call,
        func: Val,
        receiver: Val,
        args: list[Val],
        keywords: dict[str, Val],
        spread: bool,
        state: State,
        frame: Frame,
    ) -> Val:
        """A call of what `func` may refer to."""
        everything = [*args, *keywords.values()]
        tainted = any(value.marks for value in everything)
        results: list[Val] = []
        called = func.within(CALLED)
        if called.marks:
            results.append(called)
        for ref in func.refs:
            match ref:
                case Function():
                    results.append(
                        self._enter_from(node, ref, receiver, args, keywords, spread, state, frame)
                    )
                case Numbered(number=number):
                    refs, first, named = self._partials[number]
                    inner = refer(*refs)
                    merged = {**dict(named), **keywords}
                    results.append(
                        self.invoke(node, inner, Val(), [*first, *args], merged, spread, state, frame)
                    )
                case Class():
                    results.append(self._construct(node, ref, args, keywords, spread, state, frame))
                case Closure(number=number):
                    results.append(self._call_closure(number, node, args, keywords, state, frame))
                case External(name=name):
                    results.append(self._outside(name, node, receiver, args, keywords, state, frame))
                case ModuleRef():
                    pass
        # A call of what is itself the value, or of a method on it, computes with it.
        itself = derived([func, receiver])
        if itself.marks or not results:
            results.append(itself)
        if not func.refs:
            results.append(self._unresolved(node, receiver, args, keywords, spread, state, frame))
        elif func.open and tainted and not any(isinstance(r, (Function, Class, Numbered)) for r in func.refs):
            results.append(derived(everything))
        return join(*results) if len(results) > 1 else results[0]

    def _enter_from(
        self,
        node: ast.Call,
        ref: Function,
        receiver: Val,
        args: list[Val],
        keywords: dict[str, Val],
        spread: bool,
        state: State,
        frame: Frame,
        maybe: str = "",
    ) -> Val:
        tainted = any(value.marks for value in (*args, *keywords.values()))
        step = self.world.step(frame.file, node)
        args = [value.stepped(step) for value in args]
        keywords = {name: value.stepped(step) for name, value in keywords.items()}
        result = Val()
        if tainted:
            self._flow(*args, *keywords.values())
        if self._is_kernel(ref):
            # A kernel that another kernel calls: no launch.
            return derived([*args, *keywords.values()])
        if tainted or self.control is not None or self._makes_refs(ref):
            result = self._enter(ref, args, keywords, maybe or frame.maybe, frame.depth + 1, spread=spread)
        marks = self._gives(ref)
        if marks:
            result = result.marked(stepped(marks, step))
        self._put_back(node, ref, state, frame)
        if result.const is not UNKNOWN and ref.bound and self._overriding(ref):
            # Another class may answer otherwise.
            result = result._replace(const=UNKNOWN)
        for other in self._overriding(ref) if tainted and ref.bound else ():
            result = join(
                result, self._enter_from(node, other, receiver, args, keywords, spread, state, frame, maybe)
            )
        return result.stepped(step)

    def _gives(self, ref: Function) -> Marks:
        """What a call of the function gives by itself; of a method, what one that overrides it gives too."""
        marks = self.returns.get(ref._replace(bound=False), {})
        for other, given in self.returns.items() if ref.bound else ():
            if other != ref._replace(bound=False) and self._overrides(other, ref):
                marks = joined(marks, given)
        return marks

    def _overrides(self, other: Function, ref: Function) -> bool:
        """Whether a method is that of a class derived from the other's."""
        owner, _, name = other.path.rpartition(".")
        above, _, own = ref.path.rpartition(".")
        if name != own or not owner or not above or (other.file, owner) == (ref.file, above):
            return False
        return any(
            (c.file, c.path) == (ref.file, above) for c in self.world.lineage(Class(other.file, owner))
        )

    def _overriding(self, ref: Function) -> list[Function]:
        """The methods of derived classes that may be called in a method's place."""
        name = ref.path.rpartition(".")[2]
        if name.startswith("__"):
            return []
        return [f._replace(bound=True) for f in self._by_name(name) if self._overrides(f, ref)]

    def _put_back(self, node: ast.Call, ref: Function, state: State, frame: Frame) -> None:
        """What the function puts into its arguments is in the caller's names for them."""
        own = self.puts.get(ref._replace(bound=False))
        called = self.world.function(ref) if own else None
        if not own or called is None:
            return
        names = [a.arg for a in (*called.args.posonlyargs, *called.args.args)]
        names = names[1:] if ref.bound and "." in ref.path else names
        given = [*zip(names, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
        for name, argument in given:
            marks = own.get(name or "")
            if marks:
                self._weak(argument, marks, self.ev(argument, state, frame), state, frame, node)

    def _makes_refs(self, ref: Function) -> bool:
        """Whether the function may give a function, which a caller then calls: small ones are looked into."""
        node = self.world.function(ref)
        if node is None or len(node.body) > 12:
            return False
        return any(isinstance(s, ast.Return) and isinstance(s.value, (ast.Name, ast.Attribute, ast.Call, ast.Constant,
                   ast.Subscript, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp)) for s in statements(node.body)) and self.runs < _MOST_RUNS // 2  # fmt: skip

    def _enter(
        self,
        ref: Function,
        args: list[Val],
        keywords: dict[str, Val],
        maybe: str,
        depth: int = 1,
        *,
        spread: bool = False,
    ) -> Val:
        node = self.world.function(ref)
        if node is None:
            return Val()
        decorators = [dotted(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
        strange = [d for d in decorators if d.rpartition(".")[2] not in _TRANSPARENT]
        given = self._given(node, ref, args, keywords, decorators, spread)
        if strange and any(value.marks for value in given.values()):
            maybe = maybe or f"what the decorator {strange[0] or 'of it'} makes of {node.name}"
        return self.function(ref._replace(bound=False), given, maybe=maybe, depth=depth)

    def _given(
        self,
        node: FunctionNode | ast.Lambda,
        ref: Function | None,
        args: list[Val],
        keywords: dict[str, Val],
        decorators: list[str],
        spread: bool,
    ) -> dict[str, Val]:
        """Parameters from arguments. `**dict` gives each parameter what is under its name."""
        arguments = node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        own = ref is not None and "." in ref.path and "staticmethod" not in decorators
        in_class = (
            ref is not None and self.world.class_of(Class(ref.file, ref.path.rpartition(".")[0])) is not None
        )
        if own and in_class and (ref is not None and ref.bound) and names:
            names = names[1:]
        given: dict[str, Val] = {}
        for number, value in enumerate(args):
            if spread:
                # Where it ends up is not known: all parameters may be it.
                for name in names:
                    inner = join(Val(marks=value.marks), value.within(ANY))
                    given[name] = join(given[name], inner) if name in given else inner
            elif number < len(names):
                given[names[number]] = value
            elif arguments.vararg:
                extra = given.get(arguments.vararg.arg, Val())
                given[arguments.vararg.arg] = extra.marked(value.under(f"[{number - len(names)}]"))
        every = {*names, *(a.arg for a in arguments.kwonlyargs)}
        for name, value in keywords.items():
            if name == "**":
                for one in every - given.keys():
                    inner = value.within(f"[{one}]")
                    if inner.marks:
                        given[one] = inner
                if arguments.kwarg:
                    rest = {w: t for w, t in value.marks.items() if not w or w[0][1:-1] not in every}
                    before = given.get(arguments.kwarg.arg, Val())
                    given[arguments.kwarg.arg] = before.marked(rest)
            elif name in every:
                given[name] = value
            elif arguments.kwarg:
                before = given.get(arguments.kwarg.arg, Val())
                given[arguments.kwarg.arg] = before.marked(value.under(f"[{name}]"))
        return given

    def _construct(
        self,
        node: ast.Call,
        ref: Class,
        args: list[Val],
        keywords: dict[str, Val],
        spread: bool,
        state: State,
        frame: Frame,
    ) -> Val:
        made = Val(refs=(ref._replace(instance=True),), open=False)
        tainted = any(value.marks for value in (*args, *keywords.values()))
        inits = self.world.methods(ref, "__init__")
        for init in inits:
            self._enter_from(node, init._replace(bound=True), made, args, keywords, spread, state, frame)
        if tainted and not inits:
            # A dataclass, or what an outer class takes: its fields by keyword, else somewhere in it.
            self._flow(*args, *keywords.values())
            fields = self._annotated(ref)
            for name, value in keywords.items():
                self._field(ref, name, value.marks) if name != "**" and value.marks else None
            for number, value in enumerate(args):
                if value.marks and number < len(fields):
                    self._field(ref, fields[number], value.marks)
                elif value.marks:
                    self._lost(frame, node, value.marks, f"what {ref.path} does with it")
        return made

    def _annotated(self, ref: Class) -> list[str]:
        node = self.world.class_of(ref)
        return [
            s.target.id
            for s in (node.body if node else ())
            if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        ]

    def _call_closure(
        self,
        number: int,
        node: ast.Call,
        args: list[Val],
        keywords: dict[str, Val],
        state: State,
        frame: Frame,
    ) -> Val:
        made_in, body = self._closures[number]
        arguments: list[str] = []
        if isinstance(body, (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef)):
            given = self._given(body, None, args, keywords, [], False)
            arguments = list(given)
        else:
            given = {}
        key = ("closure", number, tuple((n, tuple(sorted(v.marks))) for n, v in sorted(given.items())))
        if key in self._running:
            return derived([*args, *keywords.values()])
        self._running.add(key)
        try:
            around = {**made_in.ever, **(state if made_in is frame else {})}
            if any(v.marks for v in args) or keywords:
                self._flow(*args, *keywords.values())
            return self._closure(body, around, made_in, {n: given[n] for n in arguments})
        finally:
            self._running.discard(key)

    def _outside(
        self,
        name: str,
        node: ast.Call,
        receiver: Val,
        args: list[Val],
        keywords: dict[str, Val],
        state: State,
        frame: Frame,
    ) -> Val:
        """A call of something that is not in the tree."""
        everything = [*args, *keywords.values()]
        root, _, _ = name.partition(".")
        last = name.rpartition(".")[2]
        plain = name.removeprefix("builtins.")
        if plain in ("functools.partial", "partial") or name.endswith("functools.partial"):
            refs = args[0].refs if args else ()
            if refs:
                rest = tuple(sorted(((k, v) for k, v in keywords.items()), key=lambda pair: pair[0]))
                return self._partial(refs, tuple(args[1:]), rest, frame)
        if plain in _COPIES and args:
            value = args[-1] if last == "cast" else args[0]
            self._numbers += 1
            result = value._replace(same=frozenset({self._numbers}), const=UNKNOWN)
            for key, item in keywords.items():
                if key == "**":
                    result = result.marked(item.marks)
                else:
                    result, _ = result.without(f"[{key}]")
                    result = result.marked(item.under(f"[{key}]"))
            return result
        if plain == "dict" and keywords:
            result = Val(open=False)
            for key, item in keywords.items():
                result = result.marked(item.marks if key == "**" else item.under(f"[{key}]"))
            return result
        if last in _TALK or plain in _LOOKS or root == "logging":
            return Val()
        if plain in ("getattr",):
            return self._getattr(node, args, frame)
        if plain in _DYNAMIC:
            # All but setattr see every name that is in sight.
            seen = everything if plain == "setattr" else [*everything, *state.values()]
            self._lost(frame, node, self._all(seen), f"what `{plain}` does with it")
            return Val()
        if plain == "super":
            return refer(*self._above(frame))
        if plain in ("bool", "int", "float", "str") and args:
            result = derived(args)
            decided = truth(args[0].const) if plain == "bool" else None
            return result._replace(const=decided) if decided is not None else result
        if plain in ("enumerate", "zip", "map", "filter"):
            return self._iterate(plain, args, node, state, frame)
        if last == "autotune":
            return self._autotune(name, node, everything, args, frame)
        if last in _WRAPPING and root in ("triton", "functools", "torch"):
            return Val(refs=args[0].refs if args else (), marks=args[0].marks if args else {}, open=False)
        changed = [k.value for k in node.keywords if k.arg == "out"]
        if last.endswith("_") and not last.startswith("_"):
            changed += node.args[:1]
        for holder in changed:
            self._affect(holder, self._all(everything), node, state, frame)
        return self._library(name, root, node, everything, frame)

    def _library(self, name: str, root: str, node: ast.Call, everything: list[Val], frame: Frame) -> Val:
        precompiled = name.startswith(("torch.ops.", "torch.classes."))
        pure = root in PURE or root == "builtins" or root in sys.stdlib_module_names
        if pure and not precompiled:
            handed = [
                ref for value in everything for ref in value.refs if isinstance(ref, (Function, Closure))
            ]
            if handed and any(v.marks for v in everything):
                self._lost(frame, node, self._all(everything), f"how {name} calls what it is handed")
            if root not in _COMPUTING:
                self._lost(frame, node, self._all(everything), f"what {name} does with it")
            # It may be an element, or the whole, that comes back.
            marks = self._all(everything)
            return derived(everything).marked(marks).marked(Val(marks=marks).within(ANY).marks)
        step = self.world.step(frame.file, node, f"call of {name}: {self._said(node, frame)}")
        for value in everything:
            for where, trail in value.marks.items():
                inside = all(part == ANY or part[1:-1].isdigit() for part in where)
                if inside:
                    self._sink("call", name, onward(trail, step), frame)
                else:
                    self._lost(frame, node, {where: trail}, f"what {name} reads of the dict it is handed")
        if self.control is not None:
            self._sink("call", name, onward(self.control, step), frame, control=True)
        return Val()

    def _partial(
        self,
        refs: tuple[object, ...],
        args: tuple[Val, ...],
        keywords: tuple[tuple[str, Val], ...],
        frame: Frame,
    ) -> Val:
        # Values hold dicts, which no set takes: a partial goes by a number.
        self._numbers += 1
        self._partials[self._numbers] = Partial(refs, args, keywords)
        return Val(refs=(Numbered(self._numbers),), open=False)

    def _getattr(self, node: ast.Call, args: list[Val], frame: Frame) -> Val:
        if len(args) >= 2 and isinstance(args[1].const, str):
            found = self.attribute(args[0], args[1].const)
            return join(found, args[2]) if len(args) > 2 else found
        if args and args[0].marks:
            self._lost(frame, node, args[0].marks, "which attribute getattr takes")
        return Val()

    def _above(self, frame: Frame) -> list[object]:
        if frame.owner is None:
            return []
        return [
            b._replace(instance=True) if isinstance(b, Class) else b for b in self.world.bases(frame.owner)
        ]

    def _iterate(self, name: str, args: list[Val], node: ast.Call, state: State, frame: Frame) -> Val:
        if name == "enumerate" and args:
            return Val(marks={(ANY, "[1]", *w)[:6]: t for w, t in args[0].within(ANY).marks.items()})
        if name == "zip":
            marks: Marks = {}
            for index, value in enumerate(args):
                inner = value.within(ANY).marks
                marks = joined(marks, {(ANY, f"[{index}]", *w)[:6]: t for w, t in inner.items()})
            return Val(marks=marks)
        if len(args) > 1:
            items = [value.within(ANY) for value in args[1:]]
            result = self.invoke(node, args[0], Val(), items, {}, False, state, frame)
            if name == "filter":
                result = items[0]
            return Val(marks=result.under(ANY))
        return Val()

    def _autotune(
        self, name: str, node: ast.Call, everything: list[Val], args: list[Val], frame: Frame
    ) -> Val:
        root = name.partition(".")[0]
        refs = tuple(ref for value in args for ref in value.refs if isinstance(ref, Function))
        if root not in ("triton", "builtins") and "triton" not in name:
            return derived(everything)
        step = self.world.step(frame.file, node, f"tried by the autotuner: {self._said(node, frame)}")
        of = self.decorated or (refs[0] if refs else None)
        for trail in self._arrived(everything):
            self._sink("autotune", "triton.autotune", onward(trail, step), frame, of=of)
        return Val(refs=(External("triton.jit"),), open=False) if not refs else refer(*refs)

    def _container(
        self,
        node: ast.Call,
        receiver: Val,
        args: list[Val],
        keywords: dict[str, Val],
        state: State,
        frame: Frame,
    ) -> Val | None:
        """Methods of dicts and lists, on what is no object of the tree."""
        assert isinstance(node.func, ast.Attribute)
        if any(isinstance(ref, (Class, ModuleRef, External)) for ref in receiver.refs):
            return None
        method = node.func.attr
        holder = node.func.value
        key = args[0].const if args else None
        part = f"[{key}]" if isinstance(key, (str, int)) and not isinstance(key, bool) else ANY
        statement = node
        match method:
            case "get" | "pop" | "setdefault" | "__getitem__":
                result = receiver.within(part)
                if method == "pop" and args:
                    self._affect(holder, args[0].marks, node, state, frame)
                if method == "pop" and isinstance(holder, ast.Name) and holder.id in state and part != ANY:
                    state[holder.id], _ = state[holder.id].without(part)
                if len(args) > 1:
                    result = join(result, args[1])
                    if method == "setdefault" and args[1].marks:
                        self._weak(holder, args[1].under(part), receiver, state, frame, statement)
                return result
            case "items" if not args:
                return Val(marks={(ANY, "[1]", *w)[:6]: t for w, t in receiver.within(ANY).marks.items()})
            case "values" if not args:
                return Val(marks={(ANY, *w)[:6]: t for w, t in receiver.within(ANY).marks.items()})
            case "keys" if not args:
                return Val()
            case "copy" if not args:
                self._numbers += 1
                return receiver._replace(same=frozenset({self._numbers}))
            case "update":
                added: Marks = {}
                for name, value in keywords.items():
                    added = joined(added, value.marks if name == "**" else value.under(f"[{name}]"))
                for value in args:
                    added = joined(added, value.marks)
                self._update(node, holder, added, keywords, receiver, state, frame)
                return known(None)
            case "append" | "add" | "extend" | "insert" | "appendleft":
                added = {}
                for value in args:
                    if method == "extend":
                        added = joined(added, {(ANY, *w[1:]) if w else w: t for w, t in value.marks.items()})
                    else:
                        added = joined(added, value.under(ANY))
                if added:
                    self._weak(holder, added, receiver, state, frame, statement)
                return known(None)
            case _ if method.endswith("_") and not method.startswith("_"):
                # So are the methods of tensors called that work in place.
                self._affect(holder, self._all([*args, *keywords.values()]), node, state, frame)
        return None

    def _affect(self, holder: ast.expr, marks: Marks, node: ast.AST, state: State, frame: Frame) -> None:
        """What the holder holds is changed in place by the value: it is computed from it, from here on."""
        if not marks or not self._tracing:
            return
        while isinstance(holder, (ast.Subscript, ast.Starred)):
            holder = holder.value
        trail = min(marks.values(), key=len)
        if isinstance(holder, ast.Attribute):
            owner = self.ev(holder.value, state, frame)
            if not any(isinstance(ref, Class) for ref in owner.refs):
                self._lost(frame, node, marks, f"who reads `{ast.unparse(holder)[:60]}`")
                return
        self._weak(holder, {(): trail}, self.ev(holder, state, frame), state, frame, node)

    def _update(
        self,
        node: ast.Call,
        holder: ast.expr,
        added: Marks,
        keywords: dict[str, Val],
        receiver: Val,
        state: State,
        frame: Frame,
    ) -> None:
        """`holder.update(…)`: keys that are spelled out are replaced."""
        spelled = {f"[{name}]" for name in keywords if name != "**"}
        for argument in node.args:
            if isinstance(argument, ast.Dict):
                spelled |= {f"[{k.value}]" for k in argument.keys if isinstance(k, ast.Constant)}  # type: ignore[str-bytes-safe]
        if isinstance(holder, ast.Name) and holder.id in state:
            for part in spelled:
                state[holder.id], gone = state[holder.id].without(part)
                fresh = {w: t for w, t in gone.items() if w not in added}
                if fresh and self._tracing:
                    self._end("replaced", node, fresh, frame, self._said(node, frame))
        if added:
            self._weak(holder, added, receiver, state, frame, node)

    def _weak(
        self, holder: ast.expr, marks: Marks, receiver: Val, state: State, frame: Frame, node: ast.AST
    ) -> None:
        """Something is put into what the holder holds, and into all that may be the same."""
        marks = stepped(marks, self.world.step(frame.file, node))
        if isinstance(holder, ast.Name) and holder.id in state:
            state[holder.id] = state[holder.id].marked(marks)
            frame.ever[holder.id] = join(frame.ever.get(holder.id, Val()), state[holder.id])
            for other, one in state.items():
                if other != holder.id and one.same & receiver.same:
                    state[other] = one.marked(marks)
            self._given_back(receiver, marks, frame)
            return
        self._flow(Val(marks=marks))
        if isinstance(holder, ast.Name):
            self._global(frame.file, holder.id, marks)
        elif isinstance(holder, ast.Attribute):
            owner = self.ev(holder.value, state, frame)
            classes = [ref for ref in owner.refs if isinstance(ref, Class)]
            owners: list[Class | None] = [*classes] or [None]
            for cls in owners:
                self._field(cls, holder.attr, marks)
        else:
            self._lost(frame, node, marks, f"it is kept in `{ast.unparse(holder)[:60]}`")

    def _unresolved(
        self,
        node: ast.Call,
        receiver: Val,
        args: list[Val],
        keywords: dict[str, Val],
        spread: bool,
        state: State,
        frame: Frame,
    ) -> Val:
        """A call of what is not known: methods of that name in the tree, else nobody knows."""
        everything = [*args, *keywords.values()]
        if not any(value.marks for value in everything):
            return Val()
        if not isinstance(node.func, ast.Attribute):
            name = ast.unparse(node.func)[:60]
            self._lost(frame, node, self._all(everything), f"what `{name}` is")
            return derived(everything)
        method = node.func.attr
        if method in _TALK or method in _PLAIN_METHODS:
            return derived(everything)
        found = self._by_name(method)
        if not found:
            self._lost(frame, node, self._all(everything), f"what `{ast.unparse(node.func)[:60]}` is")
            return derived(everything)
        results = []
        maybe = "" if len(found) == 1 else f"which of {len(found)} methods {method} is called"
        for ref in found[:8]:
            results.append(
                self._enter_from(
                    node, ref._replace(bound=True), receiver, args, keywords, spread, state, frame, maybe
                )
            )
        if len(found) > 1:
            self._lost(frame, node, self._all(everything), maybe)
        return join(*results)

    def _by_name(self, method: str) -> list[Function]:
        """The tree's methods of that name; none where too many files have the word."""
        if method not in self._named:
            files = self.world.mentions(method)
            self._named[method] = [
                Function(file, scope.path, scope.node.lineno)
                for file in (files if len(files) <= _MOST_FILES else ())
                if (module := self.world.module(file)) is not None
                for scope in module.scopes()
                if scope.path.endswith(f".{method}")
                and isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef))
            ]
        return self._named[method]

    # What is found --------------------------------------------------------------------------

    def _all(self, values: Iterable[Val]) -> Marks:
        return joined(*(value.marks for value in values))

    def _flow(self, *values: Val) -> None:
        if self._tracing:
            self.flows += [trail for value in values for trail in value.marks.values()]

    def _sink(
        self,
        kind: str,
        what: str,
        trail: Trail,
        frame: Frame,
        *,
        control: bool = False,
        maybe: str = "",
        of: Function | None = None,
    ) -> None:
        if self._tracing:
            one = Sink(kind, what, trail, frame.function, frame.file, control, maybe or frame.maybe, of)
            self.sinks.setdefault(one)

    def _lost(self, frame: Frame, node: ast.AST, marks: Marks, why: str) -> None:
        if self._tracing and marks:
            trail = min(marks.values(), key=len)
            step = self.world.step(frame.file, node)
            self.loose.setdefault(Loose(why, onward(trail, step), frame.function, frame.file))

    def _end(self, kind: str, node: ast.AST, marks: Marks, frame: Frame, why: str) -> None:
        if self._tracing and marks:
            trail = min(marks.values(), key=len)
            step = self.world.step(frame.file, node)
            self.ends.setdefault(End(kind, why, onward(trail, step), frame.function, frame.file))

    def why(self, test: ast.expr, state: State, frame: Frame, taken: bool) -> Trail:
        """The places that decide a test: where its names are bound, what the platform says, the test itself."""
        steps: list[Step] = []
        for node in ast.walk(test):
            if (isinstance(node, ast.Name) and node.id not in state) or (
                isinstance(node, ast.Name) and frame.env is not None
            ):
                steps += self.bound(frame.file, node.id)
        word = "holds" if taken else "does not hold"
        where = f" on the platform {self.world.platform.name}" if self._asks(test) else ""
        steps.append(self.world.step(frame.file, test, f"`{ast.unparse(test)[:70]}` {word}{where}"))
        return tuple(dict.fromkeys(steps))

    def _asks(self, test: ast.expr) -> bool:
        platform = self.world.platform
        if not platform.name:
            return False
        names = {n.attr for n in ast.walk(test) if isinstance(n, ast.Attribute)}
        names |= {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
        return bool(
            names & {*platform.asks, *platform.never, "has_device_capability", "get_device_capability",
                     "is_device_capability"}
            or any(dotted(n) in platform.names for n in ast.walk(test) if isinstance(n, ast.Attribute))
        )  # fmt: skip

    def bound(self, file: str, name: str, hops: int = 6) -> list[Step]:
        """Where a module-level name gets its constant, through imports."""
        env = self.world.env(file)
        value = env.names.get(name)
        for ref in value.refs if value else ():
            if isinstance(ref, Late) and hops and ref.attr:
                inside = self.world.file_of(self.world.absolute(ref.file, ref.module, ref.level))
                if inside and not inside.endswith("/"):
                    return self.bound(inside, ref.attr, hops - 1)
        if value is not None and value.const is not UNKNOWN and name in env.lines:
            return [Step(file, env.lines[name], self.world.line(file, env.lines[name]))]
        return []


def _says(trail: Trail, default: str) -> str:
    return trail[-1].does if trail else default


def _merge(left: State | None, right: State | None) -> State | None:
    """What holds behind two branches."""
    if left is None or right is None:
        return left if right is None else right
    merged: State = {}
    for name in left.keys() | right.keys():
        a, b = left.get(name), right.get(name)
        if a is None or b is None:
            one = a or b
            assert one is not None
            # On the other way the name is not bound here: it may mean something from around.
            merged[name] = one._replace(const=UNKNOWN, open=True)
        else:
            merged[name] = a if a is b else join(a, b)
    return merged


def _stored(body: Sequence[ast.stmt]) -> set[str]:
    return {
        n.id
        for statement in body
        for n in ast.walk(statement)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _shared(node: FunctionNode) -> set[str]:
    """The names that a function binds for others too."""
    return {n for s in statements(node.body) if isinstance(s, (ast.Global, ast.Nonlocal)) for n in s.names}


def locals_of(node: FunctionNode) -> frozenset[str]:
    """The names that a function binds."""
    known_ = getattr(node, "_muhmod_locals", None)
    if known_ is None:
        known_ = node._muhmod_locals = frozenset(_binds(node))  # type: ignore[union-attr]
    return known_


def _binds(node: FunctionNode) -> set[str]:
    found = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
    for statement in statements(node.body):
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
                continue
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {(a.asname or a.name).split(".")[0] for a in names}
            case ast.Try(handlers=handlers):
                found |= {h.name for h in handlers if h.name}
        for expression in own_expressions(statement):
            for n in ast.walk(expression):
                if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
                    found.add(n.id)
        for item in getattr(statement, "items", ()):
            if item.optional_vars is not None:
                found |= {n.id for n in ast.walk(item.optional_vars) if isinstance(n, ast.Name)}
        for case in getattr(statement, "cases", ()):
            for n in ast.walk(case.pattern):
                found |= {w for w in (getattr(n, "name", None), getattr(n, "rest", None)) if w}
    return found


def _load(target: ast.expr) -> ast.expr:
    match target:
        case ast.Name(id=name):
            return ast.copy_location(ast.Name(id=name, ctx=ast.Load()), target)
        case ast.Subscript(value=value, slice=index):
            return ast.copy_location(ast.Subscript(value=value, slice=index, ctx=ast.Load()), target)
        case ast.Attribute(value=value, attr=attr):
            return ast.copy_location(ast.Attribute(value=value, attr=attr, ctx=ast.Load()), target)
    return target


def _is_device(node: ast.expr) -> bool:
    """Whether an expression is a kind of device: `x.device.type`, `device_type`."""
    match node:
        case ast.Attribute(attr="type", value=ast.Attribute(attr=word) | ast.Name(id=word)):
            return "device" in word
        case ast.Attribute(attr=word) | ast.Name(id=word):
            return word == "device_type"
    return False


def _elsewhere(const: object, devices: frozenset[str]) -> object:
    """A kind of device that the platform has not as what is equal to nothing."""
    if isinstance(const, tuple):
        return tuple(_elsewhere(one, devices) for one in const)
    return Member(const) if isinstance(const, str) and const in devices else const
