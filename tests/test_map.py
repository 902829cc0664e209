"""`muhmod map`: what it finds, how it says so, and the page in a real browser."""

from __future__ import annotations

import json
import re
import time

import markdown_it
import pytest

from muhmod import map as atlas
from muhmod import page, tree
from muhmod.model import Reach, Step
from muhmod.reach import Reaches
from muhmod.rulebook import Platform
from muhmod.search import whole

from . import browser, trees
from .conftest import FIXTURES
from .test_reach import ENGINEX, tree_of

MAIN_PATH = "attention/ops/prefix_prefill.py"
# The line of the stand-in tree that hands BLOCK to the launch of `_fwd_kernel`.
LAUNCH = 53


def chart(folder, reached=None):
    """The map of a folder and its tree; `reached` stands in for what is found by following each value."""
    of = tree.locate(str(folder), tree.PACKAGES)
    reading = whole(of)
    asked = Reaches(reading, Platform())
    return atlas.chart(reading, reached=reached or (lambda one, slot: asked.slot(one.file, slot))), of


@pytest.fixture
def mapped(muhmod):
    """The JSON of a map, which must end with the code."""

    def call(folder, *arguments, code=0):
        ran = muhmod("map", *arguments, "--output-format", "json", folder)
        assert ran.code == code, ran.err
        return json.loads(ran.out)

    return call


def kernels(document):
    return {one["scope"]: one for one in document["kernels"]}


def calls(document):
    return {(one["scope"], one["target"]): one for one in document["wrappers"]}


# The stand-in tree ----------------------------------------------------------------------------


def test_the_map_of_the_stand_in_tree(mapped, enginex):
    found = mapped(enginex)
    assert (found["schema"], found["tree"]) == ("muhmod/map/1", "vllm")
    assert {one["site"] for one in found["sites"]} >= {"prefill-tile", "moe-config", "autotune-configs"}
    tile = next(one for one in found["sites"] if one["site"] == "prefill-tile")
    assert [(slot["name"], slot["value"]) for slot in tile["slots"]][:3] == [
        ("BLOCK", "128"), ("BLOCK", "64"), ("NUM_WARPS", "8"),
    ]  # fmt: skip
    # Its flag for Triton is False.
    assert {slot["reach"] for slot in tile["slots"]} == {"stopped"}
    assert "`HAS_TRITON` does not hold" in tile["slots"][0]["why"]


def test_a_kernel_tells_its_constexprs_and_who_launches_it_with_what(mapped, enginex):
    kernel = kernels(mapped(enginex))["_fwd_kernel"]
    assert [one["name"] for one in kernel["constexprs"]] == ["BLOCK_M", "BLOCK_N", "BLOCK_DMODEL"]
    (launch,) = kernel["launches"]
    assert launch["scope"] == "context_attention_fwd"
    assert launch["values"] == {"BLOCK_M": "BLOCK", "BLOCK_N": "BLOCK", "BLOCK_DMODEL": "Lk"}
    assert launch["options"] == {"num_warps": "NUM_WARPS", "num_stages": "1"}


def test_a_wrapper_tells_what_it_calls_and_what_is_tunable(mapped, enginex):
    found = mapped(enginex)
    moe = calls(found)["invoke_fused_moe_kernel", "ixformer.functions.fused_moe"]
    assert moe["calls"] == "ixf_F.fused_moe"
    assert [a for a in moe["arguments"] if "tunable" in a] == [
        {"text": "config['BLOCK_SIZE_M']", "tunable": "the key BLOCK_SIZE_M of config"}
    ]
    assert [one["scope"] for one in found["stubs"]] == ["paged_attention_v2", "get_device_attribute"]


def test_every_format_says_the_same(muhmod, enginex):
    text = muhmod("map", enginex).out
    shown = muhmod("map", "--output-format", "markdown", enginex).out
    for ran in (text, shown):
        for said in ("11 tuning sites (no platform declared): 3 alive, 0 unknown, 8 dead", "prefill-tile",
                     "2 calls into precompiled modules", "512", "only raise", "HAS"):  # fmt: skip
            assert said in ran
    drawn = markdown_it.MarkdownIt("commonmark").enable("table").render(shown)
    assert drawn.count("<table>") == shown.count("\n## ") - shown.count("## 0 ") - 1
    # One item a site, below it one a value, below that its way.
    assert drawn.count("\n<ul>\n<li>P0") == 1
    assert drawn.count("<li>P2 dead") == 8
    way = "attention/ops/prefix_prefill.py:28 > attention/ops/paged_attn.py:9 > triton_utils/importing.py:4"
    assert f"    {way} > attention/ops/paged_attn.py:8\n" in text
    assert f"<li>{way.replace('>', '&gt;')} &gt; attention/ops/paged_attn.py:8</li>" in drawn


def test_the_output_is_the_same_each_time_and_names_no_path_of_this_machine(muhmod, enginex):
    for form in ("text", "json", "markdown", "html"):
        first, second = (
            muhmod("map", "--output-format", form, *more, enginex).raw for more in ((), ("-j", "2"))
        )
        assert first == second
        assert str(enginex.parent).encode() not in first


