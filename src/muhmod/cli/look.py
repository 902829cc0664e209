"""The commands that only look: sites, explain, derive, rules."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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
    from muhmod.engine import Plan
    from muhmod.model import Derived, SiteReport
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
    from muhmod import catalog, engine, report, tree

    settings = Settings(given)
    options = settings.options()
    ignored = {catalog.check(name) for name in options.ignore}
    chosen = tuple(name for name in options.select or catalog.names() if name not in ignored)
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
    pack = settings.pack(reading=True)
    file, line = _file_line(target)
    configured = words(settings.config.get("tree", ()))
    place = tree_path or (configured[0] if configured else "") or ("" if file else _here(pack))
    if file is None and not place:
        return _explain_derived(target, pack, settings)
    of = tree.locate(place or _package_above(file, pack), pack.packages)
    made = engine.plan(of, pack)
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
    _show_derived(pack, settings, (target,))
    return 0


@click.command(name="derive")
@RULES
@NARROW
@OUTPUT
def derive_(**given: Any) -> int:
    """The pack's derived values with their derivations; needs no tree."""
    settings = Settings(given)
    pack = settings.pack(reading=True)
    options = settings.options()
    from muhmod import engine

    engine.check_names(pack, options)
    names = tuple(
        rule.name
        for rule in pack.rules
        if (not options.select or {rule.name, rule.site} & {*options.select})
        and not {rule.name, rule.site} & {*options.ignore}
    )
    _show_derived(pack, settings, names)
    return 0


def _show_derived(pack: Pack, settings: Settings, names: tuple[str, ...]) -> None:
    values = [row for row in _derived(pack) if row[0] in names]
    out = Out(settings)
    if settings.format() == "json":
        from muhmod import report

        out.text(report.dump(report.derived(pack.name, values)))
    else:
        from muhmod import show

        out.rich(partial(show.derivations, values=values))
    out.close()


def _derived(pack: Pack) -> list[tuple[str, str, str, Derived]]:
    """(site, slot, case, value) of every slot that the pack sets, without a tree."""
    from muhmod import derive
    from muhmod.derive.work import Ask
    from muhmod.model import Arrival, Condition

    rows: list[tuple[str, str, str, Derived]] = []
    for rule in pack.rules:
        for slot, setting in rule.slots.items():
            ask = Ask(literal=setting.value, reason=setting.reason)
            cases: list[tuple[str, Ask]] = [("", ask)]
            if setting.derive == "moe_block_m":
                # The ladder's bounds in the tree that the pack is for stand in for a tree's own.
                cases = [
                    (
                        f"numel <= {bound}",
                        ask._replace(arrivals=(Arrival((Condition(f"numel <= {bound}", True),)),)),
                    )
                    for bound in (64, 1024)
                ] + [("no bound", ask)]
            rows += [(rule.name, slot, case, derive.run(setting.derive, pack.facts, a))
                     for case, a in cases]  # fmt: skip
    return rows


@click.command()
@click.argument("action", type=click.Choice(["list", "show", "validate"]), default="list")
@click.argument("names", nargs=-1, metavar="[PACK...]")
@OUTPUT
def rules(action: str, names: tuple[str, ...], **given: Any) -> int:
    """Rule packs, hardware and models that are known; show or validate one."""
    from muhmod import engine, rulebook

    settings = Settings(given)
    out = Out(settings)
    if action == "list":
        rows = _known_packs(rulebook)
        if settings.format() == "json":
            from muhmod import report

            keys = ("kind", "name", "what")
            out.text(report.dump([dict(zip(keys, row, strict=True)) for row in rows]))
        else:
            from muhmod import show

            out.rich(partial(show.listing, rows=rows))
        out.close()
        return 0
    if not names:
        raise UsageError(f"`muhmod rules {action}` needs a pack's name or path")
    for name in names:
        pack = rulebook.load(name)
        engine.check_names(pack, settings.options())
        if action == "validate":
            out.text(f"{name}: valid, {len(pack.rules)} sites, {len(pack.facts.claims)} facts")
        elif settings.format() == "json":
            from muhmod import report

            out.text(report.dump(report.pack(pack)))
        else:
            _show_pack(out, pack)
    out.close()
    return 0


def _known_packs(rulebook: Any) -> list[tuple[str, str, str]]:
    rows = [("pack", name, rulebook.load(name).title) for name in rulebook.builtin("")]
    for kind in ("hardware", "models"):
        rows += [
            (kind.rstrip("s"), name, f"{len(rulebook.load_facts(name, kind))} facts")
            for name in rulebook.builtin(kind)
        ]
    return rows


def _show_pack(out: Out, pack: Pack) -> None:
    from muhmod import show

    rows = [
        (rule.name, rule.scope, ", ".join(f"{s}: {r.derive}" for s, r in rule.slots.items())
         or ("remove the literal" if rule.remove else ""))
        for rule in pack.rules
    ]  # fmt: skip
    facts = [(name, pack.facts.units[name], claims) for name, claims in pack.facts.claims.items()]
    out.text(f"{pack.name}: {pack.title} (hardware {pack.hardware}, model {pack.model})")
    out.rich(lambda console: show.listing(console, [("site", "scope", "sets"), *rows]))
    out.rich(lambda console: show.claims(console, "facts", facts))
    for name, (value, reason) in pack.facts.choices.items():
        out.text(f"chosen: {name} = {value}: {reason}")
