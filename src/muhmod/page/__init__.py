"""The map as one HTML page: no network, works from disk. The only module that knows HTML.

The page holds the map as JSON and the source lines around every place that it names; its script draws them.
What comes from the tree is text there, never markup: no script is run but the page's, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from muhmod import tree
from muhmod.errors import FileError
from muhmod.map import Map, document, way
from muhmod.tree import Tree

# Lines around a place, lines of a definition at most, characters of a line at most.
_AROUND = 4
_MOST_LINES = 40
_LONGEST = 1000


def page(of: Map, source: Tree) -> str:
    """The page of a map, with the lines of the tree that it was made from."""
    parts = {
        name: Path(__file__).with_name(name).read_text("utf-8")
        for name in ("page.html", "page.css", "page.js")
    }
    data = {"map": document(of), "source": _sources(of, source)}
    policy = "; ".join([
        "default-src 'none'", f"script-src '{_digest(parts['page.js'])}'",
        f"style-src '{_digest(parts['page.css'])}'", "base-uri 'none'", "form-action 'none'",
    ])  # fmt: skip
    filled = {"TITLE": escape(of.tree), "POLICY": escape(policy, quote=False), "STYLE": parts["page.css"],
              "SCRIPT": parts["page.js"], "DATA": _embedded(data)}  # fmt: skip
    head, *rest = parts["page.html"].split("{{")
    return (
        head
        + "".join(filled[name] + tail for name, _, tail in (part.partition("}}") for part in rest)).rstrip()
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(data: Any) -> str:
    """JSON that no HTML parser takes for markup."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sources(of: Map, source: Tree) -> dict[str, dict[int, str]]:
    """By file, the text of each line that the page may show."""
    wanted: dict[str, set[int]] = {}
    for file, first, last in _places(of):
        lines = range(first - _AROUND, min(last, first + _MOST_LINES) + _AROUND + 1)
        wanted.setdefault(file, set()).update(lines)
    return {file: found for file in sorted(wanted) if (found := _lines(source, file, wanted[file]))}


def _places(of: Map) -> Iterator[tuple[str, int, int]]:
    """(file, first line, last line) of all that the map names."""
    for point in of.points:
        for value in point.values:
            yield point.site.file, value.slot.line, value.slot.end_line
            for step in way(point.site, value):
                yield step.file, step.line, step.line
    for wrapper in of.wrappers:
        yield wrapper.file, wrapper.line, wrapper.line
    for stub in of.stubs:
        yield stub.file, stub.line, stub.line
    for kernel in of.kernels:
        last = max([kernel.line, *(parameter.line for parameter in kernel.constexprs)])
        yield kernel.file, kernel.line, last
        for launch in kernel.launches:
            yield launch.file, launch.line, launch.end_line
    for absent in of.absent:
        for file, line in absent.places:
            yield file, line, line


def _lines(source: Tree, file: str, wanted: set[int]) -> dict[int, str]:
    try:
        text = tree.decode(tree.read(source, file), file).text
    except FileError:
        return {}
    # As `ast` counts: form feeds and other separators end no line.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return {
        number: line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
        for number, line in enumerate(lines, 1)
        if number in wanted
    }
