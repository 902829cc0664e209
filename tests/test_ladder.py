"""A generated ladder in the source: what it decides, what it leaves, who would not take it."""

from __future__ import annotations

import ast
import subprocess

import pytest

from .conftest import FIXTURES, tree_bytes
from .test_fixtures import _pack

SLOTS = {"BLOCK_SIZE_M": "moe_block_m", "BLOCK_SIZE_N": "moe_block_n", "BLOCK_SIZE_K": "moe_block_k",
         "GROUP_SIZE_M": "moe_group_m", "num_warps": "moe_warps", "num_stages": "moe_stages"}  # fmt: skip
FORMS = ["ladder", "ladder-of-rows", "ladder-behind-arms", "ladder-of-names"]
SHAPES = [(M, E, N, K, topk) for M in (1, 4, 33, 64, 500, 4096, 40000)
          for E, N, K, topk in [(128, 768, 2048, 8), (8, 7168, 4096, 2), (1, 64, 64, 1)]]  # fmt: skip


def decide(path):
    """The function `get_default_config` of a fixture, wherever it stands."""
    (node,) = (
        n
        for n in ast.walk(ast.parse(path.read_text()))
        if isinstance(n, ast.FunctionDef) and n.name == "get_default_config"
    )
    node.args.args = [argument for argument in node.args.args if argument.arg != "self"]

    class Envs:
        SAME_IN_ANY_BATCH = False

    class Platform:
        is_rocm = staticmethod(lambda: False)

    scope = {"envs": Envs, "current_platform": Platform}
    exec(compile(ast.Module([node], []), str(path), "exec"), scope)
    return scope["get_default_config"]


