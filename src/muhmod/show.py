"""What a person reads: tables, derivations, coloured diffs. The only module that knows rich."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muhmod.model import (
    LADDER,
    Candidate,
    Checked,
    Derived,
    Fact,
    Found,
    Reach,
    SiteReport,
    Slot,
    SlotReport,
    Wake,
)

if TYPE_CHECKING:
    from muhmod.derive.kernels.choose import Chosen
    from muhmod.derive.whatif import Outcome, Row
    from muhmod.headers import Header

_WIDTH = 118
_STYLES = {
    "applied": "green", "already": "green", "pending": "yellow", "held": "cyan",
    "satisfied-upstream": "green", "skipped": "dim", "absent": "dim",
}  # fmt: skip


def console(color: str = "auto", *, to: object = None) -> Console:
    """A console on stdout; off a terminal its width is fixed, so that output is the same anywhere."""
    terminal = sys.stdout.isatty()
    return Console(
        file=to,  # type: ignore[arg-type]
        width=None if terminal else _WIDTH,
        force_terminal={"always": True, "never": False}.get(color),
        no_color=True if color == "never" else None,
        highlight=False,
        soft_wrap=False,
    )


def table(out: Console, rows: Iterable[SiteReport]) -> None:
    """One row a site: where, in which state, which values."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    for name in ("site", "place", "state", "values and why"):
        grid.add_column(name, no_wrap=name in ("site", "state"), overflow="fold")
    for row in rows:
        place = f"{row.file}:{row.line}" if row.file else "-"
        state = Text(row.state, style="bold red" if row.code else _STYLES.get(row.state, ""))
        label = row.site if row.rule in ("", row.site) else f"{row.rule} ({row.site})"
        grid.add_row(label, Text(place), state, Text("\n".join(_values(row))))
    out.print(grid)


def _values(row: SiteReport) -> list[str]:
    lines = [row.reason] if row.reason else []
    changed = [slot for slot in row.slots if slot.old != slot.new]
    if any(slot.name.startswith("configs") for slot in row.slots):
        lines += _list_values(row) if row.state != "held" else []
    elif row.state != "skipped":
        lines += [
            f"{_name(s)} {s.old or 'nothing'} -> {s.new or 'removed'}{_why(s)}{_mark(s)}" for s in changed
        ]
        if row.state != "held":
            lines += [
                f"{_name(s)} {s.old or 'nothing'}: {s.note}" for s in row.slots if s.note.startswith("held: ")
            ]
        # Several values of a site mostly end at one place: that is said once.
        lines += dict.fromkeys(s.mark for s in changed if ":" in s.mark)
        same = [s for s in row.slots if s.old == s.new and s.derived is not None]
        lines += [f"{_name(s)} {s.old}{_why(s)}" for s in same]
        over = [s for s in row.slots if s.note.startswith("overwritten")]
        if over:
            names = ", ".join(f"{s.name} {s.old}" for s in over)
            lines.append(f"overwritten on every path, left: {names}")
    lines += [f"guard: {g.guard}: {'yes' if g.holds else 'no'} ({g.evidence})"
              for g in row.guards if g.holds]  # fmt: skip
    lines += [f"candidate: {candidate}" for candidate in row.candidates]
    for slot in row.slots:
        lines += [f"warning: {w}" for w in (slot.derived.warnings if slot.derived else ())]
    return lines


def _list_values(row: SiteReport) -> list[str]:
    gone = [s for s in row.slots if s.old and not s.new]
    slower = [s for s in gone if s.derived and s.derived.kind == "heuristic"]
    stays = [s for s in row.slots if s.old and s.new]
    new = [s for s in row.slots if s.new and not s.old]
    if not gone and not new:
        return [f"{len(stays)} configs, all feasible" if stays else ""]
    total = f"{len(gone) + len(stays)} -> {len(stays) + len(new)} configs"
    parts = [f"{len(gone) - len(slower)} cannot run (limit)"] if len(gone) > len(slower) or not slower else []
    parts += [f"{len(slower)} slower (heuristic)"] if slower else []
    said = f"{total}: {', '.join(parts)}, {len(stays)} stay, {len(new)} added (heuristic)"
    mark = (gone or new)[0].mark
    return [said + _mark((gone or new)[0]), *([mark] if ":" in mark else [])]


