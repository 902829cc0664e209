"""Releases by name: from an index, safely, once; and what is said where they are not to be had."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import tarfile
import threading
from pathlib import Path

import pytest

from muhmod import fetch
from muhmod.errors import FileError, UsageError

from .conftest import FIXTURES, tree_bytes

SOURCES = {"vllm/__init__.py": "", "vllm/a.py": "A = 1\n", "PKG-INFO": "Name: vllm\nVersion: 1.0\n"}


def sdist(files=SOURCES, members=(), top="vllm-1.0"):
    """An sdist's bytes: files by name, and tar members as they are."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode()
            member = tarfile.TarInfo(f"{top}/{name}" if top else name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in members:
            archive.addfile(member)
    return stream.getvalue()


class Index:
    """A simple index in a folder. Without a sha256 of its own a file is listed with the true one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[str] = []

    def add(self, name: str, data: bytes, sha256: str = "", attributes: str = "") -> Path:
        path = self.folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        sha256 = sha256 or hashlib.sha256(data).hexdigest()
        self.rows.append(f'<a href="{name}#sha256={sha256}" {attributes}>{name}</a>')
        (path.parent / "index.html").write_text("\n".join(self.rows))
        return path

    def remove(self) -> None:
        for path in (self.folder / "vllm").iterdir():
            path.unlink()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MUHMOD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "releases"


@pytest.fixture
def index(tmp_path, monkeypatch, cache):
    made = Index(tmp_path / "index")
    monkeypatch.setenv("PIP_INDEX_URL", made.folder.as_uri())
    monkeypatch.setenv("PIP_TRUSTED_HOST", "localhost")
    monkeypatch.setattr(fetch, "_PAUSES", (0.0, 0.0))
    return made


@pytest.fixture
def served(index, monkeypatch):
    """The index over HTTP; the first answers are the given status codes."""
    first: list[int] = []
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(index.folder))

        def do_GET(self):
            asked.append(self.path)
            if first:
                self.send_error(first.pop(0))
            else:
                super().do_GET()

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
    yield first, asked
    server.shutdown()
    server.server_close()


def versions(found):
    return [release.version for release in found]


# What is taken --------------------------------------------------------------------------------


def test_only_sources_of_the_package_are_kept(index, cache):
    data = sdist(
        SOURCES | {"setup.py": "raise SystemExit", "vllm/k.cu": "", "tests/__init__.py": "", "csrc/x.py": ""}
    )
    index.add("vllm-1.0.tar.gz", data)
    (release,) = fetch.releases("vllm", "1.0")
    assert release == ("vllm", "1.0", cache / "vllm-1.0", hashlib.sha256(data).hexdigest())
    kept = tree_bytes(release.folder)
    assert kept.keys() == {*SOURCES, fetch.STAMP}
    assert kept["vllm/a.py"] == b"A = 1\n"
    assert json.loads(kept[fetch.STAMP])["sha256"] == release.sha256
    assert [path.name for path in cache.iterdir()] == ["vllm-1.0"]


def test_a_release_is_fetched_once(served, index):
    index.add("vllm-1.0.tar.gz", sdist())
    said: list[str] = []
    once = fetch.releases("vllm", "1.0", said.append)
    _, asked = served
    assert (said, len(asked)) == (["fetching vllm-1.0.tar.gz"], 2)
    assert fetch.releases("vllm", "1.0", said.append) == once
    assert (len(said), len(asked)) == (1, 2)


def test_a_range_is_all_final_releases_in_it(index):
    for version in ("0.9", "1.0", "1.1rc1", "1.1", "1.1.post1", "1.2", "1.10", "2.0"):
        index.add(f"vllm-{version}.tar.gz", sdist())
    index.add("vllm-1.3.tar.gz", sdist(), attributes='data-yanked="broken"')
    index.add("vllm-1.4-py3-none-any.whl", b"")
    said: list[str] = []
    found = fetch.releases("vllm", "1.0..1.10", said.append)
    assert versions(found) == ["1.0", "1.1", "1.1.post1", "1.2", "1.10"]
    assert said[0] == "left out, for they have no sdist: 1.4"
    assert versions(fetch.releases("vllm", "1.3")) == ["1.3"]


def test_a_list_keeps_its_order_and_a_file_may_hold_comments(index, tmp_path):
    for version in ("1.0", "1.1", "1.2"):
        index.add(f"vllm-{version}.tar.gz", sdist())
    assert versions(fetch.releases("vllm", "1.2, 1.0")) == ["1.2", "1.0"]
    path = tmp_path / "which.txt"
    path.write_text("# why\n1.1  # the first\n\n1.2\n")
    assert versions(fetch.releases("vllm", str(path))) == ["1.1", "1.2"]


# What is refused ------------------------------------------------------------------------------


def _link(name, target, kind):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (sdist(members=[tarfile.TarInfo("vllm-1.0/../../evil.py")]), "leads out of it"),
        (sdist({"/etc/evil.py": ""}, top=""), "leads out of it"),
        (sdist(members=[_link("vllm-1.0/vllm/b.py", "/etc/passwd", tarfile.SYMTYPE)]), "a link for a source"),
        (sdist(members=[_link("vllm-1.0/vllm/b.py", "vllm-1.0/vllm/a.py", tarfile.LNKTYPE)]), "a link for"),
        (sdist({"setup.py": ""}), "holds no Python package"),
        (sdist()[:-20], "cannot be read"),
        (b"<html>sign in first</html>", "cannot be read"),
    ],
)  # fmt: skip
def test_a_hostile_or_broken_sdist(index, cache, data, said):
    index.add("vllm-1.0.tar.gz", data)
    with pytest.raises(FileError, match=said):
        fetch.releases("vllm", "1.0")
    assert not cache.exists() or not list(cache.iterdir())


def test_a_link_to_a_folder_is_never_followed(index, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    through = tarfile.TarInfo("vllm-1.0/vllm/way/b.py")
    index.add(
        "vllm-1.0.tar.gz",
        sdist(members=[_link("vllm-1.0/vllm/way", str(outside), tarfile.SYMTYPE), through]),
    )
    (release,) = fetch.releases("vllm", "1.0")
    assert (release.folder / "vllm" / "way" / "b.py").read_bytes() == b""
    assert list(outside.iterdir()) == []


def test_more_than_any_package_holds(index, monkeypatch):
    monkeypatch.setattr(fetch, "_LARGEST", 20)
    index.add("vllm-1.0.tar.gz", sdist())
    with pytest.raises(FileError, match="of sources"):
        fetch.releases("vllm", "1.0")


def test_not_what_the_index_says(index, cache):
    index.add("vllm-1.0.tar.gz", sdist(), sha256="0" * 64)
    with pytest.raises(FileError, match=f"not what the index says: sha256 .*, not {'0' * 64}"):
        fetch.releases("vllm", "1.0")
    assert not cache.exists()


def test_the_index_has_another_file_now(index):
    index.add("vllm-1.0.tar.gz", sdist())
    fetch.releases("vllm", "1.0")
    index.remove()
    index.rows.clear()
    index.add("vllm-1.0.tar.gz", sdist(SOURCES | {"vllm/a.py": "A = 2\n"}))
    with pytest.raises(FileError, match="not what the index has now"):
        fetch.releases("vllm", "1.0..1.0")


def _edit(folder):
    (folder / "vllm" / "a.py").write_text("A = 2\n")


def _add(folder):
    (folder / "vllm" / "b.py").write_text("")


def _drop(folder):
    (folder / "vllm" / "a.py").unlink()


def _point_elsewhere(folder):
    (folder / "vllm" / "a.py").rename(folder.parent / "a.py")
    (folder / "vllm" / "a.py").symlink_to(folder.parent / "a.py")


def _truncate_stamp(folder):
    (folder / fetch.STAMP).write_text("{")


@pytest.mark.parametrize("spoil", [_edit, _add, _drop, _point_elsewhere, _truncate_stamp])
def test_a_spoilt_cache_is_not_read(index, spoil):
    index.add("vllm-1.0.tar.gz", sdist())
    (release,) = fetch.releases("vllm", "1.0")
    spoil(release.folder)
    with pytest.raises(FileError, match="not as it was fetched") as caught:
        fetch.releases("vllm", "1.0")
    assert caught.value.hint == f"remove {release.folder}: it is fetched again"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [("1.7", r"no release 1\.7; did you mean '1\.0'"), ("1.x", "neither a version nor a file"),
     ("", "no version"), ("1.0,1.0.0", "given twice"), ("3..4", "no final release"),
     ("1.0..x", "neither a version")],
)  # fmt: skip
def test_versions_that_are_none(index, wanted, said):
    index.add("vllm-1.0.tar.gz", sdist())
    with pytest.raises(UsageError, match=said):
        fetch.releases("vllm", wanted)


def test_a_project_that_is_none(index):
    index.add("vllm-1.0.tar.gz", sdist())
    with pytest.raises(UsageError, match="has no project 'vlm'"):
        fetch.releases("vlm", "1.0")


@pytest.mark.parametrize("name", ["../vllm", "", "vllm/..", "-vllm", "http://x"])
def test_a_name_that_is_none(index, name):
    with pytest.raises(UsageError, match="is no name of a project"):
        fetch.releases(name, "1.0")


def test_a_name_in_another_spelling_is_the_same_project(index, cache):
    index.add("vllm-1.0.tar.gz", sdist())
    assert fetch.releases("vLLM", "1.0") == fetch.releases("vllm", "1.0")
    assert [path.name for path in cache.iterdir()] == ["vllm-1.0"]


def test_a_release_without_an_sdist(index):
    index.add("vllm-1.0-py3-none-any.whl", b"")
    with pytest.raises(FileError, match=r"vllm 1\.0 has no sdist"):
        fetch.releases("vllm", "1.0")


# The network ----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hiccup_is_asked_again(served, index, status):
    index.add("vllm-1.0.tar.gz", sdist())
    first, asked = served
    first += [status, status]
    assert versions(fetch.releases("vllm", "1.0")) == ["1.0"]
    assert len(asked) == 4


@pytest.mark.parametrize("status", [403, 503])
def test_an_index_that_refuses_for_good(served, index, status):
    index.add("vllm-1.0.tar.gz", sdist())
    first, _ = served
    first += [status] * 3
    with pytest.raises(FileError, match=f"cannot fetch the list of vllm's releases: the index says {status}"):
        fetch.releases("vllm", "1.0")


def test_a_file_that_the_index_lists_but_has_not(served, index):
    index.add("vllm-1.0.tar.gz", sdist()).unlink()
    with pytest.raises(FileError, match=r"cannot fetch vllm-1\.0\.tar\.gz: the index says 404"):
        fetch.releases("vllm", "1.0")


def test_offline_what_is_in_the_cache_is_enough(index, monkeypatch):
    index.add("vllm-1.0.tar.gz", sdist())
    once = fetch.releases("vllm", "1.0")
    # Nobody listens there.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    assert fetch.releases("vllm", "1.0") == once
    for wanted in ("1.1", "1.0..1.1"):
        with pytest.raises(FileError, match="cannot fetch the list of vllm's releases: ") as caught:
            fetch.releases("vllm", wanted)
        assert "network" in caught.value.hint


def test_the_index_is_the_one_of_pips_configuration(index, tmp_path, monkeypatch):
    pytest.importorskip("pip")
    index.add("vllm-1.0.tar.gz", sdist())
    for name in ("PIP_INDEX_URL", "PIP_TRUSTED_HOST"):
        monkeypatch.delenv(name)
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nindex-url = {index.folder.as_uri()}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    assert versions(fetch.releases("vllm", "1.0")) == ["1.0"]


# From the command line ------------------------------------------------------------------------


def stand_in():
    """The stand-in tree as an sdist's files."""
    home = FIXTURES / "enginex"
    return {path.relative_to(home).as_posix(): path.read_text() for path in home.rglob("*.py")}


def test_replay_over_releases_and_a_tree(muhmod, index, enginex):
    files = stand_in()
    index.add("vllm-1.0.tar.gz", sdist(files))
    files["vllm/_custom_ops.py"] = files["vllm/_custom_ops.py"].replace("32 * 1024", "49152")
    index.add("vllm-1.1.tar.gz", sdist(files))
    arguments = ("replay", "--rules", "bi100", "--select", "shared-memory", "--pypi", "vllm", "1.0..1.1")
    ran = muhmod(*arguments, enginex)
    assert ran.code == 0
    assert [line.split() for line in ran.out.splitlines()[:2]] == [
        ["1.0", "1.1", "vllm"], ["shared-memory", "P", "Av", "Pv"],
    ]  # fmt: skip
    assert "fetching vllm-1.1.tar.gz" in ran.err
    data = json.loads(muhmod(*arguments, "--output-format", "json").out)
    assert [len(tree["sdist_sha256"]) for tree in data["trees"]] == [64, 64]
    assert muhmod(*arguments, "-q").err == ""
    # A fork that calls itself by a release's version is told from it.
    (enginex / "version.py").write_text('__version__ = "1.1"\n')
    assert muhmod(*arguments, enginex).out.split()[:3] == ["1.0", "1.1", "vllm"]


@pytest.mark.parametrize(("wanted", "code"), [("9.9", 2), ("x", 2), ("1.0", 4)])
def test_exit_codes(muhmod, index, wanted, code):
    index.add("vllm-1.0-py3-none-any.whl", b"")
    ran = muhmod("replay", "--rules", "bi100", "--pypi", "vllm", wanted)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("muhmod: error: ")


def test_an_sdist_without_a_package_that_the_pack_knows(muhmod, index):
    index.add("vllm-1.0.tar.gz", sdist({"other/__init__.py": ""}))
    ran = muhmod("replay", "--rules", "bi100", "--pypi", "vllm", "1.0")
    assert ran.code == 2
    assert "no Python package" in ran.err


def test_the_extra_is_named_where_it_is_missing(muhmod, index, monkeypatch):
    import sys

    index.add("vllm-1.0.tar.gz", sdist())
    monkeypatch.setitem(sys.modules, "unearth", None)
    ran = muhmod("replay", "--rules", "bi100", "--pypi", "vllm", "1.0")
    assert ran.code == 2
    assert "pip install 'muhmod[replay]'" in ran.err
