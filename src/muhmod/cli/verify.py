"""`muhmod verify --compile`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from muhmod.cli.shared import JOBS, LOCK, NARROW, RULES, Out, Settings, locate, locked, output, say
from muhmod.errors import UsageError

if TYPE_CHECKING:
    from muhmod.engine import Plan
    from muhmod.model import Checked
    from muhmod.triton_cpu import Target


@click.command()
@click.argument("trees", nargs=-1, metavar="TREE...")
@RULES
@click.option("--compile", "compiles", is_flag=True, help="Compile each configuration; needs no GPU.")
@click.option(
    "--target",
    "target_word",
    metavar="T",
    default="",
    help="cuda:75, cuda:80, cuda:90, hip:gfx942:64, …; default: the pack's card.",
)
@NARROW
@LOCK
@JOBS
@output("text", "json")
def verify(trees: tuple[str, ...], **given: Any) -> int:
    """Does every derived configuration compile and fit? Writes nothing, needs no GPU."""
    from muhmod import engine, feasible, triton_cpu

    settings = Settings(given, ("text", "json"))
    if not given["compiles"]:
        raise UsageError("nothing to verify", "give --compile: what there is to verify so far")
    out = Out(settings)
    to = triton_cpu.target(given["target_word"]) if given["target_word"] else None
    triton_cpu.check_available()
    if to is not None and not settings.get("rules", "rules"):
        given["rules"] = _rules_for(to)
        say(f"no --rules: those of {given['rules']}, a card of {to.show()}", "note")
    pack = settings.pack()
    to = to or triton_cpu.target(feasible.own_target(pack.facts))
    why = feasible.mismatch(pack.facts, to)
    if why:
        raise UsageError(
            f"--target {to.show()} is another card than {pack.hardware}: {why}",
            f"give the --hardware that is meant, or --target {feasible.own_target(pack.facts)}",
        )
    if not feasible.known(pack.facts):
        say(f"Triton has no target for {pack.hardware}: what {to.show()} needs, against its limit", "note")
    located = locate(settings.trees(trees), pack)
    purpose = engine.Purpose(pin=False)
    plans = engine.plan_all(locked(located, settings), pack, settings.options(), purpose, settings.jobs)
    prepared = [feasible.prepare(plan, to) for plan in plans]
    for plan, found in zip(plans, prepared, strict=True):
        feasible.refuse_nothing(found, plan)
    compiled = partial(triton_cpu.compiled, jobs_at_once=settings.jobs)
    checked = [feasible.check(found, to, compiled) for found in prepared]
    _report(plans, checked, to, settings, out)
    return max(row.code for rows in checked for row in rows)


def _rules_for(to: Target) -> str:
    """The shipped pack for a card of the target, where there is exactly one. Raises UsageError."""
    from muhmod import feasible, rulebook

    fitting = [
        name for name in rulebook.builtin("")
        if feasible.known(facts := rulebook.load(name).facts) and not feasible.mismatch(facts, to)
    ]  # fmt: skip
    if len(fitting) == 1:
        return fitting[0]
    cards = [
        name for name in rulebook.builtin("hardware")
        if feasible.known(facts := rulebook.hardware(name)) and not feasible.mismatch(facts, to)
    ]  # fmt: skip
    hint = f"for {to.show()}: {', '.join(fitting)}" if fitting else "write a pack for a card of that target"
    if not fitting and cards:
        hint = f"for {to.show()}: --rules l40s --hardware {' or '.join(cards)}"
    raise UsageError("no rule pack: give --rules PACK", hint)


def _report(
    plans: list[Plan], checked: list[list[Checked]], to: Target, settings: Settings, out: Out
) -> None:
    from muhmod import feasible

    quiet = settings.given["quiet"]
    if settings.format() == "json":
        from muhmod import report

        made = [
            report.verified(plan.pack, plan.tree.name, rows, to.show())
            for plan, rows in zip(plans, checked, strict=True)
        ]
        out.text(report.dump(made[0] if len(made) == 1 else made))
    elif not quiet:
        from muhmod import show

        for rows in checked:
            out.rich(partial(show.verified, rows=rows))
    out.close()
    for plan, rows in zip(plans, checked, strict=True):
        others = feasible.left_out(plan)
        if others and not quiet:
            say(f"no Triton kernel is checked for {', '.join(others)}")
        for (site, kernel, verdict, reason), shown in _reasons(rows).items():
            which = shown[0] if len(shown) == 1 else f"{len(shown)} configurations"
            say(" ".join(filter(None, (site, kernel, which))) + f": {verdict}: {reason}", "error")
        if not quiet:
            spilling = [row.spills for row in rows if row.spills]
            if spilling:
                say(f"{len(spilling)} spill registers, up to {max(spilling):,} B a thread: they run, slower")
            fine = sum(not row.code for row in rows)
            say(f"{fine} of {len(rows)} configurations in {plan.tree.name}/ fit {to.show()}")


def _reasons(rows: list[Checked]) -> dict[tuple[str, str, str, str], list[str]]:
    """The configurations that do not fit, by site, kernel, verdict and reason."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        if row.code:
            found.setdefault((row.site, row.kernel, row.verdict, row.reason), []).append(row.show())
    return found
