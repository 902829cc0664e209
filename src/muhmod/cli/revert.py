"""`muhmod revert`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muhmod.cli.shared import (
    DIRTY,
    LOCK,
    NARROW,
    OUTPUT,
    Out,
    Settings,
    say,
    words,
    writing,
)
from muhmod.errors import MuhmodError

if TYPE_CHECKING:
    from muhmod.writer import Reverting


@click.command()
@click.argument("tree_path", metavar="TREE")
@click.option("--diff", "mode", flag_value="diff", help="Write nothing; print the patch alone.")
@click.option("--check", "mode", flag_value="check", help="Write nothing; exit 1 if it would.")
@NARROW
@LOCK
@DIRTY
@OUTPUT
def revert(tree_path: str, **given: Any) -> int:
    """Take back what `apply` wrote, from the lock; a site edited since is refused."""
    from muhmod import tree, writer
    from muhmod.engine import Options

    settings = Settings(given)
    of = tree.locate(tree_path, (*tree.PACKAGES, Path(tree_path).resolve().name))
    mode = given["mode"] or "write"
    refusal = ""
    with writing([of], mode):
        narrow = Options(words(given["select"]), words(given["ignore"]))
        made = writer.plan_revert(of, settings.lock(), narrow)
        code = made.code
        if mode == "write" and not code:
            try:
                made = writer.revert(made, **settings.allowed())
            except MuhmodError as error:
                code, refusal = error.code, str(error)
    if not code and mode != "write" and made.files:
        code = 1
    _report_revert(made, mode, code, refusal, settings)
    return code


def _report_revert(made: Reverting, mode: str, code: int, refusal: str, settings: Settings) -> None:
    from muhmod import patch, report

    out = Out(settings)
    reasons = [f"{row.site}: {row.state}: {row.reason}" for row in made.sites if row.code]
    reasons += [refusal] if refusal else []
    if settings.format() == "json":
        data = report.report("revert", made.rest.rules, made.tree.name, made.sites, code, reasons)
        out.text(report.dump(data))
    elif settings.format() == "github":
        for line in report.github(made.tree, made.sites):
            out.text(line)
    elif mode == "diff":
        for file, data_, back in made.files if code < 2 else ():
            out.raw(patch.diff(made.tree.shown(file), data_, back))
    elif not settings.given["quiet"]:
        from muhmod import show

        out.rich(partial(show.table, rows=made.sites))
    out.close()
    for reason in reasons:
        say(reason, "error")
    if code >= 2:
        say("nothing was written")
    elif not settings.given["quiet"] and settings.format() == "text":
        verb = "reverted" if mode == "write" else "would revert"
        say(f"{verb} {len(made.sites)} sites in {len(made.files)} files")
