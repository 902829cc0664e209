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
    from muhmod.cli import run

    code = run(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
