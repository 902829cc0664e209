"""`muhmod verify --compile`: kernels cut out of a rewritten tree, compiled without a GPU."""

from __future__ import annotations

import ast
import importlib.util
import json
import os

import pytest

from muhmod import compile as cutting
from muhmod import triton_cpu
from muhmod.site import Module
from muhmod.triton_cpu import Compiled

from . import trees
from .conftest import tree_bytes

MOE = '''\
"""A stand-in for the fused MoE layer: the same structure, in our own words."""
import torch
import triton
import triton.language as tl

from vllm.helpers import grouped
from vllm.platforms import current_platform

SIDE = current_platform.name()
ZERO = 0.0


@triton.jit
def fused_moe_kernel(a_ptr, b_ptr, c_ptr, topk_weights_ptr, sorted_token_ids_ptr, expert_ids_ptr,
                     num_tokens_post_padded_ptr, N, K, EM, num_valid_tokens, stride_am, stride_ak,
                     stride_be, stride_bk, stride_bn, stride_cm, stride_cn,
                     BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
                     GROUP_SIZE_M: tl.constexpr, MUL_ROUTED_WEIGHT: tl.constexpr, top_k: tl.constexpr,
                     compute_type: tl.constexpr):
    tile_m, tile_n = grouped(tl.program_id(0), tl.cdiv(EM, BLOCK_SIZE_M), tl.cdiv(N, BLOCK_SIZE_N),
                             GROUP_SIZE_M)
    if tile_m * BLOCK_SIZE_M >= tl.load(num_tokens_post_padded_ptr):
        return
    tokens = tl.load(sorted_token_ids_ptr + tile_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M))
    known = tokens < num_valid_tokens
    columns = tile_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    depth = tl.arange(0, BLOCK_SIZE_K)
    rows = a_ptr + (tokens[:, None] // top_k * stride_am + depth[None, :] * stride_ak)
    weights = b_ptr + tl.load(expert_ids_ptr + tile_m) * stride_be + (
        depth[:, None] * stride_bk + (columns % N)[None, :] * stride_bn)
    total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        left = K - step * BLOCK_SIZE_K
        a = tl.load(rows, mask=known[:, None] & (depth[None, :] < left), other=ZERO)
        b = tl.load(weights, mask=depth[:, None] < left, other=ZERO)
        total += tl.dot(a, b)
        rows += BLOCK_SIZE_K * stride_ak
        weights += BLOCK_SIZE_K * stride_bk
    if MUL_ROUTED_WEIGHT:
        total = total * tl.load(topk_weights_ptr + tokens, mask=known, other=0)[:, None]
    out = c_ptr + stride_cm * tokens[:, None] + stride_cn * columns[None, :]
    tl.store(out, total.to(compute_type), mask=known[:, None] & (columns[None, :] < N))


def invoke(A, B, C, weights, ids, token_ids, expert_ids, padded, mul, top_k, config):
    grid = lambda META: (triton.cdiv(token_ids.shape[0], META["BLOCK_SIZE_M"]),)
    fused_moe_kernel[grid](
        A, B, C, weights, token_ids, expert_ids, padded,
        B.shape[1], B.shape[2], token_ids.shape[0], ids.numel(),
        A.stride(0), A.stride(1), B.stride(0), B.stride(2), B.stride(1), C.stride(1), C.stride(2),
        MUL_ROUTED_WEIGHT=mul, top_k=top_k, compute_type=tl.bfloat16, **config)


def get_default_config(M, E, N, K, topk, dtype, is_marlin):
    config = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
    if M <= E or (is_marlin and M <= 32):
        config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    return config


def apply_experts(tokens, w1, w2, topk, out):
    config = get_default_config(tokens.shape[0], w1.shape[0], w2.shape[2], w1.shape[2], topk, None, False)
    invoke(tokens, w1, out, None, None, None, None, None, False, topk, config)
'''
HELPERS = """\
import triton
import triton.language as tl


@triton.jit
def grouped(pid, tiles_m, tiles_n, GROUP: tl.constexpr):
    whole = GROUP * tiles_n
    first = pid // whole * GROUP
    size = min(tiles_m - first, GROUP)
    return first + (pid % whole) % size, (pid % whole) // size
"""
FLASH = '''\
"""A stand-in for the autotuned attention kernel."""
import torch
import triton
import triton.language as tl


@triton.jit
def _rows(total, top, below, q, k_at, v_at, start, stop, step_k, step_v, keys, queries,
          BLOCK_N: tl.constexpr, MASKED: tl.constexpr, PRE_LOAD_V: tl.constexpr):
    for first in range(start, stop, BLOCK_N):
        k = tl.load(k_at)
        if PRE_LOAD_V:
            v = tl.load(v_at)
        scores = tl.dot(q, k)
        if MASKED:
            scores = tl.where(queries[:, None] >= first + keys[None, :], scores, float("-inf"))
        most = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp(scores - most[:, None])
        if not PRE_LOAD_V:
            v = tl.load(v_at)
        shrink = tl.exp(top - most)
        total = total * shrink[:, None] + tl.dot(p.to(v.type.element_ty), v)
        below = below * shrink + tl.sum(p, 1)
        top = most
        k_at += step_k
        v_at += step_v
    return total, top, below


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 256, "BLOCK_N": 64, "waves_per_eu": 2, "PRE_LOAD_V": False},
                      num_stages=1, num_warps=8),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "waves_per_eu": 2, "PRE_LOAD_V": True},
                      num_stages=1, num_warps=4),
    ],
    key=["IS_CAUSAL", "BLOCK_DMODEL"],
)
@triton.jit
def attn_fwd(Q, K, V, Out, sm_scale, stride_qm, stride_qk, stride_kn, stride_kk, stride_vk, stride_vn,
             stride_om, stride_on, seqlen, IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr,
             BLOCK_N: tl.constexpr, BLOCK_DMODEL: tl.constexpr, PRE_LOAD_V: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = tl.arange(0, BLOCK_DMODEL)
    keys = tl.arange(0, BLOCK_N)
    q = tl.load(Q + rows[:, None] * stride_qm + head[None, :] * stride_qk)
    q = (q * sm_scale).to(q.type.element_ty)
    k_at = K + head[:, None] * stride_kk + keys[None, :] * stride_kn
    v_at = V + keys[:, None] * stride_vk + head[None, :] * stride_vn
    total = tl.zeros([BLOCK_M, BLOCK_DMODEL], dtype=tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    below = tl.full([BLOCK_M], 1.0, dtype=tl.float32)
    total, top, below = _rows(total, top, below, q, k_at, v_at, 0, seqlen, BLOCK_N * stride_kn,
                              BLOCK_N * stride_vk, keys, rows, BLOCK_N, IS_CAUSAL, PRE_LOAD_V)
    total = total / below[:, None]
    tl.store(Out + rows[:, None] * stride_om + head[None, :] * stride_on, total.to(q.type.element_ty))


def attention(q, k, v, o, causal):
    strides = (q.stride(1), q.stride(2))
    grid = lambda META: (triton.cdiv(q.shape[1], META["BLOCK_M"]),)
    attn_fwd[grid](q, k, v, o, 1.0, *strides, *strides, *strides, *strides, q.shape[1],
                   IS_CAUSAL=causal, BLOCK_DMODEL=q.shape[-1])
'''
PREFILL = '''\
"""A stand-in for the prefill over a cached prefix."""
import torch
import triton
import triton.language as tl

from vllm.platforms import current_platform

if triton.__version__ >= "2.1.0":

    @triton.jit
    def _fwd_kernel_alibi(Q, Out, slopes, BLOCK_M: tl.constexpr):
        rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
        tl.store(Out + rows, tl.load(Q + rows) * tl.load(slopes + tl.program_id(1)))

    @triton.jit
    def _fwd_kernel(Q, K, V, Out, B_Seqlen, sm_scale, stride_qbs, stride_qd, stride_kbs, stride_kd,
                    stride_vbs, stride_vd, stride_obs, stride_od, BLOCK_M: tl.constexpr,
                    BLOCK_DMODEL: tl.constexpr, BLOCK_DMODEL_PADDED: tl.constexpr, BLOCK_N: tl.constexpr):
        rows = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
        length = tl.load(B_Seqlen + tl.program_id(0))
        head = tl.arange(0, BLOCK_DMODEL_PADDED)
        inside = head < BLOCK_DMODEL
        keys = tl.arange(0, BLOCK_N)
        q = tl.load(Q + rows[:, None] * stride_qbs + head[None, :] * stride_qd, mask=inside[None, :])
        total = tl.zeros([BLOCK_M, BLOCK_DMODEL_PADDED], dtype=tl.float32)
        top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        below = tl.full([BLOCK_M], 1.0, dtype=tl.float32)
        for first in range(0, length, BLOCK_N):
            at = first + keys
            k = tl.load(K + at[None, :] * stride_kbs + head[:, None] * stride_kd,
                        mask=inside[:, None] & (at < length)[None, :], other=0.0)
            scores = tl.dot(q, k) * sm_scale
            scores = tl.where(rows[:, None] >= at[None, :], scores, float("-inf"))
            most = tl.maximum(top, tl.max(scores, 1))
            p = tl.exp(scores - most[:, None])
            v = tl.load(V + at[:, None] * stride_vbs + head[None, :] * stride_vd,
                        mask=inside[None, :] & (at < length)[:, None], other=0.0)
            shrink = tl.exp(top - most)
            total = total * shrink[:, None] + tl.dot(p.to(v.dtype), v)
            below = below * shrink + tl.sum(p, 1)
            top = most
        tl.store(Out + rows[:, None] * stride_obs + head[None, :] * stride_od, total / below[:, None],
                 mask=inside[None, :])

    @torch.inference_mode()
    def context_attention_fwd(q, k, v, o, lens, longest, kv_cache_dtype):
        BLOCK = 128 if current_platform.has_device_capability(80) else 64
        NUM_WARPS = 8
        if q.dtype is torch.float32:
            BLOCK = BLOCK // 2
        Lk = k.shape[-1]
        grid = (lens.shape[0], q.shape[1], triton.cdiv(longest, BLOCK))
        _fwd_kernel[grid](
            q, k, v, o, lens, 1.0 / Lk**0.5, q.stride(0), q.stride(2), k.stride(0), k.stride(2),
            v.stride(0), v.stride(2), o.stride(0), o.stride(2),
            BLOCK_M=BLOCK, BLOCK_DMODEL=Lk, BLOCK_DMODEL_PADDED=triton.next_power_of_2(Lk),
            BLOCK_N=BLOCK, num_warps=NUM_WARPS, num_stages=1)
'''
CARDS = {
    "cuda:75": ("--rules", "t4"),
    "cuda:80": ("--rules", "l40s", "--hardware", "a100"),
    "cuda:90": ("--rules", "l40s", "--hardware", "h200"),
}


