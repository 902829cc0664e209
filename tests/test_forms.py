"""Forms that are found, named and shown, and not rewritten: each with its reason."""

from __future__ import annotations

import json
import textwrap

import pytest

from muhmod import catalog
from muhmod.site import Module

from .conftest import FIXTURES, tree_bytes

C = 'triton.Config({{"BLOCK_M": {}, "BLOCK_N": {}}}, num_warps=4)'
LARGE, SMALL = C.format(128, 128), C.format(16, 16)
KERNEL = "@triton.jit\ndef attn_fwd(Q, BLOCK_M, BLOCK_N):\n    pass\n"


def find(site, text):
    return catalog.site(site).find(Module(text))


def decide(muhmod, tree, site, *, rules=FIXTURES / "rules.toml"):
    ran = muhmod(
        "apply", "--rules", rules, "--select", site, "--check", "--output-format", "json", tree
    )  # fmt: skip
    return next(row for row in json.loads(ran.out)["sites"] if row["site"] == site)


def refused(muhmod, tree, site):
    """The reason, where the site is not rewritten and the tree not touched."""
    before = tree_bytes(tree)
    row = decide(muhmod, tree, site)
    assert row["state"] == "unrewritable", row
    assert muhmod("apply", "--rules", FIXTURES / "rules.toml", "--select", site, tree).code in (3, 5)
    assert tree_bytes(tree) == before
    return row["reason"]


# Constants ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("_PARTITION_SIZE = 256\n_PARTITION_SIZE *= 2\n", "computes `_ * 2`"),
        ("_PARTITION_SIZE = pick()\n", "the call pick(…) is no literal"),
        ("_PARTITION_SIZE = OTHER\n", "the name OTHER is no literal"),
        ("_PARTITION_SIZE = SIZES[0]\n", "the expression SIZES[0] is no literal"),
        ("_PARTITION_SIZE = 256\nfrom launcher import _PARTITION_SIZE\n", "bound anew"),
        ("_PARTITION_SIZE = 256\nfor _PARTITION_SIZE in (1, 2):\n    pass\n", "bound anew"),
        ("_PARTITION_SIZE = 256\n\n\ndef later():\n    global _PARTITION_SIZE\n    _PARTITION_SIZE = pick()\n",
         "bound anew by the function later"),
        ("block = _PARTITION_SIZE = 256\n", "the same literal also sets block"),
    ],
)  # fmt: skip
def test_constants(muhmod, package, text, says):
    assert says in refused(muhmod, package(module=text), "partition-size")


@pytest.mark.parametrize(
    ("text", "scope", "form"),
    [
        ("_PARTITION_SIZE = 512\n", "<module>", "module-literal"),
        ("_PARTITION_SIZE_ROCM: int = 512\n", "<module>", "module-literal"),
        ("PARTITION_SIZE = a if b else 512\n", "<module>", "module-conditional"),
        ("PARTITION_SIZE = size()\n", "<module>", "module-call"),
        ("class A:\n    PARTITION_SIZE: int = 2\n", "A", "class-literal"),
        ("def f(PARTITION_SIZE=512): ...\n", "f", "parameter-default"),
        ("def f(k, g):\n    k[g](PARTITION_SIZE=512)\n", "f", "launch-keyword"),
        ("def f(n):\n    return n // (PARTITION_SIZE := 512)\n", "f", "walrus"),
        ("def f(n):\n    PARTITION_SIZE = 512\n    return n // PARTITION_SIZE\n", "f", "local-literal"),
        ("def f():\n    def g(n):\n        PARTITION_SIZE = 512\n        return n // PARTITION_SIZE\n", "f.g", "local-literal"),
    ],
)  # fmt: skip
def test_constants_by_form(text, scope, form):
    (found,) = find("partition-size", text)
    assert (found.scope, found.form) == (scope, form)


