"""Rules on trial: before → after → after → before, a pack's own fixtures, and upstream-like changes.

All in throw-away copies of the files that a rule reads; the tree itself is only read.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from muhmod import catalog, engine, fingerprint, journal, lock, mutate, patch, record, tree, writer
from muhmod.errors import MuhmodError
from muhmod.model import SiteReport, State
from muhmod.mutate import Mutation, Splice, Spot
from muhmod.rulebook import Pack, Rule
from muhmod.search import Reading, binds, roomy
from muhmod.site import Module
from muhmod.tree import Tree

Files: TypeAlias = "dict[str, bytes]"
Outcome = Literal["right", "refused", "wrong place", "silent", "absent"]
MISAPPLIED: tuple[Outcome, ...] = ("wrong place", "silent")
TOOLS = ("muhmod", "git apply", "patch")


class Cycle(NamedTuple):
    """One rule applied, applied again and taken back, on the tree or on a fixture. `fault`: what went wrong.

    `code`: the exit code that it deserves.
    """

    rule: str
    on: str
    state: State
    reason: str = ""
    fault: str = ""
    code: int = 0


class Run(NamedTuple):
    """What one tool made of one mutation of one rule's site.

    `outcome`: `right`: in the right place; `refused`: a non-zero exit; `wrong place`: something else than
    the right text stands there, without a word; `silent`: applied, or passed, although what it rested on has
    changed; `absent`: no such tool. `code`: its exit code; `said`: state and reason.
    """

    rule: str
    mutation: str
    tool: str
    outcome: Outcome
    code: int = 0
    said: str = ""


class _Copy:
    """A throw-away tree, and what can be done to it. One folder serves many trees: few files differ."""

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="muhmod-")).resolve()
        self.tree = Tree(self.home / name, self.home, self.home)
        self.tree.package.mkdir()
        self.lock = lock.beside(self.tree.home, None)
        self.put(files)

    def put(self, files: Mapping[str, bytes], known: bytes = b"") -> None:
        """Make it the tree of just these files, with that lock or none."""
        there = self.files()
        for file in {*there} - {*files}:
            (self.tree.package / file).unlink()
        for file, data in files.items():
            if there.get(file) != data:
                path = self.tree.package / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        if known:
            self.lock.write_bytes(known)
        else:
            self.lock.unlink(missing_ok=True)

    def __enter__(self) -> _Copy:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def apply(self, pack: Pack) -> engine.Plan:
        """`muhmod apply`, with the lock that is there. Raises MuhmodError."""
        known = lock.load(self.lock, lock.name_of(self.tree.package, self.lock))
        with journal.held(self.tree):
            made = engine.plan(self.tree, pack, engine.Options(), known)
            return made if made.code else writer.apply([made], None)[0]

    def revert(self) -> int:
        """`muhmod revert`: its exit code. Raises MuhmodError."""
        with journal.held(self.tree):
            made = writer.plan_revert(self.tree, None)
            return made.code or writer.revert(made).code

    def files(self) -> Files:
        """The Python files as they stand."""
        package = self.tree.package
        return {p.relative_to(package).as_posix(): p.read_bytes() for p in package.rglob("*.py")}


# Cycles ----------------------------------------------------------------------------------------


def cycles(of: Tree, pack: Pack) -> list[Cycle]:
    """Each rule by itself on the tree. Raises MuhmodError."""
    return [
        _cycle(rule.name, "tree", alone(pack, rule), of.name, Case(of, pack, rule).files)
        for rule in pack.rules
    ]


def fixtures(pack: Pack) -> list[Cycle]:
    """The pairs in `fixtures/RULE/FORM/{before,after}.py` beside the pack, each by its rule."""
    folder = Path(pack.path).parent / "fixtures"
    found = []
    for rule in pack.rules:
        for form in sorted(path.parent for path in (folder / rule.name).glob("*/before.py")):
            files = {"__init__.py": b"", "module.py": (form / "before.py").read_bytes()}
            after = form / "after.py"
            wanted = after.read_bytes() if after.is_file() else b""
            name = f"fixtures/{rule.name}/{form.name}"
            found.append(_cycle(rule.name, name, alone(pack, rule), pack.packages[0], files, wanted))
    return found


def alone(pack: Pack, rule: Rule) -> Pack:
    """The pack with one rule, which waits for no other."""
    guards = tuple(guard for guard in rule.guards if not guard.needs)
    return pack._replace(rules=(rule._replace(depends_on=(), guards=guards),))


def _cycle(rule: str, on: str, one: Pack, name: str, before: Files, wanted: bytes | None = None) -> Cycle:
    with _Copy(name, before) as copy:
        try:
            made = copy.apply(one)
        except MuhmodError as error:
            return Cycle(rule, on, "unrewritable", error.message, "it cannot be tried", error.code)
        (row,) = made.sites
        after = copy.files()
        if row.code:
            return Cycle(rule, on, row.state, row.reason, "it cannot be tried", row.code)
        fault = _faults(copy, one, made, before, after)
        if wanted is not None and after["module.py"] != wanted:
            fault = f"what it writes is not {on}/after.py" if wanted else f"there is no {on}/after.py"
        return Cycle(rule, on, row.state, row.reason, fault, 3 if fault else 0)


def _faults(copy: _Copy, one: Pack, made: engine.Plan, before: Files, after: Files) -> str:
    changed = [change.file for change in made.changes]
    try:
        again = copy.apply(one)
        if again.code or again.changes or copy.files() != after:
            return f"a second run is not empty: {again.sites[0].state}: {again.sites[0].reason}"
        if changed and copy.revert():
            return "revert refuses"
    except MuhmodError as error:
        return error.message
    if copy.files() != before:
        return f"revert does not give back the bytes of {', '.join(changed)}"
    return ""


# Mutations -------------------------------------------------------------------------------------


class Case:
    """One rule on a tree: the files that it reads, what it writes there, and where.

    `wrote`: its lock is that of the applied tree, and not of the pristine one.
    """

    def __init__(self, of: Tree, pack: Pack, rule: Rule, *, wrote: bool = False) -> None:
        self.name, self.rule, self.pack, self.wrote = of.name, rule, alone(pack, rule), wrote
        self.reading = Reading(of, pack.packages)
        self.plan = engine.plan(of, self.pack, engine.Options(), None)
        seen = {file for file, _ in self.plan.stamp.seen}
        there = [file for file in sorted(seen) if tree.presence(of, file) == "file"]
        self.files: Files = {file: tree.read(of, file) for file in there}

    @property
    def row(self) -> SiteReport:
        """The rule's row on the pristine tree."""
        return self.plan.sites[0]

    @cached_property
    def lock(self) -> bytes:
        """The lock that `muhmod pin` writes on the pristine tree, or `muhmod apply`."""
        with _Copy(self.name, self.files) as copy:
            if self.wrote and self.plan.changes:
                copy.apply(self.pack)
                return copy.lock.read_bytes()
            made = engine.plan(copy.tree, self.pack, engine.Options(), None)
            if [c[:3] for c in made.changes] != [c[:3] for c in self.plan.changes]:
                raise AssertionError(f"{self.rule.name}: the files that it reads are not all that it needs")
            bare = made._replace(changes=())
            known = record.locked(bare, lock.name_of(copy.tree.package, copy.lock), copy.lock)
            return known._replace(pinned=True).dump()

    @cached_property
    def splices(self) -> dict[str, tuple[Splice, ...]]:
        """What the rule writes, by file, over the pristine texts."""
        found = {}
        for change in self.plan.changes:
            shift, rows = 0, []
            for _, splice in sorted(change.splices, key=lambda row: row[1].at):
                at = splice.at - shift
                rows.append(Splice(at, at + len(splice.old), splice.new))
                shift += len(splice.new) - len(splice.old)
            found[change.file] = tuple(rows)
        return found

    @cached_property
    def patch(self) -> bytes:
        """The diff that was made on the pristine tree."""
        return b"".join(patch.diff(f"{self.name}/{c.file}", c.before, c.after) for c in self.plan.changes)

    @cached_property
    def text(self) -> str:
        """The pristine text of the site's file."""
        return tree.decode(self.files[self.row.file], self.row.file).text

    @cached_property
    def spot(self) -> Spot:
        """The site in the pristine text: the literals that change, or those that would if they differed."""
        module = Module(self.text)
        every = catalog.site(self.rule.site).find(module, self.reading.from_file(self.row.file))
        found = next(
            one for one in (roomy(self.rule, o, module) for o in every) if binds(self.rule, one, module)
        )
        slots = fingerprint.governed(found, self.rule.slots, remove=self.rule.remove)
        written = self.splices.get(self.row.file, ())
        spans = tuple((s.start, s.end) for s in written or slots)
        nodes = [s.node for s in module.scopes() if s.path == found.scope and s.node is not None]
        nth = sum((node.end_lineno or 0) < found.line for node in nodes)
        names = tuple(dict.fromkeys(slot.name for slot in slots))
        taken = frozenset(slot.new for slot in self.row.slots)
        return Spot(module, found.scope, nth, spans, names, Path(self.row.file).stem, taken)

    @cached_property
    def applied(self) -> Spot:
        """The site in the text that the rule writes."""
        written = self.splices.get(self.row.file, ())
        module = Module(mutate.spliced(self.text, written)) if written else self.spot.module
        spans, shift = [], 0
        for splice in written:
            if splice.new:
                spans.append((splice.start + shift, splice.start + shift + len(splice.new)))
            shift += len(splice.new) - (splice.end - splice.start)
        return self.spot._replace(module=module, spans=tuple(spans) if written else self.spot.spans)