@pytest.fixture
def tree(package):
    return package(fused_moe=MOE, helpers=HELPERS, flash=FLASH, prefill=PREFILL)


@pytest.fixture
def real_triton():
    if importlib.util.find_spec("triton") is None:
        trees.MISSING["Triton"] = "not installed: pip install 'muhmod[triton]'; nothing was compiled"
        pytest.skip(trees.MISSING["Triton"])


@pytest.fixture
def compiler(monkeypatch):
    """A compiler that says what a test wants of each job, and remembers the jobs."""
    asked = []

    def says(answer):
        def compiled(jobs, to, jobs_at_once=1):
            asked.extend(jobs)
            return [answer(job)._replace(triton="9.9.9") for job in jobs]

        monkeypatch.setattr(triton_cpu, "compiled", compiled)
        monkeypatch.setattr(triton_cpu, "check_available", lambda: None)
        return asked

    return says


def verify(muhmod, tree, *more):
    return muhmod("verify", "--compile", *more, tree)


def rows(ran):
    report = json.loads(ran.out)
    assert report["schema"] == "muhmod/verify/1"
    return report["configurations"]


# Cutting ----------------------------------------------------------------------------------------


def elsewhere(base, level):
    return ("helpers.py", Module(HELPERS)) if base == "vllm.helpers" else None


