"""Sites are found by structure: moves, renames, layout and decoys do not matter; twins and losses do."""

from __future__ import annotations

import json
import re

import black
import pytest

from .conftest import tree_bytes

APPLY = ("apply", "--rules", "bi100")
SITES = ("partition-size", "v1-override", "prefill-tile", "moe-config", "shared-memory", "autotune-configs")
FILES = {
    "partition-size": "attention/ops/paged_attn.py",
    "v1-override": "attention/ops/paged_attn.py",
    "prefill-tile": "attention/ops/prefix_prefill.py",
    "moe-config": "model_executor/layers/fused_moe/fused_moe.py",
    "shared-memory": "_custom_ops.py",
    "autotune-configs": "attention/ops/triton_flash_attention.py",
}
SCOPES = {
    "v1-override": "forward_decode",
    "prefill-tile": "context_attention_fwd",
    "moe-config": "get_default_config",
    "shared-memory": "get_max_shared_memory_per_block_device_attribute",
    "autotune-configs": "attn_fwd",
}


def report(muhmod, tree, *more):
    ran = muhmod(*APPLY, "--check", "--output-format", "json", *more, tree)
    return ran.code, {row["site"]: row for row in json.loads(ran.out)["sites"]}


def changes(row):
    return [tuple(slot[key].replace(" ", "") for key in ("name", "old", "new")) for slot in row["slots"]]


@pytest.fixture
def expected(muhmod, enginex):
    return {site: (row["state"], changes(row)) for site, row in report(muhmod, enginex)[1].items()}


def same(muhmod, tree, expected, *, but=()):
    code, rows = report(muhmod, tree)
    assert code == 1
    for site in SITES:
        if site not in but:
            assert (rows[site]["state"], changes(rows[site])) == expected[site], site


@pytest.mark.parametrize("site", SITES)
def test_renamed_file(muhmod, enginex, expected, site):
    """The other files' imports follow, as they would upstream."""
    old = enginex / FILES[site]
    old.rename(old.with_name("somewhere_else.py"))
    for path in enginex.rglob("*.py"):
        path.write_text(re.sub(rf"\b{old.stem}\b", "somewhere_else", path.read_text()))
    same(muhmod, enginex, expected)


@pytest.mark.parametrize("site", SITES)
def test_moved_to_another_folder(muhmod, enginex, expected, site):
    old = enginex / FILES[site]
    (enginex / "v9").mkdir()
    old.rename(enginex / "v9" / old.name)
    dotted = "vllm." + FILES[site][:-3].replace("/", ".")
    parent, _, stem = dotted.rpartition(".")
    for path in enginex.rglob("*.py"):
        text = path.read_text().replace(dotted, f"vllm.v9.{stem}")
        path.write_text(text.replace(f"from {parent} import {stem}", f"from vllm.v9 import {stem}"))
    same(muhmod, enginex, expected)


@pytest.mark.parametrize("site", sorted(SCOPES.keys() - {"v1-override"}))
def test_function_moved_to_another_file(muhmod, enginex, expected, site):
    """All of the file's top-level code goes to the end of a file with other things in it."""
    source = enginex / FILES[site]
    target = enginex / "model_executor" / "mixed.py"
    target.write_text("import os\n\nBEFORE = os.sep\n\n\n" + source.read_text() + "\n\nAFTER = 1\n")
    source.write_text("# moved\n")
    if site == "shared-memory":
        for path in enginex.rglob("*.py"):
            path.write_text(
                path.read_text().replace(
                    "from vllm import _custom_ops as ops", "from vllm.model_executor import mixed as ops"
                )
            )
    same(muhmod, enginex, expected)


@pytest.mark.parametrize("length", [40, 79, 120])
def test_reformatted(muhmod, enginex, expected, length):
    mode = black.Mode(line_length=length)
    for path in enginex.rglob("*.py"):
        path.write_text(black.format_str(path.read_text(), mode=mode))
    same(muhmod, enginex, expected)


def test_renamed_unrelated_names(muhmod, enginex, expected):
    names = ["numel", "config", "num_seqs", "scratch", "grid", "Lk", "out", "max_num_partitions", "tables",
             "slopes", "max_seq_len"]  # fmt: skip
    for path in enginex.rglob("*.py"):
        text = path.read_text()
        for name in names:
            text = re.sub(rf"(?<![\w.'\"=]){name}\b(?!=)", f"renamed_{name}", text)
        path.write_text(text)
    code, rows = report(muhmod, enginex)
    assert code == 1
    for site in SITES:
        assert rows[site]["state"] == expected[site][0]
        new = [n for _, o, n in changes(rows[site]) if o != n]
        assert new == [n for _, o, n in expected[site][1] if o != n]


