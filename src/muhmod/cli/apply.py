"""`muhmod apply`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from muhmod import __version__
from muhmod.cli.shared import (
    DIRTY,
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
from muhmod.errors import MuhmodError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from muhmod.engine import Options, Plan
    from muhmod.model import SiteReport, SlotReport


@click.command()
@click.argument("trees", nargs=-1, metavar="TREE...")
@RULES
@click.option("--diff", "mode", flag_value="diff", help="Write nothing; print the patch alone.")
@click.option("--check", "mode", flag_value="check", help="Write nothing; exit 1 if it would.")
@click.option("-i", "--interactive", is_flag=True, help="Ask for each edit.")
@click.option("--exit-non-zero-on-fix", is_flag=True, help="Exit 1 if something was written.")
@NARROW
@LIVE
@LOCK
@DIRTY
@JOBS
@output(*FORMATS)
def apply(trees: tuple[str, ...], **given: Any) -> int:
    """Derive, plan, verify, and write all edits or none."""
    from muhmod import engine

    settings = Settings(given, FORMATS)
    Out(settings)
    pack = settings.pack()
    located = locate(settings.trees(trees), pack)
    mode = given["mode"] or "write"
    if given["interactive"] and mode != "write":
        raise UsageError(f"-i asks before writing; it does not go with --{mode}")
    with writing(located, mode):
        pairs = locked(located, settings)
        # What a lock would record is made out only where one will be written.
        purpose = engine.Purpose(pin=mode == "write", reach=_reach(mode, settings))
        made = engine.plan_all(pairs, pack, settings.options(), purpose, settings.jobs)
        code = max(plan.code for plan in made)
        if given["interactive"]:
            answered = [_three_way(plan, settings.options()) for plan in made]
            made = [plan for plan, _ in answered]
            code = max(plan.code for plan in made)
            if not code:
                made = [_ask(plan, settings.options(), ours) for plan, ours in answered]
        refusal = ""
        if mode == "write" and not code:
            made, refusal, code = _write(made, settings)
    if not code and mode != "write" and any(plan.changes for plan in made):
        code = 1
    if not code and given["exit_non_zero_on_fix"] and any(plan.changes for plan in made):
        code = 1
    _report_apply(made, mode, code, refusal, settings)
    return code


def _reach(mode: str, settings: Settings) -> Callable[[SiteReport, SlotReport], bool] | None:
    """Of which slots reach is told: those that change; of none where a patch alone, or nothing, is shown."""
    from muhmod import engine

    given = settings.given
    if given["quiet"] or (mode == "diff" and settings.format() == "text" and not given["verbose"]):
        return None
    return engine.edited


def _write(made: list[Plan], settings: Settings) -> tuple[list[Plan], str, int]:
    from muhmod import writer

    try:
        return writer.apply(made, settings.lock(), **settings.allowed()), "", 0
    except MuhmodError as error:
        return made, str(error), error.code


def _three_way(plan: Plan, options: Options) -> tuple[Plan, set[str]]:
    """Literals that changed under what was written: ours again, theirs from now on, or neither.

    Gives the plan after the answers, and the rules of which ours are to be written.
    """
    from muhmod import engine, record

    known = plan.known
    ours: set[str] = set()
    for row in plan.sites:
        if row.state != "drifted" or {one.kind for one in row.differences} - {"literal", "moved"}:
            continue
        for one in row.literals:
            click.echo(f"{row.rule} {one.show()}", err=True)
        question = f"{row.rule} {row.file}:{row.line}  [o]urs [t]heirs [n]either"
        try:
            answer = click.prompt(question, prompt_suffix="? ", err=True, default="", show_default=False)
        except click.Abort:
            answer = ""
        if known and answer[:1].lower() in ("o", "t"):
            keep = answer[:1].lower() == "t"
            reason = f"{'theirs' if keep else 'ours'}, answered to -i"
            known = record.accepted(plan.tree, plan.pack, known, row.rule, reason, "", keep=keep)
            ours |= set() if keep else {row.rule}
    return plan if known is plan.known else engine.plan(plan.tree, plan.pack, options, known), ours


def _ask(plan: Plan, options: Options, ours: set[str]) -> Plan:
    """Each edit in turn: yes, no, all, quit, explain; but of those rules that were answered for."""
    from muhmod import engine

    declined: set[tuple[str, int]] = set()
    rest = ""
    # With a key that is added goes all that is derived with it: one answer for all of the rule.
    together = {rule: "" for rule, _, edit in plan.edits if edit.op == "key"}
    for rule, file, edit in plan.edits:
        row = next(row for row in plan.sites if row.rule == rule)
        answer = "y" if rule in ours else rest or together.get(rule, "")
        answer = answer or _answer(row, file, edit.number, whole=rule in together)
        if answer in ("a", "q"):
            rest = "y" if answer == "a" else "n"
            answer = rest
        if rule in together:
            together[rule] = answer
        if answer == "n":
            declined.add((rule, edit.start))
    return engine.plan(plan.tree, plan.pack, options._replace(declined=frozenset(declined)), plan.known)


def _answer(row: SiteReport, file: str, index: int, *, whole: bool = False) -> str:
    from muhmod import show

    changed = [slot for slot in row.slots if slot.old != slot.new]
    slot = row.slots[index] if index < len(row.slots) else changed[0]
    if whole:
        what = (
            f"{sum(not s.old for s in changed)} keys come, {sum(bool(s.old) for s in changed)} values change"
        )
    elif slot.name.startswith("configs"):
        what = f"{sum(not s.new for s in changed)} entries go, {sum(not s.old for s in changed)} come"
    else:
        what = f"{slot.name} {slot.old} -> {slot.new or 'removed'}"
    question = f"{row.site} {file}:{slot.line} {what}  [y]es [n]o [a]ll [q]uit [e]xplain"
    while True:
        try:
            answer = click.prompt(question, prompt_suffix="? ", err=True, default="", show_default=False)
        except click.Abort:
            return "q"
        if answer[:1].lower() in ("y", "n", "a", "q"):
            return str(answer[:1].lower())
        if answer[:1].lower() == "e":
            out = show.console("never", to=sys.stderr)
            show.explain(out, row, slot.line)


def _report_apply(made: list[Plan], mode: str, code: int, refusal: str, settings: Settings) -> None:
    out = Out(settings)
    reasons = [reason for plan in made for reason in plan.reasons]
    reasons += [refusal.replace("\n  next: ", "; ")] if refusal else []
    if code == 1:
        reasons.append("changes pending" if mode != "write" else "changes made")
    name = settings.format()
    quiet = settings.given["quiet"]
    if name == "json":
        _json_reports(out, made, code, reasons)
    elif name != "text":
        _exchange(out, name, made, code, refusal.replace("\n  next: ", "; "))
    elif mode == "diff":
        _patch(out, made, code)
    elif not quiet:
        _tables(out, made, settings)
    out.close()
    _talk(made, mode, code, refusal, quiet, name)


def _json_reports(out: Out, made: list[Plan], code: int, reasons: list[str]) -> None:
    from muhmod import report

    reports = [
        report.report("apply", plan.pack.name, plan.tree.name, plan.sites, code, reasons) for plan in made
    ]
    out.text(report.dump(reports[0] if len(reports) == 1 else reports))


def _exchange(out: Out, name: str, made: list[Plan], code: int, refusal: str) -> None:
    """For code scanning, for a job's log, and for a pull request."""
    from muhmod import report

    if name == "sarif":
        from muhmod import sarif

        out.text(report.dump(sarif.log(made, code, refusal=refusal)))
    elif name == "github":
        out.lines(line for plan in made for line in report.github(plan.tree, plan.sites))
        out.lines([report.alarm(refusal)] if refusal else [])
    else:
        from muhmod import markdown

        patches = [b"" if code >= 2 else b"".join(_diffs(plan)) for plan in made]
        parts = [
            markdown.Part(plan, patch=patch, refusal=refusal)
            for plan, patch in zip(made, patches, strict=True)
        ]
        out.raw(markdown.comment("apply", parts).encode("utf-8", "replace"))