def test_the_html_goes_to_a_file(muhmod, enginex, tmp_path):
    ran = muhmod("map", "--output-format", "html", "-o", tmp_path / "map.html", enginex)
    assert (ran.code, ran.out) == (0, "")
    assert (tmp_path / "map.html").read_text().startswith("<!doctype html>")


def test_select_narrows_the_sites_alone(mapped, enginex):
    found = mapped(enginex, "--select", "moe-config")
    assert {one["site"] for one in found["sites"]} == {"moe-config"}
    assert kernels(found)


def test_a_wrong_path_and_a_wrong_site_are_wrong_usage(muhmod, enginex, tmp_path):
    assert muhmod("map", tmp_path / "nowhere").code == 2
    assert muhmod("map", "--select", "moe-confi", enginex).code == 2
    assert muhmod("map", "--output-format", "sarif", enginex).code == 2
    ran = muhmod("map", "--platform", "cudda", enginex)
    assert ran.code == 2
    assert "cuda" in ran.err


# Kernels --------------------------------------------------------------------------------------

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def kernel(X, n, BLOCK: tl.constexpr, STAGES: tl.constexpr = 2):
    pass
"""


@pytest.mark.parametrize(
    "head",
    [
        "import triton\n@triton.jit",
        "import triton as t\n@t.jit",
        "from triton import jit\n@jit",
        "from triton import jit as compiled\n@compiled(do_not_specialize=['n'])",
        "from vllm.triton_utils import triton, tl\n@triton.jit",
        "from .triton_utils import triton\n@triton.autotune(configs=[], key=[])\n@triton.jit",
        "import triton\njit = triton.jit\n@jit",
        "from functools import partial\nimport triton\njit = partial(triton.jit, noinline=True)\n@jit",
        "from triton.experimental import gluon\n@gluon.jit",
    ],
)
def test_a_kernel_is_known_under_any_name_of_the_decorator(mapped, package, head):
    found = mapped(package(ops=f"{head}\ndef kernel(X, BLOCK: tl.constexpr):\n    pass\n"))
    assert [one["name"] for one in kernels(found)["kernel"]["constexprs"]] == ["BLOCK"]
    assert kernels(found)["kernel"]["status"] == "nobody launches it"


def test_what_only_looks_like_a_kernel_is_none(mapped, package):
    text = "import numba\nimport torch, triton\n@numba.jit\ndef a(BLOCK: tl.constexpr): pass\n"
    text += "@torch.jit.script\ndef b(x): pass\n# @triton.jit\ndef c(x): '''@triton.jit'''\n"
    assert kernels(mapped(package(ops=text))) == {}


def test_a_function_that_is_handed_to_jit_is_a_kernel(mapped, package):
    text = "import triton\ndef body(X, BLOCK: tl.constexpr): pass\nkernel = triton.jit(body)\n"
    found = mapped(package(ops=text + "def go(x):\n    kernel[(1,)](x, BLOCK=64)\n"))
    assert kernels(found)["body"]["launches"][0]["values"] == {"BLOCK": "64"}


@pytest.mark.parametrize(
    ("launch", "values"),
    [
        ("kernel[grid](x, 1, BLOCK=64)", {"BLOCK": "64", "STAGES": "(default 2)"}),
        ("kernel[grid](x, 1, 64, 3)", {"BLOCK": "64", "STAGES": "3"}),
        ("kernel[grid](x, 1, **config)", {"BLOCK": "(**config)", "STAGES": "(**config)"}),
        ("kernel.run(x, 1, BLOCK=b, grid=grid)", {"BLOCK": "b", "STAGES": "(default 2)"}),
        ("k = kernel\n    k[grid](x, 1, BLOCK=8)", {"BLOCK": "8", "STAGES": "(default 2)"}),
        ("k = kernel if x else None\n    k[grid](x, 1, BLOCK=8)", {"BLOCK": "8", "STAGES": "(default 2)"}),
        ("k = {'a': kernel}\n    k[x][grid](x, 1, BLOCK=8)", {"BLOCK": "8", "STAGES": "(default 2)"}),
        ("k = kernel[grid]\n    k(x, 1, BLOCK=8)", {"BLOCK": "8", "STAGES": "(default 2)"}),
        ("k = partial(kernel[grid], BLOCK=16)\n    k(x, 1)", {"BLOCK": "16", "STAGES": "(default 2)"}),
        ("wrap_triton(kernel)[grid](x, 1, BLOCK=8)", {"BLOCK": "8", "STAGES": "(default 2)"}),
    ],
)
def test_a_launch_is_found_in_every_form(mapped, package, launch, values):
    text = f"{KERNEL}from functools import partial\ndef go(x, grid, config, b):\n    {launch}\n"
    (found,) = kernels(mapped(package(ops=text)))["kernel"]["launches"]
    assert (found["scope"], found["values"]) == ("go", values)


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("from vllm.ops import kernel", "kernel"),
        ("from .ops import kernel as k", "k"),
        ("from vllm import ops", "ops.kernel"),
        ("import vllm.ops as o", "o.kernel"),
        ("from vllm.middle import again", "again"),
        ("from .ops import *", "kernel"),
    ],
)
def test_a_launch_in_another_file_is_found(mapped, package, how, name):
    files = {
        "ops": KERNEL,
        "middle": "from .ops import kernel as again\n",
        "user": f"{how}\nclass Layer:\n    def run(self, x):\n        {name}[(1,)](x, 1, BLOCK=32)\n",
    }
    (launch,) = kernels(mapped(package(**files)))["kernel"]["launches"]
    assert (launch["file"], launch["line"], launch["scope"]) == ("user.py", 4, "Layer.run")


def test_a_function_that_is_handed_the_kernel_launches_it(mapped, package):
    text = f"{KERNEL}def launch(which, grid):\n    which[grid](0, 1, BLOCK=4)\n"
    text += "def go(g):\n    launch(kernel, g)\n"
    (launch,) = kernels(mapped(package(ops=text)))["kernel"]["launches"]
    assert (launch["scope"], launch["through"]) == ("launch", "handed over at ops.py:11")


def test_a_kernel_that_others_call_and_one_that_is_only_read_are_told_apart(mapped, package):
    text = f"""{KERNEL}
