"""The entry point: `muhmod`, or `python -m muhmod`."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line and end the process with its exit code.

    The process is short and its trees hold no cycles: neither the collector nor the interpreter's
    own clean-up at the end would free anything that matters.
    """
    gc.disable()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    code = _unchanged()
    if code is None:
        code = _run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _unchanged() -> int | None:
    """0 for a `check` of what has not changed, before click is woken; None for all else."""
    if sys.argv[1:2] != ["check"]:
        return None
    from muhmod import unchanged

    return 0 if unchanged.run(sys.argv[2:]) else None


def _run() -> int:
    from muhmod.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    main()
