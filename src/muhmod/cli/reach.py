"""`muhmod reach`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from muhmod.cli.shared import NARROW, PLATFORM, RULES, Out, Settings, output, say

if TYPE_CHECKING:
    from muhmod.model import Found, Reach


@click.command()
@click.argument("trees", nargs=-1, metavar="TREE...")
@RULES
@PLATFORM
@NARROW
@output("text", "json")
def reach_(trees: tuple[str, ...], **given: Any) -> int:
    """Does each slot's value reach a kernel launch: reaches, overridden, stopped or unknown, with the way."""
    from muhmod import catalog, engine, report, tree
    from muhmod.reach import Reaches, is_false_flag
    from muhmod.search import whole

    settings = Settings(given, ("text", "json"))
    chosen = settings.sites()
    platform = settings.platform()
    packages = settings.pack().packages if settings.get("rules", "rules") else tree.PACKAGES
    out = Out(settings)
    reports, code = [], 0
    for word in settings.trees(trees):
        of = tree.locate(word, packages)
        found, faults = engine.sites(of, chosen)
        for fault in faults:
            say(fault.message, "error")
        code = max([code, *(fault.code for fault in faults)])
        flags = [one for one in found if is_false_flag(one)]
        every = engine.sites(of)[0] if flags and len(chosen) < len(catalog.names()) else found
        with Reaches(whole(of), platform).remembered() as asked:
            rows = [(one, asked.site(one)) for one in found]
            woken = {one: asked.wakes(one, every) for one in flags}
        if settings.format() == "json":
            reports.append(
                report.reached(of.name, platform.name, rows, woken, code, [f.message for f in faults])
            )
        else:
            from muhmod import show

            out.rich(partial(show.reached, rows=rows, woken=woken, verbose=bool(given["verbose"])))
            if not given["quiet"]:
                say(_counts(rows))
    if reports:
        out.text(report.dump(reports[0] if len(reports) == 1 else reports))
    out.close()
    return code


def _counts(rows: list[tuple[Found, tuple[Reach, ...]]]) -> str:
    every = [one.verdict for _, verdicts in rows for one in verdicts]
    words = ("reaches", "overridden", "stopped", "unknown")
    return ", ".join(f"{every.count(word)} {word}" for word in words)
