"""Writing many files so that a kill at any moment leaves all of them changed, or none.

The new contents are staged beside the tree, then the plan is put down by one rename: from there
on the write goes through, before it there was none. The renames onto the files are made by a
child in a session of its own, so that a kill of muhmod, or Ctrl-C, does not stop half-way; after
a crash of the machine the next writing command finishes what the plan says.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from muhmod.errors import FileError, RefusedError
from muhmod.tree import Tree

SCHEMA = "muhmod/journal/1"
FOLDER = ".muhmod-journal"
_PLAN = "plan.json"
# How often another muhmod's lock is asked for, 50 ms apart.
_PATIENCE = 20


class Write(NamedTuple):
    """One file to become `data` (None: to go). `before` is the sha256 it must have now, "" if absent."""

    path: Path
    before: str
    data: bytes | None


def digest(data: bytes) -> str:
    """sha256, hexadecimal."""
    import hashlib

    return hashlib.sha256(data).hexdigest()


@contextlib.contextmanager
def held(tree: Tree) -> Iterator[None]:
    """Alone on this tree's folder while inside. Raises RefusedError if another muhmod is."""
    import fcntl

    try:
        handle = os.open(tree.home, os.O_RDONLY)
    except OSError as error:
        raise FileError(f"cannot open {tree.home.name}/: {error.strerror}") from None
    try:
        # A writing child of a muhmod that was killed needs a moment to finish.
        for _ in range(_PATIENCE):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
        else:
            raise RefusedError(
                f"another muhmod is writing beside {tree.name}/", "wait for it, then run again"
            )
        yield
    finally:
        os.close(handle)


def pending(tree: Tree) -> bool:
    """Whether an earlier write was interrupted after its plan was put down."""
    return pending_at(tree.home)


def pending_at(home: Path) -> bool:
    """The same, by the folder that holds the tree."""
    return (home / FOLDER / _PLAN).is_file()


def recover(tree: Tree) -> bool:
    """Finish an interrupted write, or clear what never became a plan. True where files changed."""
    folder = tree.home / FOLDER
    if not folder.is_dir():
        return False
    finish = (folder / _PLAN).is_file()
    if finish:
        _perform(folder)
    _clear(folder)
    return finish


def write(tree: Tree, writes: list[Write]) -> None:
    """All files, or none. Raises FileError, after which the tree is as before."""
    for item in writes:
        _check_writable(item.path, tree)
    folder = tree.home / FOLDER
    try:
        _stage(folder, writes)
    except OSError as error:
        _clear(folder)
        raise FileError(
            f"cannot stage the new files beside {tree.name}/: {error.strerror}",
            "free space or permission there; nothing was written",
        ) from None
    _shielded(folder)


def _stage(folder: Path, writes: list[Write]) -> None:
    import json

    _clear(folder)
    folder.mkdir()
    rows = []
    for number, item in enumerate(writes):
        staged = folder / str(number)
        if item.data is not None:
            _put(staged, item.data)
            if item.path.exists():
                _copy_owner(item.path, staged)
        rows.append(
            {
                "path": os.path.relpath(item.path, folder),
                "before": item.before,
                "after": "" if item.data is None else digest(item.data),
            }
        )
    draft = folder / "draft"
    _put(draft, json.dumps({"schema": SCHEMA, "files": rows}).encode())
    os.rename(draft, folder / _PLAN)
    _sync_folder(folder)


