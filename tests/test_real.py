"""Real sources. Expectations hold edits, counts and hashes, never source text."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from muhmod import catalog, tree
from muhmod.model import LADDER
from muhmod.site import Module

from . import trees
from .conftest import FIXTURES, tree_bytes

APPLY = ("apply", "--rules", "bi100")
PREFILL = "attention/ops/prefix_prefill.py"
FLASH = "attention/ops/triton_flash_attention.py"


def copied(source, tmp_path):
    return shutil.copytree(source, tmp_path / "real" / "vllm", symlinks=True)


def rows(ran):
    return {row["site"]: row for row in json.loads(ran.out)["sites"]}


def edits(row):
    return [(s["name"], s["line"], s["old"], s["new"]) for s in row["slots"] if s["old"] != s["new"]]


def test_vllm_063_the_two_files_that_enginex_shares(muhmod, tmp_path):
    source = trees.vllm("0.6.3")
    for name in (PREFILL, FLASH):
        assert trees.digest((source / name).read_bytes()) == trees.ENGINEX[name]
    real = copied(source, tmp_path)
    pristine = tree_bytes(real)
    select = ("--select", "prefill-tile", "--select", "autotune-configs")
    ran = muhmod(*APPLY, *select, "--output-format", "json", real)
    assert ran.code == 0, ran.err
    found = rows(ran)
    assert edits(found["prefill-tile"]) == [("BLOCK", 712, "64", "32"), ("NUM_WARPS", 713, "8", "4")]
    lists = found["autotune-configs"]["slots"]
    assert sum(bool(s["old"]) for s in lists) == 9
    assert sum(bool(s["new"]) for s in lists) == 15
    changed = {name: data for name, data in tree_bytes(real).items() if data != pristine[name]}
    assert {name: trees.digest(data) for name, data in changed.items()} == WRITTEN
    assert muhmod(*APPLY, *select, "--check", real).code == 0
    assert muhmod("revert", real).code == 0
    assert tree_bytes(real) == pristine


# The sha256 of the two files after bi100.
WRITTEN = {
    PREFILL: "fef184efb2e721f4a233751f6cc576b1c144303ce54e93da52993c12a94158b3",
    FLASH: "b7dad64d8951694b8d51883d0366bd860cecac64218ff9a4695309128d7c284b",
}


def test_vllm_063_under_bi100_says_what_it_will_not_write(muhmod, tmp_path):
    real = copied(trees.vllm("0.6.3"), tmp_path)
    pristine = tree_bytes(real)
    ran = muhmod(*APPLY, "--output-format", "json", real)
    assert ran.code == 3
    assert {site: row["state"] for site, row in rows(ran).items()} == {
        "partition-size": "already", "v1-override": "satisfied-upstream", "prefill-tile": "pending",
        "moe-config": "pending", "shared-memory": "unrewritable", "autotune-configs": "pending",
    }  # fmt: skip
    ((name, _, old, new),) = edits(rows(ran)["moe-config"])
    assert (name, old, new) == ("BLOCK_SIZE_M", "64", "128")
    assert tree_bytes(real) == pristine


def test_vllm_063_sites(muhmod):
    found = json.loads(muhmod("sites", "--output-format", "json", trees.vllm("0.6.3")).out)["sites"]
    assert [(r["site"], r["file"], r["scope"], r["line"], r["form"]) for r in found] == SITES_063


SITES_063 = [
    ("shared-memory", "_custom_ops.py", "get_max_shared_memory_per_block_device_attribute", 921, "call"),
    ("partition-size", "attention/backends/ipex_attn.py", "<module>", 15, "module-literal"),
    ("v1-override", "attention/backends/ipex_attn.py", "IpexAttnBackendImpl.forward", 277, "heuristic"),
    ("partition-size", "attention/backends/rocm_flash_attn.py", "<module>", 23, "module-literal"),
    ("partition-size", "attention/ops/paged_attn.py", "<module>", 13, "module-literal"),
    ("v1-override", "attention/ops/paged_attn.py", "PagedAttention.forward_decode", 126, "heuristic"),
    ("prefill-tile", "attention/ops/prefix_prefill.py", "context_attention_fwd", 712, "conditional"),
    ("autotune-configs", "attention/ops/triton_flash_attention.py", "attn_fwd", 210, "inline-list"),
    ("moe-config", "model_executor/layers/fused_moe/fused_moe.py", "get_default_config", 338, "dict"),
    ("triton-flag", "triton_utils/importing.py", "<module>", 7, "module-expression"),
    ("shared-memory", "utils.py", "get_max_shared_memory_bytes", 370, "call"),
]  # fmt: skip


def test_enginex_pristine(muhmod, tmp_path):
    """The issue's own figures, on the tree that they are about."""
    real = copied(trees.enginex(), tmp_path)
    pristine = tree_bytes(real)
    ran = muhmod(*APPLY, "--output-format", "json", real)
    assert ran.code == 0, ran.err
    found = rows(ran)
    assert {site: row["state"] for site, row in found.items()} == {
        "partition-size": "already", "v1-override": "held", "prefill-tile": "applied",
        "moe-config": "applied", "shared-memory": "applied", "autotune-configs": "applied",
    }  # fmt: skip
    assert edits(found["prefill-tile"]) == [("BLOCK", 712, "64", "32"), ("NUM_WARPS", 713, "8", "4")]
    assert edits(found["moe-config"]) == [
        ("BLOCK_SIZE_M", 357, "32", "16"), ("BLOCK_SIZE_M", 359, "64", "16"),
        ("BLOCK_SIZE_M", 361, "256", "128"),
    ]  # fmt: skip
    assert edits(found["shared-memory"]) == [("return", 892, "32 * 1024", "49152")]
    assert found["v1-override"]["guards"][0]["evidence"].startswith("_custom_ops.py:147 ")
    written = {name for name, data in tree_bytes(real).items() if data != pristine[name]}
    assert written == set(trees.ENGINEX) - {"attention/ops/paged_attn.py"}
    assert trees.digest((real / PREFILL).read_bytes()) == WRITTEN[PREFILL]
    assert trees.digest((real / FLASH).read_bytes()) == WRITTEN[FLASH]
    second = muhmod(*APPLY, real)
    assert (second.code, "nothing to change" in second.err) == (0, True)
    assert muhmod("revert", real).code == 0
    assert tree_bytes(real) == pristine


