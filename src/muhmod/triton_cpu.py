"""Triton's compiler without a GPU: the only module that knows Triton, and only its worker imports it.

`python -m muhmod.triton_cpu JOBS` compiles each job and prints a JSON line for it, in a process of its own:
a compiler that aborts takes no more than that with it. Triton's cache is a temporary folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from muhmod.errors import UsageError, nearest
from muhmod.model import Scalar

INSTALL = "pip install 'muhmod[triton]'"
# The first whose ASTSource takes what is given here.
OLDEST = (3, 3)
# Seconds for one configuration; the slowest of vLLM's take twenty.
LONGEST = 300
_ELEMENTS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8": "fp8e4nv"}
_READY = "ready"


class Target(NamedTuple):
    """What is compiled for: `cuda` and a compute capability, or `hip` and an architecture; threads a warp."""

    backend: str
    arch: str
    warp_size: int

    def show(self) -> str:
        """As the command line has it."""
        return f"{self.backend}:{self.arch}" + (f":{self.warp_size}" if self.backend == "hip" else "")


class Job(NamedTuple):
    """One configuration of one kernel. `source`: its module's text; `types`, `constants`: by parameter."""

    source: str
    kernel: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Scalar | None], ...]
    divisible: tuple[str, ...]
    options: tuple[tuple[str, Scalar], ...]


class Compiled(NamedTuple):
    """What the compiler says: bytes of shared memory, registers a thread, bytes of spills; or its error."""

    shared: int = 0
    registers: int | None = None
    spills: int | None = None
    error: str = ""
    triton: str = ""


def target(word: str) -> Target:
    """`cuda:75` or `hip:gfx942:64`. Raises UsageError."""
    match = re.fullmatch(r"cuda:(\d{2,3})|hip:(gfx[0-9a-f]+)(?::(32|64))?", word)
    if match is None:
        known = ("cuda:75", "cuda:80", "cuda:90", "hip:gfx942:64")
        raise UsageError(
            f"--target {word} is none of Triton's{nearest(word, known)}",
            "cuda:CAPABILITY (75, 80, 86, 89, 90) or hip:ARCHITECTURE:THREADS (hip:gfx942:64)",
        )
    if match[1]:
        return Target("cuda", match[1], 32)
    return Target("hip", match[2], int(match[3] or (64 if match[2].startswith("gfx9") else 32)))


def element(dtype: str) -> str:
    """Triton's name of a dtype."""
    return _ELEMENTS[dtype]


