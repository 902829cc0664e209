"""The commands around muhmod.lock: check, pin, relock, accept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muhmod import unchanged
from muhmod.cli.shared import (
    FORMATS,
    JOBS,
    LIVE,
    LOCK,
    NARROW,
    RULES,
    Out,
    Settings,
    locate,
    locked,
    output,
    say,
    writing,
)
from muhmod.errors import FileError, RefusedError, UsageError, nearest

if TYPE_CHECKING:
    from muhmod.engine import Plan
    from muhmod.lock import Lock
    from muhmod.model import SiteReport
    from muhmod.rulebook import Pack
    from muhmod.tree import Tree


@click.command()
@click.argument("trees", nargs=-1, metavar="TREE...")
@RULES
@click.option("--strict", is_flag=True, help="Tuning literals that no rule owns count too.")
@NARROW
@LIVE
@LOCK
@JOBS
@output(*FORMATS)
def check(trees: tuple[str, ...], **given: Any) -> int:
    """Tree, lock and rules against each other: has upstream moved, has somebody edited the result?"""
    from muhmod import engine

    settings = Settings(given, FORMATS)
    out = Out(settings)
    words = settings.trees(trees)
    pack, located = _pack_and_trees(words, settings)
    everything = given["strict"] or bool(given["verbose"]) or settings.format() == "json"
    wanted = given["strict"] or not given["quiet"]
    reach = None if given["quiet"] else engine.edited
    purpose = engine.Purpose(rewrite=False, pin=False, advice=wanted, everything=everything, reach=reach)
    with writing(located, "check"):
        pairs = locked(located, settings)
        made = engine.plan_all(pairs, pack, settings.options(), purpose, settings.jobs)
    made = [plan._replace(sites=_rows(plan)) for plan in made]
    code = max(_code(plan, strict=given["strict"]) for plan in made)
    _report(made, code, out, settings)
    return code


def _pack_and_trees(words: list[str], settings: Settings) -> tuple[Pack, list[Tree]]:
    """The pack that was asked for, or the one that the lock names."""
    if settings.get("rules", "rules"):
        pack = settings.pack()
        return pack, locate(words, pack)
    from muhmod import lock, tree

    located = [tree.locate(word, tree.PACKAGES) for word in words]
    path = lock.beside(located[0].home, settings.lock())
    known = lock.load(path, lock.name_of(located[0].package, path))
    if known is None:
        settings.pack()
        raise AssertionError
    given = settings.given | {"rules": _pack_of(known, path)}
    return Settings(given, settings.formats).pack(), located


def _pack_of(known: Lock, path: Path) -> str:
    return str(path.parent / known.rules) if "/" in known.rules else known.rules


def _rows(plan: Plan) -> tuple[SiteReport, ...]:
    return tuple(sorted((*plan.sites, *_orphans(plan)), key=lambda row: (row.site, row.rule)))


def _orphans(plan: Plan) -> list[SiteReport]:
    """Sites of the lock that no rule of the pack sets any more."""
    from muhmod.model import SiteReport

    names = {rule.name for rule in plan.pack.rules}
    rows = []
    for entry in plan.known.entries if plan.known else ():
        if entry.rule not in names:
            reason = f"{plan.pack.name} has no rule {entry.rule} any more"
            reason += "; `muhmod revert --select` takes back what it wrote" if entry.written else ""
            rows.append(
                SiteReport(
                    entry.site, "pending", entry.file, entry.scope, entry.line, entry.line, entry.form,
                    reason, entry.rule, cause="rules changed",
                )
            )  # fmt: skip
    return rows


def _code(plan: Plan, *, strict: bool) -> int:
    pending = any(row.state == "pending" or row.cause == "rules changed" for row in plan.sites)
    return plan.code or int(pending or (strict and bool(plan.advice)))


def _report(made: list[Plan], code: int, out: Out, settings: Settings) -> None:
    from muhmod import report

    name, quiet, strict = settings.format(), settings.given["quiet"], settings.given["strict"]
    full = strict or bool(settings.given["verbose"])
    reasons = [reason for plan in made for reason in plan.reasons]
    reasons += [_pending(made)] if code == 1 else []
    if name == "json":
        rows = [
            report.report("check", plan.pack.name, plan.tree.name, plan.sites, code, reasons)
            | {"advice": [one._asdict() for one in plan.advice]}
            for plan in made
        ]
        out.text(report.dump(rows[0] if len(rows) == 1 else rows))
    elif name != "text":
        _exchange(out, name, made, code, full=full, strict=strict)
    elif not quiet:
        for plan in made:
            out.lines(report.plain(plan.sites))
            out.lines(report.advised(plan.advice, full=full))
    out.close()
    for plan in made:
        _talk(plan, code, settings.lock(), quiet=quiet)


def _exchange(out: Out, name: str, made: list[Plan], code: int, *, full: bool, strict: bool) -> None:
    """For code scanning, for a job's log, and for a pull request."""
    from muhmod import report

    advice = [report.notable(plan.advice, full=full) for plan in made]
    if name == "sarif":
        from muhmod import sarif

        out.text(report.dump(sarif.log(made, code, [told for told, _ in advice], strict=strict)))
    elif name == "github":
        for plan, (told, _) in zip(made, advice, strict=True):
            out.lines(report.github(plan.tree, plan.sites, advice=told, strict=strict))
    else:
        from muhmod import markdown

        parts = [markdown.Part(plan, *told) for plan, told in zip(made, advice, strict=True)]
        out.raw(markdown.comment("check", parts).encode("utf-8", "replace"))


