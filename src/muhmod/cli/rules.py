"""`muhmod rules` and `muhmod headers`: what is known, and what C++ headers say."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muhmod.cli.derive import cases
from muhmod.cli.shared import OUTPUT, Out, Settings, say
from muhmod.errors import UsageError

if TYPE_CHECKING:
    from muhmod.rulebook import Pack


@click.command()
@click.argument("action", type=click.Choice(["list", "show", "validate"]), default="list")
@click.argument("names", nargs=-1, metavar="[PACK...]")
@click.option("--compare", metavar="PACK,PACK,…", help="With show: in which facts and values packs differ.")
@OUTPUT
def rules(action: str, names: tuple[str, ...], compare: str | None, **given: Any) -> int:
    """Rule packs, hardware, models and platforms that are known; show or validate one."""
    from muhmod import engine, rulebook

    settings = Settings(given)
    out = Out(settings)
    if compare:
        if action != "show" or names:
            raise UsageError(
                "--compare goes with `muhmod rules show` alone", "muhmod rules show --compare A,B"
            )
        return _compare(out, compare.split(","), settings)
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


def _compare(out: Out, names: list[str], settings: Settings) -> int:
    """The table of differences of packs."""
    from muhmod import rulebook
    from muhmod.derive import whatif

    if len(names) < 2:
        raise UsageError("--compare needs two packs or more", f"shipped: {', '.join(rulebook.builtin(''))}")
    packs = [rulebook.load(name.strip()) for name in names]
    rows = whatif.differences([(pack.facts, cases(pack)) for pack in packs])
    if settings.format() == "json":
        from muhmod import report

        out.text(report.dump(report.differences([pack.name for pack in packs], rows)))
    else:
        from muhmod import show

        out.rich(partial(show.differences, names=[pack.name for pack in packs], rows=rows))
    out.close()
    return 0


def _known_packs(rulebook: Any) -> list[tuple[str, str, str]]:
    rows = [("pack", name, rulebook.load(name).title) for name in rulebook.builtin("")]
    for kind in ("hardware", "models"):
        rows += [
            (kind.rstrip("s"), name, f"{len(rulebook.load_facts(name, kind))} facts")
            for name in rulebook.builtin(kind)
        ]
    rows += [("platform", name, rulebook.platform(name).title) for name in rulebook.builtin("platforms")]
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


@click.command(name="headers")
@click.argument("folder", metavar="DIR")
@OUTPUT
def headers_(folder: str, **given: Any) -> int:
    """Structs of `static constexpr` values in the C++ headers below DIR; needs the extra [headers]."""
    from muhmod import headers

    settings = Settings(given)
    found = headers.read(Path(folder))
    out = Out(settings)
    if settings.format() == "json":
        from muhmod import report

        out.text(report.dump(report.headers(found)))
    else:
        from muhmod import show

        out.rich(partial(show.headers, found=found))
    out.close()
    for header in found if not given["quiet"] else ():
        for line in header.unread:
            say(f"{header.file}:{line}: not understood; no constant stands there", "note")
    if not given["quiet"]:
        say(f"{sum(len(header.structs) for header in found)} structs in {len(found)} headers")
    return 0
