"""Facts as a derivation sees them: resolved by status, each use recorded."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from muhmod.errors import DerivationError, DisputedFactError, MissingFactError
from muhmod.model import LADDER_KEYS, STATUS_ORDER, Arrival, Candidate, Entry, Fact, Scalar, Spelling

Value: TypeAlias = "Scalar | tuple[tuple[Entry, str, str], ...]"


class Ask(NamedTuple):
    """What a site asks of a derivation: how its slot's value arrives at the kernel.

    `arrivals`: the paths from the slot to a use. `entries`: what an autotune list holds now.
    `literal`: a value that the pack sets itself, to be checked against the limits only. `launch`: warps
    and stages are set too. `keys`, `spelling`: what a ladder sets, and how it is written. `tile`: the
    literals that stand beside the slot's on its way, by name, its own included. `options`: warps and stages
    that the pack sets itself; empty where it does not.
    """

    arrivals: tuple[Arrival, ...] = (Arrival(),)
    entries: tuple[Entry, ...] = ()
    literal: Scalar | None = None
    reason: str = ""
    launch: bool = False
    keys: tuple[str, ...] = LADDER_KEYS
    spelling: Spelling = Spelling()
    tile: Mapping[str, int] = MappingProxyType({})
    options: tuple[int, ...] = ()


class Facts(NamedTuple):
    """Candidates by fact name, with the unit, and the pack's choices (value and reason).

    `robust` asks for values that are legal whichever claim about a disputed fact is true.
    """

    units: Mapping[str, str]
    claims: Mapping[str, tuple[Candidate, ...]]
    choices: Mapping[str, tuple[Scalar, str]] = {}
    robust: bool = False

    def resolve(self, name: str) -> Fact:
        """The claim of the best status; the pack's choice where it makes one.

        Raises MissingFactError and DisputedFactError.
        """
        claims = self.claims.get(name, ())
        if not claims:
            raise MissingFactError(
                f"the fact {name!r} is not stated by the hardware or the model",
                f"add it to the facts, or give --set {name}=VALUE",
            )
        best = min(STATUS_ORDER.index(claim.status) for claim in claims)
        top = [c for c in claims if STATUS_ORDER.index(c.status) == best]
        reason = ""
        if best and name in self.choices:
            value, reason = self.choices[name]
            top = [c for c in claims if c.value == value]
            if not top:
                raise DerivationError(
                    f"[choose] {name} = {value}, which no candidate states",
                    "candidates: " + ", ".join(str(c.value) for c in claims),
                )
        elif len({c.value for c in top}) > 1:
            raise DisputedFactError(
                f"{name} is disputed, all {top[0].status}",
                f"choose one with a reason under [choose] {name}, or give --set {name}=VALUE",
                name,
            )
        used = top[0]
        rivals = tuple(c for c in claims if c.value != used.value)
        return Fact(name, used.value, self.units.get(name, ""), used.status, used.source, rivals, reason)

    def get(self, name: str) -> Scalar | None:
        """The resolved value, or None where the fact is missing or disputed."""
        try:
            return self.resolve(name).value
        except DerivationError:
            return None

    def candidates(self, name: str) -> tuple[Candidate, ...]:
        """The distinct claims of the best status."""
        claims = self.claims[name]
        best = min(STATUS_ORDER.index(claim.status) for claim in claims)
        top = [c for c in claims if STATUS_ORDER.index(c.status) == best]
        return tuple({c.value: c for c in top}.values())

    def pin(self, name: str, candidate: Candidate) -> Facts:
        """The same facts with one claim for `name`, and no choice left to make about it."""
        choices = {key: choice for key, choice in self.choices.items() if key != name}
        return self._replace(claims={**self.claims, name: (candidate,)}, choices=choices)


class Work:
    """A derivation at work: reads facts by name, writes down its steps."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.used: dict[str, Fact] = {}
        self.steps: list[str] = []
        self.warnings: list[str] = []
        # The source's tests that were evaluated, each once.
        self.tests: dict[str, bool | None] = {}

    def fact(self, name: str) -> Fact:
        """The resolved fact, recorded as used."""
        found = self.facts.resolve(name)
        self.used[name] = found
        return found

    def integer(self, name: str) -> int:
        """A fact that must be a whole number."""
        value = self.fact(name).value
        if not isinstance(value, int) or isinstance(value, bool):
            raise DerivationError(f"the fact {name!r} is {value!r}; a whole number is needed")
        return value

    def element_size(self) -> int:
        """Bytes of one element of the model's dtype."""
        dtype = str(self.fact("dtype").value)
        sizes = {"float16": 2, "bfloat16": 2, "float32": 4, "float8": 1}
        if dtype not in sizes:
            raise DerivationError(f"dtype {dtype!r} has no known element size")
        return sizes[dtype]

    def step(self, text: str) -> None:
        """Write down one step."""
        self.steps.append(text)
