"""What the guards of one site look into, and how they answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from muhmod.model import Fact, Found
from muhmod.site import Module
from muhmod.tree import Tree

# Gives the module of a dotted name inside the tree, with its file; None where there is none.
Resolver = Callable[[str], "tuple[str, Module] | None"]
# How the evidence of a guard begins that can neither be shown to hold nor to fail.
UNPROVEN = "not proven: "


class Around(NamedTuple):
    """The tree by dotted name and by file; `modules`: what the pack says the target has.

    `names`: how the sources call the package; `wanted`: what the guard asks, False for its contrary.
    """

    tree: Tree
    resolve: Resolver
    modules: tuple[str, ...]
    names: frozenset[str]
    wanted: bool = True

    @property
    def package(self) -> str:
        """The package folder's name."""
        return self.tree.name


class Verdict(NamedTuple):
    """Whether a condition is so, and what shows it; `proven` False: neither it nor its contrary."""

    holds: bool
    evidence: str
    proven: bool = True
    facts: tuple[Fact, ...] = ()


def unproven(why: str, facts: tuple[Fact, ...] = ()) -> Verdict:
    """What cannot be evaluated: no guard holds by it, whichever way it asks."""
    return Verdict(False, f"{UNPROVEN}{why}", False, facts)


def split(symbol: str, found: Found, module: Module, of: Around) -> tuple[str, Module | None, str]:
    """A name's file, module, and name in there: a module of the tree's before the site's own.

    No module: its first part is the tree's package, but no file of it is meant.
    """
    parts = symbol.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        target = of.resolve(".".join(parts[:cut]))
        if target is not None:
            deeper = ".".join(parts[cut:])
            missing = cut < len(parts) - 1 and not target[1].binds(parts[cut])
            return ("", None, symbol) if missing else (*target, deeper)
    return ("", None, symbol) if parts[0] in of.names else (found.file, module, symbol)