@pytest.mark.parametrize("tool", ["git apply", "patch -p1"])
def test_the_diff_of_a_real_tree_is_taken(muhmod, tmp_path, tool):
    real = copied(trees.vllm("0.6.3"), tmp_path)
    select = ("--select", "prefill-tile", "--select", "autotune-configs", "--select", "moe-config")
    patch = muhmod(*APPLY, *select, "--diff", real).raw
    other = shutil.copytree(real, tmp_path / "other" / "vllm")
    assert muhmod(*APPLY, *select, real).code == 0
    subprocess.run(tool.split(), cwd=other.parent, input=patch, check=True, capture_output=True)
    assert tree_bytes(other) == tree_bytes(real)


# Two readers ----------------------------------------------------------------------------------


def _slots(path):
    data = path.read_bytes()
    wanted = [catalog.site(name) for name in catalog.names() if catalog.site(name).wanted(data)]
    if not wanted:
        return "", []
    text = tree.decode(data, path.name).text
    module = Module(text)
    return text, [slot for site in wanted for found in site.find(module) for slot in found.slots]


def _same_to_both_readers(paths):
    """LibCST, reading the whole file, has an expression with the same code at every slot's place."""
    import libcst as cst
    from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

    seen = 0
    for path in paths:
        text, slots = _slots(path)
        if not slots:
            continue
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        spans = {
            (span.start, span.length): node
            for node, span in wrapper.resolve(ByteSpanPositionProvider).items()
            if isinstance(node, cst.BaseExpression)
        }
        for slot in slots:
            if slot.name == LADDER:
                # A statement, not an expression: held against LibCST where it is written.
                continue
            start = len(text[: slot.start].encode())
            node = spans[start, len(slot.text.encode())]
            bare = node.with_changes(lpar=(), rpar=())
            # Code of a node inside a block comes without the block's indentation.
            code = wrapper.module.code_for_node(bare)
            assert code.split() == slot.text.split(), (path, slot.line)
            seen += 1
    return seen


def test_two_readers_on_every_fixture():
    assert _same_to_both_readers(sorted(FIXTURES.rglob("*.py"))) > 150


def test_two_readers_on_vllm_063():
    assert _same_to_both_readers(sorted(trees.vllm("0.6.3").rglob("*.py"))) > 30


def test_two_readers_on_enginex():
    assert _same_to_both_readers(sorted(trees.enginex().rglob("*.py"))) > 30