def _pending(made: list[Plan]) -> str:
    """Why the exit code is 1."""
    if any(_code(plan, strict=False) for plan in made):
        return "changes pending"
    return "tuning literals that no rule owns"


def _talk(plan: Plan, code: int, given_lock: Path | None, *, quiet: bool) -> None:
    where = f"at {given_lock}" if given_lock else f"beside {plan.tree.name}/"
    if quiet:
        for row in plan.sites:
            if row.code:
                cause = f"{row.cause}: " if row.cause else ""
                say(f"{row.rule}: {row.state}: {cause}{row.reason}", "error")
        return
    for note in plan.notes:
        say(note, "note")
    if plan.known is None:
        say(f"no lock {where}: held against the rules alone; `muhmod pin` makes one")
    if not code:
        say(unchanged.closing(plan.tree.name, plan.pack.name))
    elif code == 1 and not _code(plan, strict=False):
        say("tuning literals that no rule owns, listed above, count under --strict")
    elif code == 1:
        say("changes pending: `muhmod apply` makes them, `muhmod relock` takes changed rules into the lock")
    elif any(row.state in ("drifted", "lost", "ambiguous") for row in plan.sites):
        say("look at the places above; `muhmod accept SITE --reason WHY` takes a new place or value")


# pin, relock, accept ---------------------------------------------------------------------------


@click.command()
@click.argument("tree_path", metavar="TREE")
@RULES
@LOCK
@output("text")
def pin(tree_path: str, **given: Any) -> int:
    """Write the lock for a tree as it is, without applying."""
    from muhmod import engine, lock, record, writer

    settings = Settings(given)
    pack = settings.pack()
    (of,) = locate([tree_path], pack)
    with writing([of], "write"):
        ((_, known),) = locked([of], settings)
        if known and any(entry.written for entry in known.entries):
            raise RefusedError(
                "the lock holds what was written here",
                "`muhmod check` compares with it; `muhmod revert` takes it back first",
            )
        made = engine.plan(of, pack, engine.Options(), known, engine.Purpose(rewrite=False))
        code = _refused(made)
        if not code:
            path = lock.beside(of.home, settings.lock())
            new = record.locked(made, lock.name_of(of.package, path), path)._replace(pinned=True)
            writer.save(made, path, new)
            if not given["quiet"]:
                say(f"pinned {len(new.entries)} sites of {of.name}/ in {path.name}; nothing was applied")
    return code


