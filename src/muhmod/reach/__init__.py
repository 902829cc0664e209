"""Does a slot's value reach a kernel? The verdict, and the way that shows it.

`reaches`: a way leads to a launch, a precompiled call or an autotuner, and nothing known excludes it.
`overridden`: something else is put in its place before anybody looks. `stopped`: it ends before a kernel, by
a branch, import or call that is excluded, or since nobody takes it further. `unknown`: what would have to be known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from muhmod.model import Found, Reach, Slot, Step, Wake
from muhmod.reach import cache
from muhmod.reach.living import Dead, Living
from muhmod.reach.trace import Findings, Left, Loose, Sink, Tracer
from muhmod.reach.value import Asked, Function, Marks, Trail, joined
from muhmod.reach.world import NOTHING, World
from muhmod.rulebook import Platform
from muhmod.search import Reading
from muhmod.site import Module

_MOST_ROUNDS = 40
_MOST_READERS = 400
_ENOUGH_RUNS = 150


class Reaches:
    """Answers for the slots of one tree on one platform."""

    def __init__(
        self, reading: Reading, platform: Platform, instead: Mapping[tuple[str, str], object] = NOTHING
    ) -> None:
        """`instead`: constants, by (file, name), that stand for what the source has: what would be if."""
        self.world = World(reading, platform, instead)
        self.tracer = Tracer(self.world)
        self.living = Living(self.world, self.tracer)
        self._known: dict[Asked, Reach] = {}
        self._is_new = False
        self._onward: dict[tuple[Left, ...], Findings] = {}

    def slot(self, file: str, slot: Slot) -> Reach:
        """The verdict on one slot."""
        asked = Asked(file, slot.start, slot.end, slot.line, slot.text)
        if asked not in self._known:
            self._is_new = True
            try:
                self._known[asked] = self._slot(asked)
            except RecursionError:
                self._known[asked] = Reach("unknown", "the code is nested too deeply to be followed")
        return self._known[asked]

    @contextmanager
    def remembered(self) -> Iterator[Reaches]:
        """With the verdicts of earlier runs on the same tree, keeping those of this one."""
        place = cache.path(self.world.reading, self.world.platform, self.world.instead)
        self._known, self._is_new = cache.load(place), False
        yield self
        if self._is_new:
            cache.save(place, self._known)

    def supposing(self, instead: Mapping[tuple[str, str], object]) -> Reaches:
        """The same tree on the same platform, if these constants were others."""
        other = Reaches(self.world.reading, self.world.platform, instead)
        other.world.read_with(self.world)
        return other

    def wakes(self, flag: Found, sites: Sequence[Found]) -> tuple[Wake, ...]:
        """What is dead as long as a flag is False, and would not be if it were True."""
        dead = [(site, slot) for site in sites for slot in site.slots
                if self.slot(site.file, slot).verdict in _DEAD]  # fmt: skip
        with self.supposing({(flag.file, slot.name): True for slot in flag.slots}).remembered() as then:
            after = [(site, slot, then.slot(site.file, slot).verdict) for site, slot in dead]
        return tuple(Wake(site.site, site.file, slot.line, slot.name, verdict)
                     for site, slot, verdict in after if verdict not in _DEAD)  # fmt: skip

    def site(self, found: Found) -> tuple[Reach, ...]:
        """The verdicts on a site's slots, in their order."""
        return tuple(self.slot(found.file, slot) for slot in found.slots)

    def _slot(self, asked: Asked) -> Reach:
        module = self.world.module(asked.file)
        if module is None:
            return Reach("unknown", f"{asked.file} cannot be read")
        node = _node_at(module, asked.start, asked.end)
        if node is None:
            return Reach(
                "unknown", f"`{asked.text.splitlines()[0][:60] if asked.text else ''}` is no expression"
            )
        origin = Step(asked.file, asked.line, self.world.line(asked.file, asked.line))
        dead = self.living.place(asked.file, node)
        self.tracer.begin({id(node): (origin,)})
        self._start(asked.file, node)
        self._go_on()
        return self._verdict(origin, dead, self._statement_of(asked.file, node))

    def _statement_of(self, file: str, node: ast.AST) -> range:
        """The lines of the statement that holds the slot."""
        parents = self.world.parents(file)
        current: ast.AST | None = node
        while current is not None and not isinstance(current, ast.stmt):
            current = parents.get(id(current))
        first = getattr(current, "lineno", 1)
        return range(first, (getattr(current, "end_lineno", None) or first) + 1)

    def _start(self, file: str, node: ast.AST) -> None:
        """Run what holds the slot: its function, or the module's top level."""
        function = self._function_of(file, node)
        if function is None:
            self.tracer.run_module(file)
        else:
            result = self.tracer.function(function)
            self._returned(function, result.marks)

    def _function_of(self, file: str, node: ast.AST) -> Function | None:
        """The outermost function whose body holds the node."""
        parents = self.world.parents(file)
        chain: list[ast.AST] = []
        below: ast.AST = node
        current = parents.get(id(node))
        while current is not None:
            if isinstance(current, (ast.FunctionDef, ast.AsyncFunctionDef)):
                header = not any(below is s for s in current.body) and not _is_default(current, below)
                chain.append(ast.Pass() if header else current)
            elif isinstance(current, ast.ClassDef):
                chain.append(current)
            below, current = current, parents.get(id(current))
        names: list[str] = []
        for one in reversed(chain):
            if isinstance(one, ast.Pass):
                return None
            names.append(one.name)  # type: ignore[attr-defined]
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return Function(file, ".".join(names), one.lineno)
        return None

    def _returned(self, function: Function, marks: Marks) -> None:
        if marks:
            name = function.path.rpartition(".")[2]
            if name.startswith("__") and name.endswith("__"):
                # No word tells who uses an operator, a loop or a `with` on such an object.
                trail = min(marks.values(), key=len)
                self.tracer.loose.setdefault(
                    Loose(f"who calls {function.path}", trail, function, function.file)
                )
            before = self.tracer.returns.get(function, {})
            after = joined(before, marks)
            if set(after) != set(before):
                self.tracer.returns[function] = after
                self.tracer.new.append(("returns", function))

    def _go_on(self) -> None:
        """Follow what has left the function; once for all slots whose values leave in the same places."""
        left = self.tracer.left()
        if self.tracer.sinks or not left:
            self._spread()
            return
        places = (*left,)
        known = self._onward.get(places)
        if known is None:
            before = self.tracer.found()
            self.tracer.resume(places)
            self._spread()
            known = self._onward[places] = self.tracer.found()
            self.tracer.begin({})
            self.tracer.add(before)
        self.tracer.add(known.after([*left.values()]))

    def _spread(self) -> None:
        """Run all that read what a function returns, a module's name, or an attribute, until nothing is new."""
        rounds = 0
        while self.tracer.new and rounds < _MOST_ROUNDS and not self._settled():
            rounds += 1
            kind, source = self.tracer.new.pop(0)
            self.tracer._memo.clear()
            match kind:
                case "returns":
                    assert isinstance(source, Function)
                    # A class is made by its own name.
                    names = {source.path.removesuffix(".__init__").rpartition(".")[2]}
                case "global":
                    assert isinstance(source, tuple)
                    names = {source[1]}
                case _:
                    names = {str(source)}
            for name in sorted(names):
                self._readers(name)
        if self.tracer.new and not self._settled():
            self.tracer.loose.setdefault(
                Loose("it goes through too many places to be followed", (), None, "")
            )

    def _settled(self) -> bool:
        """Whether the verdict stands, after more work than finding further kernels is worth."""
        sure = [s for s in self.tracer.sinks if not s.maybe and not s.control]
        return self.tracer.runs > _ENOUGH_RUNS and any(self._dead(sink) is None for sink in sure)

    def _readers(self, name: str) -> None:
        seen = 0
        pending, done = [name], set()
        while pending:
            word = pending.pop()
            if word in done:
                continue
            done.add(word)
            files = self.world.mentions(word)
            for file in files:
                module = self.world.module(file)
                if module is None:
                    self.tracer.loose.setdefault(Loose(f"{file} cannot be read", (), None, file))
                    continue
                top, functions = self._mentioning(file, word)
                pending += [alias for alias in self._aliases(file, word) if alias not in done]
                if top:
                    self.tracer.run_module(file)
                for function in functions:
                    if self._settled():
                        return
                    seen += 1
                    if seen > _MOST_READERS:
                        self.tracer.loose.setdefault(
                            Loose(f"{word} is read in too many places", (), None, file)
                        )
                        return
                    result = self.tracer.function(function)
                    self._returned(function, result.marks)

    def _mentioning(self, file: str, word: str) -> tuple[bool, list[Function]]:
        """Whether the top level mentions a word, and the functions that do, outermost ones."""
        index = self.world.index(file)
        top = False
        found: dict[Function, None] = {}
        nodes: list[ast.AST] = [
            node for node in index.words.get(word, ())
            if not isinstance(node, ast.Constant)
            or (node.value == word and isinstance(index.parents.get(id(node)), ast.Call))
        ]  # fmt: skip
        nodes += [
            n for n in index.imports if any((a.asname or a.name).split(".")[0] == word for a in n.names)
        ]
        for node in nodes:
            function = self._function_of(file, node)
            if function is None:
                top = True
            else:
                found[function] = None
        return top, list(found)

    def _aliases(self, file: str, word: str) -> list[str]:
        """The names under which a file imports the word."""
        names = [a for node in self.world.index(file).imports for a in node.names]
        return [a.asname for a in names if a.name == word and a.asname and a.asname != word]

    # The verdict ----------------------------------------------------------------------------

    def _verdict(self, origin: Step, dead: Dead | None, own: range) -> Reach:
        tracer = self.tracer
        if dead is not None and not dead.perhaps:
            return Reach("stopped", _sentence(dead), _path(origin, dead.trail))
        alive: list[Sink] = []
        stops: list[tuple[Sink, Dead]] = []
        for sink in tracer.sinks:
            why = self._dead(sink) or dead
            if why is None:
                alive.append(sink)
            elif why.perhaps:
                alive.append(sink._replace(maybe=sink.maybe or why.perhaps))
            else:
                stops.append((sink, why))
        sure = [s for s in alive if not s.maybe]
        order = sorted(sure or alive, key=lambda s: (s.control, s.kind == "imports", len(s.trail), s.file))
        loose = [
            one
            for one in tracer.loose
            if one.within is None or (gone := self.living.function(one.within)) is None or gone.perhaps
        ]
        if sure:
            return Reach("reaches", _arrives(order), _path(origin, order[0].trail))
        if order:
            return Reach(
                "unknown", f"it would have to be known {order[0].maybe}", _path(origin, order[0].trail)
            )
        if loose:
            one = min(loose, key=lambda o: len(o.trail))
            return Reach("unknown", f"it would have to be known {one.why}", _path(origin, one.trail))
        if stops:
            sink, why = max(stops, key=lambda pair: len(pair[0].trail))
            return Reach("stopped", _sentence(why), _path(origin, (*sink.trail, *why.trail)))
        ends = list(tracer.ends)
        excluded = [e for e in ends if e.kind == "excluded"]
        replaced = [e for e in ends if e.kind == "replaced"]
        if excluded and not tracer.flows:
            return Reach("stopped", excluded[0].why, _path(origin, excluded[0].trail))
        direct = [e for e in replaced if all(t.file == origin.file and t.line in own for t in e.trail[:-1])]
        if direct and not tracer.flows:
            end = direct[-1]
            return Reach("overridden", f"replaced at {end.trail[-1].file}:{end.trail[-1].line}: {end.why}",
                         _path(origin, end.trail))  # fmt: skip
        ignored = [e for e in ends if e.kind == "ignored"]
        if ignored:
            end = max(ignored, key=lambda e: len(e.trail))
            return Reach(
                "stopped", f"{end.why} ({end.trail[-1].file}:{end.trail[-1].line})", _path(origin, end.trail)
            )
        if replaced:
            end = replaced[-1]
            return Reach("stopped", f"what it feeds is replaced at {end.trail[-1].file}:{end.trail[-1].line}: {end.why}",
                         _path(origin, end.trail))  # fmt: skip
        longest = max(tracer.flows, key=len, default=())
        return Reach("stopped", "nothing that is run reads it", _path(origin, longest))

    def _dead(self, sink: Sink) -> Dead | None:
        """Why a sink is never arrived at: a function on the way, or the kernel that is tuned, is never run."""
        perhaps = None
        for dead in self._gone(sink):
            if dead is not None and not dead.perhaps:
                return dead
            perhaps = perhaps or dead
        return perhaps

    def _gone(self, sink: Sink) -> Iterator[Dead | None]:
        for step in sink.trail:
            yield self.living.line(step.file, step.line)
        if sink.within is not None:
            yield self.living.function(sink.within)
        elif sink.file:
            yield self.living.module(sink.file)
        if sink.kind == "autotune" and sink.of is not None:
            yield self.living.function(sink.of)


