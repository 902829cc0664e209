"""All files or none: whatever dies, whenever."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

from muhmod import journal

from .conftest import FIXTURES, tree_bytes

APPLY = ("apply", "--rules", "bi100", "-q")
COMMAND = [sys.executable, "-m", "muhmod", *APPLY]


@pytest.fixture
def outcomes(muhmod, enginex):
    """The bytes of the tree before and after, and the tree itself, pristine."""
    before = tree_bytes(enginex)
    assert muhmod(*APPLY, enginex).code == 0
    after = tree_bytes(enginex)
    shutil.rmtree(enginex)
    (enginex.parent / "muhmod.lock").unlink()
    shutil.copytree(FIXTURES / "enginex" / "vllm", enginex)
    return before, after


def settled(enginex):
    """The tree, once the writing process that a kill did not reach has had its moment."""
    for _ in range(200):
        if not journal.pending_at(enginex.parent):
            break
        time.sleep(0.01)
    return tree_bytes(enginex)


def test_sigkill_at_many_points(muhmod, enginex, outcomes):
    before, after = outcomes
    start = time.perf_counter()
    subprocess.run([*COMMAND, enginex], check=True, capture_output=True)
    whole = time.perf_counter() - start
    seen = set()
    for step in range(24):
        shutil.rmtree(enginex)
        shutil.copytree(FIXTURES / "enginex" / "vllm", enginex)
        (enginex.parent / "muhmod.lock").unlink(missing_ok=True)
        # Most of the points lie where files are written: near the end.
        wait = whole * (0.3 + 0.7 * step / 23)
        with subprocess.Popen([*COMMAND, enginex], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              start_new_session=True) as process:  # fmt: skip
            time.sleep(wait)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        now = settled(enginex)
        assert now in (before, after), f"half written when killed after {wait:.3f} s"
        seen.add("after" if now == after else "before")
        assert muhmod(*APPLY, enginex).code == 0
        assert tree_bytes(enginex) == after
    assert "before" in seen


CRASH = """
import os, signal, sys
from muhmod import journal
real, count = journal._place, iter(range(99))
def place(staged, path):
    if next(count) == {renames}:
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    real(staged, path)
journal._place = place
from muhmod.cli import run
sys.exit(run(['apply', '--rules', 'bi100', '-q', {tree!r}]))
"""


def crash(enginex, renames):
    """Apply, with both of muhmod's processes dying at a rename, as in a crash of the machine."""
    program = CRASH.format(renames=renames, tree=str(enginex))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr


@pytest.mark.parametrize("renames", range(5))
def test_a_crash_between_two_renames_is_finished_by_the_next_run(muhmod, enginex, outcomes, renames):
    _, after = outcomes
    crash(enginex, renames)
    half = tree_bytes(enginex)
    check = muhmod(*APPLY, "--check", enginex)
    assert check.code == 3
    assert "an interrupted write" in check.err
    assert tree_bytes(enginex) == half
    again = muhmod(*APPLY, enginex)
    assert again.code == 0
    assert "finished an interrupted write" in again.err
    assert tree_bytes(enginex) == after
    assert not (enginex.parent / journal.FOLDER).exists()
    assert muhmod("revert", enginex).code == 0


@pytest.mark.parametrize("renames", range(5))
def test_a_writing_process_that_is_killed_is_made_good_by_its_parent(
    muhmod, enginex, outcomes, monkeypatch, renames
):
    _, after = outcomes
    real, count, own = journal._place, iter(range(99)), os.getpid()

    def place(staged, path):
        if os.getpid() != own and next(count) == renames:
            os.kill(os.getpid(), signal.SIGKILL)
        real(staged, path)

    monkeypatch.setattr(journal, "_place", place)
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 0, ran.err
    assert tree_bytes(enginex) == after
    assert not (enginex.parent / journal.FOLDER).exists()


@pytest.mark.parametrize("renames", range(5))
def test_a_rename_that_fails_is_undone(muhmod, enginex, outcomes, monkeypatch, renames):
    before, after = outcomes
    real, count = journal._place, iter(range(99))

    def place(staged, path):
        if next(count) == renames:
            raise OSError(28, "No space left on device")
        real(staged, path)

    monkeypatch.setattr(journal, "_place", place)
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 4
    assert "No space left on device" in ran.err
    assert tree_bytes(enginex.parent / "vllm") == before
    assert not (enginex.parent / journal.FOLDER).exists()
    assert not (enginex.parent / "muhmod.lock").exists()
    monkeypatch.undo()
    assert muhmod(*APPLY, enginex).code == 0
    assert tree_bytes(enginex) == after


def test_no_room_for_the_new_files(muhmod, enginex, outcomes):
    before, _ = outcomes
    ran = subprocess.run(
        [*COMMAND, enginex],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)),
    )
    assert ran.returncode == 4, ran.stderr
    assert "cannot stage the new files" in ran.stderr
    assert tree_bytes(enginex) == before
    assert not (enginex.parent / journal.FOLDER).exists()


def test_a_file_that_changes_while_it_is_planned(muhmod, enginex, outcomes, monkeypatch):
    before, _ = outcomes
    real = journal._stage

    def stage(folder, writes):
        real(folder, writes)
        (enginex / "_custom_ops.py").write_text("# somebody else\n")

    monkeypatch.setattr(journal, "_stage", stage)
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 4
    assert "_custom_ops.py changed while muhmod was planning" in ran.err
    assert tree_bytes(enginex) == {**before, "_custom_ops.py": b"# somebody else\n"}
    assert not (enginex.parent / journal.FOLDER).exists()


def test_a_file_that_changed_after_a_crash_is_not_overwritten(muhmod, enginex, outcomes):
    crash(enginex, 0)
    (enginex / "_custom_ops.py").write_text("# somebody else\n")
    held = tree_bytes(enginex)
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 3
    assert "_custom_ops.py changed since an interrupted write" in ran.err
    assert tree_bytes(enginex) == held


def test_a_damaged_journal(muhmod, enginex):
    folder = enginex.parent / journal.FOLDER
    folder.mkdir()
    (folder / "plan.json").write_text("{")
    before = tree_bytes(enginex)
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 3
    assert "is damaged" in ran.err
    assert tree_bytes(enginex) == before


def test_ctrl_c_while_planning(enginex):
    before = tree_bytes(enginex)
    program = (
        "import os, signal, sys, time\n"
        "from muhmod import engine\n"
        # The signal may be seen a little after the call that sends it.
        "engine.search = lambda *_: (os.kill(os.getpid(), signal.SIGINT), time.sleep(30))\n"
        "from muhmod.cli import run\n"
        f"sys.exit(run(['apply', '--rules', 'bi100', {str(enginex)!r}]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 130
    assert "Traceback" not in ran.stderr
    assert tree_bytes(enginex) == before