def test_a_kernel_is_cut_out_with_what_it_uses_and_nothing_else():
    cut = cutting.cut(Module(MOE), "fused_moe_kernel", elsewhere)
    made = ast.parse(cut.text)
    imports = [ast.unparse(n) for n in ast.walk(made) if isinstance(n, (ast.Import, ast.ImportFrom))]
    assert sorted(imports) == ["import triton", "import triton.language as tl"]
    assert [n.name for n in made.body if isinstance(n, ast.FunctionDef)] == ["grouped", "fused_moe_kernel"]
    assert "ZERO = tl.constexpr(0.0)" in cut.text
    assert "SIDE" not in cut.text and "torch" not in cut.text and "get_default_config" not in cut.text


def test_autotune_and_heuristics_are_left_off_and_a_kernel_below_a_test_is_found():
    text = cutting.cut(Module(FLASH), "attn_fwd").text
    assert "autotune" not in text and text.count("@triton.jit") == 2
    assert "def _fwd_kernel" in cutting.cut(Module(PREFILL), "_fwd_kernel").text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("ZERO = 0.0", "ZERO = torch.finfo(torch.float16).min"), "uses ZERO, which is no kernel"),
        (("ZERO = 0.0", "ZERO = 0.0\nZERO = 1.0"), "uses ZERO, which is no kernel"),
        (("from vllm.helpers import grouped", "from numpy import grouped"), "uses grouped, which is no"),
        (("def get_default", "@triton.jit\ndef fused_moe_kernel(x):\n    pass\n\n\ndef get_default"),
         "fused_moe_kernel is defined on lines"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_out_is_told_by_name(muhmod, package, compiler, change, why):
    compiler(lambda job: Compiled(shared=1))
    tree = package(fused_moe=MOE.replace(*change), helpers=HELPERS)
    ran = verify(muhmod, tree, "--rules", "h200", "--select", "moe-config", "--output-format", "json")
    assert ran.code == 3
    assert [(row["verdict"], row["kernel"]) for row in rows(ran)] == [("unverifiable", "fused_moe_kernel")]
    assert why in rows(ran)[0]["reason"]
    assert why in ran.err


def signature(kernel, text, **values):
    module = Module(text)
    whole = cutting.kernels(module)[kernel][0]
    call = next((c for name, c in cutting.launches(module.tree) if name == kernel), None)
    cut = cutting.cut(module, kernel, elsewhere)
    return cutting.signature(cut, cutting.launch(whole, call), "bf16", values, whole)


TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "top_k": 2,
        "compute_type": "tl.bfloat16"}  # fmt: skip


