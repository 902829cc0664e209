"""Real source trees: fetched from PyPI by package name, never built, kept in an ignored folder."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from muhmod import fetch
from muhmod.errors import FileError

from .conftest import ROOT

CACHE = fetch.cache() if os.environ.get("MUHMOD_CACHE") else ROOT / ".cache" / "releases"
# sha256 of the sdists that the tests read.
SDISTS = {
    "0.5.2": "ac00908667fa1ea9639747a986699f31f28a99afa149fc729589a7c609b5e6d7",
    "0.5.5": "14abe33243939e18cdc437abfc78543aac62e11a43f66d36ec855a3e40c797dd",
    "0.6.0": "40c573bc5e4124d34f4de02af8e23a584e51de66ae17cd5910af0cf63ee26eaa",
    "0.6.3": "03e69029ad9caceaab68d5c3833ae6fe57c04be678ec37f29e9df6eaf178a9c5",
    "0.7.0": "91521ca3e7629e2a40a4fceea3290cbde34c3ea6cb291ee9f84ad2ce752e65be",
    "0.8.5.post1": "5e5be78ee00637de4ee29f75ce86edc6c224c05d9e58d067a511eb83c3afe32d",
    "0.9.0": "78e3e71fbbd1adfc3b7095b4ab4b6d341c0cffc9e8b96f0c74db275d60108902",
    "0.11.2": "496d15bb64ca0fe73adbc57a93b29f4671fa12404c09e0ba02f777bfe60af671",
    "0.12.0": "dc2863be80260f378f1e72f9b82b4009610e434d05fdd7067383b231b89c4f4a",
    "0.16.0": "1f684bb31fbef59d862e2fe666e23a41f1d39d93f86215ce1ce1db89a8f5665b",
    "0.20.2": "58809377798c5335c6e2fe30092abda54d9200b5b8a717b3735a63f5daa0e383",
    "0.33.0": "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
}
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
    try:
        (release,) = fetch.releases("vllm", version, at=CACHE)
    except FileError as error:
        if "cannot fetch" not in error.message:
            raise
        MISSING[f"vLLM {version}"] = f"not to be had from PyPI: {error.message}"
        pytest.skip(MISSING[f"vLLM {version}"])
    assert release.sha256 == SDISTS[version], f"vllm {version} is not the sdist that is pinned"
    return release.folder / "vllm"


def whole(version: str) -> Path:
    """All that a release's sdist holds, for the benchmark."""
    folder = CACHE / "whole"
    if not (folder / f"vllm-{version}").is_dir():
        data = fetch.sdist("vllm", version)
        assert digest(data) == SDISTS[version], f"vllm {version} is not the sdist that is pinned"
        with tarfile.open(fileobj=io.BytesIO(data)) as opened:
            safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            opened.extractall(folder, **safely)
    return folder / f"vllm-{version}"


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