def _shielded(folder: Path) -> None:
    """Perform the plan in a child that a signal to this process or its group does not reach."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()
            _perform(folder, first=True)
            _clear(folder)
            status = 0
        except BaseException as error:
            with contextlib.suppress(OSError):
                (folder / "error").write_text(str(error))
        os._exit(status)
    interrupted = False
    while True:
        try:
            _, status = os.waitpid(child, 0)
            break
        except KeyboardInterrupt:
            interrupted = True
        except ChildProcessError:
            # It was reaped just as the interrupt came: what it left tells how it ended.
            status = int((folder / _PLAN).exists())
            break
    if os.WIFSIGNALED(status) and (folder / _PLAN).exists():
        # The child was killed: what it began is finished here.
        _perform(folder)
        status = 0
    failed = (folder / "error").read_text() if status and (folder / "error").is_file() else ""
    if status and not (folder / "undone").exists():
        raise FileError(
            f"the write was planned and not finished: {failed or 'the writing process died'}",
            f"mend that, then run muhmod again: it finishes what {FOLDER}/ holds",
        )
    _clear(folder)
    if status:
        raise FileError(f"cannot write: {failed}", "nothing was changed; mend that and run again")
    if interrupted:
        raise KeyboardInterrupt


def _perform(folder: Path, *, first: bool = False) -> None:
    """Rename every staged file into place. Can be repeated; `first`: nothing can be in place yet."""
    import json

    try:
        plan = json.loads((folder / _PLAN).read_bytes())
        rows = plan["files"] if plan["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        rows = None
    if rows is None:
        raise RefusedError(
            f"{FOLDER}/{_PLAN} beside the tree is damaged",
            "compare the tree with your version control, then remove that folder",
        )
    todo = []
    for number, row in enumerate(rows):
        path = Path(os.path.normpath(folder / row["path"]))
        now = digest(path.read_bytes()) if path.exists() else ""
        if now == row["after"]:
            continue
        if now != row["before"]:
            if not first:
                raise RefusedError(
                    f"{path.name} changed since an interrupted write was planned",
                    f"compare it with {FOLDER}/{number}, then remove that folder",
                )
            _undo(folder, [])
            raise RefusedError(f"{path.name} changed while muhmod was planning")
        todo.append((folder / str(number), path, row["after"]))
    done: list[tuple[Path, Path]] = []
    try:
        for staged, path, after in todo:
            kept = staged.with_suffix(".old")
            _keep(path, kept)
            if after:
                _place(staged, path)
            else:
                path.unlink(missing_ok=True)
            done.append((kept, path))
    except OSError as error:
        _undo(folder, done)
        raise FileError(f"{path.name}: {error.strerror}") from None
    for parent in {path.parent for _, path, _ in todo}:
        _sync_folder(parent)


def _keep(path: Path, kept: Path) -> None:
    """The old file under a second name, for an undo."""
    if path.exists():
        kept.unlink(missing_ok=True)
        try:
            os.link(path, kept)
        except OSError:
            import shutil

            shutil.copy2(path, kept)


def _undo(folder: Path, done: list[tuple[Path, Path]]) -> None:
    """Put the old files back; the mark tells that the tree is as before."""
    for kept, path in reversed(done):
        if kept.exists():
            _place(kept, path)
        else:
            path.unlink(missing_ok=True)
    (folder / "undone").touch()


def _place(staged: Path, path: Path) -> None:
    try:
        os.rename(staged, path)
    except OSError as error:
        import errno
        import shutil

        if error.errno != errno.EXDEV:
            raise
        # The package is a mount of its own: stage once more on its side.
        near = path.with_name(f".{path.name}.muhmod")
        try:
            shutil.copy2(staged, near)
            os.rename(near, path)
        finally:
            near.unlink(missing_ok=True)


def _put(path: Path, data: bytes) -> None:
    with open(path, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _copy_owner(path: Path, staged: Path) -> None:
    status = path.stat()
    os.chmod(staged, status.st_mode & 0o7777)
    with contextlib.suppress(PermissionError):
        os.chown(staged, status.st_uid, status.st_gid)
    os.chmod(staged, status.st_mode & 0o7777)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _clear(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _check_writable(path: Path, tree: Tree) -> None:
    """Read-only files are refused: a rename would replace them all the same."""
    shown = os.path.relpath(path, tree.home)
    if path.exists() and (not path.stat().st_mode & 0o222 or not os.access(path, os.W_OK)):
        raise FileError(f"{shown} is read-only", "make it writable, or --ignore its site")
    if not os.access(path.parent, os.W_OK):
        raise FileError(f"the folder of {shown} is not writable", "check its permissions")
