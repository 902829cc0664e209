"""Releases by name from the package index that pip uses: sources only, never built.

Kept in a cache folder with the sha256 of the sdist and of what was taken out of it. The only module
that knows `unearth` (the extra `muhmod[replay]`).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from muhmod import kept
from muhmod.errors import FileError, MuhmodError, UsageError, nearest

if TYPE_CHECKING:
    from packaging.version import Version
    from unearth import Link, Package

STAMP = "sdist.json"
SCHEMA = "muhmod/sdist/1"
_INFO = "PKG-INFO"
_ENDING = ".tar.gz"
_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_TESTS = ("test", "tests")
_LARGEST = 512 * 2**20
# Seconds before the second and the third try.
_PAUSES = (1.0, 5.0)
_Result = TypeVar("_Result")


class Release(NamedTuple):
    """A release in the cache. `folder` holds the package's folder; `sha256`: of the sdist."""

    name: str
    version: str
    folder: Path
    sha256: str


def cache() -> Path:
    """Where releases are kept: $MUHMOD_CACHE, else the user's cache folder (XDG)."""
    return kept.folder("releases")


def releases(
    name: str, wanted: str, tell: Callable[[str], None] = lambda text: None, *, at: Path | None = None
) -> list[Release]:
    """The releases of a project, from the cache or else the index.

    `wanted`: `A..B` (all final releases from A to B), versions with commas between, or a file with one
    a line. Raises UsageError (no such project or version), FileError (not to be had, or not intact).
    """
    index = _Index(name)
    folder = at or cache()
    return [_release(index, version, folder, tell) for version in _versions(index, wanted, tell)]


def sdist(name: str, version: str) -> bytes:
    """An sdist as the index has it, checked against the index's sha256. Raises as `releases` does."""
    return _fetched(_Index(name), _version(version), f"{name} {version}", lambda text: None)


# Which ----------------------------------------------------------------------------------------


def _versions(index: _Index, wanted: str, tell: Callable[[str], None]) -> list[Version]:
    first, dots, last = wanted.partition("..")
    if dots and not os.path.isfile(wanted):
        return _between(index, first, last, tell)
    words = _lines(Path(wanted)) if os.path.isfile(wanted) else wanted.split(",")
    versions = [_version(word.strip()) for word in words if word.strip()]
    if not versions:
        raise UsageError(f"no version in {wanted!r}")
    if len({*versions}) < len(versions):
        raise UsageError("the same version is given twice")
    return versions


def _between(index: _Index, first: str, last: str, tell: Callable[[str], None]) -> list[Version]:
    low, high = _version(first), _version(last)
    final = [version for version in index.versions() if low <= version <= high]
    without = [str(version) for version in final if index.sdist(version) is None]
    if without:
        tell(f"left out, for they have no sdist: {', '.join(without)}")
    versions = [version for version in final if str(version) not in without]
    if not versions:
        raise UsageError(f"{index.name} has no final release with an sdist from {first} to {last}")
    return versions


