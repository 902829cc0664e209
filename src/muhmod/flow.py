"""Which literals arrive where: a small abstract interpreter over one function.

A cell is a name (`BLOCK`) or a name with a string key (`config["BLOCK_SIZE_M"]`). For each cell
the state holds the literals that may stand in it, with the tests passed and the arithmetic done
on the way. Branches join, loops are widened to "maybe", so a literal is called overwritten only
if it reaches no use on any path.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, cast

from muhmod.model import Arrival, Condition, Slot
from muhmod.site import FunctionNode, Module, fold, is_plain, make_slot, own_expressions, segment_of

Cell: TypeAlias = "tuple[str, str]"
Values: TypeAlias = "frozenset[Arriving]"
_MAX_CONDITIONS = 64
_MAX_TRANSFORMS = 8
_MAX_VALUES = 48
UNKNOWN = "unknown(_)"
# Nodes of an expression that a name may stand for.
_MAX_INLINE = 60


class Leaf(NamedTuple):
    """An expression that is bound to a cell of interest and is not itself made of others."""

    number: int
    cell: Cell
    node: ast.expr
    statement: ast.stmt


class Passing(NamedTuple):
    """An expression that is no leaf: it passes on, or computes with, values that are bound before."""

    cell: Cell
    node: ast.expr
    statement: ast.stmt
    values: Values


class Arriving(NamedTuple):
    """A leaf on its way."""

    leaf: Leaf
    arrival: Arrival

    def under(self, condition: Condition) -> Arriving:
        """The same, having passed one more test."""
        known = self.arrival.conditions
        if condition in known or len(known) >= _MAX_CONDITIONS:
            return self
        return self._replace(arrival=self.arrival._replace(conditions=(*known, condition)))

    def through(self, transform: str) -> Arriving:
        """The same, after arithmetic on it."""
        # A chain that is too long to follow is not known.
        steps = (*self.arrival.transforms, transform)
        steps = steps if len(steps) <= _MAX_TRANSFORMS else (UNKNOWN,)
        return self._replace(arrival=self.arrival._replace(transforms=steps))


def _under(value: Arriving, conditions: Iterable[Condition]) -> Arriving:
    for condition in conditions:
        value = value.under(condition)
    return value


def _bounded(values: Values) -> Values:
    """The values, or one way for each leaf where there are too many ways to follow them all."""
    if len(values) <= _MAX_VALUES:
        return values
    ways = {v.leaf: v.arrival.transforms for v in sorted(values, key=lambda v: len(v.arrival.transforms))}
    return frozenset(
        Arriving(leaf, Arrival((), (UNKNOWN,) if transforms else ())) for leaf, transforms in ways.items()
    )


class State:
    """What each cell may hold, what each plain local name stands for, which dict each name is.

    A dict has an identity of its own, since two names may stand for the same one.
    """

    def __init__(
        self,
        cells: dict[Cell, Values] | None = None,
        names: dict[str, ast.expr | None] | None = None,
        dicts: dict[str, str] | None = None,
        kin: dict[str, frozenset[str]] | None = None,
    ) -> None:
        self.cells = cells if cells is not None else {}
        self.names = names if names is not None else {}
        self.dicts = dicts if dicts is not None else {}
        # Dicts that a dict may be the same as: behind a branch that made a name stand for one or the other.
        self.kin = kin if kin is not None else {}

    def copy(self) -> State:
        """An independent state."""
        return State(dict(self.cells), dict(self.names), dict(self.dicts), dict(self.kin))

    def owner(self, name: str) -> str:
        """The dict that a name stands for; an unknown one goes by the name."""
        return self.dicts.get(name, name)

    def write(self, owner: str, key: str, values: Values) -> None:
        """Put values into a dict, and perhaps into those that it may be the same as."""
        self.cells[owner, key] = values
        mine = self.kin.get(owner, frozenset())
        for other in {*mine, *(o for o, kin in self.kin.items() if kin & {owner, *mine})} - {owner}:
            self.cells[other, key] = self.cells.get((other, key), frozenset()) | values

    def items(self, name: str) -> dict[str, Values]:
        """What is known of the items of the dict that a name stands for."""
        owner = self.owner(name)
        return {key: values for (of, key), values in self.cells.items() if of == owner and key}


class Use(NamedTuple):
    """A place where a cell's value leaves the function, or is looked at.

    `kind` is return, launch, read (as an argument, in a test, by a key), escape, or load (in any
    other expression).
    """

    kind: str
    cell: Cell
    node: ast.AST
    values: Values


class Flow:
    """Runs over a function's body. `interesting` says which cells' literals are leaves.

    After `run`: `leaves` in source order and `uses` of their cells.
    """

    def __init__(
        self,
        interesting: Callable[[Cell], bool],
        outer: State | None = None,
        function: Callable[[str], FunctionNode | None] = lambda name: None,
    ) -> None:
        self.interesting = interesting
        # The module's functions: the one expression that one returns may stand for its call in a test.
        self.function = function
        self.leaves: list[Leaf] = []
        self._passing: dict[tuple[int, Cell], Passing] = {}
        self.uses: list[Use] = []
        self.final: State | None = None
        self._by_node: dict[int, Leaf] = {}
        self._outer = outer or State()
        self._conditions: tuple[Condition, ...] = ()
        self._made = 0
        self._in_function = False
        self._dead = False
        # Loops around: the states at their breaks and continues. Tries around: at every statement.
        self._breaks: list[list[State]] = []
        self._continues: list[list[State]] = []
        self._watched: list[list[State]] = []
        # What the interpreter saw and does not understand: writes under keys that are no literals.
        self.odd: list[str] = []
        # Names with known values that were bound anew by a loop, a with, an import or a definition.
        self.lost: set[str] = set()
        # Names that inner functions bind, whenever they are called, with the reason in words.
        self.rebound: dict[str, str] = {}
        self._kept: set[str] = set()
        self._inner: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda] = []

    def run(
        self, body: list[ast.stmt], function: FunctionNode | None = None, *, closures: bool = True
    ) -> Flow:
        """Interpret the statements from the outer state; a function's parameters hide outer names.

        Without `closures`, what inner functions read is left to a flow of their own.
        """
        state = self._outer.copy()
        self._in_function = function is not None
        if function is not None:
            self._parameters(function, state)
        self.final = self._block(body, state)
        if closures:
            self._use_what_is_kept()
        return self

    def _parameters(self, function: FunctionNode, state: State) -> None:
        for name in _parameters(function):
            state.cells.pop((name, ""), None)
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        late = positional[len(positional) - len(arguments.defaults) :]
        pairs = [*zip(late, arguments.defaults, strict=True)]
        pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d]
        for argument, default in pairs:
            if fold(default) is not None and not isinstance(fold(default), (bool, str, float)):
                cell = (argument.arg, "")
                state.cells[cell] = self._values(cell, default, function, state)

    def feeding(self, kinds: Iterable[str], wanted: Callable[[Cell], bool]) -> list[tuple[Passing, Cell]]:
        """The expressions on the way to such uses of wanted cells, each with the first cell it gets to."""
        ways = [
            (use.cell, value.leaf.number, value.arrival.transforms)
            for use in self.uses
            if use.kind in {*kinds} and wanted(use.cell)
            for value in use.values
        ]
        found = []
        for passing in self._passing.values():
            if wanted(passing.cell):
                found.append((passing, passing.cell))
                continue
            made = {(v.leaf.number, v.arrival.transforms) for v in passing.values}
            cells = [c for c, n, steps in ways if any((n, steps[:i]) in made for i in range(len(steps) + 1))]
            if cells:
                found.append((passing, min(cells)))
        return found

    def arrivals(self, leaf: Leaf, kinds: Iterable[str] = ()) -> tuple[Arrival, ...]:
        """The distinct ways in which a leaf arrives at uses of these kinds (default: all but loads)."""
        wanted = tuple(kinds)
        found = {
            value.arrival: None
            for use in self.uses
            if (use.kind in wanted if wanted else use.kind != "load")
            for value in sorted(use.values, key=lambda v: (v.leaf.number, repr(v.arrival)))
            if value.leaf is leaf
        }
        return tuple(found)

    # Statements ---------------------------------------------------------------------------

    def _block(self, body: list[ast.stmt], state: State | None) -> State | None:
        for statement in body:
            if state is None:
                # Code after a return never runs: its literals exist and arrive nowhere.
                dead, self._dead = self._dead, True
                self._statement(statement, State())
                self._dead = dead
                continue
            state = self._statement(statement, state)
            if state is not None:
                for seen in self._watched:
                    seen.append(state.copy())
        return state

    def _statement(self, node: ast.stmt, state: State) -> State | None:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._reads(node, state)
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, value, node, state)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._bind(target, value, node, state)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.BitOr(), value=value) if (
                items := self._dict(value, node, state)
            ) is not None:
                self._put(state.owner(name), items, state)
            case ast.AugAssign(target=target, value=value, op=op):
                joined = ast.BinOp(left=_as_load(target), op=op, right=value)
                self._bind(target, ast.copy_location(joined, node), node, state)
            case ast.If(test=test, body=body, orelse=orelse):
                return self._branch(test, body, orelse, state)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, state)
            case ast.Try():
                return self._try(node, state)
            case _ if type(node).__name__ == "TryStar":  # Python 3.11
                return self._try(cast("ast.Try", node), state)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                return self._with(items, body, state)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    name = (alias.asname or alias.name).split(".")[0]
                    # At a module's top level an import is what the name means, not a second meaning.
                    if self._in_function or name in state.names or state.cells.get((name, "")):
                        self._forget(name, state)
            case ast.ClassDef(name=name):
                self._forget(name, state)
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        self._forget(target.id, state)
            case ast.Match():
                return self._match(node, state)
            case ast.Return(value=value):
                if value is not None:
                    self._return(value, node, state)
                return None
            case ast.Continue() | ast.Break():
                around = self._breaks if isinstance(node, ast.Break) else self._continues
                if around:
                    around[-1].append(state.copy())
                return None
            case ast.Raise():
                return None
            case ast.Assert(test=test):
                return self._passed(Condition(self._text(test, state), True, checked=True), state)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._inner.append(node)
                self._forget(node.name, state)
                # A function of the module itself has no names around it to bind anew.
                for inner in ast.walk(node) if self._in_function else ():
                    for name in inner.names if isinstance(inner, ast.Nonlocal) else ():
                        self.lost.add(name)
                        self.rebound[name] = f"{name} is bound anew by the inner function {node.name}"
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                self._kept |= {*names}
            case ast.Expr(value=ast.Call() as call):
                self._method(call, node, state)
        return state

    def _branch(
        self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], state: State
    ) -> State | None:
        always = fold(test)
        text = self._text(test, state)
        ends = []
        for block, taken in ((body, True), (orelse, False)):
            if always is not None and bool(always) is not taken:
                dead, self._dead = self._dead, True
                self._block(block, State())
                self._dead = dead
                continue
            outer = self._conditions
            if always is None:
                self._conditions = (*outer, Condition(text, taken))[:_MAX_CONDITIONS]
            end = self._block(block, state.copy())
            self._conditions = outer
            ends.append((end, Condition(text, taken)))
        if len(ends) == 1:
            return ends[0][0]
        (left, on), (right, off) = ends
        if left is not None and right is not None:
            return _merge(left, right, on, off)
        # The other branch left the function: what follows has passed this one's test.
        alive, passed = (left, on) if left is not None else (right, off)
        if alive is None:
            return None
        left_block = body if left is None else orelse
        if left_block and isinstance(left_block[-1], ast.Raise):
            passed = passed._replace(checked=True)
        return self._passed(passed, alive)

    def _passed(self, condition: Condition, state: State) -> State:
        """All that follows has passed the test."""
        self._conditions = (*self._conditions, condition)[:_MAX_CONDITIONS]
        return _under_all(state, condition)

    def _text(self, test: ast.expr, state: State) -> str:
        """A test as text: local names and calls of small functions of the module written out."""
        return ast.unparse(_called(_inline(test, state.names), self.function))

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, state: State) -> State | None:
        outer = self._conditions
        inside = state.copy()
        if not isinstance(node, ast.While):
            for part in ast.walk(node.target):
                if isinstance(part, ast.Name):
                    self._forget(part.id, inside)
        for name in _assigned(node.body):
            inside.names[name] = None
        self._breaks.append([])
        self._continues.append([])
        once = self._block(node.body, inside)
        joined = _join([once, state, *self._continues[-1]]) or state
        # A second turn lets values of the first reach the uses at the loop's head.
        again = self._block(node.body, joined.copy())
        joined = _join([again, joined, *self._continues.pop()]) or joined
        breaks = self._breaks.pop()
        self._conditions = outer
        if isinstance(node, ast.While) and fold(node.test):
            # `while True` is left by a break alone.
            return _join(breaks)
        return _join([self._block(node.orelse, joined), *breaks])

    def _try(self, node: ast.Try, state: State) -> State | None:
        outer = self._conditions
        self._watched.append([])
        after = self._block(node.body, state.copy())
        self._conditions = outer
        # A handler starts from wherever the body stopped.
        half_way = _join([after, state, *self._watched.pop()]) or state
        for name in _assigned(node.body):
            half_way.names[name] = None
        ends = [self._block(node.orelse, after.copy()) if after is not None else None]
        for handler in node.handlers:
            ends.append(self._block(handler.body, half_way.copy()))
            self._conditions = outer
        joined = _join(ends)
        if not node.finalbody:
            return joined
        # It also runs where the body or a handler leaves, by a return or an error.
        self._block(node.finalbody, (_join([half_way, *ends]) or half_way).copy())
        self._conditions = outer
        return self._block(node.finalbody, joined.copy()) if joined is not None else None

    def _with(self, items: list[ast.withitem], body: list[ast.stmt], state: State) -> State | None:
        for item in items:
            for part in ast.walk(item.optional_vars) if item.optional_vars else ():
                if isinstance(part, ast.Name):
                    self._forget(part.id, state)
        if not any("suppress" in ast.unparse(item.context_expr) for item in items):
            return self._block(body, state)
        self._watched.append([state.copy()])
        after = self._block(body, state)
        return _join([after, *self._watched.pop()])

    def _forget(self, name: str, state: State) -> None:
        """The name is bound to something that is not followed."""
        if state.cells.get((name, "")):
            self.lost.add(name)
        state.cells.pop((name, ""), None)
        state.dicts[name] = self._fresh(name)
        state.names[name] = None

    def _match(self, node: ast.Match, state: State) -> State | None:
        outer = before = self._conditions
        ends: list[State | None] = []
        for case in node.cases:
            inside = state.copy()
            for part in ast.walk(case.pattern):
                if isinstance(part, ast.MatchAs) and part.name:
                    self._forget(part.name, inside)
            test = _case_test(node.subject, case)
            if test is None:
                text = f"matches({self._text(node.subject, state)}, {ast.unparse(case.pattern)!r})"
            else:
                text = self._text(test, state)
            passed = [Condition(text, True)] if text != "True" else []
            self._conditions = (*before, *passed)[:_MAX_CONDITIONS]
            end = self._block(case.body, inside)
            for condition in (*before[len(outer) :], *passed):
                end = _under_all(end, condition) if end is not None else None
            ends.append(end)
            # The cases below are tried where this one did not match.
            before = (*before, *(c._replace(taken=False) for c in passed))[:_MAX_CONDITIONS]
            self._conditions = outer
            if text == "True":
                return _join(ends)
        for condition in before[len(outer) :]:
            state = _under_all(state, condition)
        return _join([*ends, state])

    # Bindings -----------------------------------------------------------------------------

    def _bind(self, target: ast.expr, value: ast.expr, node: ast.stmt, state: State) -> None:
        match target:
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                self._unpack(elts, value, node, state)
            case ast.Name(id=name):
                self._bind_name(name, value, node, state)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str() as key)):
                owner = state.owner(name)
                state.write(owner, key, self._values((owner, key), value, node, state))
            case ast.Subscript(value=ast.Name(id=name)) if state.items(name):
                self.odd.append(f"{ast.unparse(target)} is written, and its key is no literal")
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
                state.cells[attr, ""] = self._values((attr, ""), value, node, state)
                self._kept.add(attr)
            case ast.Starred(value=inner):
                self._bind(inner, ast.Starred(value=value, ctx=ast.Load()), node, state)

    def _bind_name(self, name: str, value: ast.expr, node: ast.stmt, state: State) -> None:
        alias = state.owner(value.id) if isinstance(value, ast.Name) else ""
        items = None if alias else self._dict(value, node, state)
        # Before the old cell goes: the value may read it.
        held = self._values((name, ""), value, node, state) if items is None else frozenset()
        state.cells.pop((name, ""), None)
        state.dicts[name] = alias or self._fresh(name)
        if items is not None:
            self._put(state.dicts[name], items, state)
            state.names[name] = None
            return
        state.cells[name, ""] = held
        inlined = _inline(value, state.names)
        state.names[name] = inlined if _pure(inlined) and not _mentions(inlined, name) else None

    def _fresh(self, name: str) -> str:
        self._made += 1
        return f"{name}@{self._made}"

    def _put(self, owner: str, items: dict[str, Values], state: State) -> None:
        for key, values in items.items():
            state.write(owner, key, values)

    def _dict(self, value: ast.expr, node: ast.stmt, state: State) -> dict[str, Values] | None:
        """The items of an expression that makes a dict of string keys; None for all else.

        `{…}` with spreads, `dict(…)`, `a | b`, copies of known dicts, and either arm of a conditional.
        """
        match value:
            case ast.Name(id=name) if name in state.dicts or state.items(name):
                return state.items(name) or None
            case ast.Dict(keys=keys, values=values):
                return self._display(list(zip(keys, values, strict=True)), node, state)
            case ast.Call(func=ast.Name(id="dict"), args=args, keywords=keywords) if len(args) <= 1:
                known = (self._dict(args[0], node, state) or {}) if args else {}
                named = [(k.arg and ast.Constant(k.arg), k.value) for k in keywords]
                return known | self._display(named, node, state)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                parts = self._dict(left, node, state), self._dict(right, node, state)
                return None if parts == (None, None) else (parts[0] or {}) | (parts[1] or {})
            case ast.Call(func=ast.Attribute(value=inner, attr="copy"), args=[]):
                return self._dict(inner, node, state)
            case ast.Call(func=ast.Name(id="copy" | "deepcopy") | ast.Attribute(attr="copy" | "deepcopy")):
                return self._dict(value.args[0], node, state) if value.args else None
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._either(test, body, orelse, node, state)
        return None

    def _display(
        self, pairs: Sequence[tuple[ast.expr | str | None, ast.expr]], node: ast.stmt, state: State
    ) -> dict[str, Values]:
        found: dict[str, Values] = {}
        for key, item in pairs:
            if not key:
                found |= self._dict(item, node, state) or {}
            elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                found[key.value] = self._values(("", key.value), item, node, state)
        return found

    def _either(
        self, test: ast.expr, body: ast.expr, orelse: ast.expr, node: ast.stmt, state: State
    ) -> dict[str, Values] | None:
        text = self._text(test, state)
        found: dict[str, Values] = {}
        known = False
        for part, taken in ((body, True), (orelse, False)):
            outer = self._conditions
            self._conditions = (*outer, Condition(text, taken))
            items = self._dict(part, node, state)
            self._conditions = outer
            known = known or items is not None
            for key, values in (items or {}).items():
                passed = frozenset(value.under(Condition(text, taken)) for value in values)
                found[key] = found.get(key, frozenset()) | passed
        return found if known else None

    def _unpack(self, elts: list[ast.expr], value: ast.expr, node: ast.stmt, state: State) -> None:
        match value:
            case ast.Tuple(elts=parts) | ast.List(elts=parts) if len(parts) == len(elts):
                parts = self._read_first(elts, parts, node, state)
                for target, part in zip(elts, parts, strict=True):
                    self._bind(target, part, node, state)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                on, off = state.copy(), state.copy()
                text = self._text(test, state)
                for side, part, taken in ((on, body, True), (off, orelse, False)):
                    outer = self._conditions
                    self._conditions = (*outer, Condition(text, taken))
                    self._unpack(elts, part, node, side)
                    self._conditions = outer
                merged = _merge(on, off, Condition(text, True), Condition(text, False))
                state.cells, state.names = merged.cells, merged.names
                state.dicts, state.kin = merged.dicts, merged.kin
            case _:
                for target in elts:
                    inner = target.value if isinstance(target, ast.Starred) else target
                    self._bind(inner, value, node, state)
                    if isinstance(inner, ast.Name):
                        state.names[inner.id] = None

    def _read_first(
        self, elts: list[ast.expr], parts: list[ast.expr], node: ast.stmt, state: State
    ) -> list[ast.expr]:
        """The right side, where it names what the left side binds: read before anything is bound."""
        bound = {name.id for target in elts for name in ast.walk(target) if isinstance(name, ast.Name)}
        early = []
        for number, part in enumerate(parts):
            if any(_mentions(part, name) for name in bound) and fold(part) is None:
                name = f"{number}@before"
                self._bind_name(name, part, node, state)
                if state.cells.get((name, "")):
                    part = ast.copy_location(ast.Name(id=name, ctx=ast.Load()), part)
            early.append(part)
        return early

    def _values(self, cell: Cell, value: ast.expr, node: ast.stmt, state: State) -> Values:
        """What an expression may evaluate to, as leaves; a literal of a cell of interest is one."""
        match value:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                text = self._text(test, state)
                arms: list[Arriving] = []
                for part, taken in ((body, True), (orelse, False)):
                    condition = Condition(text, taken)
                    arms += [v.under(condition) for v in self._values(cell, part, node, state)]
                return frozenset(arms)
            case ast.NamedExpr(target=ast.Name(id=name), value=inner):
                held = self._values((name, ""), inner, node, state)
                state.cells[name, ""] = held
                return held
        direct = self._held(value, state)
        if direct:
            if cell[1]:
                self._pass(cell, value, node, direct)
            return direct
        if fold(value) is None:
            carried = self._carried(value, state)
            if carried:
                self._pass(cell, value, node, carried)
                return carried
        return self._leaf(cell, value, node) if self.interesting(cell) else frozenset()

    def _pass(self, cell: Cell, value: ast.expr, node: ast.stmt, values: Values) -> None:
        # What an augmented assignment computes has no place of its own: its operand stands for it.
        if isinstance(node, ast.AugAssign):
            value = node.value
        if self.interesting(cell) and id(value) not in self._by_node:
            self._passing[id(value), cell] = Passing(cell, value, node, values)

    def _leaf(self, cell: Cell, value: ast.expr, node: ast.stmt) -> Values:
        leaf = self._by_node.get(id(value))
        if leaf is None:
            leaf = Leaf(len(self.leaves), cell, value, node)
            self._by_node[id(value)] = leaf
            self.leaves.append(leaf)
        return frozenset({Arriving(leaf, Arrival(self._conditions))})

    def _held(self, value: ast.expr, state: State) -> Values:
        cell = _cell_of(value, state)
        return state.cells.get(cell, frozenset()) if cell else frozenset()

    def _carried(self, value: ast.expr, state: State) -> Values:
        """Leaves inside arithmetic: `BLOCK // 2` carries BLOCK's leaves through `_ // 2`."""
        carried: list[Arriving] = []
        for part in _operands(value):
            if held := self._held(part, state):
                transform = ast.unparse(_substitute(value, part))
                carried += [v.through(transform) for v in held]
        return _bounded(frozenset(carried))

    # Uses ---------------------------------------------------------------------------------

    def _method(self, call: ast.Call, node: ast.stmt, state: State) -> None:
        """`config.update(…)`, `config.pop(…)`, `config.setdefault(…)` on a known dict."""
        if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
            return
        owner = state.owner(call.func.value.id)
        key = fold(call.args[0]) if call.args else None
        match call.func.attr:
            case "update":
                named = [(k.arg and ast.Constant(k.arg), k.value) for k in call.keywords]
                items = (self._dict(call.args[0], node, state) or {}) if call.args else {}
                if call.args and not items and state.items(call.func.value.id):
                    self.odd.append(f"{ast.unparse(call)} updates it with what is not known")
                self._put(owner, items | self._display(named, node, state), state)
            case "pop" if isinstance(key, str):
                state.cells.pop((owner, key), None)
            case "setdefault" if isinstance(key, str) and len(call.args) == 2:
                # What stands there already wins; whether it does is not always known.
                there = state.cells.get((owner, key), frozenset())
                added = self._values((owner, key), call.args[1], node, state)
                state.write(owner, key, there | added)

    def _return(self, value: ast.expr, node: ast.stmt, state: State) -> None:
        items = self._dict(value, node, state)
        for key, values in (items or {}).items():
            self._use("return", ("", key), node, values)
        if items is None:
            cell = ("return", "")
            self._use("return", cell, node, self._values(cell, value, node, state))

    def _reads(self, node: ast.stmt, state: State) -> None:
        """Uses in the statement's own expressions: launches, subscript reads, escapes of a dict."""
        taken = _dict_names(_made_dict(node))
        for expression in own_expressions(node):
            self._read_all(expression, node, state, taken)

    def _read_all(self, part: ast.AST, node: ast.stmt, state: State, taken: set[int]) -> None:
        """`taken`: the names that the statement itself makes a dict of, which is no use yet."""
        match part:
            case ast.Subscript(value=ast.Name(), slice=index):
                if isinstance(part.ctx, ast.Load):
                    self._read(part, state)
                self._read_all(index, node, state, taken)
                return
            case ast.Call(func=ast.Attribute(value=ast.Name() as receiver, attr=method)):
                if method in ("update", "pop", "setdefault"):
                    taken = taken | {id(receiver)} | _dict_names(part.args[0] if part.args else None)
                self._escape(part, node, state)
            case ast.Call(func=ast.Subscript()):
                self._launch(part, part.keywords, node, state)
            case ast.Call():
                self._escape(part, node, state)
            case ast.IfExp(test=test):
                for name in ast.walk(test):
                    self._read(name, state)
            case ast.Lambda():
                self._inner.append(part)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                # Whether it is evaluated at all is not looked into: what stood there may stay.
                before = state.cells.get((name, ""), frozenset())
                state.cells[name, ""] = before | self._values((name, ""), value, node, state)
                state.names[name] = None
            case ast.Name(ctx=ast.Load()) if id(part) not in taken:
                self._read(part, state, "read" if isinstance(node, (ast.If, ast.While)) else "load")
                self._all_keys("escape", part.id, part, state)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Load()):
                self._read(part, state, "load")
        for child in ast.iter_child_nodes(part):
            self._read_all(child, node, state, taken)

    def _use_what_is_kept(self) -> None:
        """What an inner function reads, or a global keeps, may be used whenever: it all arrives."""
        if not self.leaves:
            return
        names = set(self._kept)
        for node in self._inner:
            names |= {p.id for p in ast.walk(node) if isinstance(p, ast.Name)} - _parameters(node)
        for leaf in self.leaves if names else ():
            if leaf.cell[0].partition("@")[0] in names:
                self._use("escape", leaf.cell, leaf.node, frozenset({Arriving(leaf, Arrival())}))

    def _read(self, part: ast.AST, state: State, kind: str = "read") -> None:
        cell = _cell_of(part, state)
        if cell and cell in state.cells:
            self._use(kind, cell, part, state.cells[cell])

    def _launch(self, call: ast.Call, keywords: list[ast.keyword], node: ast.stmt, state: State) -> None:
        for keyword in keywords:
            if keyword.arg is None:
                for key, values in (self._dict(keyword.value, node, state) or {}).items():
                    self._use("launch", (key, ""), call, values)
                continue
            cell = (keyword.arg, "")
            if self.interesting(cell):
                values = self._values(cell, keyword.value, node, state)
                self._use("launch", cell, call, values)

    def _escape(self, call: ast.Call, node: ast.stmt, state: State) -> None:
        for argument in [*call.args, *(k.value for k in call.keywords)]:
            if isinstance(argument, ast.Name):
                self._read(argument, state)
            elif isinstance(argument, (ast.Dict, ast.Call)) and not _is_config(call):
                for key, values in (self._dict(argument, node, state) or {}).items():
                    self._use("escape", ("", key), call, values)

    def _all_keys(self, kind: str, name: str, node: ast.AST, state: State) -> None:
        for key, values in state.items(name).items():
            self._use(kind, (state.owner(name), key), node, values)

    def _use(self, kind: str, cell: Cell, node: ast.AST, values: Values) -> None:
        if values and not self._dead:
            passed = frozenset(_under(value, self._conditions) for value in values)
            self.uses.append(Use(kind, cell, node, passed))


