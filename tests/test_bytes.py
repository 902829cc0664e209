"""Bytes in, bytes out: only what an edit names changes, whatever the file is made of."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from .conftest import FIXTURES, tree_bytes

APPLY = ("apply", "--rules", "bi100")
EDITED = (
    "_custom_ops.py",
    "attention/ops/prefix_prefill.py",
    "attention/ops/triton_flash_attention.py",
    "model_executor/layers/fused_moe/fused_moe.py",
)


def _mixed(data: bytes) -> bytes:
    lines = data.split(b"\n")
    return b"".join(line + (b"\r\n" if n % 3 else b"\n") for n, line in enumerate(lines[:-1])) + lines[-1]


def _tabs(data: bytes) -> bytes:
    out = []
    for line in data.split(b"\n"):
        body = line.lstrip(b" ")
        spaces = len(line) - len(body)
        out.append(b"\t" * (spaces // 4) + b" " * (spaces % 4) + body)
    return b"\n".join(out)


VARIANTS = {
    "crlf": lambda d: d.replace(b"\n", b"\r\n"),
    "mixed": _mixed,
    "bom": lambda d: b"\xef\xbb\xbf" + d,
    "bom-crlf": lambda d: b"\xef\xbb\xbf" + d.replace(b"\n", b"\r\n"),
    "latin-1": lambda d: b"# -*- coding: latin-1 -*-\n# caf\xe9 \xa0\n" + d,
    "utf-8": lambda d: "# muße 中文 🚀\n".encode() + d.replace(b'"""', '"""中文 '.encode(), 1),
    "form-feed": lambda d: d.replace(b"\n\n\n", b"\n\x0c\n\n"),
    "tabs": _tabs,
    "no-final-newline": lambda d: d.rstrip(b"\n"),
    "many-final-newlines": lambda d: d + b"\n\n\n",
    "trailing-blanks": lambda d: d.replace(b":\n", b":  \n"),
    "separators-in-comments": lambda d: "# a\u2028b\x1cc\x0bd\x85e\n".encode() + d,
    "non-ascii-before-the-literal": lambda d: d.replace(
        b"        config['BLOCK", "        '中é'; config['BLOCK".encode()
    ),
    "shebang-and-cookie": lambda d: b"#!/usr/bin/env python\n# vim: set fileencoding=utf-8 :\n" + d,
    "lone-cr": lambda d: d.replace(b"\n\n\n", b"\n\r\r\n", 1),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_edits_and_nothing_else(muhmod, enginex, tmp_path, variant):
    plain = tmp_path / "plain" / "vllm"
    shutil.copytree(enginex, plain)
    change = VARIANTS[variant]
    for name in EDITED:
        path = enginex / name
        path.write_bytes(change(path.read_bytes()))
    pristine = tree_bytes(enginex)

    patch = muhmod(*APPLY, "--diff", enginex)
    assert patch.code == 1, patch.err
    assert muhmod(*APPLY, plain).code == 0
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 0, ran.err
    for name in EDITED:
        got, wanted = (enginex / name).read_bytes(), change((plain / name).read_bytes())
        if variant == "mixed":  # which ends the added lines get is free; the rest comes back below
            got, wanted = got.replace(b"\r\n", b"\n"), wanted.replace(b"\r\n", b"\n")
        assert got == wanted, name

    again = muhmod(*APPLY, enginex)
    assert (again.code, "nothing to change" in again.err) == (0, True)
    written = tree_bytes(enginex)
    for tool in (["git", "apply"], ["patch", "-p1", "--binary"]):
        other = tmp_path / tool[0]
        for name, data in pristine.items():
            target = other / "vllm" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        subprocess.run(tool, cwd=other, input=patch.raw, check=True, capture_output=True)
        assert tree_bytes(other / "vllm") == written, tool
    assert muhmod("revert", enginex).code == 0
    assert tree_bytes(enginex) == pristine


def test_modes_and_links_stay(muhmod, enginex):
    ops = enginex / "_custom_ops.py"
    ops.chmod(0o755)
    real = enginex / "attention" / "ops" / "prefix_prefill.py"
    kept = real.with_name("_prefill_impl.py")
    real.rename(kept)
    real.symlink_to("_prefill_impl.py")
    assert muhmod(*APPLY, enginex).code == 0
    assert ops.stat().st_mode & 0o777 == 0o755
    assert real.is_symlink()
    assert "NUM_WARPS = 4" in kept.read_text()


def test_a_link_out_of_the_tree_is_never_followed(muhmod, enginex, tmp_path):
    outside = tmp_path / "outside.py"
    inside = enginex / "_custom_ops.py"
    shutil.move(inside, outside)
    inside.symlink_to(outside)
    before = outside.read_bytes()
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 3
    assert "shared-memory: lost" in ran.err
    assert "a link out of the tree: _custom_ops.py" in ran.err
    assert outside.read_bytes() == before
    assert inside.is_symlink()


def test_a_link_loop_ends(muhmod, enginex):
    (enginex / "loop").symlink_to(enginex, target_is_directory=True)
    (enginex / "self.py").symlink_to("self.py")
    assert muhmod(*APPLY, enginex).code == 0


def test_paths_with_spaces_and_other_letters(muhmod, tmp_path):
    tree = tmp_path / "my trée" / "vllm"
    shutil.copytree(FIXTURES / "enginex" / "vllm", tree)
    (tree / "attention" / "ops").rename(tree / "attention" / "ops 2")
    other = tmp_path / "other"
    shutil.copytree(tree, other / "vllm")
    patch = muhmod(*APPLY, "--diff", tree)
    assert patch.code == 1
    subprocess.run(["git", "apply"], cwd=other, input=patch.raw, check=True, capture_output=True)
    assert muhmod(*APPLY, tree).code == 0
    assert tree_bytes(other / "vllm") == tree_bytes(tree)


def test_a_hard_link_elsewhere_keeps_its_content(muhmod, enginex, tmp_path):
    """As a package manager's cache is linked into site-packages."""
    cache = tmp_path / "cache.py"
    os.link(enginex / "_custom_ops.py", cache)
    before = cache.read_bytes()
    assert muhmod(*APPLY, enginex).code == 0
    assert cache.read_bytes() == before != (enginex / "_custom_ops.py").read_bytes()