def arguments(function, dtype, marlin):
    """What is given behind topk: by name where the function has that name."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    given = {"dtype": dtype, "is_marlin": marlin, "block_shape": [128, 128]}
    return {name: value for name, value in given.items() if name in names}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("dtype", "marlin"), [("fp8_w8a8", False), ("int8_w8a16", False), ("float32", False), (None, True)]
)
def test_what_the_ladder_is_not_for_keeps_its_values(form, dtype, marlin):
    before, after = (decide(FIXTURES / "moe-config" / form / f"{name}.py") for name in ("before", "after"))
    if marlin and "is_marlin" not in arguments(before, dtype, marlin):
        return
    for shape in SHAPES:
        given = arguments(before, dtype, marlin)
        assert after(*shape, **given) == before(*shape, **given)


@pytest.mark.parametrize("form", FORMS)
def test_the_ladder_decides_by_the_rows_of_an_expert(form):
    after = decide(FIXTURES / "moe-config" / form / "after.py")
    blocks = []
    for tokens in (1, 64, 256, 512, 1024, 8192):
        config = after(tokens, 128, 768, 2048, 8, **arguments(after, None, False))
        blocks.append(config["BLOCK_SIZE_M"])
    assert blocks == sorted(blocks) and {*blocks} == {16, 32, 64, 128}
    # Few experts have more rows each.
    assert after(256, 8, 768, 2048, 2, **arguments(after, None, False))["BLOCK_SIZE_M"] == 128
    if form != "ladder-of-rows":
        assert {"num_warps", "num_stages"} <= config.keys()
    if form == "ladder-of-names":
        assert config["SPLIT_K"] == 1


@pytest.mark.parametrize("form", FORMS)
def test_no_tokens_are_no_error(form):
    after = decide(FIXTURES / "moe-config" / form / "after.py")
    assert after(0, 8, 64, 64, 2, **arguments(after, None, False))["BLOCK_SIZE_M"] == 16


@pytest.fixture
def ladder(package, tmp_path):
    """A tree with the fixture in it, and its pack."""
    form = FIXTURES / "moe-config" / "ladder"
    return package(module=(form / "before.py").read_bytes()), _pack(form, tmp_path)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("command", [("git", "apply"), ("patch", "-p1", "--binary")])
def test_the_diff_is_taken(muhmod, ladder, command, ends):
    tree, pack = ladder
    path = tree / "module.py"
    path.write_bytes(path.read_bytes().replace(b"\n", ends.encode()))
    diff = muhmod("apply", "--rules", pack, "--diff", tree)
    assert diff.code == 1
    subprocess.run(command, input=diff.raw, cwd=tree.parent, check=True, capture_output=True)
    taken = tree_bytes(tree)
    ran = muhmod("apply", "--rules", pack, tree)
    assert (ran.code, tree_bytes(tree)) == (0, taken)
    assert "already" in ran.out
    assert (b"\r\n" in path.read_bytes()) is (ends == "\r\n")
    assert (
        path.read_bytes().replace(b"\r\n", b"\n").decode()
        == (FIXTURES / "moe-config" / "ladder" / "after.py").read_text()
    )


def test_a_new_reader_is_seen_by_check(muhmod, ladder):
    """Also in a file that holds neither the function's name nor a key's."""
    tree, pack = ladder
    assert muhmod("apply", "--rules", pack, tree).code == 0
    assert muhmod("check", "--rules", pack, tree).code == 0
    (tree / "late.py").write_text("def f():\n    pass\n")
    assert muhmod("relock", "--rules", pack, tree).code == 0
    assert muhmod("check", "--rules", pack, tree).code == 0
    (tree / "late.py").write_text(
        "from .module import optimal\n\ndef f(a):\n    a.config = optimal(a, a, 1, None, 1)\n"
    )
    ran = muhmod("check", "--rules", pack, tree)
    assert ran.code == 3 and "late.py:4: it is kept in `a.config`" in " ".join(ran.out.split())


def test_what_was_written_is_no_drift_and_an_edit_of_it_is(muhmod, ladder):
    tree, pack = ladder
    path = tree / "module.py"
    assert muhmod("apply", "--rules", pack, tree).code == 0
    assert muhmod("check", "--rules", pack, tree).code == 0
    written = path.read_bytes()

    path.write_bytes(b"# one line more\n" + written)
    moved = muhmod("check", "--rules", pack, tree)
    assert moved.code == 0 and "otherwise unchanged" in moved.out

    path.write_bytes(written.replace(b"(128, 256, 64, 8, 4)", b"(128, 128, 64, 8, 4)"))
    edited = muhmod("check", "--rules", pack, tree)
    assert edited.code == 3 and "somebody edited" in edited.out
    assert "tile = (128, 128, 64, 8, 4)" in edited.out and "(128, 256, 64, 8, 4)" in edited.out

    path.write_bytes(written.replace(b"'BLOCK_SIZE_N': 32", b"'BLOCK_SIZE_N': 16"))
    upstream = muhmod("check", "--rules", pack, tree)
    assert upstream.code == 3 and "upstream moved" in upstream.out

    path.write_bytes(written)
    assert muhmod("revert", tree).code == 0
    assert path.read_bytes() == (FIXTURES / "moe-config" / "ladder" / "before.py").read_bytes()


def test_another_card_replaces_the_ladder_and_revert_knows_the_way_back(muhmod, ladder):
    tree, pack = ladder
    assert muhmod("apply", "--rules", pack, tree).code == 0
    first = (tree / "module.py").read_bytes()
    ran = muhmod("apply", "--rules", pack, "--hardware", "rtx3090", tree)
    assert ran.code == 0, ran.err
    assert (tree / "module.py").read_bytes() != first
    assert muhmod("revert", tree).code == 0
    assert (tree / "module.py").read_bytes() == (
        FIXTURES / "moe-config" / "ladder" / "before.py"
    ).read_bytes()


def test_a_rule_for_leaves_does_not_write_under_a_ladder(muhmod, ladder):
    tree, pack = ladder
    assert muhmod("apply", "--rules", pack, tree).code == 0
    before = tree_bytes(tree)
    ran = muhmod("apply", "--rules", "t4", "--select", "moe-config", tree, "--lock", tree.parent / "other")
    assert ran.code == 3
    assert "a generated ladder in line 32 decides" in " ".join(ran.out.split())
    assert tree_bytes(tree) == before


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [("    return config\n\n\ndef o", "    return dict(config)\n\n\ndef o", "return of its dict by name"),
     ("topk, dtype, is_marlin):\n", "topk, quant, is_marlin):\n", "not told dtype"),
     ("if M <= E or", "if SWITCH or M <= E or", "line 25 tests SWITCH"),
     ("config = ", "tile = ", "none")],
)  # fmt: skip
def test_no_room_is_told(muhmod, ladder, old, new, says):
    tree, pack = ladder
    path = tree / "module.py"
    text = path.read_text()
    assert old in text
    if says == "none":
        text = text.replace("return config\n\n\ndef optimal", "return tile\n\n\ndef optimal").replace(
            old, new, 3
        )
        says = "the dict is called tile"
    path.write_text(text.replace(old, new))
    before = tree_bytes(tree)
    ran = muhmod("apply", "--rules", pack, tree)
    assert ran.code == 3 and tree_bytes(tree) == before
    assert says in " ".join(ran.err.split())


@pytest.mark.parametrize(
    ("slots", "says"),
    [('slots.num_warps = { derive = "moe_warps" }', "alone, or all"),
     ('slots.BLOCK = { derive = "moe_block_m" }', "alone, or all"),
     ('slots.BLOCK_SIZE_M = { value = 64, reason = "so" }', "takes no literal")],
)  # fmt: skip
def test_a_rule_that_cannot_be_a_ladder_is_refused(muhmod, package, tmp_path, slots, says):
    pack = tmp_path / "mine.toml"
    pack.write_text('schema = "muhmod/rules/1"\nhardware = "h200"\nmodel = "qwen3-30b-a3b"\n'
                    f'[sites.moe-config]\nscope = "f"\nemit = "ladder"\n{slots}\n')  # fmt: skip
    ran = muhmod("apply", "--rules", pack, package(module="x = 1\n"))
    assert ran.code == 2 and says in ran.err


def test_a_ladder_is_robust_where_every_claim_gives_the_same(muhmod, ladder):
    tree, pack = ladder
    ran = muhmod("apply", "--rules", pack, "--robust", tree)
    assert ran.code == 0, ran.err
    assert (
        "the same ladder under all" in muhmod("explain", "moe-config", "--rules", pack, "--robust", tree).out
    )
    assert (tree / "module.py").read_text() == (FIXTURES / "moe-config" / "ladder" / "after.py").read_text()


def test_derive_prints_the_ladder(muhmod):
    ran = muhmod("derive", "--rules", "h200", "--select", "moe-config")
    assert ran.code == 0, ran.err
    assert "tile = (128, 256, 64, 8, 4)" in ran.out


def test_the_stand_in_of_enginex_says_where_it_stops(muhmod, enginex, tmp_path):
    pack = tmp_path / "mine.toml"
    slots = "".join(f'slots.{key} = {{ derive = "{name}" }}\n' for key, name in SLOTS.items())
    pack.write_text('schema = "muhmod/rules/1"\nextends = "h200"\n[sites.moe-config]\n'
                    f'scope = "get_default_config"\nemit = "ladder"\n{slots}')  # fmt: skip
    ran = muhmod("apply", "--rules", pack, "--select", "moe-config", enginex)
    assert ran.code == 3
    assert "num_stages arrives nowhere" in ran.err and "_custom_ops.py:" in ran.err


def test_where_no_ladder_can_stand_literals_are_set(muhmod, enginex):
    """`emit = "ladder-or-leaves"`, with the reason; twice is once, `check` agrees, and `revert` undoes it."""
    before = tree_bytes(enginex)
    command = ("--rules", "h200", "--select", "moe-config", enginex)
    ran = muhmod("apply", *command)
    assert ran.code == 0, ran.err
    assert "values in place instead" in muhmod("explain", "moe-config", "--rules", "h200", enginex).out
    after = tree_bytes(enginex)
    assert after != before and b"tile = (" not in b"".join(after.values())
    assert muhmod("apply", *command).code == 0
    assert muhmod("check", "--rules", "h200", enginex).code in (0, 1)
    assert tree_bytes(enginex) == after
    assert muhmod("revert", enginex).code == 0
    assert tree_bytes(enginex) == before


def test_sites_shows_a_ladder_in_a_line(muhmod, ladder):
    tree, pack = ladder
    assert muhmod("apply", "--rules", pack, tree).code == 0
    ran = muhmod("sites", tree)
    assert "lines)" in ran.out and "tile = (" not in ran.out
    assert "tile = (" in muhmod("sites", "--output-format", "json", tree).out