def read_only(module: Module, name: str, passing: Passing) -> Slot:
    """A slot that shows an expression on the way and is never edited."""
    node = passing.node
    reason = "" if fold(node) is None else f"{ast.unparse(passing.statement)[:60]} computes with it"
    slot = make_slot(module, name, node, segment_of(passing.statement, node), reason=reason)
    return slot._replace(value=None, passing=True)


def _operands(value: ast.expr) -> Iterator[ast.expr]:
    """The expressions inside one; but what an attribute is taken of is no operand."""
    yield value
    for child in ast.iter_child_nodes(value):
        if isinstance(child, ast.keyword):
            child = child.value
        if isinstance(child, ast.expr) and not isinstance(value, ast.Attribute):
            yield from _operands(child)


def _made_dict(node: ast.stmt) -> ast.expr | None:
    """The expression whose dict the statement returns or binds to a name."""
    match node:
        case ast.Return(value=value):
            return value
        case ast.Assign(targets=targets, value=value) if all(isinstance(t, ast.Name) for t in targets):
            return value
        case ast.AnnAssign(target=ast.Name(), value=value) | ast.AugAssign(target=ast.Name(), value=value):
            return value
    return None


def _dict_names(value: ast.expr | None) -> set[int]:
    """The names in an expression whose items go into the dict that it makes (see `Flow._dict`)."""
    match value:
        case ast.Name():
            return {id(value)}
        case ast.Dict(keys=keys, values=values):
            spreads = (v for k, v in zip(keys, values, strict=True) if k is None)
            return {found for v in spreads for found in _dict_names(v)}
        case ast.Call(func=ast.Name(id="dict" | "copy" | "deepcopy"), args=args, keywords=keywords):
            spreads = (k.value for k in keywords if k.arg is None)
            return {found for v in (*args[:1], *spreads) for found in _dict_names(v)}
        case ast.Call(func=ast.Attribute(value=inner, attr="copy"), args=[]):
            return _dict_names(inner)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _dict_names(left) | _dict_names(right)
        case ast.IfExp(body=body, orelse=orelse):
            return _dict_names(body) | _dict_names(orelse)
    return set()


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {a.arg for a in [*every, *filter(None, (arguments.vararg, arguments.kwarg))]}


