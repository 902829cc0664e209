"""SARIF 2.1.0, as GitHub's code scanning takes it: the only module that knows the format.

One run for all trees: of several runs of one tool and category GitHub takes none. Every result has
a location, with all four fields of its region. A place in the repository is a relative URI from its
root; a pack that is not in the repository is relative to where muhmod is installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote

from muhmod import __version__, catalog, report, rulebook, tree
from muhmod.coverage import Advice
from muhmod.engine import Plan
from muhmod.errors import FileError
from muhmod.model import GuardResult, SiteReport, SlotReport
from muhmod.rulebook import Pack
from muhmod.tree import Tree

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
# GitHub refuses a run with more than 25,000 results, and shows the first 5,000.
MOST = 5000
_ROOT, _INSTALLED = "%SRCROOT%", "MUHMOD"
_LEVELS = {"error": "error", "warning": "warning", "notice": "note"}
_LONGEST = 1024
_ADVICE = {
    "sibling": "A tuning literal that is equal to one which a rule sets, and that no rule sets.",
    "unowned": "A tuning literal that no rule of the pack sets.",
}
_HELP = """\
pending: `muhmod apply` makes the change, or `muhmod relock` takes changed rules into the lock.
drifted, lost, ambiguous: look at the place; `muhmod accept SITE --reason WHY` takes a new place or value.
unrewritable: the form cannot be edited safely; change it by hand, or let the rule go.
held: a guard of the rule is false; nothing to do until it holds.
`muhmod explain SITE` shows the derivation with its facts."""


class _Place(NamedTuple):
    """A region of a file; column 0: the whole line."""

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0


class _Texts:
    """The lines of a tree's files, each file read once."""

    def __init__(self, of: Tree) -> None:
        self.of = of
        self._lines: dict[str, list[str]] = {}

    def width(self, file: str, line: int) -> int:
        """The characters of a line, without its end; 0 where there is none."""
        if file not in self._lines:
            try:
                text = tree.decode(tree.read(self.of, file), file).text
            except FileError:
                text = ""
            self._lines[file] = re.split(r"\r\n|\r|\n", text)
        lines = self._lines[file]
        return len(lines[line - 1]) if 0 < line <= len(lines) else 0


def log(
    made: Sequence[Plan],
    code: int,
    advice: Sequence[Sequence[Advice]] = (),
    *,
    strict: bool = False,
    refusal: str = "",
) -> dict[str, Any]:
    """The SARIF log of these plans, which share a pack, with the advice on each tree that is to be listed.

    Only rows that need a look become results. `strict`: advice is a warning, else a note. `refusal`: why
    nothing was written.
    """
    told = advice or [()] * len(made)
    results = [one for plan, some in zip(made, told, strict=True) for one in _results(plan, some, strict)]
    # The sort is stable: what is most in need of a look survives the cut.
    results.sort(key=lambda result: ("error", "warning", "note").index(result["level"]))
    _number(results)
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(made[0].pack, results, code, refusal)]}


def _run(pack: Pack, results: list[dict[str, Any]], code: int, refusal: str) -> dict[str, Any]:
    left = len(results) - MOST
    said = [("error", refusal)] if refusal else []
    said += (
        [("warning", f"{left} results of the least weight are left out; JSON has all")] if left > 0 else []
    )
    invocation: dict[str, Any] = {"executionSuccessful": not refusal, "exitCode": code}
    if said:
        invocation["toolExecutionNotifications"] = [
            {"level": level, "message": {"text": text}} for level, text in said
        ]
    used = [result["ruleId"] for result in results]
    return {
        "tool": {
            "driver": {
                "name": "muhmod",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": [*_descriptors(pack, used)],
            }
        },
        "automationDetails": {"id": f"muhmod/{pack.hardware}/"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {
            _ROOT: {"description": {"text": "The root of the repository."}},
            _INSTALLED: {"description": {"text": "Where muhmod, or the rule pack, is installed."}},
        },
        "invocations": [invocation],
        "results": results[:MOST],
    }


# Rules ------------------------------------------------------------------------------------------


def _descriptors(pack: Pack, used: Iterable[str]) -> Iterable[dict[str, Any]]:
    """Every rule of the pack, and what else a result names: a rule that was, or a kind of advice."""
    title = f" ({pack.title})" if pack.title else ""
    for rule in pack.rules:
        sets = ", ".join(f"{name} by {slot.derive}" for name, slot in rule.slots.items())
        what = f"muhmod keeps {rule.scope} as the pack {pack.name}{title} wants it"
        full = f"{what}: {sets}." if sets else f"{what}: the literal goes."
        yield _descriptor(rule.name, catalog.site(rule.site).sets, full)
    for name in dict.fromkeys(used):
        if name in _ADVICE:
            yield _descriptor(name, _ADVICE[name], f"{_ADVICE[name]} The pack is {pack.name}{title}.")
        elif name not in {rule.name for rule in pack.rules}:
            yield _descriptor(name, "a site that the lock knows", f"{pack.name} has no rule {name} any more.")


def _descriptor(name: str, short: str, full: str) -> dict[str, Any]:
    return {
        "id": name,
        "shortDescription": {"text": short[:_LONGEST]},
        "fullDescription": {"text": full[:_LONGEST]},
        "help": {"text": _HELP, "markdown": _HELP.replace("\n", "\n\n")},
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["tuning"]},
    }


# Results ----------------------------------------------------------------------------------------


