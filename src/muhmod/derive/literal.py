"""Values that a pack sets itself, with its reason and without a limit that muhmod knows."""

from __future__ import annotations

from muhmod.derive.work import Ask, Work
from muhmod.errors import LimitError
from muhmod.model import Scalar


def literal(work: Work, ask: Ask) -> Scalar:
    """The pack's own value."""
    if ask.literal is None:
        raise LimitError("the rule has no value", "give the slot a value and a reason")
    return ask.literal
