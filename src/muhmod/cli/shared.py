"""What the commands share: options, settings, where the report goes, who holds the tree."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muhmod.errors import FileError, RefusedError, UsageError, nearest

if TYPE_CHECKING:
    from muhmod.engine import Options
    from muhmod.lock import Lock
    from muhmod.rulebook import Pack, Platform
    from muhmod.tree import Tree


FORMATS = ("text", "json", "sarif", "github", "markdown", "html")


def say(text: str, level: str = "") -> None:
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


RULES = _options(
    _option("--rules", metavar="PACK", help="A shipped pack (bi100) or a path (./my.toml)."),
    _option("--hardware", metavar="H", default="", help="Hardware facts instead of the pack's."),
    _option("--model", metavar="M", default="", help="Model facts instead of the pack's."),
    _option("--set", "settings", metavar="FACT=VALUE", multiple=True,
            help="One fact's value, e.g. smem_per_block=32KiB."),
    _option("--robust", is_flag=True, help="Only values that every claim about a disputed fact allows."),
)  # fmt: skip
NARROW = _options(
    _option("--select", metavar="SITE", multiple=True, help="Only this site (repeatable)."),
    _option("--ignore", metavar="SITE", multiple=True, help="Not this site (repeatable)."),
)
PLATFORM = _option("--platform", metavar="P", help="A shipped platform (cuda, rocm) or a path.")


def output(*formats: str) -> Callable[[Any], Any]:
    """The options of a report that can be had in these formats."""
    return _options(
        _option("--output-format", "output_format", type=click.Choice(formats), help="Default: text."),
        _option("-o", "--output", metavar="FILE", help="Write the report there instead of stdout."),
        _option("-q", "--quiet", is_flag=True, help="No table, no notes: errors only."),
        _option("-v", "--verbose", count=True, help="Show all of it."),
        _option("--color", type=click.Choice(["auto", "always", "never"]), help="Default: auto."),
    )


SOME_FORMATS = ("text", "json", "github")
OUTPUT = output(*SOME_FORMATS)
LIVE = _option("--live-only", is_flag=True, help="Set only what is shown to reach a kernel; hold the rest.")
LOCK = _option("--lock", "lock_path", metavar="FILE", help="The lock, if not beside TREE.")
DIRTY = _options(
    _option("--allow-dirty", is_flag=True, default=None, help="Write files that have uncommitted changes."),
    _option("--allow-staged", is_flag=True, default=None,
            help="Write files whose changes are all staged: git keeps them."),
)  # fmt: skip
JOBS = _option("-j", "--jobs", type=click.IntRange(1), metavar="N", help="Worker processes.")


class Settings:
    """Command-line options over the configuration file over the defaults."""

    def __init__(self, given: dict[str, Any], formats: tuple[str, ...] = SOME_FORMATS) -> None:
        self.given = given
        self.formats = formats
        self.config = _configuration()
        self._pack: Pack | None = None

    def get(self, option: str, key: str, default: Any = None) -> Any:
        """The option's value."""
        value = self.given.get(option)
        if value in (None, "", ()):
            value = self.config.get(key)
        return default if value in (None, "", ()) else value

    def pack(self) -> Pack:
        """The rule pack that was asked for, read once."""
        if self._pack is None:
            self._pack = self._read_pack()
        return self._pack

    def _read_pack(self) -> Pack:
        from muhmod import rulebook

        name = self.get("rules", "rules")
        if not name:
            known = ", ".join(rulebook.builtin(""))
            raise UsageError("no rule pack: give --rules PACK", f"shipped: {known}; or a path")
        pack = rulebook.load(
            str(name),
            hardware=str(self.get("hardware", "hardware", "")),
            model=str(self.get("model", "model", "")),
            settings=words(self.get("settings", "set", ())),
        )
        if not self.given.get("robust"):
            return pack
        return pack._replace(facts=pack.facts._replace(robust=True), overridden=True)

    def options(self) -> Options:
        """What narrows the plan."""
        from muhmod.engine import Options

        return Options(
            select=words(self.get("select", "select", ())),
            ignore=words(self.get("ignore", "ignore", ())),
            live_only=bool(self.get("live_only", "live-only", False)),
        )

    def sites(self) -> tuple[str, ...]:
        """The kinds of site that are selected and not ignored. Raises UsageError for an unknown one."""
        from muhmod import catalog

        options = self.options()
        ignored = {catalog.check(name) for name in options.ignore}
        return tuple(name for name in options.select or catalog.names() if name not in ignored)

    def platform(self) -> Platform:
        """The platform that is asked for, or that of the pack's hardware; else one that declares nothing."""
        from muhmod import rulebook

        named = self.given.get("platform")
        if not self.get("rules", "rules"):
            return rulebook.platform(named) if named else rulebook.Platform()
        return rulebook.platform_of(self.pack(), named or "")

    def lock(self) -> Path | None:
        """The lock's path, if one is given."""
        path = self.get("lock_path", "lock")
        return Path(path) if path else None

    def format(self) -> str:
        """The output format; a configured one that the command does not have is text."""
        if self.given.get("output_format"):
            return str(self.given["output_format"])
        name = str(self.config.get("output-format", "text"))
        if name not in FORMATS:
            raise UsageError(f"output-format {name!r} is unknown{nearest(name, FORMATS)}")
        return name if name in self.formats else "text"

    def allowed(self) -> dict[str, bool]:
        """Which uncommitted changes do not keep a file from being written."""
        return {
            name: bool(self.get(name, name.replace("_", "-"), False))
            for name in ("allow_dirty", "allow_staged")
        }

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
        trees = list(given) or list(words(self.config.get("tree", ())))
        if not trees:
            raise UsageError("no TREE: give a package folder, a checkout or a site-packages folder")
        return trees


