"""The user's source: which files there are, their bytes, and what kind of text they hold."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from muhmod.errors import FileError, UsageError

LARGEST_FILE = 8 * 1024 * 1024
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "third_party", "vendor", "_vendor", "tests",
                    "test", "testing", "build", "dist"}  # fmt: skip
_GENERATED = rb"@generated|(?i:#.*\bgenerated\b.*\bdo not (edit|modify)\b)"
# Packages that are looked for where no pack names any.
PACKAGES = ("vllm", "sglang", "aphrodite", "vllm_ascend", "lmdeploy")
_READ = 1 << 17
_BOM = b"\xef\xbb\xbf"


class Tree(NamedTuple):
    """A package folder to work on.

    `package`: the folder (absolute). `home`: its parent, where the lock and the journal stand.
    `root`: what paths in a diff are relative to (the git repository, else `home`).
    """

    package: Path
    home: Path
    root: Path

    @property
    def name(self) -> str:
        """The package folder's name: `tree` in reports."""
        return self.package.name

    def shown(self, file: str) -> str:
        """A file's path from `root`, with `/`."""
        return (self.package / file).relative_to(self.root).as_posix()


class Text(NamedTuple):
    """A file's decoded text and how to turn it back into the same bytes."""

    text: str
    encoding: str
    bom: bool

    def encode(self, text: str) -> bytes:
        """The bytes of a changed text."""
        return (_BOM if self.bom else b"") + text.encode(self.encoding)


def locate(path: str, packages: tuple[str, ...]) -> Tree:
    """The package in TREE: the folder itself, or a known package inside it. Raises UsageError."""
    given = Path(path)
    if not os.path.lexists(given):
        raise UsageError(f"no such path: {path}")
    try:
        top = given.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UsageError(f"{path} is a link that leads nowhere") from None
    if not top.is_dir():
        raise UsageError(
            f"{path} is a file; TREE is a package folder, a checkout or a site-packages folder",
            f"give the folder, and --select to narrow the sites: {given.parent}",
        )
    _check_readable(top, path)
    package = _package(top, path, packages)
    return Tree(package, package.parent, _repository(package) or package.parent)


def _package(top: Path, path: str, packages: tuple[str, ...]) -> Path:
    for name in packages:
        inner = top / name
        # A clone is often called as the package in it.
        nested = (inner / "__init__.py").is_file()
        if inner.is_dir() and (top.name != name or nested) and _has_python(inner):
            if inner.is_symlink():
                raise UsageError(
                    f"{path}/{name} is a link out of {path}", f"give its target: {inner.resolve()}"
                )
            return inner
    if (top.name in packages or (top / "__init__.py").is_file()) and _has_python(top):
        return top
    raise UsageError(
        f"no Python package in {path} that any rule knows ({', '.join(packages)})",
        "give the package folder itself, or the folder that holds it",
    )


def _check_readable(top: Path, path: str) -> None:
    try:
        with os.scandir(top):
            pass
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}", "check its permissions") from None


def _has_python(folder: Path) -> bool:
    return next(_walk(str(folder), str(folder), []), None) is not None


def _repository(package: Path) -> Path | None:
    for folder in (package, *package.parents):
        if (folder / ".git").exists():
            return folder
    return None


_VERSION = re.compile(rb"""^(?:__version__|version)\b[^'"\n]*['"]([^'"\n]+)['"]""", re.MULTILINE)


def version(tree: Tree) -> str:
    """The tree's own version, where a file of the package or beside it states one; else empty."""
    for name in ("_version.py", "version.py", "__init__.py", "commit_id.py"):
        with contextlib.suppress(OSError):
            match = _VERSION.search((tree.package / name).read_bytes()[:65536])
            if match:
                return match[1].decode("utf-8", "replace")
    with contextlib.suppress(OSError):
        for line in (tree.home / "PKG-INFO").read_text(errors="replace").splitlines()[:20]:
            if line.startswith("Version:"):
                return line.partition(":")[2].strip()
    return ""