@pytest.mark.parametrize(
    "text",
    [
        "from launcher import _PARTITION_SIZE\n",
        "def kernel(Q, PARTITION_SIZE: tl.constexpr): ...\n",
        "def f(k, g, size):\n    k[g](PARTITION_SIZE=size)\n",
        "def f(k, g):\n    k[g](PARTITION_SIZE=self.size)\n",
        "# PARTITION_SIZE = 512\nX = 'PARTITION_SIZE = 512'\n",
        "partition_size = 512\n",
    ],
)
def test_no_constant_is_bound(text):
    assert find("partition-size", text) == []


# Prefill --------------------------------------------------------------------------------------

PREFILL = "def context_attention_fwd(q, k, slopes, grid, flag):\n{}\n    kern[grid](q, BLOCK_M=BLOCK, BLOCK_N=BLOCK, num_warps=NUM_WARPS)\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("BLOCK = pick(q.dtype)\nNUM_WARPS = 8", "the call pick(…) is no literal"),
        ("BLOCK = NUM_WARPS = 64", "the same literal also sets NUM_WARPS"),
        (
            "BLOCK = 64\nNUM_WARPS = 8\n\ndef shrink():\n    nonlocal BLOCK\n    BLOCK = 16\n\nshrink()",
            "bound anew",
        ),
        ("BLOCK = 64\nNUM_WARPS = 8\nwith sizes() as BLOCK:\n    pass", "bound anew"),
    ],
)
def test_prefill(muhmod, package, body, says):
    text = PREFILL.format(textwrap.indent(body, "    "))
    assert says in refused(muhmod, package(module=text), "prefill-tile")


def test_a_constant_that_other_functions_read_is_not_the_tile_alone(muhmod, package):
    text = "SIZE = 64\n\n\n" + PREFILL.format("    NUM_WARPS = 8\n    BLOCK = SIZE")
    alone = decide(muhmod, package(module=text), "prefill-tile")
    assert [s["new"] for s in alone["slots"] if s["name"] == "BLOCK"][:1] == ["32"]
    shared = text + "\n\ndef pages(n):\n    return n // SIZE\n"
    assert "the same literal also sets SIZE" in refused(muhmod, package(module=shared), "prefill-tile")


def test_a_constant_that_another_function_may_set(muhmod, package):
    text = "BLOCK = 64\nNUM_WARPS = 8\n\n\ndef tune():\n    global BLOCK\n    BLOCK = 16\n\n\n"
    text += PREFILL.format("    pass")
    assert "BLOCK is bound anew by the function tune" in refused(muhmod, package(module=text), "prefill-tile")


def test_the_source_s_own_name_is_shown_beside_the_role(muhmod, package):
    tree = package(
        module=PREFILL.format("    BLOCK = 64\n    num_warps = 8").replace("NUM_WARPS", "num_warps")
    )
    (found,) = json.loads(muhmod("sites", "--output-format", "json", tree).out)["sites"]
    (warps,) = [slot for slot in found["slots"] if slot["name"] == "NUM_WARPS"]
    assert (warps["bound"], warps["value"], warps["line"]) == ("num_warps", "8", 3)
    assert "NUM_WARPS (num_warps) 8" in muhmod("sites", tree).out


def test_what_is_computed_on_the_way_is_shown(muhmod, package):
    tree = package(module=PREFILL.format("    NUM_WARPS = 8\n    BLOCK = 64\n    BLOCK = BLOCK // 2"))
    row = decide(muhmod, tree, "prefill-tile")
    assert [(s["line"], s["old"], s["new"]) for s in row["slots"] if s["name"] == "BLOCK"] == [
        (3, "64", "64"),
        (4, "BLOCK // 2", "BLOCK // 2"),
    ]


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("BLOCK, NUM_WARPS = 8, 64\nBLOCK, NUM_WARPS = NUM_WARPS, BLOCK", "BLOCK, NUM_WARPS = 4, 32"),
        ("NUM_WARPS = 64\nBLOCK = 8\nkeep = NUM_WARPS\nNUM_WARPS = BLOCK\nBLOCK = keep", "NUM_WARPS = 32"),
    ],
)
def test_a_literal_takes_the_role_of_what_it_launches(muhmod, package, body, written):
    tree = package(module=PREFILL.format(textwrap.indent(body, "    ")))
    assert muhmod("apply", "--rules", FIXTURES / "rules.toml", "--select", "prefill-tile", tree).code == 0
    assert written in (tree / "module.py").read_text()