def _mark(slot: SlotReport) -> str:
    word = slot.mark.partition(":")[0]
    return f"  {word}" if word else ""


def _why(slot: SlotReport) -> str:
    return f"  ({slot.derived.kind})" if slot.derived else ""


def _line(out: Console, text: str, style: str = "") -> None:
    """One line, not wrapped: it may be searched for, or copied."""
    out.print(Text(text, style=style), soft_wrap=True)


def explain(out: Console, row: SiteReport, line: int = 0) -> None:
    """A site as a worked example: each slot's steps, then the facts with their rivals."""
    place = f"  {row.file}:{row.line}" if row.file else ""
    _line(out, f"{row.site}{place}  {row.state}", style="bold")
    if row.reason:
        _line(out, f"  {row.reason}")
    for guard in row.guards:
        word = "holds" if guard.holds else "is false"
        if guard.holds or guard.evidence.removeprefix("not proven: ") not in row.reason:
            _line(out, f"  guard {word}: {guard.guard}: {guard.evidence}")
    facts: dict[str, Fact] = {} if line else {fact.name: fact for g in row.guards for fact in g.facts}
    shared: tuple[str, ...] = ()
    for slot in row.slots:
        if line and not slot.line <= line <= max(slot.line, slot.end_line):
            continue
        shared = _slot_steps(out, slot, shared)
        facts |= {fact.name: fact for fact in (slot.derived.facts if slot.derived else ())}
    for text in fact_lines(facts.values()):
        _line(out, f"  {text}")
    for candidate in row.candidates:
        _line(out, f"  candidate: {candidate}")


def _slot_steps(out: Console, slot: SlotReport, before: tuple[str, ...]) -> tuple[str, ...]:
    """Print one slot; steps that it shares with the slot before are not said again."""
    change = (
        slot.old or "nothing"
        if slot.old == slot.new
        else f"{slot.old or 'nothing'} -> {slot.new or 'removed'}"
    )
    note = f"  {slot.note}" if slot.note else ""
    kind = f"  ({slot.derived.kind})" if slot.derived else ""
    at = f" (line {slot.line})" if slot.line else ""
    _line(out, f"  {_name(slot)}{at}: {change}{kind}{note}")
    steps = slot.derived.steps if slot.derived else ()
    fresh = steps[len(before) :] if before and steps[: len(before)] == before else steps
    offset = len(steps) - len(fresh)
    for number, step in enumerate(fresh, offset + 1):
        _line(out, f"    {number}. {step}")
    for warning in slot.derived.warnings if slot.derived else ():
        _line(out, f"    warning: {warning}")
    if slot.reach is not None:
        _line(out, f"    {slot.mark if slot.reach.verdict != 'reaches' else f'reaches: {slot.reach.why}'}")
        way(out, slot.reach)
    return steps[:-1] if len(steps) > 1 and slot.name.startswith("configs[+") else ()


def way(out: Console, reach: Reach) -> None:
    """A value's way as a tree: each place below the one that it came from."""
    for depth, step in enumerate(reach.path):
        branch = f"{'   ' * min(depth - 1, 11)}└─ " if depth else ""
        _line(out, f"      {branch}{step.file}:{step.line}  {step.does}")


def fact_lines(facts: Iterable[Fact]) -> list[str]:
    """Each fact with its status, source and rivals."""
    lines = []
    for fact in facts:
        unit = "" if isinstance(fact.value, str) else f" {fact.unit}"
        lines.append(f"fact {fact.name} = {fact.value}{unit} [{fact.status}] {fact.source}")
        if fact.chosen:
            lines.append(f"  chosen by the pack: {fact.chosen}")
        lines += [f"  rival: {r.value} [{r.status}] {r.source}" for r in fact.rivals]
    return lines


