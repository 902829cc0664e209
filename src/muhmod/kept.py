"""Where muhmod keeps what it can do without."""

from __future__ import annotations

import os
from pathlib import Path


def folder(name: str) -> Path:
    """A folder of this name in $MUHMOD_CACHE, else in the user's cache (XDG). It may not be there yet."""
    own, shared = os.environ.get("MUHMOD_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return (Path(own) if own else Path(shared or Path.home() / ".cache") / "muhmod") / name