def test_types_come_from_how_a_parameter_is_used_and_launched():
    made = signature("fused_moe_kernel", MOE, **TILE)
    types = dict(made.types)
    assert made.problem == ""
    assert (types["a_ptr"], types["topk_weights_ptr"], types["sorted_token_ids_ptr"]) == (
        "*bf16", "*fp32", "*i32")  # fmt: skip
    assert (types["K"], types["stride_am"], types["num_valid_tokens"]) == ("i32", "i32", "i32")
    # The strides of the last dimension are 1, whatever they are called: Triton makes constants of them.
    assert {n for n, v in made.constants if v == 1 and n.startswith("stride")} == {
        "stride_ak", "stride_bk", "stride_cn"}  # fmt: skip
    assert {"a_ptr", "stride_am", "K"} <= {*made.divisible}
    assert not {"num_valid_tokens", "EM"} & {*made.divisible}


def test_the_same_letter_is_a_size_in_one_kernel_and_an_address_in_the_other():
    made = signature("attn_fwd", FLASH, BLOCK_M=64, BLOCK_N=64, BLOCK_DMODEL=128, PRE_LOAD_V=False,
                     IS_CAUSAL=True)  # fmt: skip
    assert dict(made.types)["K"] == "*bf16" and dict(made.types)["sm_scale"] == "fp32"
    # The strides come in tuples here: the last of each tensor's is 1.
    assert {n for n, v in made.constants if v == 1 and n.startswith("stride")} == {
        "stride_qk", "stride_kk", "stride_vn", "stride_on"}  # fmt: skip