def derivations(out: Console, values: Iterable[tuple[str, str, str, Derived]]) -> None:
    """The values of `muhmod derive`."""
    facts: dict[str, Fact] = {}
    for site, slot, case, value in values:
        label = f"{site} {slot}" + (f" ({case})" if case else "")
        shown = f"{value.value} configs" if slot == "configs" else value.value
        if slot == LADDER:
            shown = "\n" + str(value.value).rstrip()
        _line(out, f"{label} = {shown}  [{value.kind}]", style="bold")
        for number, step in enumerate(value.steps, 1):
            _line(out, f"  {number}. {step}")
        for warning in value.warnings:
            _line(out, f"  warning: {warning}")
        facts |= {fact.name: fact for fact in value.facts}
    out.print()
    for line in fact_lines(facts.values()):
        _line(out, line)


def chosen(out: Console, chosen: Chosen) -> None:
    """The configurations of `muhmod derive --kernel`, best first, and why."""
    for config in chosen.configs:
        shown = "  ".join(f"{key} {value}" for key, value in config.items())
        _line(out, f"{chosen.kernel}: {shown}  [heuristic]", style="bold")
    for number, step in enumerate(chosen.steps, 1):
        _line(out, f"  {number}. {step}")
    out.print()
    for line in fact_lines(chosen.facts):
        _line(out, line)


def verified(out: Console, rows: Iterable[Checked]) -> None:
    """The table of `muhmod verify`: bytes of shared memory as compiled, predicted and allowed."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("configuration", overflow="fold")
    for name in ("shared B", "predicted", "limit", "registers", "spills B"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("verdict", overflow="fold")
    said = ""
    for row in rows:
        head = " ".join(filter(None, (row.site, row.kernel and f"-> {row.kernel}", row.file)))
        if head != said:
            grid.add_row(Text(head, style="bold"))
            said = head
        numbers = (row.shared, row.predicted, row.limit, row.registers, row.spills)
        verdict = Text(row.verdict, style="bold red" if row.code else "green")
        grid.add_row(Text(row.show()), *("-" if n is None else f"{n:,}" for n in numbers), verdict)
    out.print(grid)


_VERDICTS = {"reaches": "green", "unknown": "yellow", "overridden": "red", "stopped": "red"}


def reached(
    out: Console,
    rows: Iterable[tuple[Found, tuple[Reach, ...]]],
    woken: Mapping[Found, tuple[Wake, ...]],
    verbose: bool,
) -> None:
    """The verdict on each slot; with `verbose` the way, a place a line; what would wake by each flag."""
    for site, verdicts in rows:
        _line(out, f"{site.site}  {site.file}:{site.line}  {site.scope}", style="bold")
        for slot, one in zip(site.slots, verdicts, strict=True):
            style = _VERDICTS[one.verdict]
            _line(out, f"  {slot.name} (line {slot.line}): {one.verdict}: {one.why}", style=style)
            if verbose:
                way(out, one)
        for wake in woken.get(site, ()):
            _line(out, f"  if it were True: {wake.site} {wake.file}:{wake.line} {wake.slot}: {wake.verdict}")


def what_if(out: Console, outcomes: Sequence[Outcome]) -> None:
    """The table of `muhmod derive --what-if`."""
    if not outcomes:
        _line(out, "no fact of this pack is disputed")
        return
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("fact", "claim", "status", "what would change"):
        grid.add_column(name, overflow="fold")
    for number, outcome in enumerate(outcomes):
        first = not number or outcomes[number - 1].fact != outcome.fact
        changes = "\n".join(f"{c.case.label}: {c.before} -> {c.after}" for c in outcome.changes)
        harmless = "in use" if outcome.used else "nothing: the dispute is harmless here"
        unit = "" if isinstance(outcome.candidate.value, str) else f" {outcome.unit}"
        grid.add_row(outcome.fact if first else "", f"{outcome.candidate.value}{unit}",
                     outcome.candidate.status, Text(changes or harmless))  # fmt: skip
    out.print(grid)


def headers(out: Console, found: Iterable[Header]) -> None:
    """The table of `muhmod headers`."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("struct", "place", "constants"):
        grid.add_column(name, overflow="fold")
    for header in found:
        for struct in header.structs:
            values = "  ".join(f"{value.name} {value.value}" for value in struct.values)
            grid.add_row(Text(struct.name), f"{header.file}:{struct.line}", Text(values))
    out.print(grid)


