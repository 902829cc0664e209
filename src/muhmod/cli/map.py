"""`muhmod map`: the injection points of a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from muhmod.cli.shared import JOBS, NARROW, RULES, Out, Settings, output, say
from muhmod.errors import UsageError

if TYPE_CHECKING:
    from muhmod.map import Map

FORMATS = ("text", "json", "markdown", "html")


@click.command("map")
@click.argument("tree_path", required=False, metavar="TREE")
@RULES
@NARROW
@JOBS
@output(*FORMATS)
def map_(tree_path: str | None, **given: Any) -> int:
    """The injection points of a tree: sites, calls of precompiled modules, Triton kernels, what is gone."""
    from muhmod import catalog, tree
    from muhmod import map as atlas

    settings = Settings(given, FORMATS)
    words = settings.trees([tree_path] if tree_path else [])
    if len(words) > 1:
        raise UsageError("several trees are configured", "give the one that is to be mapped")
    pack = settings.pack() if settings.get("rules", "rules") else None
    options = settings.options()
    ignored = {catalog.check(name) for name in options.ignore}
    chosen = tuple(name for name in options.select or catalog.names() if name not in ignored)
    out = Out(settings)
    of = tree.locate(words[0], pack.packages if pack else tree.PACKAGES)
    made = atlas.chart(of, pack=pack, sites=chosen, reached=None, jobs=settings.jobs)
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
        for table in atlas.tables(made, verbose=verbose):
            show.titled(console, table.title, table.columns, table.rows)

    out.rich(draw)