UNTOLD = MOE.replace("num_valid_tokens", "beyond").replace("ids.numel()", "ids.amount")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (UNTOLD, "the type of beyond is not known"),
        (MOE.replace("top_k: tl.constexpr,", "top_k: tl.constexpr, SWAPPED: tl.constexpr,"),
         "the value of SWAPPED is not known"),
    ],
)  # fmt: skip
def test_a_parameter_that_cannot_be_told_is_named(muhmod, package, compiler, text, why):
    asked = compiler(lambda job: Compiled(shared=1))
    ran = verify(
        muhmod, package(fused_moe=text, helpers=HELPERS), "--rules", "h200", "--select", "moe-config"
    )
    assert (ran.code, asked) == (3, [])
    assert f"moe-config fused_moe_kernel: unverifiable: {why}" in ran.err


def test_wide_strides_are_multiples_of_16_too():
    text = MOE.replace("stride_am,", "stride_am: tl.int64,", 1)
    made = signature("fused_moe_kernel", text, **TILE)
    assert dict(made.types)["stride_am"] == "i64" and "stride_am" in made.divisible


def test_a_size_is_told_by_its_arithmetic_and_what_is_not_read_needs_no_type(compiler):
    text = UNTOLD.replace("tokens < beyond", "tokens < beyond // 1").replace("K, EM", "K, unread, EM")
    types = dict(signature("fused_moe_kernel", text, **TILE).types)
    assert types["beyond"] == types["unread"] == "i32"


# What is compiled -------------------------------------------------------------------------------