def test_code_around(muhmod, enginex, expected):
    for path in enginex.rglob("*.py"):
        filler = "".join(f"def filler_{n}(a, b={n}):\n    return a + b\n\n\n" for n in range(20))
        path.write_text(f"{filler}{path.read_text()}\n\n{filler}")
    same(muhmod, enginex, expected)


def test_wrapped_in_if_and_try(muhmod, enginex, expected):
    path = enginex / FILES["moe-config"]
    body = "".join(f"        {line}\n" if line else "\n" for line in path.read_text().split("\n"))
    path.write_text(f"if True:\n    try:\n{body}\n    except ImportError:\n        raise\n")
    same(muhmod, enginex, expected)


def test_decoys_in_comments_strings_and_the_engine_switch(muhmod, enginex, expected):
    for site, file in FILES.items():
        path = enginex / file
        text = path.read_text()
        decoy = "".join(f"# {line}\n" for line in text.splitlines())
        path.write_text(f"{decoy}DECOY_{site.replace('-', '_')} = {text!r}\n{text}")
    same(muhmod, enginex, expected)
    switch = (enginex / "engine" / "arg_utils.py").read_bytes()
    muhmod(*APPLY, enginex)
    assert (enginex / "engine" / "arg_utils.py").read_bytes() == switch


@pytest.mark.parametrize("site", sorted(SCOPES))
def test_renamed_function_is_lost_and_its_new_name_is_offered(muhmod, enginex, site):
    before = tree_bytes(enginex)
    path = enginex / FILES[site]
    path.write_text(re.sub(rf"\bdef {SCOPES[site]}\b", f"def {SCOPES[site]}_new", path.read_text()))
    renamed = tree_bytes(enginex)
    code, rows = report(muhmod, enginex)
    assert code == 3
    assert rows[site]["state"] == "lost"
    assert f"{SCOPES[site]}_new" in rows[site]["candidates"][0]
    assert rows[site]["file"] == ""
    assert muhmod(*APPLY, enginex).code == 3
    assert tree_bytes(enginex) == renamed != before


@pytest.mark.parametrize("site", sorted(SCOPES.keys() - {"v1-override"}))
def test_the_same_function_twice_is_ambiguous(muhmod, enginex, site):
    copy = enginex / "model_executor" / "copied.py"
    copy.write_text((enginex / FILES[site]).read_text())
    before = tree_bytes(enginex)
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 3
    assert f"{site}: ambiguous: found 2 times, expected 1" in ran.err
    assert tree_bytes(enginex) == before


@pytest.mark.parametrize("site", sorted(SCOPES.keys() - {"v1-override"}))
@pytest.mark.parametrize("above", [True, False])
def test_a_twin_of_another_name_is_left_alone(muhmod, enginex, expected, site, above):
    path = enginex / FILES[site]
    text = path.read_text()
    twin = re.sub(rf"\b{SCOPES[site]}\b", f"{SCOPES[site]}_twin", text)
    if site == "prefill-tile":
        twin = twin.replace("_fwd_kernel", "_other_kernel")
    path.write_text(f"{twin}\n\n{text}" if above else f"{text}\n\n{twin}")
    same(muhmod, enginex, expected)
    assert muhmod(*APPLY, enginex).code == 0
    after = path.read_text()
    assert after.startswith(twin) if above else after.endswith(twin)


def test_a_removed_function_is_lost(muhmod, enginex):
    (enginex / FILES["autotune-configs"]).write_text("")
    code, rows = report(muhmod, enginex)
    assert code == 3
    assert rows["autotune-configs"]["state"] == "lost"
    assert "nothing like it is in the tree" in rows["autotune-configs"]["reason"]


def test_a_slot_under_another_name_is_the_same_slot(muhmod, enginex, expected):
    """The role is what it launches."""
    path = enginex / FILES["prefill-tile"]
    path.write_text(path.read_text().replace("NUM_WARPS", "warps_here"))
    same(muhmod, enginex, expected)


