"""`muhmod replay`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import click

from muhmod.cli.shared import JOBS, NARROW, RULES, Out, Settings, locate, output, say
from muhmod.errors import FileError

if TYPE_CHECKING:
    from muhmod.fetch import Release
    from muhmod.replay import Cell, Row
    from muhmod.rulebook import Pack
    from muhmod.tree import Tree

SCHEMA = "muhmod/replay/1"
_WIDTH = 118
_STATES = {
    "already": "A", "pending": "P", "held": "H", "satisfied-upstream": "S", "unrewritable": "U",
    "drifted": "D", "ambiguous": "T", "lost": "L", "absent": "O", "skipped": "K",
}  # fmt: skip
_KINDS = {
    "new": ("n", "new: not in the trees before"), "back": ("n", "back: not in the tree before"),
    "moved": ("m", "moved to another file"), "renamed": ("r", "renamed: the rule does not find it"),
    "value": ("v", "value changed"), "guard": ("g", "guard changed"), "shape": ("f", "form changed"),
    "body": ("b", "body around it changed"), "unreadable": ("?", "cannot be read"),
}  # fmt: skip
# Said once, when it begins.
_LASTING = ("gone", "ambiguous", "unreadable")


@click.command()
@click.argument("trees", nargs=-1, metavar="[TREE]...")
@RULES
@click.option(
    "--pypi", nargs=2, metavar="NAME VERSIONS", help="Releases too: A..B, A,B,C, or a file with one a line."
)
@click.option(
    "--against", type=click.Choice(["previous", "first"]), default="previous",
    help="The tree that each is held against. Default: the previous one.",
)  # fmt: skip
@NARROW
@JOBS
@output("text", "json", "markdown")
def replay(trees: tuple[str, ...], **given: Any) -> int:
    """How the rules fare over many trees: what became of each site, and would the rule still land?"""
    from muhmod import replay as over

    settings = Settings(given, ("text", "json", "markdown"))
    out = Out(settings)
    pack = settings.pack()
    releases = _releases(given["pypi"], quiet=given["quiet"])
    words = [*trees] if releases else settings.trees(trees)
    labelled = _fetched(releases, pack)
    labelled += _labelled(words, locate(words, pack), {label for label, _ in labelled})
    labels = [label for label, _ in labelled]
    first = given["against"] == "first"
    jobs = settings.jobs if settings.get("jobs", "jobs") else os.cpu_count() or 1
    rows, notes = over.replay(labelled, pack, settings.options(), jobs, first=first)
    code = FileError.code if any("unreadable" in c.kinds for row in rows for c in row.cells) else 0
    name = settings.format()
    if name == "json":
        from muhmod import report

        out.text(report.dump(_json(rows, releases, labels, pack, given["against"], code)))
    elif not given["quiet"]:
        verbose = bool(given["verbose"])
        for line in (_markdown if name == "markdown" else _text)(rows, labels, verbose=verbose):
            out.text(line)
    out.close()
    for note in notes if not given["quiet"] else ():
        say(note, "note")
    for text in _unreadable(rows):
        say(text, "error")
    return code


# Which trees ----------------------------------------------------------------------------------


def _releases(pypi: tuple[str, str] | None, *, quiet: bool) -> list[Release]:
    if not pypi:
        return []
    from muhmod import fetch

    return fetch.releases(*pypi, (lambda text: None) if quiet else say)


def _fetched(releases: list[Release], pack: Pack) -> list[tuple[str, Tree]]:
    found = locate([str(release.folder) for release in releases], pack)
    return [(release.version, of) for release, of in zip(releases, found, strict=True)]


def _labelled(words: list[str], trees: list[Tree], taken: set[str]) -> list[tuple[str, Tree]]:
    """Each tree by its version, or else by what its path has of its own."""
    from muhmod import tree

    for labels in ([tree.version(of) for of in trees], _own_parts(words)):
        if all(labels) and len({*labels} - taken) == len(trees):
            break
    else:
        labels = words
    return [*zip(labels, trees, strict=True)]


def _own_parts(words: list[str]) -> list[str]:
    """The paths without the folders that they begin or end with in common."""
    paths = [PurePath(word).parts for word in words]
    front = _in_common(paths)
    back = _in_common([path[front:][::-1] for path in paths])
    return ["/".join(path[front : len(path) - back]) or PurePath(*path).name for path in paths]


def _in_common(paths: list[tuple[str, ...]]) -> int:
    """How many parts all paths begin with."""
    return sum(1 for _ in takewhile(lambda parts: len({*parts}) == 1, zip(*paths, strict=False)))


# What is shown --------------------------------------------------------------------------------


def _json(
    rows: list[Row], releases: list[Release], labels: list[str], pack: Pack, against: str, code: int
) -> dict[str, Any]:
    digests = {release.version: release.sha256 for release in releases}
    return {
        "schema": SCHEMA,
        "command": "replay",
        "rules": pack.name,
        "against": against,
        "exit": {"code": code, "reasons": _unreadable(rows)},
        "trees": [
            {"tree": label} | ({"sdist_sha256": digests[label]} if label in digests else {})
            for label in labels
        ],
        "sites": [
            {"site": row.site, "rule": row.rule, "cells": [_cell(cell) for cell in row.cells]} for row in rows
        ],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    out = cell._asdict() | {"kinds": list(cell.kinds)}
    del out["difference"]
    if cell.difference:
        out["first_difference"] = cell.difference._asdict()
    return {key: value for key, value in out.items() if value not in ("", 0)}


def _unreadable(rows: list[Row]) -> list[str]:
    found = [(row, cell) for row in rows for cell in row.cells if "unreadable" in cell.kinds]
    return [f"{cell.tree}: {row.rule}: {cell.reason}" for row, cell in found]


def _text(rows: list[Row], labels: list[str], *, verbose: bool) -> list[str]:
    """Rows of sites, columns of trees, a letter for the state and one for each change; then what they say."""
    heads = _padded(["", *(row.rule for row in rows)])
    columns = [
        _padded([label, *(_code(row.cells[number]) for row in rows)]) for number, label in enumerate(labels)
    ]
    lines: list[str] = []
    while columns:
        fit = 1
        while fit < len(columns) and sum(len(column[0]) for column in (heads, *columns[: fit + 1])) <= _WIDTH:
            fit += 1
        lines += ["".join(cells).rstrip() for cells in zip(heads, *columns[:fit], strict=True)]
        lines.append("")
        columns = columns[fit:]
    return [*lines, *_legend(rows), *(_changes(rows) if verbose else ())]


def _padded(texts: list[str]) -> list[str]:
    width = max(map(len, texts)) + 2
    return [text.ljust(width) for text in texts]


def _code(cell: Cell) -> str:
    changes = "".join(dict.fromkeys(_KINDS[kind][0] for kind in cell.kinds if kind in _KINDS))
    return _STATES[cell.state] + changes if "unreadable" not in cell.kinds else "?"


def _legend(rows: list[Row]) -> list[str]:
    """The letters that stand in the table."""
    cells = [cell for row in rows for cell in row.cells]
    states = {cell.state for cell in cells if "unreadable" not in cell.kinds}
    kinds = {kind for cell in cells for kind in cell.kinds}
    return [
        "  ".join(f"{letter} {state}" for state, letter in _STATES.items() if state in states),
        "  ".join(f"{letter} {text}" for kind, (letter, text) in _KINDS.items() if kind in kinds),
    ]


def _changes(rows: list[Row]) -> list[str]:
    """A line for each change, with the first node that differs."""
    lines = [""]
    for row in rows:
        for cell, before in zip(row.cells, (None, *row.cells), strict=False):
            lasting = before is not None and cell.kinds == before.kinds and cell.kinds[0] in _LASTING
            if cell.kinds != ("found",) and not lasting:
                lines.append(f"{cell.tree} {row.rule}: {', '.join(cell.kinds)}{_where(cell)}")
    return lines


def _where(cell: Cell) -> str:
    place = f": {cell.file}:{cell.line}" if cell.file else ""
    return place + (f": {cell.difference.text}" if cell.difference else "")


def _markdown(rows: list[Row], labels: Sequence[str], *, verbose: bool) -> list[str]:
    """Rows of trees, columns of sites, in words."""
    lines = [f"| | {' | '.join(row.rule for row in rows)} |", f"|---|{'---|' * len(rows)}"]
    for number, label in enumerate(labels):
        lines.append(f"| {_escaped(label)} | {' | '.join(_words(row.cells[number]) for row in rows)} |")
    if verbose:
        lines += [f"- {_escaped(line)}" if line else line for line in _changes(rows)]
    return lines


def _words(cell: Cell) -> str:
    changes = [kind for kind in cell.kinds if kind not in ("found", "gone", "ambiguous")]
    state = f"**{cell.state}**" if cell.state in ("lost", "ambiguous", "drifted") else cell.state
    return f"{state}: {', '.join(changes)}" if changes else state


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