def _is_config(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name == "Config"


def _cell_of(value: ast.AST, state: State) -> Cell | None:
    match value:
        case ast.Name(id=name):
            return (name, "")
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str() as key)):
            return (state.owner(name), key)
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
            return (attr, "")
    return None


def _case_test(subject: ast.expr, case: ast.match_case) -> ast.expr | None:
    """A case as a plain test: literals, alternatives of them, and what matches all. None for the rest."""
    match case.pattern:
        case ast.MatchAs(pattern=None):
            plain: ast.expr = ast.Constant(True)
        case ast.MatchValue(value=value):
            plain = ast.Compare(subject, [ast.Eq()], [value])
        case ast.MatchOr(patterns=patterns) if all(isinstance(p, ast.MatchValue) for p in patterns):
            values = [p.value for p in patterns if isinstance(p, ast.MatchValue)]
            plain = ast.Compare(subject, [ast.In()], [ast.Tuple(values, ast.Load())])
        case _:
            return None
    if case.guard is None:
        return plain
    guard = case.guard
    if isinstance(case.pattern, ast.MatchAs) and case.pattern.name:
        guard = _inline(guard, {case.pattern.name: subject})
        return guard
    return guard if isinstance(plain, ast.Constant) else ast.BoolOp(ast.And(), [plain, guard])


