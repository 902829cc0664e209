"""Whether a file is in the tree, and whether a package can be imported where the tree will run."""

from __future__ import annotations

import sys

from muhmod import tree
from muhmod.guards.around import Around, Verdict, unproven


def file(path: str, of: Around) -> Verdict:
    """Whether a file of that path stands in the tree. What is reached by a link out of it is not its own."""
    found = tree.presence(of.tree, path)
    if found == "file":
        return Verdict(True, f"{path}:1 is there")
    if found in ("folder", "missing"):
        first = path.partition("/")[0]
        hint = f"; paths begin inside {of.package}/" if first in of.names else ""
        return Verdict(False, f"{path} is {'a folder' if found == 'folder' else 'not there'}{hint}")
    return unproven(f"{path} {found}")


def importable(package: str, of: Around) -> Verdict:
    """Whether a package is in the target: declared by the pack, in the tree, or of Python itself.

    What nobody declares may still be there: that it is missing is never proven.
    """
    top = package.partition(".")[0]
    if top in of.modules:
        return Verdict(True, f"the pack declares {top} present")
    if top in of.names:
        target = of.resolve(package)
        if target is not None:
            return Verdict(True, f"{target[0]}:1 is {package}")
        return unproven(f"{package} is no Python file of the tree")
    if top in sys.stdlib_module_names:
        if _in_stdlib(package):
            return Verdict(True, f"{package} is of Python's standard library")
        return unproven(f"{top} is of Python's standard library, but {package} is not known there")
    return unproven(f"the pack does not declare it present: its modules do not name {top}")


def _in_stdlib(package: str) -> bool:
    """Whether each part of a dotted name is found there. Runs nothing of it."""
    from importlib.machinery import PathFinder

    parts = package.split(".")
    where: list[str] | None = None
    for count in range(1, len(parts) + 1):
        if len(parts) == 1:
            return True
        spec = PathFinder.find_spec(".".join(parts[:count]), where)
        if spec is None:
            return False
        where = spec.submodule_search_locations
        if where is None:
            return count == len(parts)
    return True
