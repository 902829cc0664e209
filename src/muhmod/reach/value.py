"""What an expression may be, as far as reach follows it: a constant, marks of the followed value, references."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from muhmod.model import Step

# Where in a value the followed one is: () itself, ("[BLOCK_SIZE_M]",) under a key, ("[*]",) under some key,
# (".config",) in an attribute, ("()",) in what a call of it gives.
Where: TypeAlias = "tuple[str, ...]"
Trail: TypeAlias = "tuple[Step, ...]"
Marks: TypeAlias = "Mapping[Where, Trail]"
ANY = "[*]"
CALLED = "()"
_MOST_MARKS = 24
_DEEPEST = 6
_LONGEST = 64


class Asked(NamedTuple):
    """A slot's place in a tree: file, and chars of its text."""

    file: str
    start: int
    end: int
    line: int
    text: str


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        raise TypeError("an unknown value has no truth")


class Something:
    """A value of which only is known that it is not None, and true."""

    def __repr__(self) -> str:
        return "SOMETHING"


UNKNOWN = _Unknown()
SOMETHING = Something()


class Member(NamedTuple):
    """A member of an enumeration, by its own name."""

    name: str


class Function(NamedTuple):
    """A function of the tree, by file, dotted path and line; bound to an object, or not."""

    file: str
    path: str
    line: int = 0
    bound: bool = False


class Class(NamedTuple):
    """A class of the tree."""

    file: str
    path: str
    instance: bool = False


class ModuleRef(NamedTuple):
    """A module of the tree, by its file; a package by its `__init__.py`, or its folder where it has none."""

    file: str


class External(NamedTuple):
    """A dotted name from outside the tree."""

    name: str


class Partial(NamedTuple):
    """A call that is yet to be made, with the arguments that are known."""

    called: tuple[object, ...]
    args: tuple[Val, ...]
    keywords: tuple[tuple[str, Val], ...]


class Numbered(NamedTuple):
    """A partial, by a number of the tracer's: its arguments are nothing that a set takes."""

    number: int


class Closure(NamedTuple):
    """A lambda or an inner function."""

    number: int


class Val(NamedTuple):
    """An abstract value. `refs`: what it may refer to; `open`: it may be something else too."""

    const: object = UNKNOWN
    marks: Marks = {}  # noqa: RUF012
    refs: tuple[object, ...] = ()
    open: bool = True
    # Dicts and lists that it may be: two names may hold the same one.
    same: frozenset[int] = frozenset()

    def within(self, part: str) -> Val:
        """The value under a key, an attribute, or behind a call. What is derived stays derived."""
        marks: dict[Where, Trail] = {}
        for where, trail in self.marks.items():
            if not where:
                _put(marks, (), trail)
            elif where[0] == part or (part.startswith("[") and ANY in (part, where[0])):
                _put(marks, where[1:], trail)
        return Val(marks=marks)

    def under(self, part: str) -> Marks:
        """The marks as they are when this value is put under a key or attribute."""
        return {(part, *where)[:_DEEPEST]: trail for where, trail in self.marks.items()}

    def without(self, part: str) -> tuple[Val, Marks]:
        """The value when something else is put under a key, and the marks that are gone by that."""
        gone = {where: trail for where, trail in self.marks.items() if where[:1] == (part,)}
        kept = {where: trail for where, trail in self.marks.items() if where not in gone}
        return self._replace(marks=kept, const=UNKNOWN), gone

    def marked(self, marks: Marks) -> Val:
        """With more marks."""
        return self._replace(marks=joined(self.marks, marks)) if marks else self

    def stepped(self, step: Step) -> Val:
        """All marks having come to one more place."""
        return self._replace(marks=stepped(self.marks, step)) if self.marks else self


def stepped(marks: Marks, step: Step) -> Marks:
    """The marks with a further place on their way; the same place twice counts once."""
    return {where: onward(trail, step) for where, trail in marks.items()}


def onward(trail: Trail, step: Step) -> Trail:
    """A trail with one more place; a place that it has been to is left out, and what would be too long to read."""
    if len(trail) >= _LONGEST or any((one.file, one.line) == (step.file, step.line) for one in trail):
        return trail
    return (*trail, step)


def _put(marks: dict[Where, Trail], where: Where, trail: Trail) -> None:
    known = marks.get(where)
    if known is None or len(trail) < len(known):
        marks[where] = trail


