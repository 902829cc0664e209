"""Reach: what a user is told of each slot, on the small tree of stand-ins, on made ones, and on EngineX."""

from __future__ import annotations

import json
import os

import pytest

PACK = ("--rules", "bi100")


def verdicts(muhmod, tree, *options):
    ran = muhmod("reach", *options, "--output-format", "json", tree)
    assert ran.code == 0, ran.err
    return [
        (site["site"], slot["name"], slot["value"], slot["reach"], slot["why"])
        for site in json.loads(ran.out)["sites"]
        for slot in site["slots"]
    ]


def tree_of(tmp_path, **files):
    package = tmp_path / "vllm"
    for name, text in {"__init__": "", **files}.items():
        place = package / f"{name.replace('__slash__', '/')}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return package


KERNEL = """
import triton
import triton.language as tl

@triton.jit
def one_kernel(x, BLOCK_SIZE_M: tl.constexpr):
    pass
"""
TABLE = """
def get_default_config(M, E):
    config = {"BLOCK_SIZE_M": 64}
    return config
"""


def moe(muhmod, tmp_path, body, **more):
    tree = tree_of(tmp_path, __init__="from vllm import use", use=KERNEL + TABLE + body, **more)
    return next(row[3:] for row in verdicts(muhmod, tree) if row[:2] == ("moe-config", "BLOCK_SIZE_M"))


def test_a_launch_with_the_dict_is_reached(muhmod, tmp_path):
    body = "def run(x):\n    c = get_default_config(1, 2)\n    one_kernel[(1,)](x, **c)\n\nrun(0)\n"
    verdict, why = moe(muhmod, tmp_path, body)
    assert verdict == "reaches"
    assert "the launch of one_kernel (use.py:" in why


def test_a_partial_and_a_key_are_followed(muhmod, tmp_path):
    body = (
        "import functools\n"
        "def run(x):\n    make = functools.partial(get_default_config, 1)\n    c = make(2)\n"
        "    size = c['BLOCK_SIZE_M']\n    one_kernel[(1,)](x, BLOCK_SIZE_M=size)\n\nrun(0)\n"
    )
    assert moe(muhmod, tmp_path, body)[0] == "reaches"


def test_what_nobody_calls_is_stopped(muhmod, tmp_path):
    verdict, why = moe(muhmod, tmp_path, "def run(x):\n    one_kernel[(1,)](x, **get_default_config(1, 2))\n")
    assert verdict == "stopped"
    assert "run has no caller" in why or "never used" in why


def test_another_value_in_its_place_is_told(muhmod, tmp_path):
    body = "def run(x):\n    c = get_default_config(1, 2)\n    c['BLOCK_SIZE_M'] = 16\n    one_kernel[(1,)](x, **c)\nrun(0)\n"
    assert moe(muhmod, tmp_path, body)[0] == "stopped"


def test_getattr_by_a_computed_name_is_unknown(muhmod, tmp_path):
    body = (
        "import os\nimport vllm.use as use\n"
        "def run(x):\n    f = getattr(use, os.environ['K'])\n    f(x, get_default_config(1, 2))\n\nrun(0)\n"
    )
    assert moe(muhmod, tmp_path, body)[0] == "unknown"


def test_recursion_and_import_cycles_end(muhmod, tmp_path):
    body = (
        "from vllm import other\n"
        "def run(x, c=None):\n    c = c or get_default_config(1, 2)\n    run(x, c)\n"
        "    one_kernel[(1,)](x, **c)\n\nrun(0)\n"
    )
    assert moe(muhmod, tmp_path, body, other="from vllm import use\n")[0] == "reaches"


def test_an_unknown_platform_is_wrong_usage(muhmod, tmp_path):
    ran = muhmod("reach", "--platform", "cudda", tree_of(tmp_path, a=TABLE))
    assert ran.code == 2
    assert "cuda" in ran.err


# The pristine EngineX tree, checked by reading it.
ENGINEX = {
    ("partition-size", "_PARTITION_SIZE", "512"): {"stopped"},
    ("v1-override", "use_v1", "True"): {"reaches"},
    ("prefill-tile", "BLOCK", "128"): {"stopped"},
    ("prefill-tile", "BLOCK", "64"): {"stopped"},
    ("prefill-tile", "NUM_WARPS", "8"): {"stopped"},
    ("moe-config", "BLOCK_SIZE_M", "32"): {"reaches"},
    ("moe-config", "BLOCK_SIZE_M", "256"): {"reaches"},
    ("moe-config", "BLOCK_SIZE_M", "16"): {"overridden"},
    ("moe-config", "BLOCK_SIZE_N", "64"): {"stopped"},
    ("moe-config", "BLOCK_SIZE_K", "32"): {"stopped"},
    ("moe-config", "GROUP_SIZE_M", "8"): {"stopped"},
    ("shared-memory", "return", "32 * 1024"): {"stopped"},
    ("triton-flag", "HAS_TRITON", "False"): {"reaches"},
}


@pytest.mark.skipif(not os.environ.get("MUHMOD_ENGINEX"), reason="MUHMOD_ENGINEX names no folder")
def test_the_pristine_tree(muhmod):
    found = verdicts(muhmod, os.environ["MUHMOD_ENGINEX"], *PACK)
    for key, wanted in ENGINEX.items():
        assert {row[3] for row in found if row[:3] == key} == wanted, key
    assert {row[3] for row in found if row[0] == "autotune-configs"} == {"stopped"}
    (arrives,) = {row[4] for row in found if row[:3] == ("moe-config", "BLOCK_SIZE_M", "32")}
    assert "ixformer.functions.vllm_invoke_fused_moe_kernel" in arrives
    assert "torch.ops._moe_C.marlin_gemm_moe" in arrives
