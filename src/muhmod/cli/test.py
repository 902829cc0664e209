"""`muhmod test`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from muhmod.cli.shared import NARROW, RULES, Out, Settings, locate, output, say, words
from muhmod.errors import UsageError

if TYPE_CHECKING:
    from muhmod.rulebook import Pack
    from muhmod.trial import Cycle, Run

_FORMATS = ("text", "json", "markdown")
_SCHEMA = "muhmod/test/1"


@click.command()
@click.argument("trees", nargs=-1, metavar="[TREE]...")
@RULES
@click.option("--mutate", is_flag=True, help="Also change the tree as upstream would, and apply to that.")
@NARROW
@output(*_FORMATS)
def test(trees: tuple[str, ...], **given: Any) -> int:
    """Try a pack's rules: apply, apply again, revert; on its fixtures and, in copies, on a tree."""
    from muhmod import trial

    settings = Settings(given, _FORMATS)
    out = Out(settings)
    pack = _narrowed(settings)
    located = locate(list(trees) or list(words(settings.config.get("tree", ()))), pack)
    cycles = trial.fixtures(pack)
    if given["mutate"] and not located:
        raise UsageError("--mutate needs a TREE")
    if not located and not cycles:
        raise UsageError(
            f"nothing to try {pack.name} on", "give a TREE, or fixtures/RULE/FORM/{before,after}.py beside it"
        )
    runs = []
    for of in located:
        cycles += trial.cycles(of, pack)
        runs += trial.trials(of, pack) if given["mutate"] else []
    wrong = [run for run in runs if run.tool == "muhmod" and run.outcome in trial.MISAPPLIED]
    code = max([one.code for one in cycles] + [3 for _ in wrong])
    reasons = [
        f"{one.rule} on {one.on}: {one.fault}{one.reason and f': {one.reason}'}"
        for one in cycles
        if one.fault
    ]
    reasons += [f"{run.rule}: {run.mutation}: {run.outcome}: {run.said}" for run in wrong]
    _report(out, settings, pack, cycles, runs, code, reasons)
    for reason in reasons:
        say(reason, "error")
    if not code and not given["quiet"]:
        say(f"{len(cycles)} tried, all right: applied, applied again, taken back byte for byte")
    return code


def _narrowed(settings: Settings) -> Pack:
    """The pack with the rules that --select and --ignore leave."""
    from muhmod import engine

    pack, options = settings.pack(), settings.options()
    engine.check_names(pack, options)
    chosen, not_ = {*options.select}, {*options.ignore}
    rules = tuple(
        rule
        for rule in pack.rules
        if (not chosen or chosen & {rule.name, rule.site}) and not not_ & {rule.name, rule.site}
    )
    return pack._replace(rules=rules)


def _report(
    out: Out,
    settings: Settings,
    pack: Pack,
    cycles: list[Cycle],
    runs: list[Run],
    code: int,
    reasons: list[str],
) -> None:
    name = settings.format()
    if name == "json":
        from muhmod import report

        out.text(report.dump(_data(pack, cycles, runs, code, reasons)))
    elif name == "markdown" or not settings.given["quiet"]:
        draw = _markdown if name == "markdown" else _plain
        for line in draw([("rule", "on", "state", "result"), *_cycle_rows(cycles)]):
            out.text(line)
        for line in ("", *draw(_misapply(runs))) if runs else ():
            out.text(line)
        for run in runs if settings.given["verbose"] else ():
            out.text(f"{run.rule}: {run.mutation}: {run.tool}: {run.outcome} (exit {run.code}): {run.said}")
    out.close()


def _cycle_rows(cycles: list[Cycle]) -> Iterator[tuple[str, ...]]:
    for one in cycles:
        said = one.reason and f": {one.reason}"
        right = "right" if one.state == "applied" else "nothing to write"
        yield one.rule, one.on, one.state, f"{one.fault or right}{said}"


def _misapply(runs: list[Run]) -> list[tuple[str, ...]]:
    """A row a mutation: right/refused/misapplied by each tool; the rates last."""
    from muhmod import mutate, trial

    rows: list[tuple[str, ...]] = [("right/refused/misapplied", *trial.TOOLS)]
    for mutation in mutate.MUTATIONS:
        of = [run for run in runs if run.mutation == mutation.name]
        if not of:
            continue
        tallies = [trial.tally(of, tool) for tool in trial.TOOLS]
        rows.append((mutation.name, *("/".join(map(str, t)) if t.runs else "-" for t in tallies)))
    totals = [trial.tally(runs, tool) for tool in trial.TOOLS]
    rows.append(("all", *("/".join(map(str, t)) if t.runs else "not there" for t in totals)))
    rows.append(("misapply rate", *(f"{t.rate:.1%}" if t.runs else "-" for t in totals)))
    return rows


def _plain(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _markdown(rows: list[tuple[str, ...]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        if not number:
            yield "|" + "---|" * len(row)


def _data(pack: Pack, cycles: list[Cycle], runs: list[Run], code: int, reasons: list[str]) -> dict[str, Any]:
    from muhmod import trial

    rates = {tool: trial.tally(runs, tool) for tool in trial.TOOLS}
    return {
        "schema": _SCHEMA,
        "command": "test",
        "rules": pack.name,
        "exit": {"code": code, "reasons": reasons},
        "cycles": [one._asdict() for one in cycles],
        "mutations": [run._asdict() for run in runs],
        "tools": {
            tool: {**t._asdict(), "runs": t.runs, "rate": round(t.rate, 4)}
            for tool, t in rates.items()
            if t.runs
        },
    }
