"""The sites, by file name, each imported only when a file must be read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path

from muhmod.errors import UsageError, nearest
from muhmod.site import Site


@cache
def names() -> tuple[str, ...]:
    """The ids of all sites, sorted: the names of the files in `codemods/`."""
    import muhmod.codemods

    folder = Path(next(iter(muhmod.codemods.__path__)))
    stems = (path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    return tuple(sorted(stem.replace("_", "-") for stem in stems))


def files(sites: Iterable[str]) -> list[Path]:
    """The source files of the codemods of these sites."""
    import muhmod.codemods

    folder = Path(next(iter(muhmod.codemods.__path__)))
    return [folder / f"{site.replace('-', '_')}.py" for site in sorted(sites)]


def check(name: str) -> str:
    """The name, if it is a site's. Raises UsageError with the nearest spelling."""
    if name not in names():
        raise UsageError(f"unknown site {name!r}{nearest(name, names())}")
    return name


@cache
def site(name: str) -> Site:
    """The codemod of that id."""
    module = import_module(f"muhmod.codemods.{check(name).replace('-', '_')}")
    found = module.SITE
    assert isinstance(found, Site)
    return found
