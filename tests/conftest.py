"""What the tests share: a command line in this process, and throw-away trees."""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from muhmod.cli import run

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"


class Ran(NamedTuple):
    """What a command line gave."""

    code: int
    out: str
    err: str
    raw: bytes


class _Stream(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)


@pytest.fixture
def muhmod():
    """Runs a command line in this process."""

    def call(*arguments: object, stdin: str = "") -> Ran:
        out, err = _Stream(), _Stream()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", err)
            patched.setattr(sys, "stdin", io.StringIO(stdin))
            code = run([str(argument) for argument in arguments])
        raw = out.buffer.getvalue()
        return Ran(code, raw.decode("utf-8", "replace"), err.buffer.getvalue().decode(), raw)

    return call


@pytest.fixture
def enginex(tmp_path):
    """A copy of the stand-in tree, outside any repository."""
    return Path(shutil.copytree(FIXTURES / "enginex" / "vllm", tmp_path / "vllm"))


@pytest.fixture
def package(tmp_path):
    """Makes a package `vllm` of the given files."""

    def make(**files: str | bytes) -> Path:
        folder = tmp_path / "vllm"
        for name, text in files.items():
            path = folder / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        (folder / "__init__.py").touch()
        return folder

    return make


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    """No configuration file of the place where the tests are started."""
    there = tmp_path / "cwd"
    there.mkdir()
    (there / ".git").mkdir()
    monkeypatch.chdir(there)
    for name in ("NO_COLOR", "FORCE_COLOR", "MUHMOD_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def tree_bytes(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by relative path; links by their target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = b"-> " + os.readlink(path).encode()
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def pytest_terminal_summary(terminalreporter):
    """Say which real trees, and which tools, were not there."""
    from .trees import MISSING

    for name, why in sorted(MISSING.items()):
        terminalreporter.write_line(f"not run: {name}: {why}")