class Mutant(NamedTuple):
    """A mutated tree, and the tree that is right after an edit (None where only a refusal is)."""

    mutation: Mutation
    files: Files
    wanted: Files | None


def trials(
    of: Tree,
    pack: Pack,
    mutations: Sequence[Mutation] = mutate.MUTATIONS,
    tools: Sequence[str] = TOOLS,
    *,
    wrote: bool = False,
) -> list[Run]:
    """Every rule whose site is in the tree, under every mutation, by each tool. Raises MuhmodError.

    `wrote`: muhmod's lock is that of the applied tree.
    """
    runs: list[Run] = []
    for rule in pack.rules:
        case = Case(of, pack, rule, wrote=wrote)
        if case.plan.code or not case.row.file:
            continue
        with _Copy(case.name, case.files) as copy:
            for mutant in mutants(case, mutations):
                runs += [_run(case, mutant, tool, copy) for tool in tools if tool == "muhmod" or case.patch]
    return runs


def mutants(case: Case, mutations: Iterable[Mutation]) -> Iterator[Mutant]:
    """The mutated trees of a case: those that parse and differ."""
    for mutation in mutations:
        change = mutation.change(case.spot)
        files = _mutated(case, case.text, change) if change is not None else None
        if files is None or files == case.files:
            continue
        yield Mutant(mutation, files, _wanted(case, mutation, change) if mutation.keeps else None)


