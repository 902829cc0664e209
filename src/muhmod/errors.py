"""What a user can cause. Each error owns its exit code and its next step; nothing else decides either."""

from __future__ import annotations

from typing import ClassVar


class MuhmodError(Exception):
    """Base of all errors that are shown as one sentence, without a traceback."""

    code: ClassVar[int] = 70

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.hint)


class UsageError(MuhmodError):
    """Wrong usage: a bad rule file, an unknown rule, site, fact or path."""

    code = 2


class RefusedError(MuhmodError):
    """Drift or refusal: a write would not be safe."""

    code = 3


class FileError(MuhmodError):
    """A file in reach cannot be read, parsed, round-tripped or written."""

    code = 4


class DerivationError(MuhmodError):
    """A fact is missing or disputed with different results, or a limit is broken."""

    code = 5


class MissingFactError(DerivationError):
    """A derivation asked for a fact that neither hardware nor model states."""


class LimitError(DerivationError):
    """A value that no fact allows."""


class DisputedFactError(DerivationError):
    """Candidates of the same, best status disagree and the pack does not choose."""

    def __init__(self, message: str, hint: str = "", name: str = "") -> None:
        super().__init__(message, hint)
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.hint, self.name)


def nearest(word: str, known: object) -> str:
    """`; did you mean 'x'?` for the nearest spelling of `word` among `known`, else an empty string."""
    import difflib

    names = sorted(str(name) for name in known)  # type: ignore[attr-defined]
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""
