"""Real source trees: fetched from PyPI by package name, never built, kept in an ignored folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from .conftest import ROOT

CACHE = Path(os.environ.get("MUHMOD_CACHE", ROOT / ".cache")) / "sdists"
SDISTS = {"0.6.3": "03e69029ad9caceaab68d5c3833ae6fe57c04be678ec37f29e9df6eaf178a9c5"}
# sha256 of the five files of the pristine EngineX tree (commit ef6abf3d).
_OPS = "attention/ops"
ENGINEX = {
    f"{_OPS}/paged_attn.py": "86399eb986001cfdfc2c8db174c13bd177af490b5023fa8f94bef9ce2320d9f1",
    f"{_OPS}/prefix_prefill.py": "3c5b94e972c1853a424e7328ff7be9bfe89b55618870a9aec4135aa95a05cc44",
    f"{_OPS}/triton_flash_attention.py": "168b2cb41ef14f5c8e6c206dacb5c48dee7b2afc65aead356795bfe9c743a76f",
    "model_executor/layers/fused_moe/fused_moe.py":
        "05e2539fb154c5611e68b6548ad98445414f95957f685d806ea7c93d152dab00",
    "_custom_ops.py": "0e39c29d037dfb19e5d18f3d8d83351d1ef5243e322b0ef4b287538ef2c8611d",
}  # fmt: skip
# What did not run, and why: said at the end of the run.
MISSING: dict[str, str] = {}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def vllm(version: str) -> Path:
    """The package folder of a vLLM release; skips, and says so, where PyPI cannot be reached."""
    folder = CACHE / f"vllm-{version}"
    if not (folder / "vllm").is_dir():
        try:
            _fetch(version)
        except Exception as error:
            MISSING[f"vLLM {version}"] = f"not to be had from PyPI: {error}"
            pytest.skip(MISSING[f"vLLM {version}"])
    return folder / "vllm"


def _fetch(version: str) -> None:
    from unearth import PackageFinder

    CACHE.mkdir(parents=True, exist_ok=True)
    for attempt in range(3):
        try:
            finder = PackageFinder(index_urls=[_index()])
            links = [m.link for m in finder.find_matches(f"vllm=={version}", allow_prereleases=True)]
            link = next(link for link in links if link.filename.endswith(".tar.gz"))
            data = finder.session.get(link.normalized).content
            break
        except Exception:
            if attempt == 2:
                raise
            time.sleep(5 * (attempt + 1))
    assert digest(data) == SDISTS[version], f"vllm {version} is not the sdist that is pinned"
    archive = CACHE / f"vllm-{version}.tar.gz"
    archive.write_bytes(data)
    with tarfile.open(archive) as opened:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        opened.extractall(CACHE, **safely)


def _index() -> str:
    """The package index that pip uses here."""
    from pip._internal.models.index import PyPI

    return os.environ.get("PIP_INDEX_URL", PyPI.simple_url)


def enginex_commit(commit: str) -> Path:
    """The package of an EngineX commit, from the repository that MUHMOD_ENGINEX_REPO names; else skips."""
    repository = os.environ.get("MUHMOD_ENGINEX_REPO")
    if not repository:
        MISSING["later EngineX commits"] = "MUHMOD_ENGINEX_REPO names no repository"
        pytest.skip(MISSING["later EngineX commits"])
    folder = CACHE.parent / "enginex" / commit
    if not (folder / "vllm").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(
            ["git", "--git-dir", repository, "archive", commit, "vllm"], check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder / "vllm"


def enginex() -> Path:
    """The EngineX tree that MUHMOD_ENGINEX names, pinned; skips, and says so, where it names none."""
    named = os.environ.get("MUHMOD_ENGINEX")
    if not named:
        MISSING["EngineX ef6abf3d"] = "MUHMOD_ENGINEX names no folder"
        pytest.skip(MISSING["EngineX ef6abf3d"])
    folder = Path(named)
    for name, wanted in ENGINEX.items():
        assert digest((folder / name).read_bytes()) == wanted, f"{name} is not that of commit ef6abf3d"
    return folder