# MoE ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def f(c):\n    c['BLOCK_SIZE_N'] = min(c.get('BLOCK_SIZE_N', 64), 16)\n", {2}),
        ("def f(n, k):\n    return {'BLOCK_SIZE_N': n, 'BLOCK_SIZE_K': k}\n", {2}),
        ("def f(n):\n    k = n * 2\n    return {\n        'BLOCK_SIZE_K': k,\n    }\n", {2, 4}),
        ("def f(M):\n    return [{'BLOCK_SIZE_M': 16}, {'BLOCK_SIZE_M': 32}][M]\n", {2}),
        ("CONFIGS = {1: {'BLOCK_SIZE_M': 16}}\n", {1}),
        ("for n in (1, 2):\n    CONFIG = {'BLOCK_SIZE_M': 16}\n", {2}),
    ],
)
def test_every_display_and_write_is_found(text, lines):
    found = find("moe-config", text)
    assert {slot.line for one in found for slot in one.slots} == lines


def test_a_function_s_name_that_means_another_thing_is_not_written_out(body, muhmod, package):
    text = "def small(tokens):\n    return tokens <= 256\n\n\n" + body
    assert "small(M)" in refused(muhmod, package(module=text), "moe-config")


@pytest.fixture(
    params=[
        "def get_default_config(M, E, small):\n    if small(M):\n        return {'BLOCK_SIZE_M': 8}\n    return {'BLOCK_SIZE_M': 64}\n",
        "small = other\n\n\ndef get_default_config(M, E):\n    if small(M):\n        return {'BLOCK_SIZE_M': 8}\n    return {'BLOCK_SIZE_M': 64}\n",
        "from x import small\n\n\ndef get_default_config(M, E):\n    if small(M):\n        return {'BLOCK_SIZE_M': 8}\n    return {'BLOCK_SIZE_M': 64}\n",
    ]
)
def body(request):
    return request.param


# Autotune lists -------------------------------------------------------------------------------


def autotune(entries, head="", tail=""):
    return f"{head}@triton.autotune(configs={entries}, key=[])\n{KERNEL}{tail}"


@pytest.mark.parametrize(
    ("text", "form", "says"),
    [
        (autotune("[triton.Config({'BLOCK_M': m, 'BLOCK_N': 16}) for m in (16, 32)]"), "comprehension", "a comprehension"),
        (autotune("elsewhere.configs()"), "call", "the call elsewhere.configs(…)"),
        (autotune("CONFIGS"), "list-variable", "the name CONFIGS, which the module does not bind"),
        (autotune("CONFIGS", "from elsewhere import CONFIGS\n"), "list-variable", "the name CONFIGS of the module elsewhere"),
        (autotune("made()", f"def made():\n    out = []\n    for m in (16, 32):\n        out.append({SMALL})\n    return out\n\n\n"),
         "call", "made by `for m in (16, 32):`"),
        (autotune("made()", f"def made():\n    out = [{SMALL}]\n    out.append({SMALL})\n    return out\n\n\n"), "call", "made by `out.append"),
        (autotune("made()", f"def made():\n    return [{SMALL}]\n\n\nOTHER = made()\n"), "call", "used in more than one place"),
        (autotune("made()", f"@register\ndef made():\n    return [{SMALL}]\n\n\n"), "call", "which is decorated"),
        (autotune("made()", f"def made():\n    if flag:\n        return [{SMALL}]\n\n\n"), "call", "may return nothing"),
        (autotune("CONFIGS", f"CONFIGS = [{SMALL}]\n", "\n\n@triton.autotune(CONFIGS, key=[])\n@triton.jit\ndef b(Q): ...\n"),
         "list-variable", "used in more than one place"),
        (autotune("CONFIGS", f"CONFIGS = [{SMALL}]\nCONFIGS = CONFIGS[:1]\n"), "list-variable", "in more than one place"),
        (autotune(f"[{SMALL}] * 2"), "expression", "the expression"),
    ],
)  # fmt: skip
def test_lists_that_are_found_and_not_rewritten(muhmod, package, text, form, says):
    (found,) = [one for one in find("autotune-configs", text) if one.scope == "attn_fwd"]
    assert found.form == form
    assert says in found.problem
    assert says in refused(muhmod, package(module=text), "autotune-configs")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (autotune(f"[{SMALL}, triton.Config({{'BLOCK': 16}}, num_warps=4)]"), "has no BLOCK_M"),
        (autotune(f"[*([{SMALL}] if a else []), *([{LARGE}] if b else [{SMALL}])]"), "share displays in part"),
        (autotune(f"[{SMALL}] if a else []"), "there is no entry whose spelling"),
    ],
)  # fmt: skip
def test_lists_that_are_followed_and_still_refused(muhmod, package, text, says):
    assert says in refused(muhmod, package(module=text), "autotune-configs")