def check_available() -> None:
    """Raises UsageError where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise UsageError("Triton is not installed, so no kernel can be compiled", INSTALL)


def compiled(jobs: list[Job], to: Target, jobs_at_once: int = 1) -> list[Compiled]:
    """What each job compiles to, in order, in up to so many workers; one that dies is started again.

    Raises UsageError where Triton cannot be imported.
    """
    if jobs_at_once < 2 or len(jobs) < 2:
        return _in_turn(jobs, to)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(jobs_at_once) as pool:
        slices = [jobs[number::jobs_at_once] for number in range(jobs_at_once)]
        parts = list(pool.map(lambda part: _in_turn(part, to), slices))
    return [parts[n % jobs_at_once][n // jobs_at_once] for n in range(len(jobs))]


def _in_turn(jobs: list[Job], to: Target) -> list[Compiled]:
    found: list[Compiled] = []
    with tempfile.TemporaryDirectory(prefix="muhmod-triton-") as folder:
        while len(found) < len(jobs):
            found += _worker(jobs[len(found) :], to, Path(folder))
    return found


def _worker(jobs: list[Job], to: Target, folder: Path) -> list[Compiled]:
    """The results of one worker: all, or those before it died and the reason for the next."""
    given = folder / "jobs.json"
    given.write_text(json.dumps({"target": to, "jobs": jobs}))
    said, errors = folder / "out", folder / "err"
    # Its own folder is the only one that it writes to, and no setting of the user's changes the result.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TRITON_")}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache"), "TRITON_HOME": str(folder)}
    # It starts in a folder where no file can pass for a module, so relative places are made absolute.
    places = [os.path.abspath(place) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    environment["PYTHONPATH"] = os.pathsep.join(places)
    with said.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "muhmod.triton_cpu", str(given)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, cwd=folder,
        )  # fmt: skip
        try:
            why = _watched(process, said)
        finally:
            process.kill()
            process.wait()
    lines = [json.loads(line) for line in said.read_text().splitlines() if line.startswith("{")]
    if not any(_READY in line for line in lines):
        tail = errors.read_text(errors="replace").strip().splitlines()[-1:] or [why]
        raise UsageError(f"Triton cannot be imported: {tail[0]}", f"install one that can: {INSTALL}")
    version = _version(lines)
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(f"Triton {version} is too old: {oldest} is the first that can be asked", INSTALL)
    results = [Compiled(**line) for line in lines if _READY not in line]
    if len(results) < len(jobs):
        printed = errors.read_text(errors="replace")
        last = re.findall(r"LLVM ERROR: (.+)", printed)[-1:] or printed.strip().splitlines()[-1:]
        results.append(Compiled(error=": ".join([why, *last]), triton=version))
    return results


def _version(lines: list[dict[str, Any]]) -> str:
    return next(str(line[_READY]) for line in lines if _READY in line)


def _watched(process: subprocess.Popen[bytes], said: Path) -> str:
    """How a worker ended; one that finishes no job for too long has hung."""
    size = -1
    while size < (size := said.stat().st_size):
        try:
            code = process.wait(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            continue
        return f"the compiler ended by signal {-code}" if code < 0 else f"the compiler ended with {code}"
    return f"the compiler took more than {LONGEST} s"


# The worker -------------------------------------------------------------------------------------


def main(path: str) -> None:
    """Compile every job of the file and print a line for each."""
    given = json.loads(Path(path).read_text())
    # What Triton prints belongs to nobody: the results have stdout for themselves.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    import triton

    def tell(line: Mapping[str, object]) -> None:
        results.write(json.dumps(line) + "\n")
        results.flush()

    tell({_READY: triton.__version__})
    errors = Path(path).parent / "err"
    for number, job in enumerate(given["jobs"]):
        before = errors.stat().st_size
        try:
            result = _compile(Job(*job), Target(*given["target"]), Path(path).parent, number)
        except Exception as error:
            result = Compiled(error=_message(error, errors.read_bytes()[before:].decode(errors="replace")))
        tell(result._replace(triton=triton.__version__)._asdict())


def _compile(job: Job, to: Target, folder: Path, number: int) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    file = folder / f"kernel_{os.getpid()}_{number}.py"
    file.write_text(job.source)
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    names = [name for name, _ in job.types]
    source = ASTSource(
        getattr(module, job.kernel),
        dict(job.types),
        {name: _constant(value) for name, value in job.constants},
        {(names.index(name),): [["tt.divisibility", 16]] for name in job.divisible},
    )
    arch = int(to.arch) if to.backend == "cuda" else to.arch
    made = triton.compile(source, target=GPUTarget(to.backend, arch, to.warp_size), options=dict(job.options))
    registers, spills = _resources(made.asm, Path(triton.__file__).parent, folder)
    return Compiled(int(made.metadata.shared), registers, spills)


def _constant(value: Any) -> Any:
    """A constant as Triton takes it; `tl.float16` is a name there."""
    import triton.language as tl

    return getattr(tl, value[3:]) if isinstance(value, str) and value.startswith("tl.") else value


def _resources(asm: Mapping[str, Any], triton: Path, folder: Path) -> tuple[int | None, int | None]:
    """Registers a thread and bytes of spills: from ptxas, or from the code's own notes on AMD's cards."""
    if "amdgcn" in asm:
        counts = [
            re.search(rf"\.{key}:\s+(\d+)", asm["amdgcn"]) for key in ("vgpr_count", "vgpr_spill_count")
        ]
        registers, spilled = (int(count[1]) if count else None for count in counts)
        return registers, None if spilled is None else spilled * 4
    arch = re.search(r"^\.target\s+(\w+)", asm["ptx"], re.MULTILINE)
    if arch is None:
        return None, None
    file = folder / "kernel.ptx"
    file.write_text(asm["ptx"])
    # Newer wheels bring one assembler for older PTX and one for newer: which took it is in no metadata.
    for ptxas in sorted((triton / "backends" / "nvidia" / "bin").glob("ptxas*")):
        said = subprocess.run(
            [ptxas, "-v", f"--gpu-name={arch[1]}", file, "-o", os.devnull], capture_output=True, text=True
        ).stderr
        used = re.search(r"Used (\d+) registers", said)
        stores = re.search(r"(\d+) bytes spill stores", said)
        if used:
            return int(used[1]), int(stores[1]) if stores else None
    return None, None


def _message(error: BaseException, said: str) -> str:
    """The innermost reason, in one line: what the compiler printed, where its exception tells nothing."""
    while error.__cause__ is not None:
        error = error.__cause__
    printed = re.findall(r"(?:LLVM ERROR|\berror): (?!Failures have been detected)(.+)", said)
    if printed and "PassManager" in str(error):
        return str(printed[0])[:300]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"[:300]


if __name__ == "__main__":
    main(sys.argv[1])