def test_the_rewritten_values_are_compiled_and_nothing_is_written(muhmod, tree, compiler):
    asked = compiler(lambda job: Compiled(1024, 40, 0))
    before = tree_bytes(tree.parent)
    ran = verify(muhmod, tree, "--rules", "h200", "--output-format", "json")
    assert ran.code == 0
    assert tree_bytes(tree.parent) == before
    tiles = [row["config"] for row in rows(ran) if row["site"] == "moe-config"]
    assert {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1,
            "num_warps": 8, "num_stages": 4} in tiles  # fmt: skip
    assert all(tile["BLOCK_SIZE_K"] != 32 for tile in tiles)
    lists = [row["config"] for row in rows(ran) if row["kernel"] == "attn_fwd"]
    assert lists and all("waves_per_eu" not in config and config["BLOCK_M"] <= 128 for config in lists)
    prefill = [row["config"] for row in rows(ran) if row["kernel"] == "_fwd_kernel"]
    assert prefill == [{"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8, "num_stages": 3}]
    assert {job.kernel for job in asked} == {"fused_moe_kernel", "attn_fwd", "_fwd_kernel"}
    for job in asked:
        assert {"num_warps", "num_stages"} == {name for name, _ in job.options}


def test_two_launches_of_one_function_have_their_own_configurations(muhmod, package, compiler, tmp_path):
    pack = tmp_path / "mine.toml"
    pack.write_text('schema = "muhmod/rules/1"\nextends = "l40s"\n[sites.prefill-tile]\n'
                    'scope = "context_attention_fwd"\n'
                    'slots.BLOCK = { derive = "prefill_block" }\n')  # fmt: skip
    second = PREFILL.replace(
        "        _fwd_kernel[grid](",
        """\
        if longest > 4096:
            _fwd_kernel[grid](
                q, k, v, o, lens, 1.0, q.stride(0), q.stride(2), k.stride(0), k.stride(2),
                v.stride(0), v.stride(2), o.stride(0), o.stride(2),
                BLOCK_M=64, BLOCK_DMODEL=Lk, BLOCK_DMODEL_PADDED=Lk, BLOCK_N=64, num_warps=4, num_stages=2)
            return
        _fwd_kernel[grid](""",
    )
    compiler(lambda job: Compiled(1024, 40, 0))
    ran = verify(muhmod, package(prefill=second), "--rules", pack, "--select", "prefill-tile",
                 "--output-format", "json")  # fmt: skip
    tiles = {(r["config"]["BLOCK_M"], r["config"]["num_warps"]) for r in rows(ran)}
    assert len(rows(ran)) == 2 and len(tiles) == 2, ran.out + ran.err


def test_a_tree_that_was_rewritten_is_verified_the_same(muhmod, tree, compiler):
    compiler(lambda job: Compiled(1024, 40, 0))
    first = verify(muhmod, tree, "--rules", "h200", "--output-format", "json")
    assert muhmod("apply", "--rules", "h200", "-q", tree).code == 0
    again = verify(muhmod, tree, "--rules", "h200", "--output-format", "json")
    assert (again.code, [r["config"] for r in rows(again)]) == (0, [r["config"] for r in rows(first)])


def test_a_kernel_in_another_file_of_the_tree_is_found_there(muhmod, package, compiler):
    asked = compiler(lambda job: Compiled(1024, 40, 0))
    made = ast.parse(MOE)
    decides = [n for n in made.body if getattr(n, "name", "") in ("get_default_config", "apply_experts")]
    kernel = [n for n in made.body if n not in decides]
    tree = package(
        config="from vllm.kernel import invoke\n\n\n" + "\n\n\n".join(map(ast.unparse, decides)) + "\n",
        kernel="\n".join(map(ast.unparse, kernel)), helpers=HELPERS,
    )  # fmt: skip
    ran = verify(muhmod, tree, "--rules", "t4", "--select", "moe-config")
    assert ran.code == 0, ran.err
    assert {job.kernel for job in asked} == {"fused_moe_kernel"}


def test_what_is_no_literal_is_reported_beside_what_is(muhmod, package, compiler):
    compiler(lambda job: Compiled(1024, 40, 0))
    text = MOE.replace(
        '"BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32', '"BLOCK_SIZE_N": columns(N), "BLOCK_SIZE_K": 32'
    )
    ran = verify(muhmod, package(fused_moe=text, helpers=HELPERS), "--rules", "t4", "--select", "moe-config",
                 "--output-format", "json")  # fmt: skip
    assert ran.code == 3
    assert {(row["verdict"], bool(row["config"])) for row in rows(ran)} == {
        ("fits", True), ("unverifiable", False)}, ran.err  # fmt: skip


def test_a_function_that_launches_nothing_by_name_is_unverifiable(muhmod, package, compiler):
    compiler(lambda job: Compiled(1024, 40, 0))
    text = PREFILL.replace("        _fwd_kernel[grid](", "        pick(longest)[grid](")
    ran = verify(muhmod, package(prefill=text), "--rules", "l40s", "--select", "prefill-tile")
    assert ran.code == 3
    assert "context_attention_fwd launches no kernel by its name" in ran.err


def test_over_the_limit_is_5(muhmod, tree, compiler):
    compiler(lambda job: Compiled(300_000 if job.kernel == "attn_fwd" else 1024, 255, 64))
    ran = verify(muhmod, tree, "--rules", "h200")
    assert ran.code == 5
    assert "over limit" in ran.out
    assert "attn_fwd" in ran.err and "needs 300,000 B of shared memory, over 232,448 B" in ran.err
    assert "fused_moe_kernel" not in ran.err
    assert "spill registers, up to 64 B a thread" in ran.err


def test_more_than_was_predicted_is_5_even_if_it_fits(muhmod, tree, compiler):
    compiler(lambda job: Compiled(229_377 if job.kernel == "_fwd_kernel" else 1024, 255, 0))
    ran = verify(muhmod, tree, "--rules", "h200", "--output-format", "json")
    assert ran.code == 5
    bad = [row for row in rows(ran) if row["code"]]
    assert [(r["kernel"], r["verdict"], r["predicted"]) for r in bad] == [
        ("_fwd_kernel", "under-predicted", 229_376)]  # fmt: skip


def test_one_that_does_not_compile_is_5_and_none_that_does_is_the_kernels_or_tritons(muhmod, tree, compiler):
    def answer(job):
        if job.kernel == "attn_fwd" or dict(job.constants).get("BLOCK_SIZE_M") == 16:
            return Compiled(error="CompilationError: no such builtin")
        return Compiled(1024, 40, 0)

    compiler(answer)
    ran = verify(muhmod, tree, "--rules", "h200", "--output-format", "json")
    verdicts = {(r["kernel"], r["verdict"], r["code"]) for r in rows(ran) if r["code"]}
    assert verdicts == {("fused_moe_kernel", "does not compile", 5), ("attn_fwd", "unverifiable", 3)}
    assert ran.code == 5
    assert "Triton 9.9.9 compiles no configuration of attn_fwd for cuda:90: CompilationError" in ran.err
    only = verify(muhmod, tree, "--rules", "h200", "--select", "autotune-configs")
    assert only.code == 3


def test_a_site_that_is_not_there_is_reported_with_its_state(muhmod, package, compiler):
    compiler(lambda job: Compiled(1024, 40, 0))
    tree = package(fused_moe=MOE.replace("get_default_config", "pick"), helpers=HELPERS, prefill=PREFILL)
    ran = verify(muhmod, tree, "--rules", "h200", "--output-format", "json")
    assert ran.code == 3
    lost = next(row for row in rows(ran) if row["site"] == "moe-config")
    assert lost["verdict"] == "unverifiable" and "the site is lost" in lost["reason"]


def test_a_card_that_triton_does_not_know_is_held_against_its_limit(muhmod, tree, compiler):
    compiler(lambda job: Compiled(40_000, 40, 0))
    ran = verify(muhmod, tree, "--rules", "bi100", "--target", "cuda:75", "--select", "moe-config",
                 "--output-format", "json")  # fmt: skip
    assert (ran.code, {row["limit"] for row in rows(ran)}) == (0, {49_152})
    assert "Triton has no target for bi100" in ran.err


# Wrong usage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--target", "cuda:75"), "is another card than h200"),
        (("--target", "hip:gfx942:64"), "the values are for NVIDIA's cards"),
        (("--target", "sm_90"), "is none of Triton's"),
        (("--target", "cuda:90", "--select", "nonsense"), "has no site 'nonsense'"),
    ],
)
def test_a_wrong_target_is_2(muhmod, tree, compiler, arguments, said):
    asked = compiler(lambda job: Compiled(1, 1, 0))
    ran = verify(muhmod, tree, "--rules", "h200", *arguments)
    assert (ran.code, asked) == (2, [])
    assert said in ran.err


