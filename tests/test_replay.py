"""`muhmod replay`: what became of each site over several trees."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from . import trees
from .conftest import FIXTURES, ROOT

REPLAY = ("replay", "--rules", "bi100")
PAGED = "attention/ops/paged_attn.py"
PREFILL = "attention/ops/prefix_prefill.py"
FLASH = "attention/ops/triton_flash_attention.py"
OPS = "_custom_ops.py"
MEMORY = "get_max_shared_memory_per_block_device_attribute"


class Grove:
    """Trees that each differ from the stand-in tree by some edits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trees: list[Path] = []

    def tree(self, *edits: tuple[str, str, str], gone: str = "", move: tuple[str, str] = ("", "")) -> Path:
        """One more tree: (file, old, new) edits, a file that is gone, a file that is elsewhere."""
        home = self.folder / f"t{len(self.trees)}"
        tree = Path(shutil.copytree(FIXTURES / "enginex" / "vllm", home / "vllm"))
        for file, old, new in edits:
            text = (tree / file).read_text()
            assert old in text
            (tree / file).write_text(text.replace(old, new))
        if gone:
            (tree / gone).unlink()
        if move[0]:
            (tree / move[0]).rename(tree / move[1])
        self.trees.append(tree)
        return tree


@pytest.fixture
def grove(tmp_path):
    return Grove(tmp_path / "grove")


@pytest.fixture
def cells(muhmod, grove):
    """The cells of one site over all trees of the grove."""

    def read(site: str, *more: object) -> list[dict]:
        ran = muhmod(*REPLAY, "--output-format", "json", "--select", site, "-j", 1, *more, *grove.trees)
        assert ran.code == 0, ran.err
        (row,) = json.loads(ran.out)["sites"]
        return row["cells"]

    return read


def kinds(found):
    return [cell["kinds"] for cell in found]


# Each kind ------------------------------------------------------------------------------------


def test_layout_comments_and_lines_are_no_change(grove, cells):
    grove.tree()
    spread = (PREFILL, "NUM_WARPS = 8\n", "NUM_WARPS = ( 8 )  # warps\n")
    grove.tree(spread, (PREFILL, "import torch", "\n\nimport torch"))
    first, second = cells("prefill-tile")
    assert (first["kinds"], second["kinds"]) == (["found"], ["found"])
    assert second["line"] == first["line"] + 2
    assert "first_difference" not in second


def test_another_file_is_moved(grove, cells):
    grove.tree()
    grove.tree(move=(PAGED, "attention/decode.py"))
    assert kinds(cells("partition-size")) == [["found"], ["moved"]]
    assert cells("v1-override")[1]["file"] == "attention/decode.py"


def test_a_changed_literal(grove, cells):
    grove.tree()
    grove.tree((OPS, "32 * 1024", "49152"))
    was, now = cells("shared-memory")
    assert (was["state"], now["state"]) == ("pending", "already")
    assert now["kinds"] == ["value"]
    assert now["first_difference"] == {
        "kind": "literal", "text": "return: 32 * 1024 became 49152", "file": OPS, "line": now["line"] + 1,
    }  # fmt: skip


def test_a_changed_guard(grove, cells):
    grove.tree()
    grove.tree((PREFILL, 'if triton.__version__ >= "2.1.0"', 'if triton.__version__ >= "3.0.0"'))
    now = cells("prefill-tile")[1]
    assert now["kinds"] == ["guard"]
    assert "'2.1.0'` became `if triton.__version__ >= '3.0.0'`" in now["first_difference"]["text"]


def test_another_form(grove, cells):
    grove.tree()
    grove.tree((PREFILL, "BLOCK = 128 if current_platform.has_device_capability(80) else 64", "BLOCK = 64"))
    now = cells("prefill-tile")[1]
    assert "shape" in now["kinds"] and "value" not in now["kinds"]
    assert "BLOCK 128" in now["first_difference"]["text"]


def test_the_same_literal_in_another_form(grove, cells):
    grove.tree()
    grove.tree((PAGED, "\n_PARTITION_SIZE = 512", "\nprint(_PARTITION_SIZE := 512)"))
    now = cells("partition-size")[1]
    assert now["kinds"] == ["shape", "body"]