def test_a_list_of_another_file_is_told_with_its_place(muhmod, package):
    tree = package(
        module=autotune("made()", "from .sub.shared import made\n"),
        sub__shared=f"def made():\n    return [{SMALL}]\n",
    )  # fmt: skip
    reason = refused(muhmod, tree, "autotune-configs")
    assert "sub/shared.py:1 made, another file" in reason
    (tree / "module.py").write_text("from vllm.sub.shared import *\n" + autotune("made()"))
    assert "sub/shared.py:1 made, another file" in refused(muhmod, tree, "autotune-configs")
    sites = json.loads(muhmod("sites", "--output-format", "json", tree).out)["sites"]
    assert "sub/shared.py:1" in sites[0]["reason"]


@pytest.mark.parametrize(
    ("head", "call"),
    [
        ("import triton\n", "triton.autotune"),
        ("import triton as t\n", "t.autotune"),
        ("from triton import autotune\n", "autotune"),
        ("from triton import autotune as tune\n", "tune"),
        ("from vllm.tools import triton\n", "triton.autotune"),
        ("from vllm.tools import triton as t\n", "t.autotune"),
        ("from vllm.tools import tuned_autotune\n", "tuned_autotune"),
        ("import triton\n\nmine = triton.autotune\n", "mine"),
        ("import functools\nimport triton\n\nmine = functools.partial(triton.autotune, key=[])\n", "mine"),
        ("import triton\n\n\ndef mine(configs, **more):\n    return triton.autotune(configs=configs, **more)\n\n\n", "mine"),
        ("import triton\n\n\ndef mine(*args, **more):\n    return triton.autotune(*args, **more)\n\n\n", "mine"),
    ],
)  # fmt: skip
def test_whatever_triton_autotune_is_called(muhmod, package, head, call):
    tree = package(
        module=f"{head}@{call}([{SMALL}], key=[])\n{KERNEL}",
        tools="import triton\n\n\ndef tuned_autotune(configs, key):\n    return triton.autotune(configs, key)\n",
    )
    assert decide(muhmod, tree, "autotune-configs")["state"] == "pending"


@pytest.mark.parametrize(
    "text",
    [
        "import flashinfer\n\nwith flashinfer.autotune(True):\n    pass\n",
        "from flashinfer.autotuner import autotune\n\nwith autotune([1]):\n    pass\n",
        "import helion\n\nkernel.autotune([1])\n",
        "class T:\n    def __init__(self):\n        self.autotune = self._dummy('autotune')\n",
        "import inspect\nimport triton\n\nHAS = 'x' in inspect.signature(triton.autotune).parameters\n",
        "def autotune(configs):\n    return configs\n\n\n@autotune([1])\ndef f(): ...\n",
    ],
)
def test_what_is_not_triton_s(text):
    assert find("autotune-configs", text) == []