def _called(value: ast.expr, function: Callable[[str], FunctionNode | None]) -> ast.expr:
    """The expression with calls of functions that only return an expression written out."""
    if not any(_body_of(part, function) for part in ast.walk(value)):
        return value

    def visit(node: ast.AST) -> ast.AST:
        return _body_of(node, function) or _rebuild(node, visit)

    result = visit(value)
    assert isinstance(result, ast.expr)
    return result if _size(result) <= _MAX_INLINE else value


def _body_of(node: ast.AST, function: Callable[[str], FunctionNode | None]) -> ast.expr | None:
    """What a call evaluates to: the one expression that its function returns, over the arguments."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    called = function(node.func.id)
    if called is None or not is_plain(called):
        return None
    body = [s for s in called.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    names = called.args
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
        return None
    if names.vararg or names.kwarg or names.kwonlyargs or names.posonlyargs:
        return None
    given: dict[str, ast.expr | None] = dict(zip((a.arg for a in names.args), node.args, strict=False))
    given |= {k.arg: k.value for k in node.keywords if k.arg}
    value = body[0].value
    if {*given} != {a.arg for a in names.args} or len(node.args) > len(names.args) or not _pure(value):
        return None
    return _inline(value, given)


def _as_load(target: ast.expr) -> ast.expr:
    match target:
        case ast.Name(id=name):
            return ast.copy_location(ast.Name(id=name, ctx=ast.Load()), target)
        case ast.Subscript(value=value, slice=key):
            return ast.copy_location(ast.Subscript(value=value, slice=key, ctx=ast.Load()), target)
    return target


class _Inliner(ast.NodeTransformer):
    def __init__(self, names: dict[str, ast.expr | None]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        known = self.names.get(node.id, node)
        # A name that was bound anew is not what its parameter, or a fact of its name, was.
        return known if known is not None else ast.Name(id=f"local_{node.id}", ctx=ast.Load())


class _Substituter(ast.NodeTransformer):
    def __init__(self, part: ast.AST) -> None:
        self.part = part

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self.part:
            return ast.Name(id="_", ctx=ast.Load())
        # A fresh node each: the tree is shared with the module.
        return _rebuild(node, self.visit)


def _rebuild(node: ast.AST, visit: Callable[[ast.AST], ast.AST]) -> ast.AST:
    fields: dict[str, object] = {}
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            fields[name] = [visit(v) if isinstance(v, ast.AST) else v for v in value]
        else:
            fields[name] = visit(value) if isinstance(value, ast.AST) else value
    return ast.copy_location(type(node)(**fields), node)


def _inline(value: ast.expr, names: dict[str, ast.expr | None]) -> ast.expr:
    if not any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(value)):
        return value
    inliner = _Inliner(names)

    def visit(node: ast.AST) -> ast.AST:
        return inliner.visit_Name(node) if isinstance(node, ast.Name) else _rebuild(node, visit)

    result = visit(value)
    assert isinstance(result, ast.expr)
    return result if _size(result) <= _MAX_INLINE else value


def _size(value: ast.expr) -> int:
    return sum(1 for _ in ast.walk(value))


def _substitute(value: ast.expr, part: ast.AST) -> ast.AST:
    return _Substituter(part).visit(value)


_PURE = (
    ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Attribute,
    ast.Tuple, ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.Load, ast.Subscript, ast.List, ast.Call,
    ast.keyword,
)  # fmt: skip


def _pure(value: ast.expr) -> bool:
    """Whether a name may be replaced by this expression in a test."""
    nodes = list(ast.walk(value))
    return len(nodes) <= _MAX_INLINE and all(isinstance(node, _PURE) for node in nodes)


def _mentions(value: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))


def _assigned(body: list[ast.stmt]) -> set[str]:
    return {
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _under_all(state: State, condition: Condition) -> State:
    """After a branch that does not return, all values have passed its test."""
    cells = {
        cell: frozenset(value.under(condition) for value in values) for cell, values in state.cells.items()
    }
    return State(cells, state.names, state.dicts, state.kin)


def _join(states: Iterable[State | None]) -> State | None:
    """Union of what the live states hold."""
    live = [state for state in states if state is not None]
    if not live:
        return None
    joined = live[0]
    for state in live[1:]:
        joined = _merge(joined, state)
    return joined.copy()


def _merge(left: State, right: State, on: Condition | None = None, off: Condition | None = None) -> State:
    """Join of two branches; where they differ, each side's values carry the test they passed."""
    merged = State({}, dict(left.names), dict(left.dicts), left.kin | right.kin)
    _forget_different(merged, right)

    def both(a: Values, b: Values) -> Values:
        if a == b:
            return a
        a = frozenset(value.under(on) for value in a) if on else a
        return _bounded(a | (frozenset(value.under(off) for value in b) if off else b))

    for cell in left.cells.keys() | right.cells.keys():
        merged.cells[cell] = both(left.cells.get(cell, frozenset()), right.cells.get(cell, frozenset()))
    for name in left.dicts.keys() | right.dicts.keys():
        if left.owner(name) != right.owner(name):
            # Another dict on each side: behind the branch the name stands for a third.
            sides = {left.owner(name), right.owner(name)}
            merged.dicts[name] = f"{name}@{hash(frozenset(sides))}"
            kin = [merged.kin.get(side, frozenset()) for side in sides]
            merged.kin[merged.dicts[name]] = frozenset(sides).union(*kin)
            mine, other = left.items(name), right.items(name)
            for key in mine.keys() | other.keys():
                values = both(mine.get(key, frozenset()), other.get(key, frozenset()))
                merged.cells[merged.dicts[name], key] = values
    return merged


def _forget_different(state: State, other: State) -> None:
    for name in state.names.keys() | other.names.keys():
        a, b = state.names.get(name), other.names.get(name)
        if a is not b and (a is None or b is None or ast.unparse(a) != ast.unparse(b)):
            state.names[name] = None
