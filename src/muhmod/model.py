"""The nouns: frozen values that every floor passes on and none changes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

State = Literal[
    "applied", "already", "pending", "held", "satisfied-upstream", "drifted", "lost",
    "ambiguous", "unrewritable", "skipped", "absent",
]  # fmt: skip
Cause = Literal["upstream moved", "somebody edited", "both", "rules changed"]
Kind = Literal["limit", "heuristic", "measured", "literal"]
Status = Literal["measured", "documented", "assumed", "set"]
Scalar = int | float | bool | str
Config = tuple[tuple[str, Scalar], ...]
Verdict = Literal["fits", "over limit", "under-predicted", "does not compile", "unverifiable"]

STATUS_ORDER: tuple[Status, ...] = ("set", "measured", "documented", "assumed")


class Candidate(NamedTuple):
    """One claim about a fact: its value in the fact's unit, how it is known, and by whom."""

    value: Scalar
    status: Status
    source: str


class Fact(NamedTuple):
    """A resolved fact: the claim that is used, and the rival claims that were not."""

    name: str
    value: Scalar
    unit: str
    status: Status
    source: str
    rivals: tuple[Candidate, ...] = ()
    chosen: str = ""


def differing(texts: tuple[str, ...], most: int = 60) -> tuple[str, ...]:
    """The texts, cut to what shows: long ones that begin alike from a little before where they differ."""
    long = [text for text in texts if len(text) > most]
    alike = next((n for n, chars in enumerate(zip(*long, strict=False)) if len({*chars}) > 1), 0)
    start = long[0].rfind(" ", 0, max(0, alike - most // 3)) + 1 if len(long) > 1 and alike else 0
    cut = [text[start:] if len(text) > most else text for text in texts]
    return tuple(text if len(text) <= most else f"{text[: most - 3]}…" for text in cut)


class Derived(NamedTuple):
    """A value with its reason: numbered steps, and every fact that a step used."""

    value: Scalar
    kind: Kind
    steps: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    warnings: tuple[str, ...] = ()


class Condition(NamedTuple):
    """A test that a path passes through: its source text, local names inlined, and the branch taken.

    `checked`: the other branch is an error (a raise, an assert), so it narrows and chooses nothing.
    """

    test: str
    taken: bool
    checked: bool = False


class Arrival(NamedTuple):
    """One way in which a slot's value arrives at a use: under which tests, through which arithmetic.

    `transforms` are expressions over `_`, the value so far, in the order applied.
    """

    conditions: tuple[Condition, ...] = ()
    transforms: tuple[str, ...] = ()


class Entry(NamedTuple):
    """One `triton.Config`: its keyword dict and launch options, as far as they are literals."""

    values: tuple[tuple[str, Scalar], ...]
    options: tuple[tuple[str, Scalar], ...]

    def get(self, key: str, default: Scalar | None = None) -> Scalar | None:
        """The literal under `key` in the dict or the options."""
        return dict(self.values + self.options).get(key, default)

    def show(self) -> str:
        """`BLOCK_M=64 BLOCK_N=64 num_warps=4`, in source order."""
        return " ".join(f"{key}={value}" for key, value in self.values + self.options)


class Slot(NamedTuple):
    """One literal (or expression) that a site sets.

    Offsets count characters of the decoded text. `live` is False where another value replaces
    this one on every path. `value` is None where `text` is not a literal that folds.
    """

    name: str
    start: int
    end: int
    line: int
    end_line: int
    text: str
    value: Scalar | None = None
    editable: bool = True
    reason: str = ""
    live: bool = True
    arrivals: tuple[Arrival, ...] = (Arrival(),)
    entry: Entry | None = None
    # The statement or expression that LibCST is handed: (start, end, grammar entry).
    segment: tuple[int, int, Literal["statement", "expression", "block"]] = (0, 0, "statement")
    # Names of other slots that the same literal sets.
    also: tuple[str, ...] = ()
    # What the source calls it, where that is not the slot's name.
    bound: str = ""
    # An expression that only passes on, or computes with, the values of other slots.
    passing: bool = False
    # 1-based, in characters; the end is the first that is not part of it. 0: not known.
    column: int = 0
    end_column: int = 0
    # Where the slot is not there yet: the display, from start to end, that could take it as a key.
    room: tuple[int, int] = (0, 0)


# The slot that holds a generated ladder, and the keys that one sets: all, or the first alone.
LADDER = "ladder"
LADDER_KEYS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
# Of these, the tile, and the launch options: a dict that lacks one of the latter may be given it.
TILE_KEYS, OPTIONS = LADDER_KEYS[:3], LADDER_KEYS[4:]
# All that a launch of a Triton kernel takes beside the kernel's own parameters.
LAUNCH_OPTIONS = (*OPTIONS, "num_ctas", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack")


class Spelling(NamedTuple):
    """How a generated block is written in a file.

    `indent`: before each line; `step`: of one block in another; `test`: under which the block is taken;
    `target`: the dict that it sets; `names`: what the source calls M, E, N, K and topk.
    """

    indent: str = ""
    step: str = "    "
    quote: str = '"'
    newline: str = "\n"
    test: str = ""
    target: str = "config"
    names: tuple[tuple[str, str], ...] = ()


class Room(NamedTuple):
    """Where a generated ladder stands or could stand: behind the decision, before the dict is returned.

    `slot`: the whole lines of the ladder, empty where there is none, not editable where none can be;
    `held`: the keys that every dict of the decision holds.
    """

    slot: Slot
    spelling: Spelling = Spelling()
    held: tuple[str, ...] = ()


class Display(NamedTuple):
    """A dict written out in the source that arrives at a use: `{…}`, `dict(…)`, the keywords of `.update(…)`.

    `whole`: it names a tile in M, N and K; `rooms`: an empty slot for each launch option that it lacks and
    that would arrive, not editable where it cannot be written.
    """

    line: int
    whole: bool
    arrivals: tuple[Arrival, ...]
    rooms: tuple[Slot, ...] = ()


class Keys(NamedTuple):
    """The displays that make a function's dict, and who reads it first.

    `names`: the local names of the dict; `returned`: whether the function returns it; `refused`: why not
    every dict of its arms can take a key, with the line.
    """

    displays: tuple[Display, ...] = ()
    names: tuple[str, ...] = ()
    returned: bool = False
    refused: str = ""


class Found(NamedTuple):
    """A tuning site in one file. `satisfied` says why nothing is left to do, `problem` why nothing can be."""

    site: str
    scope: str
    line: int
    end_line: int
    form: str
    slots: tuple[Slot, ...] = ()
    problem: str = ""
    satisfied: str = ""
    file: str = ""
    room: Room | None = None
    keys: Keys = Keys()

    def with_keys(self, names: Collection[str], keys: Keys) -> Found:
        """With a slot of each of these names for every whole dict that could take it as a key."""
        rooms = [r for display in keys.displays for r in display.rooms if r.name in names]
        slots = tuple(sorted((*self.slots, *rooms), key=lambda slot: slot.start))
        return self._replace(slots=slots, keys=keys)

    def with_room(self) -> Found:
        """With the room for a ladder among its slots, where there is such."""
        if self.room is None or self.room.slot in self.slots:
            return self
        return self._replace(slots=(*self.slots, self.room.slot))

    def without_room(self) -> Found:
        """Without the empty room for a ladder among its slots."""
        return self._replace(slots=tuple(slot for slot in self.slots if slot.name != LADDER or slot.text))


class Edit(NamedTuple):
    """A change of one slot. `op` says what LibCST does with it; `payload` is what it needs for that."""

    name: str
    start: int
    end: int
    op: Literal["replace", "remove", "entries", "block", "key"]
    new: str
    segment: tuple[int, int, Literal["statement", "expression", "block"]]
    payload: tuple[object, ...] = ()

    @property
    def number(self) -> int:
        """The number of its slot in the site's report."""
        return int(self.name.rpartition("#")[2])


class GuardResult(NamedTuple):
    """A guard, whether it holds, the place or the numbers that show it, and the facts that it used."""

    guard: str
    holds: bool
    evidence: str
    facts: tuple[Fact, ...] = ()


class Step(NamedTuple):
    """One place on a value's way: file relative to the tree, 1-based line, what happens there."""

    file: str
    line: int
    does: str


class Reach(NamedTuple):
    """Whether a slot's value arrives at a kernel: the verdict, why, and the way as far as it goes.

    `verdict` is "reaches", "overridden", "stopped" or "unknown".
    """

    verdict: str
    why: str
    path: tuple[Step, ...] = ()


class Wake(NamedTuple):
    """A slot whose value is dead, and would not be if a flag were true."""

    site: str
    file: str
    line: int
    slot: str
    verdict: str


class SlotReport(NamedTuple):
    """What becomes of one slot. `new` equals `old` where nothing changes; `note` says why.

    Columns are 1-based, in characters, the end exclusive; 0 where the slot is not in the file yet.
    """

    name: str
    line: int
    old: str
    new: str
    note: str = ""
    derived: Derived | None = None
    end_line: int = 0
    bound: str = ""
    column: int = 0
    end_column: int = 0
    # Names of other slots that the same literal sets.
    also: tuple[str, ...] = ()
    reach: Reach | None = None

    @property
    def mark(self) -> str:
        """What reach says, for people: `reaches`, `dead: …` or `unknown: …`; empty where it was not asked."""
        if self.reach is None or self.reach.verdict == "reaches":
            return "reaches" if self.reach else ""
        word = "unknown" if self.reach.verdict == "unknown" else f"dead: {self.reach.verdict}"
        return f"{word}: {self.reach.why}"


class Difference(NamedTuple):
    """One way in which a site is not as it was pinned, and where it shows now."""

    kind: Literal["moved", "literal", "guard", "shape", "body", "renamed", "twin", "vanished", "condition"]
    text: str
    file: str = ""
    line: int = 0


class ThreeWay(NamedTuple):
    """A literal that changed: as it was pinned, as muhmod wrote it, as it stands now."""

    slot: str
    base: str
    ours: str
    theirs: str

    def show(self) -> str:
        """All three, each from where they differ; of a ladder that is a few words."""
        parts = differing((self.base, self.ours, self.theirs))
        return f"{self.slot}: base {parts[0]}, ours {parts[1]}, theirs {parts[2]}"


class SiteReport(NamedTuple):
    """One row of a report: exactly one state, always.

    `cause`: who moved it, where the lock tells; `pinned`: where it stood then (FILE:LINE).
    """

    site: str
    state: State
    file: str = ""
    scope: str = ""
    line: int = 0
    end_line: int = 0
    form: str = ""
    reason: str = ""
    rule: str = ""
    code: int = 0
    slots: tuple[SlotReport, ...] = ()
    guards: tuple[GuardResult, ...] = ()
    candidates: tuple[str, ...] = ()
    cause: Cause | None = None
    differences: tuple[Difference, ...] = ()
    literals: tuple[ThreeWay, ...] = ()
    pinned: str = ""


class Checked(NamedTuple):
    """One configuration of one kernel: what it was predicted to need, what it needs, and the verdict.

    `shared`, `predicted`, `limit`, `spills` in bytes, `registers` a thread; None where not known.
    """

    site: str
    file: str
    line: int
    kernel: str
    config: Config
    verdict: Verdict
    reason: str = ""
    shared: int | None = None
    predicted: int | None = None
    limit: int | None = None
    registers: int | None = None
    spills: int | None = None
    code: int = 0

    def show(self) -> str:
        """`BLOCK_M=64 BLOCK_N=64 num_warps=4`."""
        return " ".join(f"{key}={value}" for key, value in self.config)
