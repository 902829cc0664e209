"""Reach: what a user is told of each slot, on the small tree of stand-ins, on made ones, and on EngineX."""

from __future__ import annotations

import json

import pytest

from . import trees
from .reach_forms import ACROSS, HERE

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


KERNELS = """
import triton
import triton.language as tl
@triton.jit
def one_kernel(x, BLOCK_SIZE_M: tl.constexpr):
    pass
@triton.jit
def other_kernel(x, N: tl.constexpr):
    pass
def get_default_config(M, E):
    config = {"BLOCK_SIZE_M": 64}
    return config
"""
TABLE = 'def get_default_config(M, E):\n    return {"BLOCK_SIZE_M": 64}\n'


def of_table(muhmod, tmp_path, body="", **files):
    """Verdict and reason for the one literal of `get_default_config`."""
    files = files or {"__init__": "from vllm import use\n", "use": KERNELS + body}
    rows = verdicts(muhmod, tree_of(tmp_path, **files), "--select", "moe-config")
    return next(row[3:] for row in rows if row[2] == "64")


@pytest.mark.parametrize("form", HERE)
def test_forms_in_one_file(muhmod, tmp_path, form):
    right, body = HERE[form]
    verdict, why = of_table(muhmod, tmp_path, body)
    assert verdict in right.split(), why


@pytest.mark.parametrize("form", ACROSS)
def test_forms_across_files(muhmod, tmp_path, form):
    right, files = ACROSS[form]
    files = {name: text.replace("{KERNELS}", KERNELS) for name, text in files.items()}
    verdict, why = of_table(muhmod, tmp_path, **files)
    assert verdict in right.split(), why


LAUNCH = "one_kernel[(1,)](0, **"
LONG = {
    "nested loops": "def go():\n"
    + "".join("    " * (i + 1) + f"for i{i} in range(2):\n" for i in range(14))
    + "    " * 15 + f"{LAUNCH}get_default_config(1, 2))\ngo()\n",
    "a long function": "def go(x):\n    m = get_default_config(1, 2)['BLOCK_SIZE_M']\n"
    + "".join(f"    m = m + {i}\n    if x == {i}:\n        y{i} = m\n" for i in range(1000))
    + "    one_kernel[(1,)](0, BLOCK_SIZE_M=m)\ngo(1)\n",
    "a long chain of calls": "".join(f"def f{i}(c):\n    f{i + 1}(c)\n" for i in range(60))
    + f"def f60(c):\n    {LAUNCH}c)\nf0(get_default_config(1, 2))\n",
    "many callers": "".join(f"def g{i}():\n    return get_default_config(1, 2)\n" for i in range(450))
    + f"def go():\n    {LAUNCH}g449())\ngo()\n",
    "a long chain of returns": "def r0():\n    return get_default_config(1, 2)\n"
    + "".join(f"def r{i + 1}():\n    return r{i}()\n" for i in range(50))
    + f"def go():\n    {LAUNCH}r50())\ngo()\n",
}  # fmt: skip


@pytest.mark.parametrize("form", LONG)
def test_what_is_too_much_is_never_called_stopped(muhmod, tmp_path, form):
    assert of_table(muhmod, tmp_path, LONG[form])[0] in ("reaches", "unknown")


def test_a_file_that_cannot_be_read_may_read_the_value(muhmod, tmp_path):
    files = {"__init__": "from vllm import use, new\n", "new": "get_default_config !!\n", "use": KERNELS}
    assert of_table(muhmod, tmp_path, **files)[0] == "unknown"


def test_a_verdict_says_where(muhmod, tmp_path):
    body = "def run(x):\n    one_kernel[(1,)](x, **get_default_config(1, 2))\n\nrun(0)\n"
    assert "the launch of one_kernel (use.py:" in of_table(muhmod, tmp_path, body)[1]


def test_what_nobody_calls_says_who_does_not(muhmod, tmp_path):
    verdict, why = of_table(
        muhmod, tmp_path, "def run(x):\n    one_kernel[(1,)](x, **get_default_config(1, 2))\n"
    )
    assert verdict == "stopped"
    assert "run has no caller in the tree" in why


PLATFORM = """
import enum
class Backend(enum.Enum):
    XFORMERS = 1
    ROCM_FLASH = 2
def choose(backend, x):
    if backend == Backend.{member}:
        one_kernel[(1,)](x, **get_default_config(1, 2))
choose(Backend.XFORMERS, 0)
"""
ASKS = "def go(p, x):\n    if p.{asks}:\n        one_kernel[(1,)](x, **get_default_config(1, 2))\ngo(1, 0)\n"


@pytest.mark.parametrize(
    ("body", "platform", "verdict"),
    [
        (PLATFORM.format(member="ROCM_FLASH"), "cuda", "stopped"),
        (PLATFORM.format(member="ROCM_FLASH"), "rocm", "reaches"),
        (PLATFORM.format(member="XFORMERS"), "cuda", "reaches"),
        (ASKS.format(asks="is_rocm()"), "cuda", "stopped"),
        (ASKS.format(asks="is_rocm()"), "rocm", "reaches"),
        (ASKS.format(asks="is_rocm()"), None, "reaches"),
    ],
)
def test_the_platform_decides_tests(muhmod, tmp_path, body, platform, verdict):
    tree = tree_of(tmp_path, __init__="from vllm import use", use=KERNELS + body)
    declared = ("--platform", platform) if platform else ()
    (row,) = (r for r in verdicts(muhmod, tree, *declared, "--select", "moe-config") if r[2] == "64")
    assert row[3] == verdict, row[4]


@pytest.mark.parametrize(("capability", "verdict"), [(70, "stopped"), (80, "reaches")])
def test_the_card_answers_for_its_capability(muhmod, tmp_path, capability, verdict):
    body = ASKS.format(asks="has_device_capability(80)")
    tree = tree_of(tmp_path, __init__="from vllm import use", use=KERNELS + body)
    given = (*PACK, "--set", f"compute_capability={capability}", "--select", "moe-config")
    (row,) = (r for r in verdicts(muhmod, tree, *given) if r[2] == "64")
    assert row[3] == verdict, row[4]


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


def test_the_pristine_tree(muhmod):
    found = verdicts(muhmod, trees.enginex(), *PACK)
    for key, wanted in ENGINEX.items():
        assert {row[3] for row in found if row[:3] == key} == wanted, key
    assert {row[3] for row in found if row[0] == "autotune-configs"} == {"stopped"}
    (arrives,) = {row[4] for row in found if row[:3] == ("moe-config", "BLOCK_SIZE_M", "32")}
    assert "ixformer.functions.vllm_invoke_fused_moe_kernel" in arrives
    assert "torch.ops._moe_C.marlin_gemm_moe" in arrives
