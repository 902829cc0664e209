"""One vendor literal carried over four upstream changes: muhmod, and ten ways of patch and git.

`python benchmarks/experiment.py` prints the table. Each way runs on a real repository of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

FILE = "vllm/attention/ops/prefix.py"
NAME = "context_attention_fwd"
BASE = f'''"""Prefill of new tokens over a cached prefix."""

import torch

from vllm.platforms import current_platform


def {NAME}(q, k, v, out, lengths, longest):
    if current_platform.is_cuda():
        grid = (lengths.shape[0], q.shape[1], longest)
        step = q.stride(0)
        width = k.shape[-1]
        rows = v.shape[0]
        _fwd_kernel[grid](
            q, k, v, out,
            step, width, rows,
            BLOCK_M=64,
            num_warps=4,
            num_stages=1,
        )
        return out
    return torch.empty_like(out)
'''
PACK = f"""schema = "muhmod/rules/1"
title = "one literal"
hardware = "bi100"
model = "qwen3.6-35b-a3b"

[sites.prefill-tile]
scope = "{NAME}"
slots.NUM_WARPS = {{ value = 16, reason = "measured by the vendor" }}
"""
_FUNCTION = BASE[BASE.index("def ") :]
_TWIN = _FUNCTION.replace(NAME, f"{NAME}_alibi")


def written(text: str) -> str:
    """The text with the vendor's literal in the last function: where it belongs."""
    head, _, tail = text.rpartition("num_warps=4")
    return f"{head}num_warps=16{tail}"


class Upstream(NamedTuple):
    """An upstream change: the new text, and what is right after it; None where only a refusal is."""

    name: str
    text: str
    right: str | None


_TWINNED = BASE.replace(_FUNCTION, f"{_TWIN}\n\n{_FUNCTION}")
_HEAD, _, _TAIL = _TWINNED.rpartition("num_warps=4")
UPSTREAMS = (
    Upstream("twin above, literal changed", f"{_HEAD}num_warps=8{_TAIL}", None),
    Upstream("twin above", _TWINNED, written(_TWINNED)),
    Upstream("function renamed", BASE.replace(NAME, "prefix_attention"), None),
    Upstream("`if` above turned round", BASE.replace("if current", "if not current"), None),
)


# The ten ways ----------------------------------------------------------------------------------

_ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_EDITOR": "true",
    **{f"GIT_{who}_{what}": "muhmod" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}
# On the branch that is checked out first, the commands that carry the literal.
WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "patch": ("upstream", ("patch", "-p1", "-f", "-s", "-i", ".git/vendor.diff")),
    "patch -F0": ("upstream", ("patch", "-p1", "-f", "-s", "-F0", "-i", ".git/vendor.diff")),
    "git apply": ("upstream", ("git", "apply", ".git/vendor.diff")),
    "git apply --3way": ("upstream", ("git", "apply", "--3way", ".git/vendor.diff")),
    "git am -3": ("upstream", ("git", "am", "-q", "-3", ".git/vendor.mbox")),
    "git cherry-pick": ("upstream", ("git", "cherry-pick", "vendor")),
    "git rebase --merge": ("vendor", ("git", "rebase", "-q", "--merge", "upstream")),
    "git rebase --apply": ("vendor", ("git", "rebase", "-q", "--apply", "upstream")),
    "git merge": ("vendor", ("git", "merge", "-q", "--no-edit", "upstream")),
    "git merge -s resolve": ("vendor", ("git", "merge", "-q", "--no-edit", "-s", "resolve", "upstream")),
}


def repository(folder: Path, upstream: Upstream) -> Path:
    """A repository with the branches `vendor` and `upstream` on one base, and the vendor's patch."""
    (folder / FILE).parent.mkdir(parents=True)
    _run(folder, "git", "init", "-q", "--template=", "-b", "base")
    for branch, text in (("base", BASE), ("vendor", written(BASE)), ("upstream", upstream.text)):
        if branch != "base":
            _run(folder, "git", "checkout", "-q", "-b", branch, "base")
        (folder / FILE).write_text(text)
        _run(folder, "git", "add", ".")
        _run(folder, "git", "commit", "-q", "-m", branch)
    for name, command in (("diff", ("diff", "base")), ("mbox", ("format-patch", "--stdout", "base"))):
        ran = _run(folder, "git", command[0], *command[1:], "vendor" if name == "diff" else "base..vendor")
        (folder / ".git" / f"vendor.{name}").write_bytes(ran.stdout)
    return folder


def _run(folder: Path, *command: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command, cwd=folder, env=os.environ | _ENVIRONMENT, capture_output=True, check=check
    )


def carried(way: str, made: Path) -> tuple[int, str]:
    """The way's exit code and the text that it leaves, on a copy of the repository."""
    branch, command = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(made, Path(folder) / "copy"))
        _run(copy, "git", "checkout", "-q", branch)
        code = _run(copy, *command, check=False).returncode
        return code, (copy / FILE).read_text()


def outcome(upstream: Upstream, code: int, text: str) -> str:
    """`right`, `refused`, `wrong function`, or `silent`: applied although what it rested on has changed."""
    if code:
        return "refused"
    if text == upstream.right:
        return "right"
    if text == upstream.text:
        return "nothing written"
    return "silent" if text.rfind("num_warps=16") > text.rfind("def ") else "wrong function"


# muhmod ----------------------------------------------------------------------------------------


def muhmod(upstream: Upstream, run: Callable[..., int], *, command: str = "apply") -> tuple[int, str]:
    """`muhmod apply` on the upstream text, with the lock that `command` left on the base.

    `run(*arguments)` gives the exit code.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree, pack = Path(folder) / "vllm", Path(folder) / "pack.toml"
        path = Path(folder) / FILE
        path.parent.mkdir(parents=True)
        pack.write_text(PACK)
        path.write_text(BASE)
        assert run(command, "--rules", pack, "-q", tree) == 0
        assert path.read_text() == (written(BASE) if command == "apply" else BASE)
        path.write_text(upstream.text)
        code = run("apply", "--rules", pack, tree)
        return code, path.read_text()


def _process(*arguments: object) -> int:
    command = [sys.executable, "-m", "muhmod", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False).returncode


def main() -> None:
    """Print the table, as Markdown."""
    print(f"| | {' | '.join(one.name for one in UPSTREAMS)} |")
    print("|---" * (len(UPSTREAMS) + 1) + "|")
    with tempfile.TemporaryDirectory() as folder:
        made = [repository(Path(folder) / str(n), one) for n, one in enumerate(UPSTREAMS)]
        for way in WAYS:
            if shutil.which(WAYS[way][1][0]) is None:
                print(f"| {way} | not there |")
                continue
            said = [outcome(one, *carried(way, at)) for one, at in zip(UPSTREAMS, made, strict=True)]
            print(f"| `{way}` | {' | '.join(said)} |")
    said = [outcome(one, *muhmod(one, _process)) for one in UPSTREAMS]
    print(f"| `muhmod apply` | {' | '.join(said)} |")


if __name__ == "__main__":
    main()
