"""muhmod beside ast-grep, as ratios: whole processes, interleaved, cold start included.

What is compared: ast-grep scans the whole folder with six rules that find (and print) the same six
places (`astgrep-six.yml`); muhmod finds, derives, rewrites, verifies by a second pass and prints the
patch. Run it from an installed wheel (`make bench`), with Python's byte code cached.

    python benchmarks/speed.py [--runs 11]

MUHMOD_ENGINEX names the EngineX tree; without it vLLM 0.6.3 stands in, which has one site less to
rewrite. vLLM 0.33.0 comes from PyPI (47 MB) and is kept in `.cache`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
SCRIPTS = Path(sysconfig.get_path("scripts"))
RULES = ROOT / "benchmarks" / "astgrep-six.yml"
PINNED = {"0.33.0": "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"}


def once(command: list[str], more: tuple[int, ...] = ()) -> float:
    """Seconds of one whole process, which may end with 0, 1 or one of `more`."""
    environment = {k: v for k, v in os.environ.items()
                   if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")}  # fmt: skip
    start = time.perf_counter()
    code = subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    if code not in (0, 1, *more):
        raise SystemExit(f"{' '.join(command)}: exit {code}")
    return time.perf_counter() - start


def paired(ours: list[str], theirs: list[str], runs: int, more: tuple[int, ...] = ()) -> list[float]:
    """The ratios ours/theirs of interleaved runs after one warm-up of each."""
    once(ours, more), once(theirs)
    return [once(ours, more) / once(theirs) for _ in range(runs)]


def line(name: str, ratios: list[float], target: str) -> None:
    middle = statistics.median(ratios)
    print(f"{name:58} {middle:5.2f}  ({min(ratios):.2f} to {max(ratios):.2f}; goal {target})")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=11)
    runs = parser.parse_args().runs
    from tests import trees

    trees.SDISTS |= PINNED
    muhmod, grep = str(SCRIPTS / "muhmod"), [str(SCRIPTS / "ast-grep"), "scan", "-r", str(RULES)]
    named = os.environ.get("MUHMOD_ENGINEX")
    small = str(Path(named) if named else trees.vllm("0.6.3"))
    large = str(trees.whole("0.33.0"))
    select = [] if named else ["--ignore", "shared-memory"]
    patch = [muhmod, "apply", "--rules", "bi100", "--diff", *select]

    print(f"small: {'EngineX' if named else 'vLLM 0.6.3'}, large: vLLM 0.33.0's sdist; ratios of wall time")
    ratios = paired([*patch, small], [*grep, small], runs)
    line("apply --diff, small tree / ast-grep scan", ratios, "0.85")
    ratios = paired([muhmod, "sites", "-q", "--output-format", "json", large], [*grep, large], runs)
    line("sites, large tree / ast-grep scan", ratios, "0.15")
    with tempfile.TemporaryDirectory() as folder:
        sixteen = Path(folder) / "vllm"
        shutil.copytree(small, sixteen)
        for number in range(15):
            copy = sixteen / f"copy{number}"
            shutil.copytree(small, copy)
            # A second site of the same name would be refused: the copies are there to be read.
            for name in trees.ENGINEX:
                text = (copy / name).read_bytes().replace(b"def ", b"def x").replace(b"class ", b"class x")
                (copy / name).write_bytes(text)
        ratios = paired([*patch, str(sixteen)], [*patch, small], runs)
        line("apply --diff, the tree copied 16 times / once", ratios, "2.6")
    print("check")
    check = [muhmod, "check", "-q", "--rules", "bi100", *select]
    ratios = paired([*check, small], [*grep, small], runs)
    line("without a lock, small tree / ast-grep scan", ratios, "0.75")
    # bi100 is not meant for that release: what is lost is looked for in the whole tree.
    ratios = paired([*check, large], [*grep, large], runs, (3, 5))
    line("without a lock, large tree / ast-grep scan", ratios, "0.12")
    with tempfile.TemporaryDirectory() as folder:
        pack = ROOT / "benchmarks" / "vllm-0.33.toml"
        for tree, rules in ((small, ["bi100", *select]), (str(Path(large) / "vllm"), [str(pack)])):
            copy = str(Path(folder) / Path(tree).parent.name / "vllm")
            shutil.copytree(tree, copy)
            once([muhmod, "apply", "-q", "--rules", *rules, copy])
            if tree == small:
                ratios = paired([muhmod, "check", copy], [sys.executable, "-c", "pass"], runs)
                line("with its lock, small tree / python -c pass", ratios, "7, stretch 4")
            else:
                scan = ["grep", "-rnE", "BLOCK_SIZE_M|num_warps|use_v1", copy]
                ratios = paired([muhmod, "check", copy], scan, runs)
                line("with its lock, large tree's package / grep -rnE", ratios, "1.3")


if __name__ == "__main__":
    main()