def _results(plan: Plan, advice: Sequence[Advice], strict: bool) -> Iterable[dict[str, Any]]:
    texts = _Texts(plan.tree)
    for row in plan.sites:
        level = report.level(row)
        if level is not None:
            yield _result(plan, row, _LEVELS[level], texts)
    for one in advice:
        yield {
            "ruleId": one.kind,
            "level": "warning" if strict else "note",
            "message": {"text": _plain(one.said())},
            "locations": [_location(_Place(one.file, one.line), texts)],
            "partialFingerprints": _print(plan.tree, one.kind, one.file, one.name),
        }


def _result(plan: Plan, row: SiteReport, level: str, texts: _Texts) -> dict[str, Any]:
    first, *rest = _places(row)
    related = [_location(place, texts, told) for place, told in rest]
    location = _location(first[0], texts) if first[0].file else _rule_location(plan, row.rule)
    words = [_plain(line) for line in report.words(row)]
    if row.pinned and row.state == "lost":
        words.append("It was last seen at [the pinned place](1).")
    result: dict[str, Any] = {
        "ruleId": row.rule or row.site,
        "level": level,
        "message": {"text": "\n".join(words)},
        "locations": [location],
    }
    if related:
        result["relatedLocations"] = [{"id": number, **one} for number, one in enumerate(related, 1)]
    result["partialFingerprints"] = _print(plan.tree, row.rule, row.scope, row.site)
    result["properties"] = {
        "state": row.state,
        **({"cause": row.cause} if row.cause else {}),
        **({"guards": [_told(guard) for guard in row.guards]} if row.guards else {}),
        **({"derivation": steps} if (steps := _steps(row)) else {}),
    }
    return result


def _places(row: SiteReport) -> list[tuple[_Place, str]]:
    """Where a row shows, the first place first, each with what is there.

    What differs, else what would change, else the site. Of a lost site, the place where it was pinned.
    """
    if row.state == "lost":
        file, _, line = row.pinned.rpartition(":")
        return [(_Place("", 0), ""), *([(_Place(file, int(line)), "where it was pinned")] if file else ())]
    differs = [(_Place(d.file, d.line), d.text) for d in row.differences if d.file and d.kind != "moved"]
    changed = [
        (_of_slot(row, slot), f"{slot.name} {slot.old or 'nothing'} -> {slot.new or 'removed'}")
        for slot in row.slots
        if slot.old != slot.new and slot.column
    ]
    return differs or changed or [(_Place(row.file, max(row.line, 1) if row.file else 0), "")]


def _of_slot(row: SiteReport, slot: SlotReport) -> _Place:
    return _Place(row.file, slot.line, slot.column, slot.end_line, slot.end_column)


def _location(place: _Place, texts: _Texts, told: str = "") -> dict[str, Any]:
    end_line, column, end_column = place.end_line, place.column, place.end_column
    if not column:
        end_line, column = place.line, 1
        end_column = texts.width(place.file, place.line) + 1
    at = _artifact(texts.of.shown(place.file), _ROOT)
    region = _region(place.line, column, end_line, end_column)
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": at, "region": region}}
    return location | ({"message": {"text": _plain(told)}} if told else {})


def _rule_location(plan: Plan, rule: str) -> dict[str, Any]:
    """The line of a rule in its pack's file."""
    line = rulebook.line_of(plan.pack, rule)
    name, path = plan.pack.files[0]
    there, root = os.path.realpath(path), f"{plan.tree.root}{os.sep}"
    if name.startswith("muhmod.rules/"):
        at = _artifact(name.replace(".", "/", 1), _INSTALLED)
    elif there.startswith(root):
        at = _artifact(there.removeprefix(root).replace(os.sep, "/"), _ROOT)
    else:
        at = _artifact(path.name, _INSTALLED)
    width = len(plan.pack.text.splitlines()[line - 1])
    return {"physicalLocation": {"artifactLocation": at, "region": _region(line, 1, line, width + 1)}}


def _artifact(path: str, base: str) -> dict[str, str]:
    return {"uri": quote(os.fsencode(path), safe="/"), "uriBaseId": base}


def _region(line: int, column: int, end_line: int, end_column: int) -> dict[str, int]:
    return {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}


def _plain(text: str) -> str:
    """A message's text in which nothing reads as a link to a related location."""
    return re.sub(r"([\[\]\\])", r"\\\1", text) if "](" in text else text


def _told(guard: GuardResult) -> str:
    return f"{guard.guard}: {'yes' if guard.holds else 'no'}: {guard.evidence}"


def _steps(row: SiteReport) -> list[str]:
    """The derivation of each value that would be written."""
    return [
        f"{slot.name}: {'; '.join(slot.derived.steps)}"
        for slot in row.slots
        if slot.derived is not None and slot.old != slot.new
    ]


# Fingerprints -----------------------------------------------------------------------------------


def _print(of: Tree, *what: str) -> dict[str, str]:
    """What names a result whatever its line: the rule, the scope and the kind of site, in this package."""
    package = of.package.relative_to(of.root).as_posix()
    digest = sha256("\0".join((package, *what)).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return {"muhmodSite/v1": digest}


def _number(results: list[dict[str, Any]]) -> None:
    """Tell equal results apart by their order. `primaryLocationLineHash` is the one that GitHub reads."""
    seen: dict[str, int] = {}
    for result in results:
        prints = result["partialFingerprints"]
        digest = prints["muhmodSite/v1"]
        seen[digest] = seen.get(digest, 0) + 1
        prints["primaryLocationLineHash"] = f"{digest}:{seen[digest]}"