def _refused(made: Plan) -> int:
    for row in made.sites:
        if row.code:
            say(f"{row.rule}: {row.state}: {row.reason}", "error")
    return made.code


@click.command()
@click.argument("tree_path", metavar="TREE")
@RULES
@LOCK
@output("text")
def relock(tree_path: str, **given: Any) -> int:
    """Derive the lock anew after a merge or a change of rules; drifted sites keep their pins."""
    from muhmod import engine, lock, record, tree, writer

    settings = Settings(given)
    of = tree.locate(tree_path, tree.PACKAGES)
    path = lock.beside(of.home, settings.lock())
    known, gone = lock.salvage(path)
    if known is None:
        raise RefusedError(
            f"there is no {path.name} beside {of.name}/", "`muhmod pin` or `muhmod apply` makes one"
        )
    if not settings.get("rules", "rules"):
        settings = Settings(given | {"rules": _pack_of(known, path)})
    pack = settings.pack()
    with writing([of], "write"):
        known = record.chosen(of, pack, known)
        made = engine.plan(of, pack, engine.Options(), known, engine.Purpose(rewrite=False))
        code = _refused(made)
        if code == 4:
            raise FileError("nothing was written: a file in reach cannot be read", "mend it, then relock")
        new = record.locked(made, lock.name_of(of.package, path), path)
        # What a damaged lock said of a site cannot be made up: how it was, and the way back.
        kept = tuple(entry for entry in new.entries if entry.rule not in gone)
        new = new._replace(pinned=known.pinned, entries=kept)
        writer.save(made, path, new._replace(stamp=lock.Stamp()) if gone else new)
    for name in sorted(gone):
        say(f"{name}: its line is lost, and with it how it was pinned and the way back", "error")
    if gone:
        say("take the lock back from version control, or `muhmod accept SITE --reason WHY` as it stands")
    elif not given["quiet"]:
        say(f"{path.name}: {len(new.entries)} sites{'; those named above keep their pins' if code else ''}")
    return max(code, 3 if gone else 0)


@click.command()
@click.argument("site", metavar="SITE")
@click.argument("tree_path", metavar="TREE", required=False)
@click.option("--reason", metavar="WHY", default="", help="Why this is right; it stands in the lock.")
@click.option(
    "--as", "place", metavar="[FILE:]SCOPE", default="", help="The new place of a lost or doubled site."
)
@click.option("--keep", is_flag=True, help="Keep the value that stands there, instead of deriving it again.")
@RULES
@LOCK
@output("text")
def accept(site: str, tree_path: str | None, **given: Any) -> int:
    """After a look at drift: take the new place or value into the lock, with the reason."""
    from muhmod import engine, lock, record, writer

    settings = Settings(given)
    if not given["reason"].strip():
        raise UsageError("accept needs --reason WHY: the next reader of the lock will ask")
    words = settings.trees([tree_path] if tree_path else [])
    pack, (of, *_) = _pack_and_trees(words, settings)
    names = [rule.name for rule in pack.rules]
    if site not in names:
        raise UsageError(f"the pack {pack.name} has no site {site!r}{nearest(site, names)}")
    with writing([of], "write"):
        ((_, known),) = locked([of], settings)
        if known is None:
            raise RefusedError(f"there is no lock beside {of.name}/", "`muhmod pin` makes one")
        taken = record.accepted(
            of, pack, known, site, given["reason"].strip(), given["place"], keep=given["keep"] or None
        )
        made = engine.plan(of, pack, engine.Options(), taken, engine.Purpose(rewrite=False))
        path = lock.beside(of.home, settings.lock())
        writer.save(made, path, record.locked(made, lock.name_of(of.package, path), path))
    row = next(row for row in made.sites if row.rule == site)
    say(f"{site}: accepted; it is {row.state} now" + (f": {row.reason}" if row.reason else ""))
    if row.state == "pending":
        say("`muhmod apply` sets it; `muhmod accept --keep` would have kept the value")
    return 0
