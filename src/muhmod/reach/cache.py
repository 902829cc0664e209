"""Verdicts kept between runs, by all that they rest on: each file of the tree, the platform, and this code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from muhmod import __version__, kept
from muhmod.errors import FileError
from muhmod.model import Reach, Step
from muhmod.reach.value import Asked
from muhmod.rulebook import Platform
from muhmod.search import Reading

_MOST_FILES = 64


def path(reading: Reading, platform: Platform, instead: Mapping[tuple[str, str], object]) -> Path:
    """Where the verdicts on exactly this tree are kept."""
    own = (__version__, sys.version_info[:2], _code(), sorted(reading.names), sorted(instead.items()))
    digest = sha256(repr(own).encode())
    digest.update(repr([sorted(f.items()) if isinstance(f, Mapping) else sorted(f)
                        if isinstance(f, frozenset) else f for f in platform]).encode())  # fmt: skip
    for file in reading.files:
        try:
            content = sha256(reading.data(file)).digest()
        except FileError:
            content = b"unread"
        digest.update(f"\0{file}\0".encode("utf-8", "surrogateescape") + content)
    return kept.folder("reach") / f"{digest.hexdigest()}.json"


def _code() -> str:
    """A digest of what works verdicts out."""
    own = Path(__file__).parent
    digest = sha256()
    for file in [*sorted(own.glob("*.py")), own.parent / "site.py"]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def load(place: Path) -> dict[Asked, Reach]:
    """What was kept; nothing where there is none, or it cannot be read."""
    try:
        rows = json.loads(place.read_bytes())
        os.utime(place)
        return {
            Asked(*asked): Reach(verdict, why, tuple(Step(*step) for step in way))
            for asked, (verdict, why, way) in rows
        }
    except (OSError, ValueError, TypeError):
        return {}


def save(place: Path, verdicts: Mapping[Asked, Reach]) -> None:
    """Keep them. A cache that cannot be written is none; the oldest of many trees go."""
    data = json.dumps([[asked, verdict] for asked, verdict in verdicts.items()])
    with contextlib.suppress(OSError, UnicodeError):
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent)
        try:
            with open(handle, "w", encoding="utf-8") as stream:
                stream.write(data)
            os.replace(name, place)
        except BaseException:
            os.unlink(name)
            raise
        files = sorted(place.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
        for old in files[:-_MOST_FILES]:
            old.unlink()