def test_without_compile_there_is_nothing_to_verify(muhmod, tree):
    ran = muhmod("verify", "--rules", "h200", tree)
    assert ran.code == 2 and "--compile" in ran.err


def test_sites_without_a_kernel_are_2(muhmod, enginex, compiler):
    compiler(lambda job: Compiled(1, 1, 0))
    ran = verify(muhmod, enginex, "--rules", "bi100", "--target", "cuda:75", "--select", "partition-size")
    assert ran.code == 2 and "no value goes to a Triton kernel" in ran.err


def test_the_target_alone_chooses_the_rules_where_one_pack_has_it(muhmod, tree, compiler):
    compiler(lambda job: Compiled(1024, 1, 0))
    ran = verify(muhmod, tree, "--target", "cuda:75")
    assert ran.code == 0 and "those of t4" in ran.err
    none = verify(muhmod, tree, "--target", "cuda:80")
    assert none.code == 2 and "--hardware a100" in none.err


def test_without_triton_it_says_what_to_install(muhmod, tree, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else found(name))
    ran = verify(muhmod, tree, "--target", "cuda:75")
    assert ran.code == 2 and "pip install 'muhmod[triton]'" in ran.err


# The worker, with a Triton of our own -----------------------------------------------------------

FAKE = {
    "__init__.py": """\
import os
__version__ = VERSION
def jit(function):
    return function
class Metadata:
    shared = 2048
class Made:
    metadata, asm = Metadata(), {"ptx": ""}
def compile(source, target, options):
    print("talk on stdout")
    if source.constants.get("BLOCK_SIZE_M") == 64:
        os.abort()
    open(os.path.join(os.environ["TRITON_CACHE_DIR"]) + "-used", "w").close()
    return Made()
""",
    "language.py": "class constexpr:\n    def __init__(self, value):\n        pass\nbfloat16 = 'bf16'\n",
    "compiler.py": "class ASTSource:\n    def __init__(self, fn, types, constants, attrs):\n"
    "        self.constants = constants\n",
    "backends/__init__.py": "",
    "backends/compiler.py": "def GPUTarget(*target):\n    return target\n",
}


