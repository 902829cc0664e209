"""Every fixture pair: before becomes after, after stays after, revert gives before."""

from __future__ import annotations

import pytest

from muhmod import catalog
from muhmod.site import Module

from .conftest import FIXTURES

FORMS = sorted(path.parent for path in FIXTURES.glob("*/*/before.py"))
# Forms whose right outcome is to change nothing, with the state that says why.
UNCHANGED = {
    "stub-holds": "held",
    "except-fallback": "satisfied-upstream",
    "heuristic-only": "satisfied-upstream",
}


def _pack(form, tmp_path):
    """The fixtures' pack, with the site rule of the form where it has one of its own, or the form's pack."""
    common = (FIXTURES / "rules.toml").read_text()
    own = form / "rules.toml"
    if own.is_file():
        text = own.read_text()
        common = text if text.startswith("schema") else common[: common.index("[sites]")] + text
    path = tmp_path / "rules.toml"
    path.write_text(common)
    return path


@pytest.mark.parametrize("form", FORMS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_before_after_after(form, tmp_path, muhmod, package):
    before, after = (form / "before.py").read_bytes(), (form / "after.py").read_bytes()
    tree = package(module=before)
    command = ("apply", "--rules", _pack(form, tmp_path), "--select", form.parent.name, tree)

    first = muhmod(*command)
    assert first.code == 0, first.err
    assert (tree / "module.py").read_bytes() == after
    assert UNCHANGED.get(form.name, "applied") in first.out
    assert (before == after) is (form.name in UNCHANGED)

    again = muhmod(*command)
    assert again.code == 0, again.err
    assert (tree / "module.py").read_bytes() == after
    assert "applied" not in again.out

    if before != after:
        back = muhmod("revert", tree)
        assert back.code == 0, back.err
        assert (tree / "module.py").read_bytes() == before


def test_a_site_is_one_file_one_fixture_one_rule():
    rules = (FIXTURES / "rules.toml").read_text()
    for name in catalog.names():
        assert any(form.parent.name == name for form in FORMS), f"{name} has no fixture pair"
        assert f"\n{name} = " in rules, f"{name} has no rule line in fixtures/rules.toml"
    for form in FORMS:
        assert form.parent.name in catalog.names(), f"{form} belongs to no site"


@pytest.mark.parametrize("form", FORMS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_site_finds_nothing_in_comments_and_strings(form):
    """The whole fixture as comments, and as one string, holds no site."""
    text = (form / "before.py").read_text()
    commented = "".join(f"# {line}\n" for line in text.splitlines())
    quoted = f"TEXT = {text!r}\n"
    for decoy in (commented, quoted):
        assert catalog.site(form.parent.name).find(Module(decoy)) == []