def _wanted(case: Case, mutation: Mutation, change: mutate.Change | None) -> Files | None:
    """The mutation of the applied tree.

    Where it leaves the edited literals alone, both are spliced into the pristine text; else it is made
    again at the same place of the applied text.
    """
    written = case.splices.get(case.row.file, ())
    if change is None:
        return None
    apart = not any(m.start < w.end and w.start < m.end for m in change.splices for w in written)
    if apart:
        change = change._replace(splices=change.splices + written)
        files = _mutated(case, case.text, change)
    else:
        again = mutation.change(case.applied)
        files = _mutated(case, case.applied.module.text, again) if again is not None else None
    for other in case.plan.changes:
        if files is not None and other.file != case.row.file:
            files[other.file] = other.after
    return files


def _mutated(case: Case, text: str, change: mutate.Change | None) -> Files | None:
    if change is None:
        return None
    files = {file: data for file, data in case.files.items() if file != case.row.file}
    coded = tree.decode(case.files[case.row.file], case.row.file)
    ends = "\r\n" if "\r\n" in coded.text else "\n"
    for suffix, new in change.files(text).items():
        if ends != "\n":
            new = new.replace(ends, "\n").replace("\n", ends)
        file = case.row.file.removesuffix(".py") + suffix + ".py"
        try:
            ast.parse(new)
            files[file] = coded.encode(new)
        except (SyntaxError, ValueError):
            return None
    return files