def joined(*many: Marks) -> Marks:
    """The union; of two ways to the same place the shorter."""
    live = [marks for marks in many if marks]
    if len(live) < 2:
        return live[0] if live else {}
    out: dict[Where, Trail] = {}
    for marks in live:
        for where, trail in marks.items():
            _put(out, where, trail)
    if len(out) > _MOST_MARKS:
        # Too many places to tell apart: it is somewhere in there.
        shortest = min(out.values(), key=len)
        out = {where: trail for where, trail in out.items() if len(where) < 2}
        _put(out, (ANY,), shortest)
    return out


def join(*many: Val) -> Val:
    """What is either of these."""
    first = many[0]
    if all(one is first for one in many[1:]):
        return first
    const = first.const
    for one in many[1:]:
        if not same(const, one.const):
            const = UNKNOWN
    refs: dict[object, None] = {}
    for one in many:
        for ref in one.refs:
            refs[ref] = None
    return Val(
        const, joined(*(one.marks for one in many)), tuple(refs), any(one.open for one in many),
        frozenset().union(*(one.same for one in many)),
    )  # fmt: skip


def same(a: object, b: object) -> bool:
    """Whether two known constants are one and the same; unknown ones never are."""
    return a is b or (a is not UNKNOWN and b is not UNKNOWN and type(a) is type(b) and a == b)


def known(value: object) -> Val:
    """A constant."""
    return Val(value, open=False)


def refer(*refs: object) -> Val:
    """What refers to these and nothing else."""
    return Val(refs=refs, open=False)


def derived(values: Iterable[Val]) -> Val:
    """What is computed from these: marked where one of them is, or has it as an element."""
    marks: dict[Where, Trail] = {}
    for value in values:
        for where, trail in value.marks.items():
            if not where or all(part == ANY or part[1:-1].isdigit() for part in where):
                _put(marks, (), trail)
    return Val(marks=marks)


def truth(value: object) -> bool | None:
    """Whether a constant is true; None where that is not known."""
    if value is UNKNOWN:
        return None
    if isinstance(value, (Something, Member)):
        return True
    return bool(value)


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
}  # fmt: skip


def arithmetic(op: ast.operator, a: object, b: object) -> object:
    """The constant of an operation on two, where both are small whole numbers; else unknown."""
    work = _ARITHMETIC.get(type(op))
    if work is None or type(a) is not int or type(b) is not int:
        return UNKNOWN
    try:
        return work(a, b)
    except ArithmeticError:
        return UNKNOWN


def compare(op: ast.cmpop, a: object, b: object, never: frozenset[str] = frozenset()) -> object:
    """The constant of a comparison; a member that is never chosen is equal to nothing."""
    same_kind = isinstance(op, (ast.Eq, ast.Is, ast.NotEq, ast.IsNot))
    for one, other in ((a, b), (b, a)):
        if same_kind and isinstance(one, Member) and one.name in never and not isinstance(other, Member):
            return isinstance(op, (ast.NotEq, ast.IsNot))
    if (
        isinstance(op, (ast.In, ast.NotIn))
        and isinstance(b, tuple)
        and a is UNKNOWN
        and b
        and all(isinstance(one, Member) and one.name in never for one in b)
    ):
        return isinstance(op, ast.NotIn)
    if a is UNKNOWN or b is UNKNOWN:
        return UNKNOWN
    if isinstance(a, Something) or isinstance(b, Something):
        # All that is known of it is that it is not None.
        other = b if isinstance(a, Something) else a
        return isinstance(op, (ast.NotEq, ast.IsNot)) if same_kind and other is None else UNKNOWN
    try:
        match op:
            case ast.Eq():
                return a == b
            case ast.NotEq():
                return a != b
            case ast.Is():
                return a is b if a is None or b is None or isinstance(a, bool) else UNKNOWN
            case ast.IsNot():
                return a is not b if a is None or b is None or isinstance(a, bool) else UNKNOWN
            case ast.Lt():
                return a < b  # type: ignore[operator]
            case ast.LtE():
                return a <= b  # type: ignore[operator]
            case ast.Gt():
                return a > b  # type: ignore[operator]
            case ast.GtE():
                return a >= b  # type: ignore[operator]
            case ast.In():
                return a in b  # type: ignore[operator]
            case ast.NotIn():
                return a not in b  # type: ignore[operator]
    except TypeError:
        pass
    return UNKNOWN