def differences(out: Console, names: Sequence[str], rows: Iterable[Row]) -> None:
    """The table of `muhmod rules show --compare`."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "fact or value", *names):
        grid.add_column(name, overflow="fold")
    for row in rows:
        grid.add_row(row.kind, *(Text(cell) for cell in (row.name, *row.values)))
    out.print(grid)


def found(out: Console, rows: Sequence[Found], *, verbose: bool = False) -> None:
    """The table of `muhmod sites`; `verbose` lists every entry of an autotune list."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("site", "place", "form", "values"):
        grid.add_column(name, no_wrap=name in ("site", "form"), overflow="fold")
    for row in rows:
        values = [text for slot in row.slots for text in _shown_slot(row, slot, verbose)]
        if row.problem:
            values.append(f"unrewritable: {row.problem}")
        place = Text(f"{row.file}:{row.line}\n{row.scope}")
        grid.add_row(row.site, place, row.form, Text("\n".join(values)))
    out.print(grid)


def _shown_slot(row: Found, slot: Slot, verbose: bool) -> list[str]:
    if slot.name == "configs":
        inside = [s for s in row.slots if s.entry is not None and slot.start < s.start < slot.end]
        return [] if slot.reason else [f"{len(inside)} configs"]
    if slot.name.startswith("configs["):
        text = slot.entry.show() if slot.entry else ""
        return [f"{slot.name} {text or slot.reason}"] if verbose else []
    if slot.name == LADDER:
        lines = slot.text.splitlines()
        return [f"{LADDER} {lines[0].strip()}  ({len(lines)} lines)"] if lines else []
    text = " ".join(slot.text.split())
    return [f"{_name(slot)} {text[:60]}{'  (overwritten)' if not slot.live else ''}"]


def _name(slot: Slot | SlotReport) -> str:
    """The slot's name, with the source's own for it where that is another."""
    return f"{slot.name} ({slot.bound})" if slot.bound else slot.name


def claims(out: Console, title: str, facts: Iterable[tuple[str, str, Sequence[Candidate]]]) -> None:
    """A table of facts with all their candidates."""
    grid = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for name in ("fact", "value", "unit", "status", "source"):
        grid.add_column(name, overflow="fold")
    for name, unit, candidates in facts:
        for number, claim in enumerate(candidates):
            grid.add_row("" if number else name, str(claim.value), "" if number else unit,
                         claim.status, Text(claim.source))  # fmt: skip
    out.print(grid)


def listing(out: Console, rows: Sequence[tuple[str, str, str]]) -> None:
    """Names by kind, with what they are."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("kind", "name", "what"):
        grid.add_column(name, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    out.print(grid)


def outlined(out: Console, title: str, lines: Iterable[tuple[int, str, str]]) -> None:
    """The sites of `muhmod map`: (depth, text, verdict) a line."""
    _line(out, title, style="bold")
    for depth, text, verdict in lines:
        _line(out, f"{'  ' * depth}{text}", style=_VERDICTS.get(verdict, "" if depth else "bold"))
    _line(out, "")


def titled(out: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """One table of `muhmod map`: what it counts, then its rows."""
    _line(out, title, style="bold")
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        grid.add_column(name, overflow="fold", no_wrap=name in ("", "site"))
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    if grid.rows:
        out.print(grid)


def patch(out: Console, data: str) -> None:
    """A diff, coloured on a terminal."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in data.split("\n"):
        style = "bold" if line.startswith(("+++", "---", "diff ")) else styles.get(line[:1], "")
        out.print(Text(line, style=style), soft_wrap=True)
