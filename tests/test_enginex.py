"""The main job on the stand-in tree: what a person sees, and what is on the disk afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from .conftest import tree_bytes

STATES = {
    "partition-size": "already",
    "v1-override": "held",
    "prefill-tile": "applied",
    "moe-config": "applied",
    "shared-memory": "applied",
    "autotune-configs": "applied",
}
APPLY = ("apply", "--rules", "bi100")


def test_table_and_diff(muhmod, enginex, snapshot):
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 0
    snapshot.snapshot_dir = snapshot.snapshot_dir.parent.parent / "enginex"
    snapshot.assert_match(ran.out, "apply.txt")


def test_patch(muhmod, enginex, snapshot):
    ran = muhmod(*APPLY, "--diff", enginex)
    assert ran.code == 1
    snapshot.snapshot_dir = snapshot.snapshot_dir.parent.parent / "enginex"
    snapshot.assert_match(ran.out, "apply.patch")


def test_json(muhmod, enginex, snapshot):
    ran = muhmod(*APPLY, "--output-format", "json", enginex)
    report = json.loads(ran.out)
    assert {row["site"]: row["state"] for row in report["sites"]} == STATES
    assert report["exit"] == {"code": 0, "reasons": []}
    snapshot.snapshot_dir = snapshot.snapshot_dir.parent.parent / "enginex"
    snapshot.assert_match(ran.out, "apply.json")


def test_explain(muhmod, enginex, snapshot):
    out = "".join(muhmod("explain", "--rules", "bi100", site, enginex).out for site in STATES)
    snapshot.snapshot_dir = snapshot.snapshot_dir.parent.parent / "enginex"
    snapshot.assert_match(out, "explain.txt")


def test_sites_lists_the_look_alikes_that_the_rules_leave_alone(muhmod, enginex):
    rows = json.loads(muhmod("sites", "--output-format", "json", enginex).out)["sites"]
    places = {(row["site"], row["file"], row["scope"]) for row in rows}
    assert ("partition-size", "attention/backends/ipex_attn.py", "<module>") in places
    assert ("partition-size", "attention/backends/rocm_flash_attn.py", "<module>") in places
    assert ("v1-override", "attention/backends/ipex_attn.py", "IpexAttnBackendImpl.forward") in places
    assert ("shared-memory", "utils.py", "get_max_shared_memory_bytes") in places
    assert ("triton-flag", "triton_utils/importing.py", "<module>") in places
    assert not any(row["file"] == "engine/arg_utils.py" for row in rows)
    assert len(rows) == 11


def test_second_run_changes_nothing_and_revert_gives_the_pristine_bytes(muhmod, enginex):
    pristine = tree_bytes(enginex)
    assert muhmod(*APPLY, enginex).code == 0
    changed = tree_bytes(enginex)
    assert {name for name in changed if changed[name] != pristine[name]} == {
        "_custom_ops.py",
        "attention/ops/prefix_prefill.py",
        "attention/ops/triton_flash_attention.py",
        "model_executor/layers/fused_moe/fused_moe.py",
    }
    again = muhmod(*APPLY, enginex)
    assert again.code == 0
    assert "nothing to change" in again.err
    assert tree_bytes(enginex) == changed
    assert muhmod(*APPLY, "--check", enginex).code == 0
    assert muhmod("revert", enginex).code == 0
    assert tree_bytes(enginex) == pristine
    assert [path.name for path in enginex.parent.iterdir() if "muhmod" in path.name] == []


def test_check_and_diff_write_nothing(muhmod, enginex):
    before = tree_bytes(enginex.parent)
    assert muhmod(*APPLY, "--check", enginex).code == 1
    assert muhmod(*APPLY, "--diff", enginex).code == 1
    assert tree_bytes(enginex.parent) == before


@pytest.mark.parametrize("tool", ["git apply", "patch -p1"])
def test_the_diff_gives_the_same_bytes_as_writing(muhmod, enginex, tmp_path, tool):
    patch = muhmod(*APPLY, "--diff", enginex).raw
    other = tmp_path / "other"
    shutil.copytree(enginex, other / "vllm")
    subprocess.run(tool.split(), cwd=other, input=patch, check=True, capture_output=True)
    muhmod(*APPLY, enginex)
    assert tree_bytes(other / "vllm") == tree_bytes(enginex)
    back = muhmod("revert", "--diff", enginex)
    assert back.code == 1
    subprocess.run(tool.split(), cwd=other, input=back.raw, check=True, capture_output=True)
    assert muhmod("revert", enginex).code == 0
    assert tree_bytes(other / "vllm") == tree_bytes(enginex)


def test_where_v2_is_implemented_the_override_goes_and_the_heuristic_stays(muhmod, enginex):
    ops = enginex / "_custom_ops.py"
    ops.write_text(ops.read_text().replace(
        "                       longest):\n    raise NotImplementedError()",
        "                       longest):\n    ixf_F.partitioned_attention(out, query)",
    ))  # fmt: skip
    file = enginex / "attention" / "ops" / "paged_attn.py"
    before = file.read_text()
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 0
    assert file.read_text() == before.replace("        use_v1 = True\n", "")
    assert muhmod(*APPLY, enginex).code == 0
    assert "already" in muhmod(*APPLY, enginex).out
    assert muhmod("revert", enginex).code == 0
    assert file.read_text() == before


def test_a_body_that_imports_from_outside_the_tree_is_unproven(muhmod, enginex, tmp_path):
    ops = enginex / "_custom_ops.py"
    ops.write_text(ops.read_text().replace(
        "                       longest):\n    raise NotImplementedError()",
        "                       longest):\n    from v2_elsewhere import run\n    run(out)",
    ))  # fmt: skip
    row = _row(muhmod(*APPLY, "--check", "--output-format", "json", enginex), "v1-override")
    assert row["state"] == "held"
    assert "v2_elsewhere, which is not in the tree" in row["reason"]
    assert row["guards"][0]["holds"] is False
    pack = _pack_with(tmp_path, 'modules = ["torch"', 'modules = ["v2_elsewhere", "torch"')
    ran = muhmod("apply", "--rules", pack, "--check", "--output-format", "json", enginex)
    assert _row(ran, "v1-override")["state"] == "pending"


def test_evidence_of_the_guard_names_file_and_line(muhmod, enginex):
    row = _row(muhmod(*APPLY, "--check", "--output-format", "json", enginex), "v1-override")
    lines = (enginex / "_custom_ops.py").read_text().splitlines()
    at = next(i for i, line in enumerate(lines, 1) if "NotImplementedError" in line)
    evidence = f"_custom_ops.py:{at} paged_attention_v2 only raises NotImplementedError"
    assert row["guards"] == [
        {"guard": "paged_attention_v2 is implemented", "holds": False, "evidence": evidence}
    ]


def test_overwritten_values_are_reported_and_left(muhmod, enginex):
    row = _row(muhmod(*APPLY, "--check", "--output-format", "json", enginex), "moe-config")
    tiles = [slot for slot in row["slots"] if slot["name"] == "BLOCK_SIZE_M"]
    assert [(slot["old"], slot["new"]) for slot in tiles] == [
        ("64", "64"), ("16", "16"), ("32", "16"), ("64", "16"), ("256", "128"),
    ]  # fmt: skip
    assert all("overwritten on every path" in slot["note"] for slot in tiles[:2])


def test_autotune_list_is_legal_ranked_and_keeps_what_upstream_spells(muhmod, enginex):
    row = _row(muhmod(*APPLY, "--output-format", "json", enginex), "autotune-configs")
    entries = [dict(pair.split("=") for pair in slot["new"].split()) for slot in row["slots"] if slot["new"]]
    assert len(entries) == 15
    keys = [tuple(sorted((k, v) for k, v in e.items() if k != "waves_per_eu")) for e in entries]
    assert len(set(keys)) == 15
    for entry in entries:
        bm, bn, warps = (int(entry[key]) for key in ("BLOCK_M", "BLOCK_N", "num_warps"))
        stages = int(entry["num_stages"])
        assert bm % bn == 0
        assert warps * 64 <= 1024
        assert ((bm * 256 + 256 * bn) * 2 + bm * 8) * stages <= 49152
        assert {"waves_per_eu", "PRE_LOAD_V"} <= entry.keys()
    upstream = entries[:2]
    assert [(e["BLOCK_M"], e["BLOCK_N"], e["num_warps"]) for e in upstream] == [
        ("32", "32", "8"), ("16", "16", "4"),
    ]  # fmt: skip
    text = (enginex / "attention/ops/triton_flash_attention.py").read_text()
    assert "# This one gives wrong results" in text
    assert text.count("triton.Config(\n") == 15


def test_less_shared_memory(muhmod, enginex):
    less = ("--set", "smem_per_block=32KiB")
    ran = muhmod("explain", "--rules", "bi100", *less, "prefill-tile", enginex)
    assert "BLOCK (line 27): 64 -> 16" in ran.out
    assert "33,024 B, over 32,768 B" in ran.out
    assert "warning" in ran.out
    assert "into 8, under the 16 that tl.dot needs" in " ".join(ran.out.split())
    before = tree_bytes(enginex)
    ran = muhmod(*APPLY, *less, "--set", "dtype=float32", enginex)
    assert ran.code == 5
    assert "no tile of at least 16 fits 32,768 B" in ran.err
    assert tree_bytes(enginex) == before


def test_a_checkout_root_and_a_site_packages_folder_work_as_trees(muhmod, enginex):
    (enginex.parent / "other_package").mkdir()
    ran = muhmod(*APPLY, "--diff", enginex.parent)
    assert ran.code == 1
    assert "diff --git a/vllm/_custom_ops.py b/vllm/_custom_ops.py" in ran.out


def test_several_trees_at_any_number_of_jobs(muhmod, enginex, tmp_path):
    other = shutil.copytree(enginex, tmp_path / "second" / "vllm")
    one = muhmod(*APPLY, "--check", "--output-format", "json", enginex, other)
    two = muhmod(*APPLY, "--check", "--output-format", "json", enginex, other, "-j", "2")
    assert one == two
    assert len(json.loads(one.out)) == 2
    sites = [muhmod("sites", "--output-format", "json", enginex, "-j", n) for n in (1, 2, 7)]
    assert sites[0] == sites[1] == sites[2]


def _row(ran, site):
    return next(row for row in json.loads(ran.out)["sites"] if row["site"] == site)


def _pack_with(tmp_path, old, new):
    from muhmod import rulebook

    text = rulebook.builtin("")["bi100"].read_text()
    assert old in text
    path = tmp_path / "own.toml"
    path.write_text(text.replace(old, new))
    return path