def test_a_list_that_a_name_replaced_is_another_form(grove, cells):
    grove.tree()
    text = (FIXTURES / "enginex" / "vllm" / FLASH).read_text()
    display = text[text.index("configs=[") + 8 : text.index('    key=["IS_CAUSAL"')].rstrip().rstrip(",")
    grove.tree((FLASH, display, "tuned()"))
    now = cells("autotune-configs")[1]
    assert "shape" in now["kinds"] and "value" not in now["kinds"]
    assert "pinned" not in now["first_difference"]["text"]


def test_a_changed_body(grove, cells):
    grove.tree()
    grove.tree((PAGED, "out = torch.empty_like(query)", "out = torch.zeros_like(query)"))
    assert kinds(cells("v1-override")) == [["found"], ["body"]]
    assert cells("v1-override")[1]["first_difference"]["text"].startswith("the assignment of out changed")
    assert kinds(cells("partition-size")) == [["found"], ["found"]]


def test_a_renamed_function_keeps_its_new_name_in_view(grove, cells):
    rename = (OPS, f"def {MEMORY}", "def get_max_shared_memory_of")
    grove.tree()
    grove.tree(rename)
    grove.tree(rename, (OPS, "32 * 1024", "49152"))
    grove.tree((OPS, "32 * 1024", "49152"))
    found = cells("shared-memory")
    assert kinds(found) == [["found"], ["renamed"], ["renamed", "value"], ["back"]]
    assert [cell["state"] for cell in found] == ["pending", "lost", "lost", "already"]
    assert found[1]["first_difference"]["text"] == f"{MEMORY} is now get_max_shared_memory_of"
    assert (found[1]["file"], found[1]["scope"]) == (OPS, "get_max_shared_memory_of")


def test_a_look_alike_that_stood_beside_it_is_no_rename(grove, cells):
    twin = "\n\ndef get_max_shared_memory_of_a_card(device):\n    return 32 * 1024\n"
    with_twin = (OPS, "    return 32 * 1024\n", f"    return 32 * 1024\n{twin}")
    grove.tree(with_twin)
    lost = grove.tree(with_twin)
    text = (lost / OPS).read_text()
    (lost / OPS).write_text(text.replace(f"def {MEMORY}(device):\n    return 32 * 1024\n", ""))
    now = cells("shared-memory")[1]
    assert (now["kinds"], now["state"]) == (["gone"], "lost")
    # The same where the tree before is not the one that it is held against.
    grove.trees.insert(1, grove.tree(with_twin))
    del grove.trees[-1]
    assert kinds(cells("shared-memory", "--against", "first")) == [["found"], ["found"], ["gone"]]
    # It is shown for what it is: like the one that went.
    text = f"no shared-memory in {MEMORY} any more; it was in {OPS}; most like it: {OPS}:"
    assert now["first_difference"]["text"].startswith(text)


def test_gone_and_back(grove, cells):
    grove.tree()
    grove.tree(gone=OPS)
    grove.tree(gone=OPS)
    grove.tree((OPS, "32 * 1024", "49152"))
    found = cells("shared-memory")
    assert kinds(found) == [["found"], ["gone"], ["gone"], ["back", "value"]]
    assert [cell.get("against") for cell in found] == [None, "t0", "t0", "t0"]


def test_new_where_no_tree_before_had_it(grove, cells):
    grove.tree(gone=OPS)
    grove.tree()
    grove.tree()
    assert kinds(cells("shared-memory")) == [["gone"], ["new"], ["found"]]


def test_a_twin_is_ambiguous_and_the_like_one_is_named(grove, cells):
    grove.tree()
    tree = grove.tree()
    (tree / "attention" / "ops" / "a_twin.py").write_text(
        "def context_attention_fwd(q):\n    BLOCK = 16\n    NUM_WARPS = 2\n"
        "    kernel[1](q, BLOCK_M=BLOCK, num_warps=NUM_WARPS)\n"
    )
    grove.tree()
    found = cells("prefill-tile")
    assert kinds(found) == [["found"], ["ambiguous"], ["found"]]
    text = found[1]["first_difference"]["text"]
    assert text.startswith("found 2 times, expected 1: attention/ops/a_twin.py:2, ")
    assert f"; most like it: {PREFILL}:" in text


