"""The commands that only look: sites, explain, derive, rules."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muhmod.cli.derive import show_derived
from muhmod.cli.shared import (
    JOBS,
    NARROW,
    OUTPUT,
    RULES,
    Out,
    Settings,
    say,
    words,
)
from muhmod.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from muhmod.engine import Plan
    from muhmod.model import SiteReport, SlotReport
    from muhmod.rulebook import Pack
    from muhmod.tree import Tree


@click.command()
@click.argument("trees", nargs=-1, metavar="TREE...")
@NARROW
@click.option("--all", "everything", is_flag=True, help="Tests, vendored and generated files too.")
@JOBS
@OUTPUT
def sites(trees: tuple[str, ...], **given: Any) -> int:
    """Every tuning site in the tree, its form and present value; needs no rules."""
    from muhmod import engine, report, tree

    settings = Settings(given)
    chosen = settings.sites()
    out = Out(settings)
    reports = []
    code = 0
    for word in settings.trees(trees):
        of = tree.locate(word, tree.PACKAGES)
        rows, faults = engine.sites(of, chosen, everything=given["everything"], jobs=settings.jobs)
        code = max([code, *(fault.code for fault in faults)])
        reasons = [fault.message for fault in faults]
        for reason in reasons:
            say(reason, "error")
        if settings.format() == "json":
            reports.append(report.sites(of.name, rows, code, reasons))
        elif settings.format() == "github":
            from muhmod.model import SiteReport

            as_rows = [
                SiteReport(f.site, "already", f.file, f.scope, f.line, f.end_line, f.form, f.problem)
                for f in rows
            ]
            for line in report.github(of, as_rows, everything=True):
                out.text(line)
        else:
            from muhmod import show

            out.rich(partial(show.found, rows=rows, verbose=bool(given["verbose"])))
            if not given["quiet"]:
                say(f"{len(rows)} sites in {of.name}/")
    if reports:
        out.text(report.dump(reports[0] if len(reports) == 1 else reports))
    out.close()
    return code


@click.command()
@click.argument("target", metavar="SITE|FILE:LINE")
@click.argument("tree_path", required=False, metavar="[TREE]")
@RULES
@OUTPUT
def explain(target: str, tree_path: str | None, **given: Any) -> int:
    """What would be written there and why, step by step, with the facts used."""
    from muhmod import engine, tree

    settings = Settings(given)
    pack = settings.pack()
    file, line = _file_line(target)
    configured = words(settings.config.get("tree", ()))
    place = tree_path or (configured[0] if configured else "") or ("" if file else _here(pack))
    if file is None and not place:
        return _explain_derived(target, pack, settings)
    of = tree.locate(place or _package_above(file, pack), pack.packages)
    made = engine.plan(of, pack, purpose=engine.Purpose(reach=_asked(target, line)))
    row = _row_at(made, file, line, of) if file else _row_named(made, target)
    out = Out(settings)
    if settings.format() == "json":
        from muhmod import report

        data = report.report("explain", pack.name, of.name, [row], row.code, made.reasons)
        out.text(report.dump(data))
    else:
        from muhmod import show

        out.rich(partial(show.explain, row=row, line=line))
    out.close()
    return row.code if row.code in (4, 5) else 0


def _asked(target: str, line: int) -> Callable[[SiteReport, SlotReport], bool]:
    """Which slots are told about: what the rule sets of the site, or on the line."""
    from muhmod import engine

    def wanted(row: SiteReport, slot: SlotReport) -> bool:
        here = slot.line <= line <= max(slot.line, slot.end_line) if line else target in (row.rule, row.site)
        return here and engine.governed(row, slot)

    return wanted


def _here(pack: Pack) -> str:
    """`.`, where a package that the pack knows is here."""
    return "." if any(Path(name).is_dir() for name in (*pack.packages,)) else ""


def _file_line(target: str) -> tuple[Path | None, int]:
    path, colon, number = target.rpartition(":")
    if colon and number.isdigit():
        if not Path(path).is_file():
            raise UsageError(f"no such file: {path}")
        return Path(path).resolve(), int(number)
    if "/" in target or target.endswith(".py"):
        raise UsageError(f"{target}: write FILE:LINE, e.g. {target}:1")
    return None, 0


def _package_above(file: Path | None, pack: Pack) -> str:
    assert file is not None
    for folder in file.parents:
        if folder.name in pack.packages:
            return str(folder)
    raise UsageError(f"{file.name} is in no package that {pack.name} knows", "give TREE too")


def _row_named(made: Plan, target: str) -> SiteReport:
    for row in made.sites:
        if target in (row.rule, row.site):
            return row
    known = [row.rule for row in made.sites]
    raise UsageError(f"the pack {made.pack.name} has no site {target!r}{nearest(target, known)}")


def _row_at(made: Plan, file: Path, line: int, of: Tree) -> SiteReport:
    try:
        shown = file.relative_to(of.package).as_posix()
    except ValueError:
        raise UsageError(f"{file.name} is not in {of.name}/") from None
    rows = [row for row in made.sites if row.file == shown]
    for row in rows:
        if row.line <= line <= row.end_line:
            return row
    places = ", ".join(f"{row.site} at {row.line}-{row.end_line}" for row in rows)
    raise UsageError(
        f"no site of {made.pack.name} stands at {shown}:{line}",
        f"in that file: {places}" if places else "`muhmod sites TREE` lists them all",
    )


def _explain_derived(target: str, pack: Pack, settings: Settings) -> int:
    known = {rule.name for rule in pack.rules}
    if target not in known:
        raise UsageError(f"the pack {pack.name} has no site {target!r}{nearest(target, known)}")
    show_derived(pack, settings, (target,))
    return 0
