"""The invariants of ARCHITECTURE.md, held against the code itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from .conftest import ROOT

SOURCES = sorted((ROOT / "src" / "muhmod").rglob("*.py"))
FLOORS = {
    "model": 0, "errors": 0, "kept": 0,
    "derive": 1, "formula": 1, "rulebook": 2, "lock": 1, "tree": 1, "site": 1, "patch": 1, "fetch": 1,
    "headers": 1,
    "flow": 2, "displays": 3, "constants": 3, "lists": 2,
    "catalog": 3, "journal": 2, "unchanged": 2,
    "rewrite": 4, "guards": 4, "fingerprint": 4,
    "search": 5, "show": 5, "drift": 5,
    "reach": 6,
    "candidates": 6, "launch": 6, "readers": 6, "entries": 6, "coverage": 6, "pins": 6,
    "decide": 7, "report": 7, "live": 7, "names": 6, "launches": 7, "wrappers": 8, "missing": 7,
    "engine": 8, "compile": 2, "triton_cpu": 1,
    "feasible": 9, "record": 9, "sarif": 9, "markdown": 9,
    "mutate": 2, "writer": 10, "replay": 10, "trial": 11, "map": 10, "page": 11,
    "cli": 12, "__main__": 13, "__init__": 0,
}  # fmt: skip


def _module(path):
    parts = path.relative_to(ROOT / "src" / "muhmod").parts
    return parts[0].removesuffix(".py")


def _imports(path):
    """(module, at the top of the file) for every import of a file."""
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) in top


def test_every_module_has_a_floor():
    assert {_module(path) for path in SOURCES} == set(FLOORS)


def test_every_package_is_shipped():
    text = (ROOT / "pyproject.toml").read_text()
    shipped = re.search(r"^packages = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)[1]
    for folder in {path.parent.relative_to(ROOT / "src") for path in SOURCES}:
        assert f'"{".".join(folder.parts)}"' in shipped


def test_imports_go_down_floors_only():
    for path in SOURCES:
        own = FLOORS[_module(path)]
        for name, _ in _imports(path):
            parts = name.split(".")
            if parts[0] == "muhmod" and len(parts) > 1 and parts[1] in FLOORS:
                other = parts[1]
                if other != _module(path) and other != "__init__":
                    assert FLOORS[other] < own, f"{path.name} imports {name}"


def test_a_codemod_knows_only_what_a_site_may_know():
    for path in (ROOT / "codemods").glob("*.py"):
        for name, _ in _imports(path):
            if name.startswith("muhmod."):
                assert name.split(".")[1] in ("site", "flow", "displays", "constants", "lists", "model"), (
                    f"{path.name}: {name}"
                )
            assert name.split(".")[0] not in ("os", "pathlib", "libcst"), f"{path.name}: {name}"


@pytest.mark.parametrize(
    ("library", "owner"),
    [("click", "cli"), ("rich", "show"), ("tomllib", "rulebook"), ("tomli", "rulebook"),
     ("libcst", "rewrite"), ("tree_sitter", "headers"), ("unearth", "fetch"), ("packaging", "fetch"),
     ("triton", "triton_cpu"), ("difflib", None)],
)  # fmt: skip
def test_one_module_knows_each_library(library, owner):
    users = {_module(p) for p in SOURCES for name, _ in _imports(p) if name.split(".")[0] == library}
    if owner:
        assert users == {owner}
    else:
        assert users <= {"patch", "errors", "candidates", "drift"}


@pytest.mark.parametrize(
    ("words", "owner"),
    [
        ("physicalLocation|partialFingerprints", "sarif.py"),
        ("<details>", "markdown.py"),
        ("::error", "report.py"),
    ],
)
def test_one_module_knows_each_format(words, owner):
    assert {path.name for path in SOURCES if re.search(words, path.read_text())} == {owner}


def test_derivations_do_no_input_or_output():
    for path in (ROOT / "src" / "muhmod" / "derive").rglob("*.py"):
        assert "open(" not in path.read_text()
        for name, _ in _imports(path):
            assert name.split(".")[0] not in ("os", "pathlib", "subprocess", "libcst"), f"{path.name}: {name}"


def test_nothing_may_depend_on_a_line_number_or_a_file_name():
    """No codemod holds the name of a file that it looks into, and none a line."""
    for path in (ROOT / "codemods").glob("*.py"):
        text = path.read_text()
        assert not re.search(r"\w+\.py['\"]", text), path.name
        assert "line ==" not in text


def imported(*arguments):
    """The modules that a command imports."""
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "muhmod", *map(str, arguments)],
        capture_output=True, text=True,
    )  # fmt: skip
    return ran.returncode, {
        line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if "|" in line
    }


HEAVY = ("libcst", "rich", "concurrent.futures")


def test_a_bare_import_wakes_nothing():
    ran = subprocess.run(
        [sys.executable, "-c", "import sys, muhmod; print(*sys.modules)"], capture_output=True, text=True
    )
    loaded = ran.stdout.split()
    assert not {"libcst", "click", "rich", "ast"} & {*loaded}
    assert not [name for name in loaded if name.startswith("muhmod.")]


@pytest.mark.parametrize(
    "command", [("--version",), ("--help",), ("derive", "--rules", "bi100", "--output-format", "json")]
)
def test_commands_without_a_tree_wake_no_libcst(command):
    code, loaded = imported(*command)
    assert code == 0
    assert {"libcst", "rich"} & loaded == set()


def test_sites_wakes_no_libcst(enginex):
    code, loaded = imported("sites", "--output-format", "json", enginex)
    assert code == 0
    assert {*HEAVY} & loaded == set()


def test_nothing_to_do_wakes_no_libcst_and_no_codemod_of_an_absent_site(muhmod, enginex):
    assert muhmod("apply", "--rules", "bi100", enginex).code == 0
    code, loaded = imported("apply", "--rules", "bi100", "-q", enginex)
    assert code == 0
    assert {*HEAVY} & loaded == set()
    assert "muhmod.codemods.q_chunk" not in loaded


def test_diff_wakes_no_rich(enginex):
    code, loaded = imported("apply", "--rules", "bi100", "--diff", enginex)
    assert code == 1
    assert "libcst" in loaded
    assert {"rich", "concurrent.futures"} & loaded == set()


def test_public_names_have_docstrings():
    for path in [*SOURCES, *(ROOT / "codemods").glob("*.py")]:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                private = any(
                    isinstance(outer, (ast.FunctionDef, ast.ClassDef)) and outer is not node
                    and node in ast.walk(outer)
                    and (outer.name.startswith("_") or isinstance(outer, ast.FunctionDef))
                    for outer in ast.walk(tree)
                )  # fmt: skip
                assert private or ast.get_docstring(node), f"{path.name}: {node.name}"


def test_the_changelog_knows_this_version():
    from muhmod import __version__

    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_architecture_fits_a_page():
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 60