def test_a_slot_that_is_gone_is_drift(muhmod, enginex):
    path = enginex / FILES["prefill-tile"]
    path.write_text(re.sub(r"num_warps=NUM_WARPS,|NUM_WARPS = 8\n", "", path.read_text()))
    code, rows = report(muhmod, enginex)
    assert code == 3
    assert rows["prefill-tile"]["state"] == "drifted"
    assert "NUM_WARPS" in rows["prefill-tile"]["reason"]


@pytest.mark.parametrize("value", ["pick()", "[c for c in range(3)]", "OTHER[0]", "get(8) * 2"])
def test_a_form_that_cannot_be_edited_is_unrewritable(muhmod, enginex, value):
    path = enginex / FILES["prefill-tile"]
    path.write_text(path.read_text().replace("NUM_WARPS = 8", f"NUM_WARPS = {value}"))
    code, rows = report(muhmod, enginex)
    assert code == 3
    assert rows["prefill-tile"]["state"] == "unrewritable"
    assert "no literal" in rows["prefill-tile"]["reason"]


@pytest.mark.parametrize("values", ["[c() for c in (A, B)]", "make_configs()", "CONFIGS_FROM_ELSEWHERE"])
def test_a_list_that_is_no_list_of_literals_is_unrewritable(muhmod, enginex, values):
    path = enginex / FILES["autotune-configs"]
    text = path.read_text()
    start, end = text.index("configs=[") + 8, text.index("    key=")
    path.write_text(f"{text[:start]}{values},\n{text[end:]}")
    code, rows = report(muhmod, enginex)
    assert (code, rows["autotune-configs"]["state"]) == (3, "unrewritable")


def test_a_conditional_override_is_no_override(muhmod, enginex):
    path = enginex / FILES["v1-override"]
    path.write_text(
        path.read_text().replace(
            "        use_v1 = True\n", "        if torch.version.hip:\n            use_v1 = True\n"
        )
    )
    _, rows = report(muhmod, enginex)
    assert rows["v1-override"]["state"] == "satisfied-upstream"


def test_another_literal_between_is_the_override(muhmod, enginex):
    """Only what arrives at the test counts."""
    path = enginex / FILES["v1-override"]
    path.write_text(
        path.read_text().replace("        use_v1 = True\n", "        use_v1 = False\n        use_v1 = True\n")
    )
    _, rows = report(muhmod, enginex)
    assert rows["v1-override"]["state"] == "held"


@pytest.mark.parametrize(
    ("body", "implemented"),
    [
        ("raise NotImplementedError", False), ("pass", False), ("...", False), ('"""Later."""', False),
        ("return None", False), ("return NotImplemented", False), ("assert False", False),
        ("message = 'no'\n    raise RuntimeError(message)", False),
        ("logger.info('no')\n    raise NotImplementedError()", False),
        ("return paged_attention_missing(out)", False), ("return get_device_attribute(1, 2)", False),
        ("import not_there\n    not_there.run(out)", False),
        ("ixf_F.v2(out)", True), ("out += query", True),
        ("if out is None:\n        raise ValueError\n    ixf_F.v2(out)", True),
        ("import math\n    out += math.pi", True), ("import torch\n    torch.add(out, query)", True),
    ],
)  # fmt: skip
def test_what_counts_as_implemented(muhmod, enginex, body, implemented):
    path = enginex / "_custom_ops.py"
    start = "                       longest):\n    "
    text = path.read_text()
    assert f"{start}raise NotImplementedError()" in text
    path.write_text(text.replace(f"{start}raise NotImplementedError()", start + body))
    _, rows = report(muhmod, enginex)
    state = rows["v1-override"]["state"]
    if body == "return paged_attention_missing(out)":
        implemented = True  # a name from elsewhere in the module: not shown to be a stub
    assert state == ("pending" if implemented else "held"), rows["v1-override"]


def test_the_package_folder_may_be_called_otherwise(muhmod, enginex, expected):
    other = enginex.rename(enginex.with_name("vllm_bi100"))
    same(muhmod, other, expected)


def test_suppression_needs_a_reason(muhmod, enginex):
    path = enginex / FILES["shared-memory"]
    text, comment = path.read_text(), "return 32 * 1024  # muhmod: skip[shared-memory]"
    path.write_text(text.replace("return 32 * 1024", f"{comment} vendor asks"))
    _, rows = report(muhmod, enginex)
    assert rows["shared-memory"]["state"] == "skipped"
    assert "vendor asks" in rows["shared-memory"]["reason"]
    path.write_text(text.replace("return 32 * 1024", comment))
    _, rows = report(muhmod, enginex)
    assert rows["shared-memory"]["state"] == "pending"