def files(tree: Tree, *, everything: bool = False) -> tuple[list[str], list[str]]:
    """The Python files of the package, sorted and relative to it, and the links that lead out.

    Tests, vendored folders and hidden folders are left out unless `everything`.
    """
    outside: list[str] = []
    top = str(tree.package)
    cut = len(top) + 1
    found = [path[cut:] for path in _walk(top, top, outside, everything)]
    return sorted(found), sorted(path[cut:] for path in outside)


def _walk(folder: str, top: str, outside: list[str], everything: bool = False) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise FileError(f"cannot read the folder {folder}: {error.strerror}") from None
    for entry in entries:
        name = entry.name
        if entry.is_symlink() and os.path.isdir(entry.path):
            if not _leads_inside(entry.path, top):
                outside.append(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            if everything or not (name in _SKIPPED_FOLDERS or name.startswith(".")):
                yield from _walk(entry.path, top, outside, everything)
        elif name.endswith(".py") and (everything or not _is_test(name)):
            if not entry.is_symlink():
                if entry.is_file():
                    yield entry.path
            elif not _leads_inside(entry.path, top):
                outside.append(entry.path)


def _is_test(name: str) -> bool:
    return name.startswith("test_") or name.endswith("_test.py") or name == "conftest.py"


def _leads_inside(path: str, top: str) -> bool:
    """Whether a link's target is in the tree: then it is visited there, under its own name."""
    target = os.path.realpath(path)
    return target.startswith(top + os.sep)


def read(tree: Tree, file: str) -> bytes:
    """A file's bytes. Raises FileError."""
    try:
        handle = os.open(os.path.join(tree.package, file), os.O_RDONLY)
        try:
            parts = [os.read(handle, _READ)]
            # A short read is the end: only longer files need to be asked again.
            while len(parts[-1]) == _READ:
                parts.append(os.read(handle, _READ))
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            os.close(handle)
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}", "check its permissions") from None


def presence(tree: Tree, file: str) -> str:
    """What stands at a path below the tree: "file", "folder", "missing", or why that is not told."""
    path = os.path.join(tree.package, file)
    try:
        target = os.path.realpath(path, strict=True)
        inside = target.startswith(os.path.realpath(tree.package) + os.sep)
        if not inside:
            return "is a link out of the tree"
        return "file" if os.path.isfile(target) else "folder" if os.path.isdir(target) else "is no plain file"
    except (FileNotFoundError, NotADirectoryError):
        return "is a link that leads nowhere" if os.path.islink(path) else "missing"
    except (OSError, ValueError) as error:
        return f"cannot be looked at: {getattr(error, 'strerror', None) or error}"


def is_generated(data: bytes) -> bool:
    """Whether the file's head says that a generator wrote it."""
    return re.search(_GENERATED, data[:2000]) is not None


def decode(data: bytes, file: str) -> Text:
    """The text of a source file by PEP 263. Raises FileError where it is none."""
    if len(data) > LARGEST_FILE:
        raise FileError(
            f"{file} is {len(data) / 2**20:.0f} MiB; muhmod reads source files up to "
            f"{LARGEST_FILE // 2**20} MiB",
            "no hand-written source is that large: move it out of the package, or --ignore the site",
        )
    bom = data.startswith(_BOM)
    encoding = "utf-8"
    if b"coding" in b"".join(data.split(b"\n", 2)[:2]) or b"\r" in data[:200]:
        encoding = _declared(data, file)
    try:
        text = data[3 if bom else 0 :].decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise FileError(
            f"{file} is not {encoding} text: {error}", "mend the file, or its coding line"
        ) from None
    if "\0" in text:
        raise FileError(f"{file} is a binary file", "remove it, or give it another ending")
    result = Text(text, encoding, bom)
    if result.encode(text) != data:
        raise FileError(f"{file} does not come back byte for byte from {encoding}")
    return result


def _declared(data: bytes, file: str) -> str:
    import io
    import tokenize

    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        raise FileError(f"{file}: {error}", "mend the coding line") from None
    return "utf-8" if encoding == "utf-8-sig" else encoding