@pytest.fixture
def fake_triton(tmp_path, monkeypatch):
    def make(version="'3.6.0'"):
        for name, text in FAKE.items():
            file = tmp_path / "fake" / "triton" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("VERSION", version))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
        monkeypatch.setattr(triton_cpu, "check_available", lambda: None)

    return make


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_compiler_that_aborts_takes_only_its_own_configuration_with_it(muhmod, tree, fake_triton, jobs):
    fake_triton()
    ran = verify(muhmod, tree, "--rules", "h200", "--select", "moe-config", "-j", jobs,
                 "--output-format", "json")  # fmt: skip
    assert ran.code == 5
    verdicts = {row["config"]["BLOCK_SIZE_M"]: row["verdict"] for row in rows(ran)}
    assert verdicts == {128: "fits", 64: "does not compile", 32: "fits", 16: "fits"}
    assert "the compiler ended by signal 6" in ran.err
    assert not [name for name in tree_bytes(tree.parent) if "triton" in name and not name.startswith("fake")]


@pytest.mark.parametrize(
    ("version", "said"),
    [("no_such_name", "Triton cannot be imported: NameError"), ("'3.1.0'", "Triton 3.1.0 is too old")],
)
def test_a_triton_that_cannot_be_used_is_2(muhmod, tree, fake_triton, version, said):
    fake_triton(version)
    ran = verify(muhmod, tree, "--rules", "h200", "--select", "moe-config")
    assert ran.code == 2 and said in ran.err


# Triton itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", CARDS)
def test_stand_ins_compile_and_need_no_more_than_predicted(muhmod, tree, real_triton, target, monkeypatch):
    home = tree.parent / "home"
    monkeypatch.setenv("HOME", str(home))
    before = tree_bytes(tree.parent)
    ran = verify(muhmod, tree, *CARDS[target], "--target", target,
                 "--set", "head_dim=32", "-j", 2, "--output-format", "json")  # fmt: skip
    assert ran.code == 0, ran.err
    assert {row["kernel"] for row in rows(ran)} == {"fused_moe_kernel", "attn_fwd", "_fwd_kernel"}
    for row in rows(ran):
        assert 0 < row["shared"] <= row["predicted"] <= row["limit"], row
        assert row["registers"] > 0 and row["spills"] is not None
    assert tree_bytes(tree.parent) == before


def test_a_tile_that_is_too_large_for_the_target_is_found_out(muhmod, tree, real_triton):
    # The earlier generator's formula for its card knows nothing of the widened operands of cuda:75.
    ran = verify(muhmod, tree, "--rules", "bi100", "--target", "cuda:75", "--select", "prefill-tile")
    assert ran.code == 5
    assert "needs 65,536 B of shared memory, over 49,152 B" in ran.err


def test_a_builtin_that_triton_does_not_have_is_told_by_name(muhmod, package, real_triton):
    text = MOE.replace("tl.dot(a, b)", "tl.gone_builtin(a, b)")
    ran = verify(muhmod, package(fused_moe=text, helpers=HELPERS), "--target", "cuda:75",
                 "--select", "moe-config")  # fmt: skip
    assert ran.code == 3
    assert "compiles no configuration of fused_moe_kernel" in ran.err and "gone_builtin" in ran.err


@pytest.mark.parametrize("target", CARDS)
def test_the_kernels_of_a_release_need_no_more_than_predicted(muhmod, real_triton, target):
    ran = verify(muhmod, trees.vllm("0.6.3"), *CARDS[target], "--target",
                 target, "--select", "moe-config", "-j", os.cpu_count() or 1,
                 "--output-format", "json")  # fmt: skip
    assert ran.code == 0, ran.err
    assert {(row["verdict"], row["kernel"]) for row in rows(ran)} == {("fits", "fused_moe_kernel")}
    assert all(row["shared"] == row["predicted"] for row in rows(ran))
