"""`muhmod headers`: constants of C++ tuning headers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from . import trees
from .conftest import ROOT

GOOD = """\
#pragma once
#if __has_include(<other/config.cuh>)
#include <other/config.cuh>
#endif
namespace outer::inner {
enum class Delay { none, fixed };
struct Policy { int threads; int items; };  // no constants: no struct of ours
constexpr Policy make(int t, Delay d = {Delay::none, 1}) { return Policy{t, 1}; }
struct small_block {
  // threads of a block
  static constexpr int threads = 0x100;
  static constexpr int items   = 32 - 1, vec = 4;
  constexpr static unsigned long bytes = threads * items * 4ul;
  static constexpr double share = 0.5f;
  static constexpr bool wide = true;
  static constexpr int offset = -(8 << 1);
  static constexpr Delay delay = {Delay::fixed,
                                  350, 450};
  static constexpr auto load = LOAD_DEFAULT;
  static constexpr int grouped = 1'000;
  static const int not_constexpr = 3;
  int member = 4;
  static constexpr int twice(int n) { return n * 2; }
  struct nested { static constexpr int depth = 7; };
};
template <int I> struct by_index { static constexpr int value = I; };
}
"""


@pytest.fixture
def folder(tmp_path):
    """Writes headers into a folder."""

    def make(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.cuh").write_text(text)
        return tmp_path

    return make


def structs(muhmod, folder):
    ran = muhmod("headers", folder, "--output-format", "json")
    assert ran.code == 0, ran.err
    data = json.loads(ran.out)
    assert data["schema"] == "muhmod/headers/1"
    return {s["name"]: s for header in data["headers"] for s in header["structs"]}


def test_constants_of_every_form(muhmod, folder):
    found = structs(muhmod, folder(tuning=GOOD))
    assert set(found) == {"small_block", "nested", "by_index"}
    values = {name: claim["value"] for name, claim in found["small_block"]["values"].items()}
    assert values == {
        "threads": 256, "items": 31, "vec": 4, "bytes": 31744, "share": 0.5, "wide": True, "offset": -16,
        "delay": "{Delay::fixed, 350, 450}", "load": "LOAD_DEFAULT", "grouped": 1000,
    }  # fmt: skip
    assert found["small_block"]["scope"] == "outer::inner"
    assert found["nested"]["scope"] == "outer::inner::small_block"
    assert found["by_index"]["values"]["value"]["value"] == "I"


def test_each_constant_names_its_source(muhmod, folder):
    claim = structs(muhmod, folder(tuning=GOOD))["small_block"]["values"]["vec"]
    assert claim == {"value": 4, "status": "documented", "source": "tuning.cuh:12"}


def test_the_table_and_what_was_not_understood(muhmod, folder):
    ran = muhmod("headers", folder(tuning=GOOD))
    assert ran.code == 0
    assert "small_block" in ran.out and "threads 256" in ran.out
    assert "tuning.cuh:8: not understood; no constant stands there" in ran.err
    assert "3 structs in 1 headers" in ran.err


@pytest.mark.parametrize(
    ("text", "says"),
    [("struct a {\n  static constexpr int n = ;\n};\n", r"bad.cuh:2: a: "),
     ("struct a {\n  static constexpr int n = 3;\n", "bad.cuh:"),
     ("@@@ struct a { static constexpr int n = 3 @@ };\n", "bad.cuh:1"),
     ("struct a {\n  static constexpr int = 3;\n};\n", "bad.cuh:2: a")],
)  # fmt: skip
def test_a_header_that_does_not_parse_is_named(muhmod, folder, text, says):
    ran = muhmod("headers", folder(bad=text, good=GOOD))
    assert ran.code == 2
    assert says in ran.err
    assert ran.out == ""


def test_no_folder_and_no_header_are_said(muhmod, tmp_path):
    assert "no folder" in muhmod("headers", tmp_path / "none").err
    ran = muhmod("headers", tmp_path)
    assert ran.code == 2 and "no header" in ran.err


def test_without_the_grammar_the_extra_is_named(muhmod, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tree_sitter_cpp", None)
    ran = muhmod("headers", folder(tuning=GOOD))
    assert ran.code == 2
    assert "muhmod[headers]" in ran.err


def test_the_earlier_tools_headers(muhmod):
    if not os.environ.get("MUHMOD_HEADERS"):
        trees.MISSING["the earlier headers"] = "MUHMOD_HEADERS names no folder"
        pytest.skip(trees.MISSING["the earlier headers"])
    ran = muhmod("headers", Path(os.environ["MUHMOD_HEADERS"]), "--output-format", "json")
    data = json.loads(ran.out)["headers"]
    known = json.loads((ROOT / "tests" / "parity.json").read_text())
    assert len(data) == known["headers"]["files"]
    counts = {h["file"]: len(h["structs"]) for h in data if h["structs"]}
    assert counts == known["headers"]["structs"]
    (reduce,) = (h for h in data if h["file"] == "tuning_reduce.cuh")
    for struct in reduce["structs"]:
        values = {name: claim["value"] for name, claim in struct["values"].items()}
        wanted = known["reduce_structs"][struct["name"]]
        assert [values["threads"], values["items"], values.get("vec")] == wanted