def test_against_the_first(grove, cells):
    grove.tree()
    grove.tree((OPS, "32 * 1024", "49152"))
    grove.tree((OPS, "32 * 1024", "49152"))
    grove.tree()
    assert kinds(cells("shared-memory")) == [["found"], ["value"], ["found"], ["value"]]
    assert kinds(cells("shared-memory", "--against", "first")) == [
        ["found"], ["value"], ["value"], ["found"],
    ]  # fmt: skip


# What is shown --------------------------------------------------------------------------------


@pytest.fixture
def four(grove):
    grove.tree()
    grove.tree((OPS, "32 * 1024", "49152"), (PAGED, "torch.empty_like(query)", "torch.zeros_like(query)"))
    grove.tree(move=(PAGED, "attention/decode.py"), gone=FLASH)
    grove.tree(gone=FLASH)
    return grove


def test_the_table(muhmod, four):
    ran = muhmod(*REPLAY, *four.trees)
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "                  t0  t1  t2   t3",
        "partition-size    A   A   Am   Am",
        "v1-override       H   Hb  Hmb  Hm",
        "prefill-tile      P   P   P    P",
        "moe-config        P   P   P    P",
        "shared-memory     P   Av  Pv   P",
        "autotune-configs  P   P   L    L",
        "",
        "A already  P pending  H held  L lost",
        "m moved to another file  v value changed  b body around it changed",
    ]


def test_verbose_says_each_change_once(muhmod, four):
    select = ("--select", "autotune-configs", "--select", "shared-memory")
    changes = muhmod(*REPLAY, "-v", *select, *four.trees).out.splitlines()[-4:]
    assert [line.partition(": ")[0] for line in changes] == [
        "", "t1 shared-memory", "t2 shared-memory", "t2 autotune-configs",
    ]  # fmt: skip
    assert changes[1] == "t1 shared-memory: value: _custom_ops.py:27: return: 32 * 1024 became 49152"
    assert changes[3].endswith(f": gone: no autotune-configs in attn_fwd any more; it was in {FLASH}")


def test_markdown(muhmod, four):
    ran = muhmod(*REPLAY, "--output-format", "markdown", *four.trees)
    assert ran.out.splitlines()[:4] == [
        "| | partition-size | v1-override | prefill-tile | moe-config | shared-memory | autotune-configs |",
        "|---|---|---|---|---|---|---|",
        "| t0 | already | held | pending | pending | pending | pending |",
        "| t1 | already | held: body | pending | pending | already: value | pending |",
    ]
    lost = "| t2 | already: moved | held: moved, body | pending | pending | pending: value | **lost** |"
    assert lost in ran.out


def test_a_wide_table_is_folded(muhmod, grove):
    for _ in range(25):
        grove.tree()
    ran = muhmod(*REPLAY, "--select", "shared-memory", *grove.trees)
    lines = ran.out.splitlines()
    assert all(len(line) <= 118 for line in lines)
    heads = [line.split() for line in lines if line.split()[:1] and line.split()[0].startswith("t")]
    assert len(heads) > 1
    assert [label for head in heads for label in head] == [f"t{number}" for number in range(25)]


def test_json_is_the_same_at_any_number_of_jobs(muhmod, four):
    one, two, all_ = (
        muhmod(*REPLAY, "--output-format", "json", *jobs, *four.trees).out
        for jobs in (("-j", 1), ("-j", 2), ())
    )
    assert one == two == all_
    data = json.loads(one)
    assert (data["schema"], data["command"], data["rules"], data["against"]) == (
        "muhmod/replay/1", "replay", "bi100", "previous",
    )  # fmt: skip
    assert data["trees"] == [{"tree": f"t{number}"} for number in range(4)]
    assert str(four.folder) not in one
    cell = data["sites"][4]["cells"][1]
    assert (cell["tree"], cell["against"], cell["file"], cell["scope"], cell["form"]) == (
        "t1", "t0", OPS, MEMORY, "literal",
    )  # fmt: skip


