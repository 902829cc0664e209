"""`muhmod derive`: a pack's values, one kernel's configuration, or what hangs on a disputed fact."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from muhmod.cli.shared import NARROW, OUTPUT, RULES, Out, Settings, words
from muhmod.errors import UsageError

if TYPE_CHECKING:
    from muhmod.derive.whatif import Case
    from muhmod.model import Derived
    from muhmod.rulebook import Pack


@click.command(name="derive")
@RULES
@click.option(
    "--kernel", metavar="K", help="One kernel for one workload: fused_moe, attn_fwd, prefix_prefill."
)
@click.option(
    "--shape", metavar="KEY=VALUE,…", help="The workload, e.g. M=64,E=128,N=768,K=2048,topk=8,dtype=bf16."
)
@click.option("--what-if", is_flag=True, help="What each claim about each disputed fact would change.")
@NARROW
@OUTPUT
def derive_(**given: Any) -> int:
    """The pack's derived values with their derivations; needs no tree."""
    settings = Settings(given)
    if given["kernel"] or given["shape"]:
        if given["what_if"]:
            raise UsageError("--what-if goes over a pack's values, not over one kernel")
        return _derive_kernel(settings)
    pack = settings.pack()
    options = settings.options()
    from muhmod import engine

    engine.check_names(pack, options)
    names = tuple(
        rule.name
        for rule in pack.rules
        if (not options.select or {rule.name, rule.site} & {*options.select})
        and not {rule.name, rule.site} & {*options.ignore}
    )
    if given["what_if"]:
        return _what_if(pack, settings, names)
    show_derived(pack, settings, names)
    return 0


def _what_if(pack: Pack, settings: Settings, names: tuple[str, ...]) -> int:
    """Which values each claim about each disputed fact would change."""
    from muhmod.derive import whatif

    outcomes = whatif.outcomes(pack.facts, [case for case in cases(pack) if case.site in names])
    out = Out(settings)
    if settings.format() == "json":
        from muhmod import report

        out.text(report.dump(report.what_if(pack.name, outcomes)))
    else:
        from muhmod import show

        out.rich(partial(show.what_if, outcomes=outcomes))
    out.close()
    return 0


def _derive_kernel(settings: Settings) -> int:
    """The configurations of one kernel for one workload, on a card without a pack or on a pack's."""
    from muhmod import rulebook
    from muhmod.derive.kernels import choose

    kernel, shape = settings.given["kernel"], settings.given["shape"]
    if not kernel or not shape:
        raise UsageError("--kernel and --shape go together", "e.g. --kernel fused_moe --shape M=64,E=128,…")
    hardware = str(settings.get("hardware", "hardware", ""))
    if settings.get("rules", "rules"):
        facts = settings.pack().facts
    elif hardware:
        facts = rulebook.hardware(hardware, words(settings.get("settings", "set", ())))
    else:
        raise UsageError("no card: give --hardware H", f"shipped: {', '.join(rulebook.builtin('hardware'))}")
    chosen = choose.derive(kernel, facts, shape)
    out = Out(settings)
    if settings.format() == "json":
        from muhmod import report

        out.text(report.dump(report.chosen(chosen)))
    else:
        from muhmod import show

        out.rich(partial(show.chosen, chosen=chosen))
    out.close()
    return 0


def show_derived(pack: Pack, settings: Settings, names: tuple[str, ...]) -> None:
    """Print the values of the named sites."""
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

    return [(c.site, c.slot, c.case, derive.run(c.derivation, pack.facts, c.ask)) for c in cases(pack)]


def cases(pack: Pack) -> list[Case]:
    """Every slot that the pack sets, with the tests under which its value differs."""
    from muhmod import launch
    from muhmod.derive.whatif import Case
    from muhmod.derive.work import Ask
    from muhmod.model import Arrival, Condition

    found = []
    for rule in pack.rules:
        for slot, setting in rule.slots.items():
            ask = Ask(literal=setting.value, reason=setting.reason, keys=rule.keys or Ask().keys)
            ask = launch.chosen(ask, rule) if rule.adds else ask
            asks = {"": ask}
            if setting.derive == "moe_block_m":
                # The ladder's bounds in the tree that the pack is for stand in for a tree's own.
                bounds = {f"numel <= {bound}": bound for bound in (64, 1024)}
                asks = {test: ask._replace(arrivals=(Arrival((Condition(test, True),)),)) for test in bounds}
                asks["no bound"] = ask
            found += [Case(rule.name, slot, test, setting.derive, asked) for test, asked in asks.items()]
    return found
