"""Properties: whatever stands around a site, it is found and nothing else changes."""

from __future__ import annotations

import string

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muhmod import catalog, rewrite, tree
from muhmod.errors import FileError
from muhmod.model import Edit
from muhmod.site import Module

from .conftest import FIXTURES

BEFORE = {path.parent: path.read_text() for path in FIXTURES.glob("*/*/before.py")}

names = st.text(string.ascii_lowercase, min_size=3, max_size=8).map(lambda n: f"v_{n}")
numbers = st.integers(-9999, 9999)
comments = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=30)
strings = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=30)


@st.composite
def statements(draw):
    """One top-level statement that is no tuning site."""
    name, number = draw(names), draw(numbers)
    return draw(
        st.sampled_from(
            [
                f"{name} = {number}\n",
                f"{name}: int = {number}  # {draw(comments)}\n",
                f"# {draw(comments)}\n",
                f"{name} = {draw(strings)!r}\n",
                f'"""\n{name}\n"""\n',
                f"def {name}(a, b={number}):\n    return a + b\n",
                f"class {name}:\n    x = {number}\n\n    def f(self):\n        return self.x\n",
                f"if {name}_flag:\n    {name} = {number}\nelse:\n    {name} = None\n",
                f"try:\n    import {name}\nexcept ImportError:\n    {name} = None\n",
                f"with {name}() as w:\n    w.run()\n",
                "\n\x0c\n",
                f"@{name}\ndef g():\n    pass\n",
            ]
        )
    )


code = st.lists(statements(), max_size=6).map("".join)
endings = st.sampled_from(["\n", "\r\n"])


@given(st.sampled_from(sorted(BEFORE)), code, code, endings)
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_insertions_around_a_site_keep_it_found(form, above, below, ending):
    alone = BEFORE[form]
    site = catalog.site(form.parent.name)
    wanted = site.find(Module(alone))
    text = (above + alone + "\n" + below).replace("\n", ending)
    module = Module(text)
    found = site.find(module)
    assert [(f.scope, f.form, [(s.name, s.value, s.live) for s in f.slots]) for f in found] == [
        (f.scope, f.form, [(s.name, s.value, s.live) for s in f.slots]) for f in wanted
    ]
    for one in found:
        for slot in one.slots:
            assert module.text[slot.start : slot.end] == slot.text
            if slot.editable and slot.entry is None:
                _only_the_value_changes(text, slot)


def _only_the_value_changes(text, slot):
    edit = Edit("x", slot.start, slot.end, "replace", "77", slot.segment)
    (splice,) = rewrite.rewrite(text, [edit])
    assert rewrite.spliced(text, [splice]) == text[: slot.start] + "77" + text[slot.end :]


@given(code)
@settings(deadline=None, max_examples=100)
def test_code_without_a_site_has_none(text):
    for name in catalog.names():
        assert catalog.site(name).find(Module(text)) == []


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@settings(deadline=None, max_examples=300)
def test_bytes_come_back_or_the_file_is_refused(data):
    try:
        text = tree.decode(data, "x.py")
    except FileError:
        return
    assert text.encode(text.text) == data


@given(st.text(max_size=80), st.sampled_from(sorted(BEFORE.values())), st.integers(0, 400))
@settings(deadline=None, max_examples=200)
def test_a_damaged_file_is_refused_and_never_a_fault(noise, text, at):
    damaged = text[:at] + noise + text[at:]
    try:
        module = Module(damaged)
    except FileError:
        return
    for name in catalog.names():
        for found in catalog.site(name).find(module):
            for slot in found.slots:
                assert damaged[slot.start : slot.end] == slot.text


lines = st.lists(st.sampled_from(["a", "b\r", "\x0c", "c d", ""]), max_size=30)


@given(lines, lines, st.booleans(), st.booleans())
@settings(deadline=None, max_examples=300)
def test_a_patch_of_anything_is_taken(tmp_path_factory, old, new, old_ends, new_ends):
    """`git apply` gives `new` from `old`, whatever the lines."""
    import subprocess

    from muhmod import patch

    before = "\n".join(old).encode() + (b"\n" if old_ends and old else b"")
    after = "\n".join(new).encode() + (b"\n" if new_ends and new else b"")
    if not before or not after or before == after:
        return
    folder = tmp_path_factory.mktemp("patch")
    (folder / "f.py").write_bytes(before)
    data = patch.diff("f.py", before, after)
    ran = subprocess.run(["git", "apply", "--whitespace=nowarn"], cwd=folder, input=data, capture_output=True)
    assert ran.returncode == 0, (ran.stderr, data)
    assert (folder / "f.py").read_bytes() == after
