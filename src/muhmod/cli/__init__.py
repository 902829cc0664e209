"""The command line: the only package that knows click. A command's module is imported when it runs."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from muhmod import __version__
from muhmod.cli.shared import say
from muhmod.errors import MuhmodError, nearest

# Command: (module, function).
_COMMANDS = {
    "accept": ("check", "accept"),
    "apply": ("apply", "apply"),
    "check": ("check", "check"),
    "derive": ("derive", "derive_"),
    "explain": ("look", "explain"),
    "headers": ("rules", "headers_"),
    "map": ("map", "map_"),
    "pin": ("check", "pin"),
    "reach": ("reach", "reach_"),
    "relock": ("check", "relock"),
    "replay": ("replay", "replay"),
    "revert": ("revert", "revert"),
    "rules": ("rules", "rules"),
    "sites": ("look", "sites"),
    "test": ("test", "test"),
    "verify": ("verify", "verify"),
}


class _Group(click.Group):
    """Imports a command when it is asked for; offers the nearest one for a mistyped name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command = getattr(import_module(f"muhmod.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], _COMMANDS)}")
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
        say(str(error), "error")
        return error.code
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted; everything or nothing is written", "error")
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
        say(f"{error.filename or 'output'}: {error.strerror}", "error")
        return 4
    except Exception as error:
        return _fault(error)
    return code


def _fault(error: Exception) -> int:
    if os.environ.get("MUHMOD_DEBUG"):
        raise error
    say(
        f"a fault of muhmod itself: {type(error).__name__}: {error}\n"
        "  next: run again with MUHMOD_DEBUG=1 and report what it prints",
        "error",
    )
    return 70


def _flush() -> None:
    sys.stdout.flush()
