"""Reports for machines: JSON, each with the name and version of its schema, and GitHub annotations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from muhmod.model import Checked, Derived, Fact, Found, Reach, SiteReport, SlotReport, Wake
from muhmod.rulebook import Pack
from muhmod.tree import Tree

if TYPE_CHECKING:
    from muhmod.coverage import Advice
    from muhmod.derive.kernels.choose import Chosen
    from muhmod.derive.whatif import Outcome, Row
    from muhmod.headers import Header

REPORT_SCHEMA = "muhmod/report/1"
SITES_SCHEMA = "muhmod/sites/1"
DERIVE_SCHEMA = "muhmod/derive/1"
HEADERS_SCHEMA = "muhmod/headers/1"
COMPARE_SCHEMA = "muhmod/compare/1"
WHAT_IF_SCHEMA = "muhmod/what-if/1"
KERNEL_SCHEMA = "muhmod/kernel/1"
VERIFY_SCHEMA = "muhmod/verify/1"
PACK_SCHEMA = "muhmod/pack/1"


def report(
    command: str,
    rules: str,
    tree: str,
    rows: Iterable[SiteReport],
    code: int,
    reasons: Sequence[str],
) -> dict[str, Any]:
    """The JSON report of one tree."""
    return {
        "schema": REPORT_SCHEMA,
        "command": command,
        "rules": rules,
        "tree": tree,
        "exit": {"code": code, "reasons": list(reasons)},
        "sites": [_site(row) for row in rows],
    }


def reach(one: Reach) -> dict[str, Any]:
    """A verdict, why, and the way, as keys of a slot."""
    return {"reach": one.verdict, "why": one.why, "path": [step._asdict() for step in one.path]}


REACH_SCHEMA = "muhmod/reach/1"


def reached(
    tree: str,
    platform: str,
    rows: Sequence[tuple[Found, tuple[Reach, ...]]],
    woken: Mapping[Found, tuple[Wake, ...]],
    code: int,
    reasons: Sequence[str],
) -> dict[str, Any]:
    """The JSON of `muhmod reach`: the rows of `sites`, each slot with verdict, why and way."""
    document = sites(tree, (found for found, _ in rows), code, reasons)
    for row, (found, verdicts) in zip(document["sites"], rows, strict=True):
        if found in woken:
            row["wakes"] = [one._asdict() for one in woken[found]]
        for slot, one in zip(row["slots"], verdicts, strict=True):
            slot |= reach(one)
    return {**document, "schema": REACH_SCHEMA, "command": "reach", "platform": platform}


def sites(tree: str, found: Iterable[Found], code: int, reasons: Sequence[str]) -> dict[str, Any]:
    """The JSON of `muhmod sites`: each slot's present text in `value`."""
    return {
        "schema": SITES_SCHEMA,
        "command": "sites",
        "tree": tree,
        "exit": {"code": code, "reasons": list(reasons)},
        "sites": [_found(row) for row in found],
    }


def derived(rules: str, values: Iterable[tuple[str, str, str, Derived]]) -> dict[str, Any]:
    """The JSON of `muhmod derive`: rows of (site, slot, case, value with its reasons)."""
    return {
        "schema": DERIVE_SCHEMA,
        "command": "derive",
        "rules": rules,
        "values": [
            {"site": site, "slot": slot, "case": case, "value": value.value, **_reasons(value)}
            for site, slot, case, value in values
        ],
    }


def chosen(found: Chosen) -> dict[str, Any]:
    """The JSON of `muhmod derive --kernel`: `config`, or ranked `configs`, with the derivation."""
    configs = list(found.configs)
    return {
        "schema": KERNEL_SCHEMA,
        "command": "derive",
        "kernel": found.kernel,
        **({"configs": configs} if found.ranked else {"config": configs[0]}),
        "kind": "heuristic",
        "derivation": list(found.steps),
        "facts": [_fact(fact) for fact in found.facts],
    }


def verified(pack: Pack, tree: str, rows: Iterable[Checked], target: str) -> dict[str, Any]:
    """The JSON of `muhmod verify`: a row for each configuration; null where a number is not known."""
    rows = list(rows)
    return {
        "schema": VERIFY_SCHEMA,
        "command": "verify",
        "rules": pack.name,
        "hardware": pack.hardware,
        "tree": tree,
        "target": target,
        "exit": {
            "code": max((row.code for row in rows), default=0),
            "reasons": [f"{row.site}: {row.verdict}: {row.reason}" for row in rows if row.code],
        },
        "configurations": [{**row._asdict(), "config": dict(row.config)} for row in rows],
    }