def _lines(path: Path) -> list[str]:
    try:
        return [line.partition("#")[0] for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {path}: {error}") from None


def _version(word: str) -> Version:
    with _Extra():
        from packaging.version import InvalidVersion, Version
    try:
        return Version(word)
    except InvalidVersion:
        hint = "give A..B, versions with commas between, or a file with one a line"
        raise UsageError(f"{word!r} is neither a version nor a file", hint) from None


class _Extra:
    """Says which extra is not installed."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, ModuleNotFoundError):
            raise UsageError(f"--pypi needs {error.name}", "pip install 'muhmod[replay]'") from None


# The index ------------------------------------------------------------------------------------


class _RefusalError(Exception):
    """What a server says instead of an answer."""


class _Index:
    """One project on the package index; asked only when something is not in the cache, and once."""

    def __init__(self, name: str) -> None:
        if not re.fullmatch(_NAME, name):
            raise UsageError(f"{name!r} is no name of a project")
        self.name = re.sub(r"[-_.]+", "-", name).lower()
        self._client: Any = None
        self._files: dict[Version, list[Package]] | None = None

    def versions(self) -> list[Version]:
        """All final releases that are not yanked, in order."""
        return sorted(
            version
            for version, files in self._known().items()
            if not version.is_prerelease and not all(file.link.is_yanked for file in files)
        )

    def sdist(self, version: Version) -> Link | None:
        """The release's sdist, None where it has none. Raises UsageError for an unknown version."""
        if version not in self._known():
            known = [str(one) for one in self.versions()]
            raise UsageError(f"{self.name} has no release {version}{nearest(str(version), known)}")
        links = (file.link for file in self._known()[version])
        return next((link for link in links if link.filename.endswith(_ENDING)), None)

    def asked(self, version: Version) -> str:
        """What the index said of the sdist's sha256; empty where it was not asked or did not say."""
        link = self.sdist(version) if self._files is not None else None
        return ((link and link.hash_option) or {}).get("sha256", [""])[0]

    def get(self, link: Link) -> bytes:
        """The file's bytes. Raises FileError."""

        def ask() -> bytes:
            answer = self._client.get(link.normalized)
            if answer.status_code != 200:
                raise _RefusalError(f"the index says {answer.status_code}")
            return bytes(answer.content)

        return _tried(ask, link.filename)

    def _known(self) -> dict[Version, list[Package]]:
        if self._files is None:
            self._files = {}
            for file in _tried(self._ask, f"the list of {self.name}'s releases"):
                self._files.setdefault(_version(str(file.version)), []).append(file)
            if not self._files:
                raise UsageError(f"the package index has no project {self.name!r}")
        return self._files

    def _ask(self) -> list[Package]:
        with _Extra():
            from unearth import PackageFinder
            from unearth.auth import MultiDomainBasicAuth
            from unearth.fetchers.sync import PyPIClient

        urls, hosts = _told_pip("index-url", "trusted-host")
        # Its type differs over unearth's versions.
        client: Any = PyPIClient(
            trusted_hosts=hosts, follow_redirects=True, event_hooks={"response": [_no_refusal]}
        )
        client.auth = MultiDomainBasicAuth(index_urls=urls)
        self._client = client
        finder = PackageFinder(client, index_urls=urls, trusted_hosts=hosts, ignore_compatibility=True)
        return [*finder.find_all_packages(self.name, allow_yanked=True)]


def _no_refusal(answer: object) -> None:
    """Raises where the server refuses: that it knows no such project is an answer."""
    status = getattr(answer, "status_code", 0)
    if status >= 400 and status != 404:
        raise _RefusalError(f"the index says {status}")


def _told_pip(*settings: str) -> list[list[str]]:
    """The values that pip's environment or configuration gives to settings; none where it gives none."""
    import subprocess
    import sys

    told = {name: os.environ.get(f"PIP_{name.upper().replace('-', '_')}") for name in settings}
    if None in told.values():
        asked = [sys.executable, "-m", "pip", "config", "list"]
        said = subprocess.run(asked, capture_output=True, text=True).stdout
        known = dict(re.findall(r"^(?:global|install)\.([\w-]+)='(.*)'$", said, re.MULTILINE))
        told = {name: known.get(name, "") if value is None else value for name, value in told.items()}
    return [(told[name] or "").replace("\\n", " ").split() for name in settings]


def _tried(ask: Callable[[], _Result], what: str) -> _Result:
    """What `ask` gives, at the third try at the latest. Raises FileError."""
    for pause in (*_PAUSES, None):
        try:
            return ask()
        except MuhmodError:
            raise
        except Exception as error:  # The client's errors have no base of their own over its versions.
            if pause is None:
                said = str(error) or type(error).__name__
                hint = "look at the network and at pip's index-url; what is in the cache needs neither"
                raise FileError(f"cannot fetch {what}: {said}", hint) from None
            time.sleep(pause)
    raise AssertionError


# The cache ------------------------------------------------------------------------------------


def _release(index: _Index, version: Version, at: Path, tell: Callable[[str], None]) -> Release:
    folder = at / f"{index.name}-{version}"
    what = f"{index.name} {version}"
    if not folder.is_dir():
        _keep(_fetched(index, version, what, tell), folder, what)
    sha256 = _stamped(folder, what)
    if index.asked(version) not in ("", sha256):
        raise _spoilt(folder, f"{what} in the cache is not what the index has now")
    return Release(index.name, str(version), folder, sha256)


def _fetched(index: _Index, version: Version, what: str, tell: Callable[[str], None]) -> bytes:
    link = index.sdist(version)
    if link is None:
        raise FileError(f"{what} has no sdist on the index", "leave it out, or give a tree of your own")
    tell(f"fetching {link.filename}")
    data = index.get(link)
    digest = hashlib.sha256(data).hexdigest()
    if index.asked(version) not in ("", digest):
        raise FileError(f"{what} is not what the index says: sha256 {digest}, not {index.asked(version)}")
    return data


def _keep(data: bytes, folder: Path, what: str) -> None:
    """Take the sources out of an sdist, into the cache: all of them or nothing."""
    import shutil
    import tempfile

    sources = _sources(data, what)
    stamp = {"schema": SCHEMA, "sha256": hashlib.sha256(data).hexdigest(), "files": _digest(sources.items())}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
        try:
            for name, content in (*sources.items(), (STAMP, json.dumps(stamp).encode() + b"\n")):
                path = staged / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            staged.chmod(0o755)
            # Where another muhmod was faster, its folder stays.
            if not folder.is_dir():
                staged.rename(folder)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    except OSError as error:
        raise FileError(f"cannot write to the cache {folder.parent}: {error.strerror}") from None


def _sources(data: bytes, what: str) -> dict[str, bytes]:
    """The Python files of an sdist's packages, and its metadata, by their path in it. Raises FileError."""
    found: dict[str, bytes] = {}
    size = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts:
                    raise FileError(f"the sdist of {what} holds a path that leads out of it: {path}")
                inner = PurePosixPath(*path.parts[1:])
                is_source = path.suffix == ".py" and len(inner.parts) > 1
                if not is_source and str(inner) != _INFO:
                    continue
                if member.issym() or member.islnk():
                    raise FileError(f"the sdist of {what} holds a link for a source: {path}")
                size += member.size
                if size > _LARGEST:
                    raise FileError(f"the sdist of {what} holds more than {_LARGEST >> 20} MiB of sources")
                content = archive.extractfile(member)
                if content is not None:
                    found[str(inner)] = content.read()
            # The checksum stands at the very end.
            while archive.fileobj is not None and archive.fileobj.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise FileError(f"the sdist of {what} cannot be read: {error}") from None
    packages = {name.partition("/")[0] for name in found if name.count("/") == 1 and "/__init__.py" in name}
    kept = {name: found[name] for name in found if name.partition("/")[0] in packages - {*_TESTS}}
    if not kept:
        raise FileError(f"the sdist of {what} holds no Python package")
    return kept | {name: content for name, content in found.items() if name == _INFO}


def _digest(files: Iterable[tuple[str, bytes]]) -> str:
    """sha256 over names and contents, in the names' order."""
    whole = hashlib.sha256()
    for name, content in sorted(files):
        whole.update(f"{name}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
        whole.update(content)
    return whole.hexdigest()


def _stamped(folder: Path, what: str) -> str:
    """The sha256 of the sdist that the folder came from, if the folder is as it was then."""
    spoilt = _spoilt(folder, f"{what} in the cache is not as it was fetched")
    try:
        stamp = json.loads((folder / STAMP).read_text())
        paths = [Path(top, name) for top, _, names in os.walk(folder) for name in names]
        files = [(p.relative_to(folder).as_posix(), p) for p in paths if p != folder / STAMP]
        if any(p.is_symlink() for p in paths) or stamp["schema"] != SCHEMA:
            raise spoilt
        if stamp["files"] != _digest((name, path.read_bytes()) for name, path in files):
            raise spoilt
        return str(stamp["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        raise spoilt from None


def _spoilt(folder: Path, text: str) -> FileError:
    return FileError(text, f"remove {folder}: it is fetched again")
