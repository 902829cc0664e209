"""`muhmod map`: the injection points of a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from muhmod.cli.shared import JOBS, NARROW, PLATFORM, RULES, Out, Settings, output, say
from muhmod.errors import UsageError

if TYPE_CHECKING:
    from muhmod.map import Map

FORMATS = ("text", "json", "markdown", "html")


@click.command("map")
@click.argument("tree_path", required=False, metavar="TREE")
@RULES
@PLATFORM
@NARROW
@JOBS
@output(*FORMATS)
def map_(tree_path: str | None, **given: Any) -> int:
    """The injection points of a tree: sites, calls of precompiled modules, Triton kernels, what is gone."""
    from muhmod import map as atlas
    from muhmod import tree
    from muhmod.reach import Reaches
    from muhmod.search import whole

    settings = Settings(given, FORMATS)
    words = settings.trees([tree_path] if tree_path else [])
    if len(words) > 1:
        raise UsageError("several trees are configured", "give the one that is to be mapped")
    pack = settings.pack() if settings.get("rules", "rules") else None
    chosen, platform = settings.sites(), settings.platform()
    out = Out(settings)
    of = tree.locate(words[0], pack.packages if pack else tree.PACKAGES)
    reading = whole(of)
    with Reaches(reading, platform).remembered() as asked:
        made = atlas.chart(
            reading, reached=lambda found, slot: asked.slot(found.file, slot), pack=pack,
            platform=platform.name, sites=chosen, jobs=settings.jobs,
        )  # fmt: skip
    for fault in made.faults:
        say(fault.message, "error")
    name = settings.format()
    if name == "json":
        from muhmod import report

        out.text(report.dump(atlas.document(made)))
    elif name == "html":
        from muhmod import page

        out.text(page.page(made, of))
    elif name == "markdown":
        out.lines(atlas.markdown(made))
    elif not given["quiet"]:
        _text(made, out, verbose=bool(given["verbose"]))
    out.close()
    return made.code


def _text(made: Map, out: Out, *, verbose: bool) -> None:
    from muhmod import map as atlas
    from muhmod import show

    def draw(console: Any) -> None:
        show.outlined(console, atlas.title(made), atlas.outline(made, verbose=verbose))
        for table in atlas.tables(made, verbose=verbose):
            show.titled(console, table.title, table.columns, table.rows)

    out.rich(draw)