_DEAD = ("overridden", "stopped")


def is_false_flag(found: Found) -> bool:
    """Whether a site is a flag that is False, whatever is asked."""
    return (
        found.site == "triton-flag" and bool(found.slots) and all(slot.value is False for slot in found.slots)
    )


def _is_default(function: ast.FunctionDef | ast.AsyncFunctionDef, below: ast.AST) -> bool:
    return below is function.args


_MOST_NAMED = 4


def _arrives(sinks: list[Sink]) -> str:
    """In a sentence where it arrives, the nearest first; what it only decides counts where nothing else does."""
    first = sinks[0]
    said: dict[str, str] = {}
    for sink in sinks:
        if sink.control is first.control and (sink.kind == "imports") is (first.kind == "imports"):
            place = f"{sink.trail[-1].file}:{sink.trail[-1].line}" if sink.trail else sink.file
            what = {"launch": f"the launch of {sink.what}", "call": f"the call of {sink.what}",
                    "autotune": "the autotuner", "imports": f"`{sink.what}`"}[sink.kind]  # fmt: skip
            said.setdefault(what, place)
    verb = "it decides" if first.kind == "imports" else "it selects" if first.control else "it arrives at"
    named = [f"{what} ({place})" for what, place in said.items()]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return f"{verb} {', '.join(named[:_MOST_NAMED])}{more}"


def _sentence(dead: Dead) -> str:
    return dead.why or (dead.trail[-1].does if dead.trail else "it is never run")


def _path(origin: Step, trail: Trail) -> tuple[Step, ...]:
    steps = trail if trail and trail[0] == origin else (origin, *trail)
    return tuple(dict.fromkeys(steps))


def _node_at(module: Module, start: int, end: int) -> ast.AST | None:
    """The expression, or statement, of exactly these chars."""
    line = module.line_of(start)
    pending: list[ast.AST] = [module.tree]
    while pending:
        node = pending.pop()
        first = getattr(node, "lineno", None)
        if first == line and isinstance(node, (ast.expr, ast.stmt)):
            inner = node.value if isinstance(node, ast.Expr) else node
            if module.span(inner) == (start, end):
                return inner
        for child in ast.iter_child_nodes(node):
            decorators = [d.lineno for d in getattr(child, "decorator_list", ())]
            low = min([getattr(child, "lineno", 0), *decorators])
            high = getattr(child, "end_lineno", None) or 10**9
            if low <= line <= high:
                pending.append(child)
    return None
