"""The command line: the only module that knows click."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muhmod import __version__
from muhmod.errors import FileError, MuhmodError, RefusedError, UsageError, nearest

if TYPE_CHECKING:
    from muhmod.derive.whatif import Case
    from muhmod.engine import Change, Options, Plan
    from muhmod.model import Derived, SiteReport
    from muhmod.rulebook import Pack
    from muhmod.tree import Tree
    from muhmod.writer import Reverting

_FORMATS = ("text", "json", "github")


class _Group(click.Group):
    """Offers the nearest command for a mistyped one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="muhmod")
def cli() -> None:
    """Rewrite vLLM's tuning literals to values derived from your hardware and model."""


def run(arguments: list[str]) -> int:
    """Run a command line: every error becomes one sentence. Gives the exit code."""
    try:
        result = cli.main(arguments, prog_name="muhmod", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        _flush()
    except MuhmodError as error:
        _say(str(error), "error")
        return error.code
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted; everything or nothing is written", "error")
        return 130
    except click.ClickException as error:
        error.show()
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno is None:
            return _fault(error)
        _say(f"{error.filename or 'output'}: {error.strerror}", "error")
        return 4
    except Exception as error:
        return _fault(error)
    return code


def _fault(error: Exception) -> int:
    if os.environ.get("MUHMOD_DEBUG"):
        raise error
    _say(
        f"a fault of muhmod itself: {type(error).__name__}: {error}\n"
        "  next: run again with MUHMOD_DEBUG=1 and report what it prints",
        "error",
    )
    return 70


def _flush() -> None:
    sys.stdout.flush()


def _say(text: str, level: str = "") -> None:
    """Talk: to stderr."""
    click.echo(f"muhmod: {level + ': ' if level else ''}{text}", err=True)


# Shared options -------------------------------------------------------------------------------


def _option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    return click.option(*names, **settings)


def _options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


_RULES = _options(
    _option("--rules", metavar="PACK", help="A shipped pack (bi100) or a path (./my.toml)."),
    _option("--hardware", metavar="H", default="", help="Hardware facts instead of the pack's."),
    _option("--model", metavar="M", default="", help="Model facts instead of the pack's."),
    _option("--set", "settings", metavar="FACT=VALUE", multiple=True,
            help="One fact's value, e.g. smem_per_block=32KiB."),
    _option("--robust", is_flag=True, help="Only values that every claim about a disputed fact allows."),
)  # fmt: skip
_NARROW = _options(
    _option("--select", metavar="SITE", multiple=True, help="Only this site (repeatable)."),
    _option("--ignore", metavar="SITE", multiple=True, help="Not this site (repeatable)."),
)
_OUTPUT = _options(
    _option("--output-format", "output_format", type=click.Choice(_FORMATS), help="Default: text."),
    _option("-o", "--output", metavar="FILE", help="Write the report there instead of stdout."),
    _option("-q", "--quiet", is_flag=True, help="No table, no notes: errors only."),
    _option("-v", "--verbose", count=True, help="Show the derivations too."),
    _option("--color", type=click.Choice(["auto", "always", "never"]), help="Default: auto."),
)
_LOCK = _option("--lock", "lock_path", metavar="FILE", help="The lock, if not beside TREE.")
_DIRTY = _option("--allow-dirty", is_flag=True, default=None,
                 help="Write files that have uncommitted changes.")  # fmt: skip
_JOBS = _option("-j", "--jobs", type=click.IntRange(1), metavar="N", help="Worker processes.")


class _Settings:
    """Command-line options over the configuration file over the defaults."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.config = _configuration()

    def get(self, option: str, key: str, default: Any = None) -> Any:
        """The option's value."""
        value = self.given.get(option)
        if value in (None, "", ()):
            value = self.config.get(key)
        return default if value in (None, "", ()) else value

    def pack(self) -> Pack:
        """The rule pack that was asked for."""
        from muhmod import rulebook

        name = self.get("rules", "rules")
        if not name:
            known = ", ".join(rulebook.builtin(""))
            raise UsageError("no rule pack: give --rules PACK", f"shipped: {known}; or a path")
        pack = rulebook.load(
            str(name),
            hardware=str(self.get("hardware", "hardware", "")),
            model=str(self.get("model", "model", "")),
            settings=_words(self.get("settings", "set", ())),
        )
        robust = bool(self.given.get("robust"))
        return pack._replace(facts=pack.facts._replace(robust=robust))

    def options(self) -> Options:
        """What narrows the plan."""
        from muhmod.engine import Options

        return Options(
            select=_words(self.get("select", "select", ())),
            ignore=_words(self.get("ignore", "ignore", ())),
        )

    def lock(self) -> Path | None:
        """The lock's path, if one is given."""
        path = self.get("lock_path", "lock")
        return Path(path) if path else None

    def format(self) -> str:
        """The output format."""
        name = str(self.get("output_format", "output-format", "text"))
        if name not in _FORMATS:
            raise UsageError(f"output-format {name!r} is unknown{nearest(name, _FORMATS)}")
        return name

    @property
    def jobs(self) -> int:
        """Worker processes: 1 unless asked for more."""
        jobs = self.get("jobs", "jobs", 1)
        if not isinstance(jobs, int) or jobs < 1:
            raise UsageError(f"jobs must be a whole number from 1, not {jobs!r}")
        return jobs

    @property
    def color(self) -> str:
        """auto, always or never."""
        if os.environ.get("NO_COLOR") and not self.given.get("color"):
            return "never"
        if os.environ.get("FORCE_COLOR") and not self.given.get("color"):
            return "always"
        return str(self.get("color", "color", "auto"))

    def trees(self, given: Iterable[str]) -> list[str]:
        """The TREE arguments, else the configured tree."""
        words = list(given) or list(_words(self.config.get("tree", ())))
        if not words:
            raise UsageError("no TREE: give a package folder, a checkout or a site-packages folder")
        return words


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and not all(isinstance(word, str) for word in value):
        raise UsageError(f"{value!r} must be a list of words")
    return (value,) if isinstance(value, str) else tuple(str(word) for word in value)  # type: ignore[attr-defined]


def _configuration() -> dict[str, Any]:
    """`muhmod.toml`, or a pyproject.toml with [tool.muhmod], here or in a folder above."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        own, project = folder / "muhmod.toml", folder / "pyproject.toml"
        path = own if own.is_file() else project
        if path is own or (project.is_file() and b"tool.muhmod" in project.read_bytes()):
            from muhmod import rulebook

            return rulebook.config(path)
        if (folder / ".git").exists():
            break
    return {}


class _Out:
    """Where the report goes: stdout, or the file of -o."""

    def __init__(self, settings: _Settings) -> None:
        self.path = settings.given.get("output")
        self.color = "never" if self.path else settings.color
        self.parts: list[bytes] = []
        if self.path and not Path(self.path).absolute().parent.is_dir():
            raise FileError(f"cannot write {self.path}: its folder does not exist")

    def text(self, text: str) -> None:
        """A line of data."""
        self.raw(f"{text}\n".encode("utf-8", "surrogateescape"))

    def raw(self, data: bytes) -> None:
        """Bytes of data."""
        self.parts.append(data)

    def rich(self, draw: Callable[[Any], None]) -> None:
        """Something that rich draws."""
        import io

        from muhmod import show

        stream = io.StringIO()
        terminal = sys.stdout.isatty() and not self.path
        color = "always" if self.color == "auto" and terminal else self.color
        draw(show.console("never" if color == "auto" else color, to=stream))
        self.raw(stream.getvalue().encode("utf-8", "surrogateescape"))

    def close(self) -> None:
        """Send all of it."""
        data = b"".join(self.parts)
        try:
            if self.path:
                Path(self.path).write_bytes(data)
            else:
                sys.stdout.flush()
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            where = self.path or "the output"
            raise FileError(
                f"cannot write the report to {where}: {error.strerror}",
                "what the command did to the tree stands; run it again to see its state",
            ) from None


# apply ----------------------------------------------------------------------------------------


@cli.command()
@click.argument("trees", nargs=-1, metavar="TREE...")
@_RULES
@click.option("--diff", "mode", flag_value="diff", help="Write nothing; print the patch alone.")
@click.option("--check", "mode", flag_value="check", help="Write nothing; exit 1 if it would.")
@click.option("-i", "--interactive", is_flag=True, help="Ask for each edit.")
@click.option("--exit-non-zero-on-fix", is_flag=True, help="Exit 1 if something was written.")
@_NARROW
@_LOCK
@_DIRTY
@_JOBS
@_OUTPUT
def apply(trees: tuple[str, ...], **given: Any) -> int:
    """Derive, plan, verify, and write all edits or none."""
    from muhmod import engine

    settings = _Settings(given)
    _Out(settings)
    pack = settings.pack()
    located = _locate(settings.trees(trees), pack)
    mode = given["mode"] or "write"
    if given["interactive"] and mode != "write":
        raise UsageError(f"-i asks before writing; it does not go with --{mode}")
    with _writing(located, mode):
        made = engine.plan_all(located, pack, settings.options(), settings.jobs)
        code = max(plan.code for plan in made)
        if given["interactive"] and not code:
            made = [_ask(plan, settings.options()) for plan in made]
        refusal = ""
        if mode == "write" and not code:
            made, refusal, code = _write(made, settings)
    if not code and mode != "write" and any(plan.changes for plan in made):
        code = 1
    if not code and given["exit_non_zero_on_fix"] and any(plan.changes for plan in made):
        code = 1
    _report_apply(made, mode, code, refusal, settings)
    return code


def _locate(words: list[str], pack: Pack) -> list[Tree]:
    from muhmod import tree

    located = [tree.locate(word, pack.packages) for word in words]
    if len({t.package for t in located}) < len(located):
        raise UsageError("the same tree is given twice")
    return located


class _writing:
    """Holds every tree that is written, and finishes an interrupted write first."""

    def __init__(self, trees: list[Tree], mode: str) -> None:
        import contextlib

        self.trees, self.mode, self.stack = trees, mode, contextlib.ExitStack()

    def __enter__(self) -> None:
        from muhmod import journal

        homes = {}
        for tree in self.trees:
            if self.mode != "write":
                if journal.pending(tree):
                    raise RefusedError(
                        f"an interrupted write beside {tree.name}/ is not finished",
                        "run the command that writes (without --diff or --check): it finishes it",
                    )
                continue
            if tree.home not in homes:
                self.stack.enter_context(journal.held(tree))
                homes[tree.home] = tree
            if journal.recover(tree):
                _say(f"finished an interrupted write beside {tree.name}/")

    def __exit__(self, *_: object) -> None:
        self.stack.close()


def _write(made: list[Plan], settings: _Settings) -> tuple[list[Plan], str, int]:
    from muhmod import writer

    allow = bool(settings.get("allow_dirty", "allow-dirty", False))
    try:
        return writer.apply(made, settings.lock(), allow_dirty=allow), "", 0
    except MuhmodError as error:
        return made, str(error), error.code


def _ask(plan: Plan, options: Options) -> Plan:
    """Each edit in turn: yes, no, all, quit, explain."""
    from muhmod import engine

    declined: set[tuple[str, int]] = set()
    rest = ""
    for rule, file, edit in plan.edits:
        row = next(row for row in plan.sites if row.rule == rule)
        answer = rest or _answer(row, file, int(edit.name.rpartition("#")[2]))
        if answer in ("a", "q"):
            rest = "y" if answer == "a" else "n"
            answer = rest
        if answer == "n":
            declined.add((rule, edit.start))
    return engine.plan(plan.tree, plan.pack, options._replace(declined=frozenset(declined)))


def _answer(row: SiteReport, file: str, index: int) -> str:
    from muhmod import show

    changed = [slot for slot in row.slots if slot.old != slot.new]
    slot = row.slots[index] if index < len(row.slots) else changed[0]
    if slot.name.startswith("configs"):
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


def _report_apply(made: list[Plan], mode: str, code: int, refusal: str, settings: _Settings) -> None:
    out = _Out(settings)
    reasons = [reason for plan in made for reason in plan.reasons]
    reasons += [refusal.replace("\n  next: ", "; ")] if refusal else []
    if code == 1:
        reasons.append("changes pending" if mode != "write" else "changes made")
    name = settings.format()
    quiet = settings.given["quiet"]
    if name == "json":
        _json_reports(out, made, code, reasons)
    elif name == "github":
        for plan in made:
            from muhmod import report

            for line in report.github(plan.tree, plan.sites):
                out.text(line)
    elif mode == "diff":
        _patch(out, made, code)
    elif not quiet:
        _tables(out, made, settings)
    out.close()
    _talk(made, mode, code, refusal, quiet, name)


def _json_reports(out: _Out, made: list[Plan], code: int, reasons: list[str]) -> None:
    from muhmod import report

    reports = [
        report.report("apply", plan.pack.name, plan.tree.name, plan.sites, code, reasons) for plan in made
    ]
    out.text(report.dump(reports[0] if len(reports) == 1 else reports))


def _patch(out: _Out, made: list[Plan], code: int) -> None:
    """The preamble, then the patch; nothing at all where nothing changes."""
    if code >= 2 or not any(plan.changes for plan in made):
        return
    for plan in made:
        out.raw(_preamble(plan).encode("utf-8", "surrogateescape"))
    for plan in made:
        for change in plan.changes:
            out.raw(_diff(plan.tree, change))


def _diff(tree: Tree, change: Change) -> bytes:
    from muhmod import patch

    return patch.diff(tree.shown(change.file), change.before, change.after)


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
            lines.append(f"#   {slot.name}: {slot.old or 'nothing'} -> {slot.new or 'removed'}{kind}")
            for number, step in enumerate(slot.derived.steps if slot.derived else (), 1):
                if step not in said:
                    lines.append(f"#     {number}. {step}")
                    said.add(step)
    # One line each, whatever a pack's reason holds: nothing in here may read as a diff.
    return "".join(" ".join(line.splitlines()) + "\n" for line in lines)


def _tables(out: _Out, made: list[Plan], settings: _Settings) -> None:
    from muhmod import show

    for plan in made:
        out.rich(partial(show.table, rows=plan.sites))
        if settings.given["verbose"]:
            for row in plan.sites:
                out.rich(partial(show.explain, row=row))
        if plan.code:
            continue
        for change in plan.changes:
            data = _diff(plan.tree, change)
            if out.color == "never" or not (sys.stdout.isatty() or out.color == "always"):
                out.raw(data)
            else:
                shown = data.decode("utf-8", "replace").rstrip("\n")
                out.rich(partial(show.patch, data=shown))


def _talk(made: list[Plan], mode: str, code: int, refusal: str, quiet: bool, name: str) -> None:
    for plan in made:
        for note in plan.notes if not quiet else ():
            _say(note, "note")
        for row in plan.sites:
            if row.code:
                _say(f"{row.site}: {row.state}: {row.reason}", "error")
            elif mode == "diff" and not quiet and row.state not in ("pending", "already"):
                _say(f"{row.site}: {row.state}: {row.reason}")
    if refusal:
        _say(refusal, "error")
    if code >= 2:
        _say("nothing was written")
    elif not quiet and name == "text":
        files = sum(len(plan.changes) for plan in made)
        sites = sum(row.state in ("applied", "pending") for plan in made for row in plan.sites)
        if not files:
            _say("nothing to change")
        elif mode == "write":
            _say(f"applied {sites} sites in {files} files; read back and verified")
        else:
            _say(f"{sites} sites in {files} files would change")


# sites, explain, derive, rules, revert --------------------------------------------------------


@cli.command()
@click.argument("trees", nargs=-1, metavar="TREE...")
@_NARROW
@click.option("--all", "everything", is_flag=True, help="Tests, vendored and generated files too.")
@_JOBS
@_OUTPUT
def sites(trees: tuple[str, ...], **given: Any) -> int:
    """Every tuning site in the tree, its form and present value; needs no rules."""
    from muhmod import catalog, engine, report, tree

    settings = _Settings(given)
    options = settings.options()
    ignored = {catalog.check(name) for name in options.ignore}
    chosen = tuple(name for name in options.select or catalog.names() if name not in ignored)
    out = _Out(settings)
    reports = []
    code = 0
    for word in settings.trees(trees):
        of = tree.locate(word, ("vllm", "sglang", "aphrodite"))
        rows, faults = engine.sites(of, chosen, everything=given["everything"], jobs=settings.jobs)
        code = max([code, *(fault.code for fault in faults)])
        reasons = [fault.message for fault in faults]
        for reason in reasons:
            _say(reason, "error")
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
                _say(f"{len(rows)} sites in {of.name}/")
    if reports:
        out.text(report.dump(reports[0] if len(reports) == 1 else reports))
    out.close()
    return code


@cli.command()
@click.argument("target", metavar="SITE|FILE:LINE")
@click.argument("tree_path", required=False, metavar="[TREE]")
@_RULES
@_OUTPUT
def explain(target: str, tree_path: str | None, **given: Any) -> int:
    """What would be written there and why, step by step, with the facts used."""
    from muhmod import engine, tree

    settings = _Settings(given)
    pack = settings.pack()
    file, line = _file_line(target)
    configured = _words(settings.config.get("tree", ()))
    place = tree_path or (configured[0] if configured else "") or ("" if file else _here(pack))
    if file is None and not place:
        return _explain_derived(target, pack, settings)
    of = tree.locate(place or _package_above(file, pack), pack.packages)
    made = engine.plan(of, pack)
    row = _row_at(made, file, line, of) if file else _row_named(made, target)
    out = _Out(settings)
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


def _explain_derived(target: str, pack: Pack, settings: _Settings) -> int:
    known = {rule.name for rule in pack.rules}
    if target not in known:
        raise UsageError(f"the pack {pack.name} has no site {target!r}{nearest(target, known)}")
    _show_derived(pack, settings, (target,))
    return 0


@cli.command(name="derive")
@_RULES
@click.option(
    "--kernel", metavar="K", help="One kernel for one workload: fused_moe, attn_fwd, prefix_prefill."
)
@click.option(
    "--shape", metavar="KEY=VALUE,…", help="The workload, e.g. M=64,E=128,N=768,K=2048,topk=8,dtype=bf16."
)
@click.option("--what-if", is_flag=True, help="What each claim about each disputed fact would change.")
@_NARROW
@_OUTPUT
def derive_(**given: Any) -> int:
    """The pack's derived values with their derivations; needs no tree."""
    settings = _Settings(given)
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
    _show_derived(pack, settings, names)
    return 0


def _what_if(pack: Pack, settings: _Settings, names: tuple[str, ...]) -> int:
    """Which values each claim about each disputed fact would change."""
    from muhmod.derive import whatif

    outcomes = whatif.outcomes(pack.facts, [case for case in _cases(pack) if case.site in names])
    out = _Out(settings)
    if settings.format() == "json":
        from muhmod import report

        out.text(report.dump(report.what_if(pack.name, outcomes)))
    else:
        from muhmod import show

        out.rich(partial(show.what_if, outcomes=outcomes))
    out.close()
    return 0


def _derive_kernel(settings: _Settings) -> int:
    """The configurations of one kernel for one workload, on a card without a pack or on a pack's."""
    from muhmod import rulebook
    from muhmod.derive import kernels

    kernel, shape = settings.given["kernel"], settings.given["shape"]
    if not kernel or not shape:
        raise UsageError("--kernel and --shape go together", "e.g. --kernel fused_moe --shape M=64,E=128,…")
    hardware = str(settings.get("hardware", "hardware", ""))
    if settings.get("rules", "rules"):
        facts = settings.pack().facts
    elif hardware:
        facts = rulebook.hardware(hardware, _words(settings.get("settings", "set", ())))
    else:
        raise UsageError("no card: give --hardware H", f"shipped: {', '.join(rulebook.builtin('hardware'))}")
    chosen = kernels.derive(kernel, facts, shape)
    out = _Out(settings)
    if settings.format() == "json":
        from muhmod import report

        out.text(report.dump(report.chosen(chosen)))
    else:
        from muhmod import show

        out.rich(partial(show.chosen, chosen=chosen))
    out.close()
    return 0


def _show_derived(pack: Pack, settings: _Settings, names: tuple[str, ...]) -> None:
    values = [row for row in _derived(pack) if row[0] in names]
    out = _Out(settings)
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

    return [(c.site, c.slot, c.case, derive.run(c.derivation, pack.facts, c.ask)) for c in _cases(pack)]


def _cases(pack: Pack) -> list[Case]:
    """Every slot that the pack sets, with the tests under which its value differs."""
    from muhmod.derive.whatif import Case
    from muhmod.derive.work import Ask
    from muhmod.model import Arrival, Condition

    cases = []
    for rule in pack.rules:
        for slot, setting in rule.slots.items():
            ask = Ask(literal=setting.value, reason=setting.reason)
            asks = {"": ask}
            if setting.derive == "moe_block_m":
                # The ladder's bounds in the tree that the pack is for stand in for a tree's own.
                bounds = {f"numel <= {bound}": bound for bound in (64, 1024)}
                asks = {test: ask._replace(arrivals=(Arrival((Condition(test, True),)),)) for test in bounds}
                asks["no bound"] = ask
            cases += [Case(rule.name, slot, test, setting.derive, asked) for test, asked in asks.items()]
    return cases


@cli.command()
@click.argument("action", type=click.Choice(["list", "show", "validate"]), default="list")
@click.argument("names", nargs=-1, metavar="[PACK...]")
@click.option("--compare", metavar="PACK,PACK,…", help="With show: in which facts and values packs differ.")
@_OUTPUT
def rules(action: str, names: tuple[str, ...], compare: str | None, **given: Any) -> int:
    """Rule packs, hardware and models that are known; show or validate one."""
    from muhmod import engine, rulebook

    settings = _Settings(given)
    out = _Out(settings)
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


def _compare(out: _Out, names: list[str], settings: _Settings) -> int:
    """The table of differences of packs."""
    from muhmod import rulebook
    from muhmod.derive import whatif

    if len(names) < 2:
        raise UsageError("--compare needs two packs or more", f"shipped: {', '.join(rulebook.builtin(''))}")
    packs = [rulebook.load(name.strip()) for name in names]
    rows = whatif.differences([(pack.facts, _cases(pack)) for pack in packs])
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
    return rows


def _show_pack(out: _Out, pack: Pack) -> None:
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


@cli.command(name="headers")
@click.argument("folder", metavar="DIR")
@_OUTPUT
def headers_(folder: str, **given: Any) -> int:
    """Structs of `static constexpr` values in the C++ headers below DIR; needs the extra [headers]."""
    from muhmod import headers

    settings = _Settings(given)
    found = headers.read(Path(folder))
    out = _Out(settings)
    if settings.format() == "json":
        from muhmod import report

        out.text(report.dump(report.headers(found)))
    else:
        from muhmod import show

        out.rich(partial(show.headers, found=found))
    out.close()
    for header in found if not given["quiet"] else ():
        for line in header.unread:
            _say(f"{header.file}:{line}: not understood; no constant stands there", "note")
    if not given["quiet"]:
        _say(f"{sum(len(header.structs) for header in found)} structs in {len(found)} headers")
    return 0


@cli.command()
@click.argument("tree_path", metavar="TREE")
@click.option("--diff", "mode", flag_value="diff", help="Write nothing; print the patch alone.")
@click.option("--check", "mode", flag_value="check", help="Write nothing; exit 1 if it would.")
@_NARROW
@_LOCK
@_DIRTY
@_OUTPUT
def revert(tree_path: str, **given: Any) -> int:
    """Take back what `apply` wrote, from the lock; a site edited since is refused."""
    from muhmod import tree, writer
    from muhmod.engine import Options

    settings = _Settings(given)
    of = tree.locate(tree_path, ("vllm", "sglang", "aphrodite", Path(tree_path).resolve().name))
    mode = given["mode"] or "write"
    refusal = ""
    with _writing([of], mode):
        narrow = Options(_words(given["select"]), _words(given["ignore"]))
        made = writer.plan_revert(of, settings.lock(), narrow)
        code = made.code
        if mode == "write" and not code:
            allow = bool(settings.get("allow_dirty", "allow-dirty", False))
            try:
                made = writer.revert(made, allow_dirty=allow)
            except MuhmodError as error:
                code, refusal = error.code, str(error)
    if not code and mode != "write" and made.files:
        code = 1
    _report_revert(made, mode, code, refusal, settings)
    return code


def _report_revert(made: Reverting, mode: str, code: int, refusal: str, settings: _Settings) -> None:
    from muhmod import patch, report

    out = _Out(settings)
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
        _say(reason, "error")
    if code >= 2:
        _say("nothing was written")
    elif not settings.given["quiet"] and settings.format() == "text":
        verb = "reverted" if mode == "write" else "would revert"
        _say(f"{verb} {len(made.sites)} sites in {len(made.files)} files")