@triton.jit
def helper(x): pass

@triton.jit
def outer(x):
    helper(x)

@triton.jit
def handed(x): pass

def go(x):
    outer[(1,)](x)
    register(handed)
"""
    status = {name: one["status"] for name, one in kernels(mapped(package(ops=text))).items()}
    assert status == {
        "kernel": "nobody launches it",
        "helper": "called by other kernels",
        "outer": "launched at 1 place",
        "handed": "no launch found; its name is read elsewhere",
    }


def test_what_triton_sets_itself_is_said(mapped, package):
    text = """
import triton
@triton.autotune(configs=[triton.Config({'BLOCK': 64})], key=['n'])
@triton.heuristics({'EVEN': lambda args: True})
@triton.jit
def kernel(X, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    pass
def go(x):
    kernel[(1,)](x)
"""
    found = kernels(mapped(package(ops=text)))["kernel"]
    assert found["launches"][0]["values"] == {"BLOCK": "(triton.autotune)", "EVEN": "(triton.heuristics)"}
    assert found["tuned"] == "triton.autotune; triton.heuristics: EVEN"


# Wrappers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("import torch\ndef f(x):\n    torch.ops._C.rms_norm(x)\n", "torch.ops._C.rms_norm"),
        ("import torch as t\ndef f(x):\n    t.ops._C.rms_norm.default(x)\n", "torch.ops._C.rms_norm.default"),
        ("from torch import ops\ndef f(x):\n    ops._moe_C.go(x)\n", "torch.ops._moe_C.go"),
        ("import torch\nC = torch.ops._C\ndef f(x):\n    C.go(x)\n", "torch.ops._C.go"),
        ("import torch\ndef f(x):\n    getattr(torch.ops._C, 'go')(x)\n", "torch.ops._C.go"),
        ("def f(x):\n    from flash_attn import flash_attn_func\n    flash_attn_func(x)\n",
         "flash_attn.flash_attn_func"),
        ("try:\n    from xformers import ops as xops\nexcept ImportError:\n    xops = None\n"
         "def f(x):\n    xops.attend(x)\n", "xformers.ops.attend"),
        ("import ixformer.functions as F\ndef f(x):\n    F.silu(x)\n", "ixformer.functions.silu"),
        ("from vllm import _C\ndef f(x):\n    _C.go(x)\n", "vllm._C.go"),
        ("import torch\nclass f:\n    def __init__(self):\n        self.op = torch.ops._C.go\n"
         "    def run(self, x):\n        self.op(x)\n", "torch.ops._C.go"),
    ],
)  # fmt: skip
def test_a_precompiled_call_is_found_in_every_form(mapped, package, text, target):
    (found,) = mapped(package(ops=text))["wrappers"]
    assert (found["file"], found["target"], found["how"]) == ("ops.py", target, "calls")
    assert found["scope"].split(".")[0] == "f"


def test_a_precompiled_function_is_followed_through_another_files_import(mapped, package):
    files = {
        "utils": "from flash_attn import flash_attn_func as attend\n",
        "layer": "from vllm.utils import attend\ndef f(q):\n    return attend(q, num_splits=0)\n",
    }
    (found,) = mapped(package(**files))["wrappers"]
    assert (found["file"], found["target"]) == ("layer.py", "flash_attn.flash_attn_func")
    assert found["arguments"][1]["tunable"] == "a literal"


def test_a_precompiled_function_that_is_handed_on_is_told_as_such(mapped, package):
    text = (
        "import torch\nfrom functools import partial\ndef f(x):\n    return partial(torch.ops._C.go, x, 4)\n"
    )
    (found,) = mapped(package(ops=text))["wrappers"]
    assert (found["how"], found["target"]) == ("hands on", "torch.ops._C.go")
    assert [one["text"] for one in found["arguments"]] == ["x", "4"]


def test_what_python_itself_defines_is_not_precompiled(mapped, package):
    text = """
import torch
from vllm.utils import direct_register_custom_op
direct_register_custom_op(op_name="mine", op_func=print)
def f(x):
    torch.ops.vllm.mine(x)
    torch.ops.aten.add(x, x)
    torch.nn.functional.silu(x)
    hasattr(torch.ops._C, "go")
    # torch.ops._C.comment(x)
    return "torch.ops._C.string(x)"
"""
    assert mapped(package(ops=text, utils="def direct_register_custom_op(**k): pass\n"))["wrappers"] == []


def test_why_an_argument_is_tunable_is_said(mapped, package):
    text = """
import torch
_PARTITION_SIZE = 512
def f(q, config, block_size, block_tables):
    torch.ops._C.go(q, block_tables, block_size, _PARTITION_SIZE, config["BLOCK_M"], config.get("BLOCK_N"),
                    8, True, num_warps=q)
"""
    (found,) = mapped(package(ops=text))["wrappers"]
    assert [(one["text"], one.get("tunable", "")) for one in found["arguments"]] == [
        ("q", ""), ("block_tables", ""), ("block_size", "by its name"),
        ("_PARTITION_SIZE", "set by partition-size"), ("config['BLOCK_M']", "the key BLOCK_M of config"),
        ("config.get('BLOCK_N')", "the key BLOCK_N of config"), ("8", "a literal"), ("True", ""),
        ("q", "by its keyword"),
    ]  # fmt: skip


def test_a_module_that_the_pack_names_counts_as_precompiled(mapped, package, tmp_path):
    pack = tmp_path / "my.toml"
    pack.write_text('schema = "muhmod/rules/1"\nhardware = "bi100"\nmodel = "qwen3.6-35b-a3b"\n'
                    'modules = ["torch", "mykernels"]\n[sites.q-chunk]\nscope = "<module>"\n'
                    'when_absent = "ok"\n'
                    'slots._Q_CHUNK = { derive = "literal", value = 64, reason = "ours" }\n')  # fmt: skip
    folder = package(ops="import mykernels\ndef f(x):\n    mykernels.go(x)\n")
    assert mapped(folder)["wrappers"] == []
    assert [one["target"] for one in mapped(folder, "--rules", pack)["wrappers"]] == ["mykernels.go"]


# What is missing ------------------------------------------------------------------------------


def test_an_import_that_leads_nowhere_is_told_with_its_places(mapped, package):
    files = {
        "a": "from vllm.b import x\nfrom vllm.gone import y\n",
        "b": "import vllm._C\ntry:\n    from .also.gone import z\nexcept ImportError:\n    z = None\n",
        "inner__c": "from . import d, lost\nfrom ..a import x\nfrom vllm.inner import (\n d,\n away,\n)\n",
        "inner__d": "# from vllm.comment import x\ns = '''\nfrom vllm.string import x\n'''\n",
        "inner____init__": "known = 1\n",
    }
    found = {one["name"]: one for one in mapped(package(**files))["missing"]}
    assert set(found) == {"vllm.gone", "vllm._C", "vllm.also.gone", "vllm.inner.lost", "vllm.inner.away"}
    assert found["vllm.gone"]["places"] == [{"file": "a.py", "line": 2}]
    assert found["vllm.gone"]["file"] == "gone.py"
    assert "extension" in found["vllm._C"]["why"]
    assert "in a try" in found["vllm.also.gone"]["why"]


def test_an_extension_that_is_there_is_not_missing(mapped, package):
    folder = package(a="import vllm._C\n")
    (folder / "_C.abi3.so").write_bytes(b"\x7fELF")
    assert mapped(folder)["missing"] == []


def test_a_rule_whose_site_is_gone_is_told(mapped, enginex):
    (enginex / "attention/ops/paged_attn.py").write_text("")
    missing = {one["name"]: one["why"] for one in mapped(enginex, "--rules", "bi100")["missing"]}
    assert missing["partition-size"].startswith("lost")
    assert "v1-override" in missing


def test_a_file_that_does_not_parse_is_named_and_the_rest_is_mapped(muhmod, enginex):
    (enginex / "broken.py").write_text("import triton\n@triton.jit\ndef kernel(:\n")
    ran = muhmod("map", "--output-format", "json", enginex)
    assert ran.code == 4
    found = json.loads(ran.out)
    assert found["exit"]["code"] == 4
    assert found["exit"]["reasons"][0].startswith("broken.py does not parse")
    assert "broken.py" in ran.err
    assert "_fwd_kernel" in kernels(found)
    assert "broken.py" in muhmod("map", "--output-format", "markdown", enginex).out


def test_a_tree_under_another_name_is_read_by_its_own(mapped, package, tmp_path):
    folder = package(
        ops=KERNEL, user="from vllm.ops import kernel\ndef f(x):\n    kernel[(1,)](x, 1, BLOCK=4)\n"
    )
    other = folder.rename(tmp_path / "pristine")
    found = mapped(other)
    assert kernels(found)["kernel"]["launches"][0]["file"] == "user.py"
    assert found["missing"] == []


# Reach and priority ---------------------------------------------------------------------------


def reached(one, slot):
    """As if each value were followed: the tile's to its launch, the flag's unknown, all others stopped."""
    if one.site == "prefill-tile" and slot.value == 64:
        way = (
            Step(one.file, 27, "BLOCK is bound"),
            Step(one.file, LAUNCH, "the launch is given it as BLOCK_M"),
        )
        return Reach("reaches", "BLOCK_M of _fwd_kernel", way)
    if one.site == "triton-flag":
        return Reach("unknown", "it decides an import")
    return Reach("stopped", "no launch takes it", (Step(one.file, slot.line, "it stops here"),))


def test_priority_is_by_what_reaches_a_kernel(enginex):
    points = chart(enginex, reached)[0].points
    order = [(point.priority, point.site.site) for point in points]
    assert order[0] == (0, "prefill-tile")
    assert order[1] == (1, "triton-flag")
    assert {priority for priority, _ in order[2:]} == {2}
    kinds = [site for _, site in order[2:]]
    assert kinds.index("moe-config") < kinds.index("autotune-configs") < kinds.index("partition-size")
    assert [point.dead for point in points] == [False, False, *[True] * 9]


def test_what_is_derived_and_alive_comes_before_what_is_only_a_literal(enginex):
    every = chart(enginex, lambda one, slot: Reach("reaches", "so it is said"))[0].points
    kinds = [point.site.site for point in every]
    derived = {"prefill-tile", "moe-config", "autotune-configs", "shared-memory", "partition-size"}
    assert [kind in derived for kind in kinds[:9]] == [True] * 7 + [False] * 2
    # Last what no literal sets: one returns what another function does, one is a test.
    assert [point.site.file for point in every[9:]] == ["utils.py", "attention/backends/ipex_attn.py"]


def test_a_site_of_which_nothing_is_known_is_not_called_dead(enginex):
    points = chart(enginex, lambda one, slot: Reach("unknown", "it would have to be known"))[0].points
    assert {(point.priority, point.dead) for point in points} == {(1, False)}
    assert "0 alive, 11 unknown, 0 dead" in atlas.title(atlas.Map("vllm", points))


@pytest.mark.parametrize("given", [(), ("--rules", "bi100"), ("--platform", "rocm")])
def test_the_verdicts_are_those_of_reach(mapped, muhmod, enginex, given):
    told = json.loads(muhmod("reach", *given, "--output-format", "json", enginex).out)
    found = mapped(enginex, *given)
    assert found["platform"] == told["platform"]
    ours = {(one["site"], one["file"], one["line"]): one["slots"] for one in found["sites"]}
    for one in told["sites"]:
        slots = ours.pop((one["site"], one["file"], one["line"]))
        for mine, slot in zip(slots, one["slots"], strict=True):
            assert (mine["reach"], mine["why"], mine["path"]) == (slot["reach"], slot["why"], slot["path"])
    assert not ours


ALIVE = {
    "__init__": "from vllm import user\n",
    "table": "def get_default_config(M, E):\n    return {'BLOCK_SIZE_M': 64}\n",
    "user": """from vllm.kernels import kernel
from vllm.table import get_default_config
from vllm.platforms import current_platform

def run(x):
    config = get_default_config(1, 2)
    if not current_platform.is_rocm():
        kernel[(1,)](x, 1, **config)

run(0)
""",
    "kernels": """import triton
import triton.language as tl

@triton.jit
def kernel(X, n, BLOCK_SIZE_M: tl.constexpr):
    pass
""",
}
# From the literal to the launch in another file, and the kernel in a third.
WAY = ["table.py:2", "user.py:6", "user.py:8", "kernels.py:5"]


def test_a_way_leads_from_the_literal_to_the_kernel_in_every_format(mapped, muhmod, tmp_path):
    folder = tree_of(tmp_path, **ALIVE)
    (site,) = mapped(folder)["sites"]
    (slot,) = site["slots"]
    assert (site["priority"], site["dead"], slot["reach"], slot["kernel"]) == (0, False, "reaches", "kernel")
    assert "the launch of kernel (user.py:8)" in slot["why"]
    assert [f"{step['file']}:{step['line']}" for step in slot["path"]] == WAY
    way = "table.py:2 > user.py:6 > :8 > kernels.py:5"
    head = "P0  moe-config  table.py:2  get_default_config\n"
    said = f"{head}  BLOCK_SIZE_M 64: reaches: {slot['why']}\n    {way}\n"
    assert said in muhmod("map", folder).out
    shown = muhmod("map", "--output-format", "markdown", folder).out
    drawn = markdown_it.MarkdownIt("commonmark").enable("table").render(shown)
    assert way.replace(">", "&gt;") in drawn
    # In full, each step tells what happens there.
    steps = [f"    {step['file']}:{step['line']}  {step['does']}" for step in slot["path"]]
    assert "\n".join(steps) in muhmod("map", "-v", folder).out


def test_the_platform_stops_a_way(mapped, muhmod, tmp_path):
    folder = tree_of(tmp_path, **ALIVE)
    (site,) = mapped(folder, "--platform", "rocm")["sites"]
    (slot,) = site["slots"]
    assert (site["priority"], site["dead"], slot["reach"]) == (2, True, "stopped")
    assert "kernel" not in slot
    assert (
        "1 tuning sites on rocm: 0 alive, 0 unknown, 1 dead\nP2 dead  moe-config"
        in muhmod("map", "--platform", "rocm", folder).out
    )


def test_the_kernel_of_an_autotuned_list_ends_its_way(mapped, muhmod, tmp_path):
    text = """import triton
import triton.language as tl

@triton.autotune(
    configs=[triton.Config({'BLOCK_M': 64}, num_warps=4), triton.Config({'BLOCK_M': 32}, num_warps=4)],
    key=['n'],
)
@triton.jit
def kernel(X, n, BLOCK_M: tl.constexpr):
    pass

def go(x):
    kernel[(1,)](x, 1)

go(0)
"""
    folder = tree_of(tmp_path, __init__="from vllm import ops\n", ops=text)
    (site,) = mapped(folder)["sites"]
    assert {(slot["reach"], slot["kernel"]) for slot in site["slots"]} == {("reaches", "kernel")}
    assert {slot["path"][-1]["line"] for slot in site["slots"]} == {9}
    # Entries that fare alike are one line.
    assert "  2 configs: reaches: it arrives at the autotuner" in muhmod("map", folder).out
    assert "  configs[1] BLOCK_M=32 num_warps=4: reaches:" in muhmod("map", "-v", folder).out


def test_of_several_kernels_in_one_launch_statement_the_right_one_ends_the_way(mapped, tmp_path):
    ops = """import triton
import triton.language as tl

@triton.jit
def one(X, BLOCK_SIZE_M: tl.constexpr): pass

@triton.jit
def one_more(X, BLOCK_SIZE_M: tl.constexpr): pass

def get_default_config(M, E):
    return {'BLOCK_SIZE_M': 64}

def go(x):
    one[(1,)](x, 1), one_more[(1,)](x, **get_default_config(1, 2))

go(0)
"""
    (site,) = mapped(tree_of(tmp_path, __init__="from vllm import ops\n", ops=ops))["sites"]
    assert [slot["kernel"] for slot in site["slots"]] == ["one_more"]


def test_what_reaches_a_kernel_of_enginex(mapped):
    found = mapped(trees.enginex(), "--rules", "bi100")
    rows = [(one, slot) for one in found["sites"] for slot in one["slots"]]
    for key, wanted in ENGINEX.items():
        said = {slot["reach"] for one, slot in rows if (one["site"], slot["name"], slot["value"]) == key}
        assert said == wanted, key
    order = [(one["priority"], one["site"]) for one in found["sites"]]
    assert order[:3] == [(0, "moe-config"), (0, "v1-override"), (0, "triton-flag")]
    assert {priority for priority, _ in order[3:]} == {2}
    assert [one["dead"] for one in found["sites"]] == [False] * 3 + [True] * 8
    (way,) = (slot["path"] for one, slot in rows if one["site"] == "triton-flag")
    assert [(step["file"], step["line"]) for step in way] == [
        ("triton_utils/importing.py", 7), ("attention/ops/paged_attn.py", 9),
        ("attention/ops/paged_attn.py", 10),
    ]  # fmt: skip


# The page, in a real browser ------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium():
    with browser.opened() as one:
        yield one


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens a map's page from disk; afterwards nothing may have been asked for, said or raised."""
    seen = []

    def call(folder, scheme="light", reached=None):
        path = tmp_path / "page" / "map.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text(page.page(*chart(folder, reached)), "utf-8")
        one = chromium.new_page(color_scheme=scheme)
        asked, said = [], []
        one.on("request", lambda request: asked.append(request.url))
        one.on("console", lambda message: said.append(message.text))
        one.on("pageerror", lambda error: said.append(str(error)))
        one.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        one.goto(path.as_uri())
        seen.append((one, path.as_uri(), asked, said))
        return one

    yield call
    for one, uri, asked, said in seen:
        assert asked == [uri]
        assert said == []
        one.close()


def options(one):
    return one.locator("#list [role=option]").all_inner_texts()


def test_a_value_is_walked_by_keys_from_its_literal_to_the_kernel(opened, enginex):
    one = opened(enginex, reached=reached)
    one.keyboard.press("/")
    one.keyboard.type("prefix_prefill context")
    assert [text.split("\n")[0] for text in options(one)] == ["P0 prefill-tile reaches"]
    one.keyboard.press("Enter")
    one.keyboard.press("Enter")
    steps = []
    for _ in range(3):
        current = one.locator("ol.path > li[aria-current=step]")
        assert current.evaluate("node => node === document.activeElement")
        steps.append((current.locator("> .soft").inner_text(), current.locator(".hit").inner_text()))
        one.keyboard.press("ArrowRight")
    places = [place for place, _ in steps]
    assert places[:2] == [f"{MAIN_PATH}:27", f"{MAIN_PATH}:{LAUNCH}"]
    assert "BLOCK = 128 if current_platform.has_device_capability(80) else 64" in steps[0][1]
    assert one.locator("ol.path mark").inner_text() == "64"
    # The kernel's own line ends the path.
    assert re.fullmatch(rf"{MAIN_PATH}:\d+", places[2])
    assert "def _fwd_kernel(" in steps[2][1]
    one.keyboard.press("Home")
    assert one.locator("li[aria-current=step]").get_attribute("data-step") == "0"
    one.keyboard.press("Escape")
    assert one.evaluate("document.activeElement.id") == "list"


def ways(one):
    """(place, its line) of each step that the page shows."""
    rows = one.locator("ol.path > li").all()
    return [(row.locator("> .soft").inner_text(), row.locator(".hit").inner_text()) for row in rows]


def test_a_value_that_is_clicked_is_read_to_the_kernel(opened, tmp_path):
    one = opened(tree_of(tmp_path, **ALIVE))
    assert "No platform declared. 0 of 1 tuning sites are dead" in one.locator("#about").inner_text()
    one.locator("#list [role=option]", has_text="P0 moe-config").click()
    one.get_by_role("button", name="BLOCK_SIZE_M 64 reaches").click()
    assert "reaches: it arrives at the launch of kernel (user.py:8)" in one.locator("#detail").inner_text()
    shown = ways(one)
    assert [place for place, _ in shown] == WAY
    assert "return {'BLOCK_SIZE_M': 64}" in shown[0][1]
    assert "kernel[(1,)](x, 1, **config)" in shown[-2][1]
    assert "def kernel(X, n, BLOCK_SIZE_M: tl.constexpr):" in shown[-1][1]
    assert one.locator("ol.path .end").all_inner_texts() == ["here it arrives"]
    one.get_by_role("button", name="this kernel").click()
    assert one.locator("#detail h2").inner_text() == "kernel kernels.py:5"
    one.get_by_role("button", name="moe-config table.py:2").click()
    assert ways(one) == shown


def test_a_value_that_does_not_arrive_shows_where_it_stops(opened, enginex):
    one = opened(enginex)
    assert "8 of 11 tuning sites are dead" in one.locator("#about").inner_text()
    one.locator("#list [role=option]", has_text="P2 dead prefill-tile").click()
    one.get_by_role("button", name="NUM_WARPS 8 stopped").click()
    assert "`HAS_TRITON` does not hold" in one.locator("#detail").inner_text()
    shown = ways(one)
    assert [place for place, _ in shown] == [
        f"{MAIN_PATH}:28", "attention/ops/paged_attn.py:9", "triton_utils/importing.py:4",
        "attention/ops/paged_attn.py:8",
    ]  # fmt: skip
    assert "if HAS_TRITON:" in shown[-1][1]
    assert one.locator("ol.path > li").last.locator(".end").inner_text() == "here it stops"
    assert one.locator("ol.path .end").count() == 1


def test_filters_narrow_what_is_listed(opened, enginex):
    one = opened(enginex, reached=reached)
    every = len(options(one))
    one.select_option("#verdict", "reaches")
    assert len(options(one)) == 1
    one.select_option("#verdict", "")
    one.select_option("#site", "partition-size")
    assert 0 < len(options(one)) < every
    one.select_option("#file", "attention/ops/paged_attn.py")
    assert len(options(one)) == 1
    assert one.locator("#count").inner_text() == f"1 of {every} tuning sites"
    one.fill("#search", "no such words")
    assert options(one) == []
    assert one.locator("#detail").inner_text() == "Nothing matches."


def test_kernels_wrappers_and_what_is_missing_are_shown(opened, enginex):
    (enginex / "more.py").write_text("from vllm.nowhere import x\n")
    one = opened(enginex, reached=reached)
    one.get_by_role("button", name="Triton kernels").click()
    one.locator("#list [role=option]", has_text=re.compile(r"^_fwd_kernel(?!_)")).click()
    detail = one.locator("#detail").inner_text()
    assert "launched in context_attention_fwd" in detail
    assert "prefill-tile" in detail
    one.get_by_role("button", name="prefill-tile").click()
    assert one.locator("#detail h2").inner_text().startswith("prefill-tile")
    one.get_by_role("button", name="precompiled calls").click()
    one.fill("#search", "fused_moe")
    assert "the key BLOCK_SIZE_M of config" in one.locator("#detail").inner_text()
    one.fill("#search", "paged_attention_v2")
    assert "only raises" in one.locator("#detail").inner_text()
    one.fill("#search", "")
    one.get_by_role("button", name="missing").click()
    one.locator("#list [role=option]", has_text="vllm.nowhere").click()
    assert "from vllm.nowhere import x" in one.locator("#detail").inner_text()


HOSTILE = '''
_PARTITION_SIZE = 512  # </script><img src=x onerror="alert(1)"><!-- <script>alert(2)</script> &amp; {{DATA}}
שלום = "\u202egnihton\u202c"  # \u2066 العربية
LONG = "%s"
''' % ("x" * 5000)  # fmt: skip


def test_hostile_text_is_shown_and_runs_nothing(opened, package):
    one = opened(package(**{"a": HOSTILE}), reached=lambda *_: Reach("unknown", "<b>why</b> &lt; {{STYLE}}"))
    shown = one.locator("#detail").inner_text()
    assert '</script><img src=x onerror="alert(1)"><!-- <script>alert(2)</script> &amp; {{DATA}}' in shown
    assert "<b>why</b> &lt; {{STYLE}}" in shown
    # What would reorder the line is shown by its code.
    assert "U+202E" in shown and "\u202e" not in shown
    assert "שלום" in shown and "العربية" in shown
    assert one.locator("#detail img, #detail b, body > img").count() == 0
    # A long line is cut, and scrolls inside its own box.
    assert "x" * 900 in shown and "x" * 1100 not in shown
    assert one.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_page_has_a_dark_face_and_fits_a_small_screen(opened, enginex):
    light, dark = (opened(enginex, scheme=scheme) for scheme in ("light", "dark"))
    back = "getComputedStyle(document.body).backgroundColor"
    assert light.evaluate(back) == "rgb(255, 255, 255)"
    assert dark.evaluate(back) == "rgb(20, 23, 28)"
    dark.set_viewport_size({"width": 380, "height": 700})
    assert dark.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_page_of_a_real_tree_is_walked(opened):
    one = opened(trees.enginex())
    one.get_by_role("button", name="precompiled calls").click()
    one.fill("#search", "vllm_invoke_fused_moe_kernel")
    assert "config['BLOCK_SIZE_M']" in one.locator("#detail").inner_text()
    # From the ladder's literal to the vendor's call that takes it.
    one.fill("#search", "")
    one.get_by_role("button", name="tuning sites").click()
    one.locator("#list [role=option]", has_text="P0 moe-config").click()
    one.get_by_role("button", name="BLOCK_SIZE_M 256 reaches").click()
    shown = ways(one)
    assert "config['BLOCK_SIZE_M'] = 256" in shown[0][1]
    assert "marlin_gemm_moe" in shown[-1][1]
    one.get_by_role("button", name="this precompiled call").click()
    assert "torch.ops._moe_C.marlin_gemm_moe" in one.locator("#detail").inner_text()


# Real trees -----------------------------------------------------------------------------------

# (wrapper, what it calls) as people who read the tree noted them.
NOTED = {
    "paged_attention_v1": "vllm_single_query_cached_kv_attention",
    "silu_and_mul": "silu_and_mul",
    "rms_norm": "rms_norm",
    "fused_add_rms_norm": "fused_add_rms_norm",
    "rotary_embedding": "vllm_rotary_embedding_neox",
    "reshape_and_cache": "vllm_cache_ops_reshape_and_cache",
    "copy_blocks": "copy_blocks",
    "moe_align_block_size": "vllm_moe_align_block_size",
    "invoke_fused_moe_kernel": "vllm_invoke_fused_moe_kernel",
    "topk_softmax": "vllm_moe_topk_softmax",
    "cutlass_scaled_mm": "w8a8",
}
NOTED_SITES = {
    ("partition-size", "attention/ops/paged_attn.py", 13),
    ("v1-override", "attention/ops/paged_attn.py", 126),
    ("prefill-tile", "attention/ops/prefix_prefill.py", 712),
    ("moe-config", "model_executor/layers/fused_moe/fused_moe.py", 341),
    ("shared-memory", "_custom_ops.py", 891),
    ("autotune-configs", "attention/ops/triton_flash_attention.py", 210),
    ("triton-flag", "triton_utils/importing.py", 7),
}


def test_what_people_noted_of_enginex_is_in_its_map(mapped):
    started = time.perf_counter()
    found = mapped(trees.enginex())
    assert time.perf_counter() - started < 15
    have = calls(found)
    for wrapper, name in NOTED.items():
        assert have[wrapper, f"ixformer.functions.{name}"]["file"] == "_custom_ops.py"
    assert {(one["site"], one["file"], one["line"]) for one in found["sites"]} >= NOTED_SITES
    assert "paged_attention_v2" in {one["scope"] for one in found["stubs"]}
    prefill = {n: k["status"] for n, k in kernels(found).items() if k["file"] == MAIN_PATH}
    assert prefill == {
        "_fwd_kernel": "launched at 1 place",
        "_fwd_kernel_alibi": "launched at 1 place",
        "_fwd_kernel_flash_attn_v2": "nobody launches it",
    }
    assert [one["name"] for one in found["missing"]] == ["vllm._core_C"]


def test_a_later_release_is_mapped(mapped):
    found = mapped(trees.vllm("0.12.0"))
    status = [one["status"] for one in found["kernels"]]
    launched = sum(one.startswith("launched") or one.startswith("called") for one in status)
    assert launched > 0.9 * len(status) > 100
    assert all(one["file"] and one["line"] for one in found["wrappers"])


def test_the_fixture_pages_hold_no_address(muhmod):
    ran = muhmod("map", "--output-format", "html", FIXTURES / "enginex" / "vllm")
    assert not re.search(r"https?://|//cdn|@import|url\(", ran.out)
