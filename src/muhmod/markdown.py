"""Markdown for a comment on a pull request: the only module that knows how it is escaped.

What comes from the tree, the pack or the lock is text, whatever it holds: no markup, no mention of a
user, no reference to an issue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from muhmod import report
from muhmod.coverage import Advice
from muhmod.engine import Plan
from muhmod.model import SiteReport
from muhmod.report import Level

# A comment may hold 65,536 characters.
_MOST = 65_000
_ORDER: tuple[Level | None, ...] = ("error", "warning", "notice", None)
_COUNTS = ("needs a look", "would change", "noted", "as it should be")
# What GitHub turns into a mention or a reference, outside of code.
_LIVE = re.compile(r"((?:@|\bGH-|#)[\w/.-]+|:[\w+-]+:|https?://[^\s|]+|www\.[^\s|]+)")
_MARKUP = re.compile(r"([\\`*_\[\]|~#$])")
# What starts a list where it comes first.
_BULLET = re.compile(r"^(\d*)([-+.)])")


class Part(NamedTuple):
    """One tree's plan, the advice to list, a sentence on the rest, the patch, and why it was refused."""

    plan: Plan
    advice: Sequence[Advice] = ()
    others: str = ""
    patch: bytes = b""
    refusal: str = ""


def comment(command: str, parts: Iterable[Part]) -> str:
    """The comment: for each tree a table of all sites, what drifted, advice, and the patch, folded.

    What would make it longer than GitHub takes is left out, and said.
    """
    return _fitting([section for part in parts for section in _sections(command, part)])


def _sections(command: str, part: Part) -> list[str]:
    plan = part.plan
    rows = sorted(plan.sites, key=lambda row: (_ORDER.index(report.level(row)), row.rule))
    out = [f"### muhmod {command}: {text(plan.pack.name)} on {code(plan.tree.name)}", _summary(rows)]
    out += [f"**Nothing was written:** {text(part.refusal)}"] if part.refusal else []
    out += [_table(plan, rows)]
    out += [_drift(row) for row in rows if report.drift(row) and report.level(row)]
    out += [_advice(part)] if part.advice or part.others else []
    out += [_patch(part.patch.decode("utf-8", "replace"))] if part.patch else []
    return out


def _fitting(parts: list[str]) -> str:
    kept: list[str] = []
    for part in parts:
        if sum(len(one) + 2 for one in kept) + len(part) > _MOST:
            part = "_Left out, too long for a comment: the report in another format has it._"
        kept += [part] if part not in kept else []
    return "\n\n".join(kept) + "\n"


def _summary(rows: Sequence[SiteReport]) -> str:
    counts = [sum(report.level(row) == level for row in rows) for level in _ORDER]
    words = [f"{number} {what}" for number, what in zip(counts, _COUNTS, strict=True) if number]
    return f"{len(rows)} sites: {', '.join(words)}."


def _table(plan: Plan, rows: Sequence[SiteReport]) -> str:
    lines = ["| state | site | place | what |", "|---|---|---|---|"]
    for row in rows:
        place = f"{plan.tree.shown(row.file)}:{row.line}" if row.file else ""
        changed = report.changes(row)
        what = ", ".join(code(one, cell=True) for one in changed) if changed else text(row.reason)
        held = [text(f"{guard.guard}: {guard.evidence}") for guard in row.guards if guard.holds and changed]
        what = "; ".join([what, *held])
        loud = report.level(row) in ("error", "warning")
        state = f"**{row.state}**" if loud else row.state
        site = code(row.rule or row.site, cell=True)
        lines.append(f"| {state} | {site} | {code(place, cell=True)} | {what} |")
    return "\n".join(lines)


def _drift(row: SiteReport) -> str:
    lines = [f"- {text(line)}" for line in report.drift(row)]
    return "\n".join([f"**{text(row.rule or row.site)}** is {row.state}: {text(row.reason)}", "", *lines])


def _advice(part: Part) -> str:
    shown = part.plan.tree.shown
    lines = [f"- {code(f'{shown(one.file)}:{one.line}')} {text(one.said())}" for one in part.advice]
    return _folded("Advice", "\n".join([*lines, *([f"- {text(part.others)}"] if part.others else [])]))


def _patch(patch: str) -> str:
    files = sum(line.startswith("diff --git ") for line in patch.split("\n"))
    return _folded(f"Patch: {files} file{'s' if files != 1 else ''}", fenced(patch, "diff"))


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def fenced(body: str, language: str) -> str:
    """A code block that the body cannot close."""
    fence = "`" * (max([2, *map(len, re.findall(r"`+", body))]) + 1)
    return f"{fence}{language}\n{body.rstrip(chr(10))}\n{fence}"


def code(words: str, *, cell: bool = False) -> str:
    """One line of code; `cell`: inside a table."""
    words = " ".join(words.split())
    if not words:
        return ""
    fence = "`" * (max([0, *map(len, re.findall(r"`+", words))]) + 1)
    pad = " " if words[0] == "`" or words[-1] == "`" else ""
    words = words.replace("|", "\\|") if cell else words
    return f"{fence}{pad}{words}{pad}{fence}"


def text(words: str) -> str:
    """One line of text, in a table too: what would be markup or a mention stands as it is."""
    parts = _LIVE.split(" ".join(words.split()))
    line = "".join(
        code(part, cell=True) if number % 2 else _MARKUP.sub(r"\\\1", escape(part, quote=False))
        for number, part in enumerate(parts)
    )
    return _BULLET.sub(r"\1\\\2", line)