def test_nothing_is_written(muhmod, four):
    before = [path for path in sorted(four.folder.rglob("*")) if "__pycache__" not in path.parts]
    assert muhmod(*REPLAY, *four.trees).code == 0
    assert [path for path in sorted(four.folder.rglob("*")) if "__pycache__" not in path.parts] == before


def test_trees_with_versions_are_called_by_them(muhmod, grove):
    for version in ("0.6.3", "0.7.0"):
        (grove.tree() / "version.py").write_text(f'__version__ = "{version}"\n')
    assert muhmod(*REPLAY, *grove.trees).out.split()[:2] == ["0.6.3", "0.7.0"]
    (grove.tree() / "version.py").write_text('__version__ = "0.7.0"\n')
    assert muhmod(*REPLAY, *grove.trees).out.split()[:3] == ["t0", "t1", "t2"]


# Bad input ------------------------------------------------------------------------------------


def test_a_file_that_does_not_parse(muhmod, grove):
    grove.tree()
    grove.tree((OPS, "    return 32 * 1024\n", "    return 32 *\n"))
    grove.tree()
    ran = muhmod(*REPLAY, "--select", "shared-memory", *grove.trees)
    assert ran.code == 4
    assert "t1: shared-memory: _custom_ops.py does not parse" in ran.err
    assert ran.out.splitlines()[1].split() == ["shared-memory", "P", "?", "P"]
    data = json.loads(muhmod(*REPLAY, "--output-format", "json", *grove.trees).out)
    assert data["exit"]["code"] == 4
    assert len(data["exit"]["reasons"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((), "no TREE"), (("nowhere",), "no such path: nowhere"), (("--select", "x", "T"), "has no site 'x'"),
     (("T", "T"), "the same tree is given twice"), (("--against", "last", "T"), "'last' is not one of")],
)  # fmt: skip
def test_wrong_usage(muhmod, enginex, arguments, said):
    ran = muhmod(*REPLAY, *(enginex if word == "T" else word for word in arguments))
    assert ran.code == 2
    assert said in ran.err


# Real releases --------------------------------------------------------------------------------


def test_the_shipped_list_holds_27_releases():
    lines = (ROOT / "docs" / "releases.txt").read_text().splitlines()
    assert len([line for line in lines if line and not line.startswith("#")]) == 27


def test_vllm_from_0_5_2_to_0_12_0(muhmod):
    """What changed in each of these steps, as read in the sources."""
    steps = ("0.5.2", "0.5.5", "0.6.0", "0.6.3", "0.7.0", "0.12.0")
    ran = muhmod(*REPLAY, "--output-format", "json", *(trees.vllm(version) for version in steps))
    assert ran.code == 0
    data = json.loads(ran.out)
    assert [tree["tree"] for tree in data["trees"]] == [*steps]
    table = {row["rule"]: kinds(row["cells"]) for row in data["sites"]}
    # The constant, the heuristic and the autotuned kernel are gone in the end; scales came to the
    # heuristic's signature in 0.5.5; that they are tensors from 0.7.0 on is an annotation alone.
    found = ["found"]
    assert table["partition-size"] == [*[found] * 5, ["gone"]]
    assert table["v1-override"] == [found, ["body"], found, found, found, ["gone"]]
    assert table["shared-memory"] == [found] * 6
    assert table["autotune-configs"] == [*[found] * 5, ["gone"]]
    # `if M <= E` got a second half in 0.6.0; num_warps lost its condition in 0.5.5, the arms have another
    # test in 0.6.3, and the constants stand in the module in 0.7.0.
    assert table["moe-config"][:5] == [found, found, ["guard", "body"], found, found]
    prefill = table["prefill-tile"]
    assert prefill[1] == ["shape", "body"]
    assert prefill[2:4] == [found, ["guard", "body"]]
    assert prefill[4] == ["body"]