def words(value: object) -> tuple[str, ...]:
    """The words of an option or of a configured list. Raises UsageError."""
    if isinstance(value, list) and not all(isinstance(word, str) for word in value):
        raise UsageError(f"{value!r} must be a list of words")
    return (value,) if isinstance(value, str) else tuple(str(word) for word in value)  # type: ignore[attr-defined]


def _configuration() -> dict[str, Any]:
    """`muhmod.toml`, or a pyproject.toml with [tool.muhmod], here or in a folder above."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        own, project = folder / "muhmod.toml", folder / "pyproject.toml"
        path = own if own.is_file() else project
        if path is own or (project.is_file() and b"muhmod" in project.read_bytes()):
            from muhmod import rulebook

            found = rulebook.config(path)
            if found or path is own:
                return found
        if (folder / ".git").exists():
            break
    return {}


class Out:
    """Where the report goes: stdout, or the file of -o."""

    def __init__(self, settings: Settings) -> None:
        self.path = settings.given.get("output")
        self.color = "never" if self.path else settings.color
        self.parts: list[bytes] = []
        if self.path and not Path(self.path).absolute().parent.is_dir():
            raise FileError(f"cannot write {self.path}: its folder does not exist")

    def text(self, text: str) -> None:
        """A line of data."""
        self.raw(f"{text}\n".encode("utf-8", "surrogateescape"))

    def lines(self, lines: Iterable[str]) -> None:
        """Lines of data."""
        for line in lines:
            self.text(line)

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


def locked(trees: list[Tree], settings: Settings) -> list[tuple[Tree, Lock | None]]:
    """Each tree with its lock. Raises RefusedError for a damaged or foreign one."""
    from muhmod import lock

    path = settings.lock()
    pairs = []
    for of in trees:
        at = lock.beside(of.home, path)
        pairs.append((of, lock.load(at, lock.name_of(of.package, at))))
    return pairs


def locate(words: list[str], pack: Pack) -> list[Tree]:
    """The trees that are meant, each once. Raises UsageError."""
    from muhmod import tree

    located = [tree.locate(word, pack.packages) for word in words]
    if len({t.package for t in located}) < len(located):
        raise UsageError("the same tree is given twice")
    return located


class writing:
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
                say(f"finished an interrupted write beside {tree.name}/")

    def __exit__(self, *_: object) -> None:
        self.stack.close()