def _run(case: Case, mutant: Mutant, tool: str, copy: _Copy) -> Run:
    work = _muhmod if tool == "muhmod" else _other
    copy.put(mutant.files, case.lock)
    code, said = work(case, copy, tool)
    after = copy.files()
    outcome = _judged(mutant, after, code, loud=tool != "muhmod") if code >= 0 else "absent"
    if outcome == "silent" and mutant.mutation.keeps and said.startswith("held") and after == mutant.files:
        # By the rule's own leave, and said: nothing was passed over.
        outcome = "refused"
    return Run(case.rule.name, mutant.mutation.name, tool, outcome, code, said)


def _muhmod(case: Case, copy: _Copy, tool: str) -> tuple[int, str]:
    try:
        made = copy.apply(case.pack)
    except MuhmodError as error:
        return error.code, error.message
    row = made.sites[0]
    return made.code, f"{row.state}: {row.reason}" if row.reason else row.state


_COMMANDS = {"git apply": ["git", "apply", "-"], "patch": ["patch", "-p1", "-f", "-s"]}


def _other(case: Case, copy: _Copy, tool: str) -> tuple[int, str]:
    command = _COMMANDS[tool]
    if shutil.which(command[0]) is None:
        return -1, f"there is no {command[0]}"
    environment = os.environ | {"LC_ALL": "C", "GIT_CEILING_DIRECTORIES": str(copy.home.parent)}
    ran = subprocess.run(
        command, input=case.patch, cwd=copy.home, env=environment, capture_output=True, check=False
    )
    said = (ran.stdout + ran.stderr).decode("utf-8", "replace").strip().splitlines()
    return ran.returncode, said[0] if said else ""


def _judged(mutant: Mutant, after: Files, code: int, *, loud: bool) -> Outcome:
    """`loud`: a non-zero exit counts as a refusal even where half of it was written."""
    same = _layout_free if mutant.mutation.layout else dict
    if code:
        return "refused" if loud or after == mutant.files else "wrong place"
    if mutant.wanted is not None and same(after) == same(mutant.wanted):
        return "right"
    return "wrong place" if mutant.mutation.keeps and after != mutant.files else "silent"


def _layout_free(files: Files) -> dict[str, str]:
    return {file: ast.dump(ast.parse(data)) for file, data in files.items()}


# Figures ---------------------------------------------------------------------------------------


class Tally(NamedTuple):
    """How a tool fared: runs by outcome."""

    right: int = 0
    refused: int = 0
    misapplied: int = 0

    @property
    def runs(self) -> int:
        """All of them."""
        return self.right + self.refused + self.misapplied

    @property
    def rate(self) -> float:
        """The share that was misapplied, from 0 to 1."""
        return self.misapplied / self.runs if self.runs else 0.0


def tally(runs: Iterable[Run], tool: str) -> Tally:
    """The outcomes of one tool; where it is absent, none."""
    outcomes = [run.outcome for run in runs if run.tool == tool and run.outcome != "absent"]
    wrong = sum(outcome in MISAPPLIED for outcome in outcomes)
    return Tally(outcomes.count("right"), outcomes.count("refused"), wrong)