def what_if(rules: str, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """The JSON of `muhmod derive --what-if`: each claim about each disputed fact, with what it changes."""
    return {
        "schema": WHAT_IF_SCHEMA,
        "command": "derive",
        "rules": rules,
        "outcomes": [
            {
                "fact": o.fact,
                "unit": o.unit,
                **o.candidate._asdict(),
                "used": o.used,
                "harmless": not o.changes,
                "changes": [
                    {"site": c.case.site, "slot": c.case.slot, "case": c.case.case,
                     "before": c.before, "after": c.after}
                    for c in o.changes
                ],
            }
            for o in outcomes
        ],
    }  # fmt: skip


def headers(found: Iterable[Header]) -> dict[str, Any]:
    """The JSON of `muhmod headers`: each struct's constants as claims, with file and line as the source."""
    return {
        "schema": HEADERS_SCHEMA,
        "command": "headers",
        "headers": [
            {
                "file": header.file,
                "structs": [
                    {
                        "name": struct.name,
                        "scope": struct.scope,
                        "line": struct.line,
                        "values": {
                            v.name: {"value": v.value, "status": "documented",
                                     "source": f"{header.file}:{v.line}"}
                            for v in struct.values
                        },
                    }
                    for struct in header.structs
                ],
                "unread": list(header.unread),
            }
            for header in found
        ],
    }  # fmt: skip


def differences(packs: Sequence[str], rows: Iterable[Row]) -> dict[str, Any]:
    """The JSON of `muhmod rules show --compare`."""
    return {
        "schema": COMPARE_SCHEMA,
        "packs": list(packs),
        "differences": [
            {"kind": row.kind, "name": row.name, "values": dict(zip(packs, row.values, strict=True))}
            for row in rows
        ],
    }


def pack(of: Pack) -> dict[str, Any]:
    """The JSON of `muhmod rules show`: rules, and facts with all their candidates."""
    return {
        "schema": PACK_SCHEMA,
        "name": of.name,
        "title": of.title,
        "hardware": of.hardware,
        "model": of.model,
        "sites": {
            rule.name: {
                "site": rule.site,
                "scope": rule.scope,
                "slots": {
                    name: {k: v for k, v in setting._asdict().items() if v not in (None, "")}
                    for name, setting in rule.slots.items()
                },
                "guards": [guard.table() for guard in rule.guards],
            }
            for rule in of.rules
        },
        "facts": {
            name: {"unit": of.facts.units[name], "candidates": [claim._asdict() for claim in claims]}
            for name, claims in of.facts.claims.items()
        },
        "chosen": {
            name: {"value": value, "reason": reason} for name, (value, reason) in of.facts.choices.items()
        },
    }


def dump(data: Any) -> str:
    """Indented JSON."""
    return json.dumps(data, indent=1, ensure_ascii=False)


def _site(row: SiteReport) -> dict[str, Any]:
    out: dict[str, Any] = {
        "site": row.site,
        "file": row.file,
        "scope": row.scope,
        "line": row.line,
        "end_line": row.end_line,
        "form": row.form,
        "state": row.state,
        "slots": [_slot(slot) for slot in row.slots],
        "guards": [{"guard": g.guard, "holds": g.holds, "evidence": g.evidence} for g in row.guards],
    }
    if row.rule != row.site:
        out["rule"] = row.rule
    if row.reason:
        out["reason"] = row.reason
    if row.candidates:
        out["candidates"] = list(row.candidates)
    if row.cause:
        out["cause"] = row.cause
    if row.pinned:
        out["pinned"] = row.pinned
    if row.differences:
        out["differences"] = [one._asdict() for one in row.differences]
    if row.literals:
        out["literals"] = [one._asdict() for one in row.literals]
    return out


def _slot(slot: SlotReport) -> dict[str, Any]:
    out: dict[str, Any] = {"name": slot.name, "line": slot.line}
    if slot.column:
        out |= {"column": slot.column, "end_line": slot.end_line, "end_column": slot.end_column}
    out |= {"old": slot.old, "new": slot.new}
    if slot.bound:
        out["bound"] = slot.bound
    if slot.note:
        out["note"] = slot.note
    if slot.reach is not None:
        out |= reach(slot.reach)
    if slot.derived is not None:
        out |= _reasons(slot.derived)
    return out


def _reasons(value: Derived) -> dict[str, Any]:
    out: dict[str, Any] = {
        "kind": value.kind,
        "derivation": list(value.steps),
        "facts": [_fact(fact) for fact in value.facts],
    }
    if value.warnings:
        out["warnings"] = list(value.warnings)
    return out


def _fact(fact: Fact) -> dict[str, Any]:
    out: dict[str, Any] = {
        "name": fact.name,
        "value": fact.value,
        "unit": fact.unit,
        "status": fact.status,
        "source": fact.source,
    }
    if fact.rivals:
        out["rivals"] = [{"value": r.value, "status": r.status, "source": r.source} for r in fact.rivals]
    if fact.chosen:
        out["chosen"] = fact.chosen
    return out


def _found(found: Found) -> dict[str, Any]:
    out: dict[str, Any] = {
        "site": found.site,
        "file": found.file,
        "scope": found.scope,
        "line": found.line,
        "end_line": found.end_line,
        "form": found.form,
        "slots": [
            {"name": s.name, "line": s.line, "value": _value(s.text, s.entry), **_flags(s)}
            for s in found.slots
        ],
    }
    if found.problem:
        out |= {"state": "unrewritable", "reason": found.problem}
    return out


def _value(text: str, entry: Any) -> str:
    return (entry.show() if entry is not None else "") or " ".join(text.split())


def _flags(slot: Any) -> dict[str, Any]:
    out: dict[str, Any] = {"bound": slot.bound} if slot.bound else {}
    if not slot.live:
        out["note"] = "overwritten on every path"
    elif slot.reason:
        out["note"] = slot.reason
    return out


# Plain lines ----------------------------------------------------------------------------------


def plain(rows: Iterable[SiteReport]) -> list[str]:
    """A line a site, and below it what is not as it was pinned: for `check`, which wakes no table."""
    from muhmod import unchanged

    lines = []
    for row in rows:
        place = f"{row.file}:{row.line}" if row.file else ""
        reason = row.reason if not any(one.kind != "moved" for one in row.differences) else ""
        lines.append(unchanged.line(row.state, row.rule or row.site, place, reason))
        lines += [f"    {text}" for text in [*drift(row), *(changes(row) if row.state == "pending" else ())]]
    return lines


def drift(row: SiteReport) -> list[str]:
    """What is not as it was pinned, a line each: who moved it, what differs where, the nearest candidates."""
    moved = [one for one in row.differences if one.kind == "moved"]
    others = [one for one in row.differences if one.kind != "moved"]
    lines = [f"{one.text}, otherwise unchanged" for one in moved if not others]
    if others and row.reason.endswith("derived value now"):
        lines.append("it holds the derived value now")
    if row.cause:
        lines.append(row.cause + (f"; pinned at {row.pinned}" if row.pinned and others else ""))
    for one in others:
        where = f"{one.file}:{one.line}: " if one.file else ""
        lines.append(f"{one.kind}: {where}{one.text}")
    lines += [one.show() for one in row.literals if not one.base.startswith("[")]
    lines += [f"candidate: {text}" for text in row.candidates]
    return lines


def changes(row: SiteReport) -> list[str]:
    """`NAME old -> new` for each slot that changes; a list of configurations by its length."""
    changed = [slot for slot in row.slots if slot.old != slot.new]
    if any(slot.name.startswith("configs") for slot in changed):
        before, after = (sum(bool(getattr(s, key)) for s in row.slots) for key in ("old", "new"))
        return [", ".join(filter(None, (f"{before} -> {after} configs", changed[0].mark)))]
    return [
        ", ".join(filter(None, (f"{s.name} {s.old or 'nothing'} -> {s.new or 'removed'}", s.mark)))
        for s in changed
    ]


def advised(advice: Sequence[Advice], *, full: bool) -> list[str]:
    """The siblings that a rule misses; what no rule owns is listed in full, or counted."""
    told, count = notable(advice, full=full)
    return [f"advice: {text}" for text in (*(one.show() for one in told), *filter(None, [count]))]


def notable(advice: Sequence[Advice], *, full: bool) -> tuple[list[Advice], str]:
    """The advice to list, and a sentence that counts the rest."""
    told = [one for one in advice if full or one.kind == "sibling"]
    rest = [one for one in advice if one not in told]
    files = len({one.file for one in rest})
    count = f"{len(rest)} tuning literals in {files} files have no rule; -v lists them"
    return told, count if rest else ""


# What a reviewer sees ---------------------------------------------------------------------------

Level = Literal["error", "warning", "notice"]


def level(row: SiteReport) -> Level | None:
    """How loudly a row speaks where only what needs a look is shown; None for one that is as it should be."""
    if row.code:
        return "error"
    if row.state == "pending" or row.cause == "rules changed":
        return "warning"
    return "notice" if row.state in ("applied", "held") else None


def words(row: SiteReport) -> list[str]:
    """A row in lines: its state and why, what would change, and what is not as it was pinned."""
    said = ": ".join(filter(None, (row.state, row.reason, "; ".join(changes(row)))))
    return [said, *drift(row)]


def github(
    of: Tree,
    rows: Iterable[SiteReport],
    *,
    everything: bool = False,
    advice: Sequence[Advice] = (),
    strict: bool = False,
) -> list[str]:
    """One workflow command for each row that a reviewer should see, paths from the repository's root.

    `everything`: for the other rows too; `strict`: advice is a warning.
    """
    lines = []
    for row in rows:
        loud = level(row) or ("notice" if everything else None)
        if loud is not None:
            place = (row.file, row.line) if row.file else None
            lines.append(_annotation(of, loud, place, row.rule or row.site, "\n".join(words(row))))
    loud = "warning" if strict else "notice"
    return lines + [_annotation(of, loud, (one.file, one.line), one.kind, one.said()) for one in advice]


def alarm(text: str) -> str:
    """The workflow command for an error that has no place."""
    return f"::error title=muhmod::{_data(text)}"


def _annotation(of: Tree, loud: Level, place: tuple[str, int] | None, title: str, text: str) -> str:
    where = f"file={_property(of.shown(place[0]))},line={max(place[1], 1)}," if place else ""
    return f"::{loud} {where}title={_property('muhmod ' + title)}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