def _patch(out: Out, made: list[Plan], code: int) -> None:
    """The preamble, then the patch; nothing at all where nothing changes."""
    if code >= 2 or not any(plan.changes for plan in made):
        return
    for plan in made:
        out.raw(_preamble(plan).encode("utf-8", "surrogateescape"))
    for plan in made:
        for data in _diffs(plan):
            out.raw(data)


def _diffs(plan: Plan) -> Iterator[bytes]:
    from muhmod import patch

    for change in plan.changes:
        yield patch.diff(plan.tree.shown(change.file), change.before, change.after)


def _preamble(plan: Plan) -> str:
    """Rules and derivations, as lines that neither git nor patch takes for a diff."""
    lines = [f"# muhmod {__version__} apply --rules {plan.pack.name}", f"# {plan.pack.title}"]
    for row in plan.sites:
        lines.append(f"# {row.site}: {row.state}{': ' + row.reason if row.reason else ''}")
        if row.state != "pending":
            continue
        said: set[str] = set()
        for slot in row.slots:
            if slot.old == slot.new:
                continue
            kind = f" ({slot.derived.kind})" if slot.derived else ""
            mark = f", {slot.mark}" if slot.mark else ""
            lines.append(f"#   {slot.name}: {slot.old or 'nothing'} -> {slot.new or 'removed'}{kind}{mark}")
            for number, step in enumerate(slot.derived.steps if slot.derived else (), 1):
                if step not in said:
                    lines.append(f"#     {number}. {step}")
                    said.add(step)
    # One line each, whatever a pack's reason holds: nothing in here may read as a diff.
    return "".join(" ".join(line.splitlines()) + "\n" for line in lines)


def _tables(out: Out, made: list[Plan], settings: Settings) -> None:
    from muhmod import show

    for plan in made:
        out.rich(partial(show.table, rows=plan.sites))
        if settings.given["verbose"]:
            for row in plan.sites:
                out.rich(partial(show.explain, row=row))
        if plan.code:
            continue
        for data in _diffs(plan):
            if out.color == "never" or not (sys.stdout.isatty() or out.color == "always"):
                out.raw(data)
            else:
                shown = data.decode("utf-8", "replace").rstrip("\n")
                out.rich(partial(show.patch, data=shown))


def _talk(made: list[Plan], mode: str, code: int, refusal: str, quiet: bool, name: str) -> None:
    for plan in made:
        for note in plan.notes if not quiet else ():
            say(note, "note")
        for row in plan.sites:
            if row.code:
                say(f"{row.site}: {row.state}: {row.reason}", "error")
            elif mode == "diff" and not quiet and row.state not in ("pending", "already"):
                say(f"{row.site}: {row.state}: {row.reason}")
    if refusal:
        say(refusal, "error")
    if code >= 2:
        say("nothing was written")
    elif not quiet and name == "text":
        files = sum(len(plan.changes) for plan in made)
        sites = sum(row.state in ("applied", "pending") for plan in made for row in plan.sites)
        if not files:
            say("nothing to change")
        elif mode == "write":
            say(f"applied {sites} sites in {files} files; read back and verified")
        else:
            say(f"{sites} sites in {files} files would change")
