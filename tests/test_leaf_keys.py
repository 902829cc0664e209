"""Launch options that are added to dicts which lack them: to all or none, and only where they are taken."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from . import trees
from .conftest import FIXTURES, tree_bytes
from .test_fixtures import _pack
from .test_reports import configurations, decision, on

SIX = {"BLOCK_SIZE_M": "moe_block_m", "BLOCK_SIZE_N": "moe_block_n", "BLOCK_SIZE_K": "moe_block_k",
       "GROUP_SIZE_M": "moe_group_m", "num_warps": "moe_warps", "num_stages": "moe_stages"}  # fmt: skip
OPTIONS = ("num_warps", "num_stages")
HEAD = """\
import triton


@triton.jit
def moe_kernel(x, BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M):
    pass


"""
TAIL = """

def run(x, M, E):
    config = get_default_config(M, E, 1, 1, 8)
    moe_kernel[(M, )](x, **config)
"""
WHOLE = "{'BLOCK_SIZE_M': 64, 'BLOCK_SIZE_N': 64, 'BLOCK_SIZE_K': 32}"
TILE = "'BLOCK_SIZE_M': 64, 'BLOCK_SIZE_N': 64, 'BLOCK_SIZE_K': 32"


@pytest.fixture
def pack(tmp_path):
    """Writes a pack with the six slots, launch options as given, and returns its path."""

    def make(extends="h200", absent="add", only=tuple(SIX), emit="leaves", **slots):
        lines = {name: f'{{ derive = "{SIX[name]}" }}' for name in only}
        lines |= {name: line.replace(" }", ', when_absent = "ok" }') for name, line in lines.items()
                  if name == "GROUP_SIZE_M"}  # fmt: skip
        lines |= {
            name: f'{{ derive = "{SIX[name]}", when_absent = "{absent}" }}'
            for name in OPTIONS
            if name in only
        }
        lines |= slots
        path = tmp_path / "mine.toml"
        path.write_text(
            f'schema = "muhmod/rules/1"\nextends = "{extends}"\n[sites.moe-config]\n'
            f'scope = "get_default_config"\nemit = "{emit}"\n'
            + "".join(f"slots.{name} = {value}\n" for name, value in lines.items())
        )
        return path

    return make


def decides(*lines, tail=TAIL):
    body = "\n".join(f"    {line}" for line in lines)
    return f"{HEAD}def get_default_config(M, E, N, K, topk):\n{body}\n{tail}"


def apply(muhmod, pack, tree, *more):
    return muhmod("apply", "--rules", pack, "--select", "moe-config", *more, tree)


def body(tree):
    text = (tree / "module.py").read_text()
    return text[text.index("def get_default_config") : text.index("\n\ndef run")]


# What is written --------------------------------------------------------------------------------

LITERAL = {"num_warps": '{ value = 8, reason = "ours", when_absent = "add" }',
           "num_stages": '{ value = 2, reason = "ours", when_absent = "add" }'}  # fmt: skip
LAYOUTS = {
    "one line": (f"{{{TILE}}}", f"{{{TILE}, 'num_warps': 8, 'num_stages': 2}}"),
    "a comma": (f"{{ {TILE}, }}", f"{{ {TILE}, 'num_warps': 8, 'num_stages': 2, }}"),
    "double": (WHOLE.replace("'", '"'), WHOLE.replace("'", '"')[:-1] + ', "num_warps": 8, "num_stages": 2}'),
    "odd colons": ("{'BLOCK_SIZE_M':64,'BLOCK_SIZE_N':64,'BLOCK_SIZE_K':32}",
                   "{'BLOCK_SIZE_M':64,'BLOCK_SIZE_N':64,'BLOCK_SIZE_K':32,'num_warps':8,'num_stages':2}"),
    "lines": ("{\n\t'BLOCK_SIZE_M': 64,\n\t'BLOCK_SIZE_N': 64,\n\t'BLOCK_SIZE_K': 32\n}",
              "{\n\t'BLOCK_SIZE_M': 64,\n\t'BLOCK_SIZE_N': 64,\n\t'BLOCK_SIZE_K': 32,"
              "\n\t'num_warps': 8,\n\t'num_stages': 2\n}"),
    "comments": ("{  # a\n  'BLOCK_SIZE_M': 64,  # b\n\n  'BLOCK_SIZE_N': 64,\n  # c\n"
                 "  'BLOCK_SIZE_K': 32  # d\n  # e\n}  # fmt: skip",
                 "{  # a\n  'BLOCK_SIZE_M': 64,  # b\n\n  'BLOCK_SIZE_N': 64,\n  # c\n"
                 "  'BLOCK_SIZE_K': 32,  # d\n  # e\n  'num_warps': 8,\n  'num_stages': 2\n}  # fmt: skip"),
    "a call": ("dict(BLOCK_SIZE_M=64,\n     BLOCK_SIZE_N=64, BLOCK_SIZE_K=32,  # why\n     )",
               "dict(BLOCK_SIZE_M=64,\n     BLOCK_SIZE_N=64, BLOCK_SIZE_K=32,  # why\n"
               "     num_warps=8,\n     num_stages=2,\n     )"),
    "brackets": (f"(({WHOLE}))", f"(({WHOLE[:-1]}, 'num_warps': 8, 'num_stages': 2}}))"),
    "one is there": (f"{{'num_stages': 3, {TILE}}}", f"{{'num_stages': 2, {TILE}, 'num_warps': 8}}"),
}  # fmt: skip


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_written_as_the_dict_is(muhmod, package, pack, layout, ends):
    before, after = LAYOUTS[layout]
    text = decides(f"return {before}").replace("\n", ends)
    tree = package(module=text.encode())
    rules = pack(only=(), **LITERAL)
    assert apply(muhmod, rules, tree).code == 0
    assert (tree / "module.py").read_bytes() == text.replace(before.replace("\n", ends),
                                                             after.replace("\n", ends)).encode()  # fmt: skip
    assert "already" in apply(muhmod, rules, tree).out
    assert "\nalready            moe-config" in muhmod("check", "--rules", rules, tree).out
    assert muhmod("revert", tree).code == 0
    assert (tree / "module.py").read_bytes() == text.encode()


@pytest.mark.parametrize("command", [("git", "apply"), ("patch", "-p1", "--binary")])
def test_the_diff_is_taken(muhmod, package, tmp_path, command):
    form = FIXTURES / "moe-config" / "keys-in-lines"
    tree = package(module=(form / "before.py").read_bytes())
    diff = apply(muhmod, _pack(form, tmp_path), tree, "--diff")
    assert diff.code == 1
    subprocess.run(command, input=diff.raw, cwd=tree.parent, check=True, capture_output=True)
    assert (tree / "module.py").read_bytes() == (form / "after.py").read_bytes()


ARMS = {
    "a dict for two arms": (["config = " + WHOLE, "if M <= E:", "    config['BLOCK_SIZE_M'] = 16",
                             "return config"], 1),
    "a dict under two names": (["first = second = " + WHOLE, "return first"], 1),
    "either": ([f"return {WHOLE} if M <= E else {WHOLE}"], 2),
    "spread into another": (["base = " + WHOLE, "return {**base, 'BLOCK_SIZE_M': 16}"], 1),
    "merged": (["base = " + WHOLE, "return base | {'BLOCK_SIZE_M': 16}"], 1),
    "updated with": (["config = {'BLOCK_SIZE_M': 16}", f"config.update({WHOLE})", "return config"], 1),
    "none first": (["config = None", "if M <= E:", f"    config = {WHOLE}", "else:", f"    config = {WHOLE}",
                    "return config"], 2),
    "behind a partial one": (["if N:", "    return {'BLOCK_SIZE_M': 16}", f"return {WHOLE}"], 1),
    "another card's": (["if current_platform.is_rocm():", f"    return {WHOLE}", f"return {WHOLE}"], 1),
}  # fmt: skip


@pytest.mark.parametrize("arms", ARMS)
def test_each_dict_that_is_used_takes_it_and_no_other(muhmod, package, pack, arms):
    lines, count = ARMS[arms]
    tree = package(module=decides(*lines))
    rules = pack()
    ran = apply(muhmod, rules, tree)
    assert ran.code == 0, ran.err
    assert body(tree).count("num_warps") == body(tree).count("num_stages") == count
    assert "already" in apply(muhmod, rules, tree).out
    assert muhmod("revert", tree).code == 0
    assert (tree / "module.py").read_text() == decides(*lines)


# What is refused --------------------------------------------------------------------------------

CLOSED = {
    "a spread": ([f"return {{**other(), {TILE}}}"], "line 10: `other()` is no dict display"),
    "a known spread": (["base = {'GROUP_SIZE_M': 1}", f"return {{{TILE}, **base}}"],
                       "line 11: the dict is made"),
    "a computed key": ([f"return {{{TILE}, N: 2}}"], "line 10: the key `N` is no string"),
    "a call beside": (["if M <= E:", f"    return {WHOLE}", "return other(M)"],
                      "line 12: `other(M)` is no dict"),
    "the caller's": (["E = E or " + WHOLE, "if M:", "    E = " + WHOLE, "return E"], "line 9: E may be"),
    "written after": (["config = {'BLOCK_SIZE_M': 64}", "config['BLOCK_SIZE_N'] = 64",
                       "config['BLOCK_SIZE_K'] = 32", "return config"], "num_warps cannot be added: line 10"),
    "one arm written after": (["if M <= E:", f"    return {WHOLE}", "config = {'BLOCK_SIZE_M': 64}",
                               "config.update({'BLOCK_SIZE_N': 64, 'BLOCK_SIZE_K': 32})", "return config"],
                              "line 12: no one display holds the tile"),
    "a loop's": (["config = " + WHOLE, "for config in other():", "    pass", "return config"],
                 "line 11: config is bound to what is no dict display"),
    "a with's": (["config = " + WHOLE, "with other() as config:", "    pass", "return config"],
                 "no dict of it that is used"),
    "an import's": (["config = " + WHOLE, "if N:", "    from x import config", "return config"],
                    "line 12: config is"),
    "in a list": ([f"return [{WHOLE}, {WHOLE}][M > E]"], "num_warps cannot be added"),
    "updated by a call": (["config = " + WHOLE, "config.update(other())", "return config"],
                          "updates it with what is not known"),
}  # fmt: skip


@pytest.mark.parametrize("closed", CLOSED)
def test_all_dicts_or_none(muhmod, package, pack, closed):
    lines, says = CLOSED[closed]
    tree = package(module=decides(*lines))
    before = tree_bytes(tree)
    ran = apply(muhmod, pack(), tree)
    assert (ran.code, tree_bytes(tree)) == (3, before)
    assert "unrewritable" in ran.err and says in " ".join(ran.err.split()), ran.err


READERS = {
    "a key alone": ("\n\ndef run(x, M, E):\n    return get_default_config(M, E, 1, 1, 8)['BLOCK_SIZE_M']\n",
                    "num_stages arrives nowhere: of the dict, module.py:14 reads BLOCK_SIZE_M"),
    "a loop": (TAIL + "    for key in config:\n        pass\n",
               "module.py:16: its keys are gone through in a loop"),
    "a signature": (TAIL + "    other(**config)\n\n\ndef other(BLOCK_SIZE_M, BLOCK_SIZE_N):\n    pass\n",
                    "module.py:16 passes the dict on as keywords, and other takes no num_stages"),
    "nobody": ("\n\ndef run():\n    pass\n", "nothing reads it"),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_takes_it_or_its_place_is_told(muhmod, package, pack, reader):
    tail, says = READERS[reader]
    tree = package(module=decides(f"return {WHOLE}", tail=tail))
    before = tree_bytes(tree)
    ran = apply(muhmod, pack(), tree)
    assert (ran.code, tree_bytes(tree)) == (3, before)
    assert says in " ".join(ran.err.split()), ran.err


def test_what_the_function_does_with_it_counts_too(muhmod, package, pack):
    tree = package(module=decides("config = " + WHOLE, "for key in config:", "    pass", "return config"))
    assert "module.py:11: its keys are gone through" in " ".join(apply(muhmod, pack(), tree).err.split())


def test_partial_dicts_alone_take_none(muhmod, package, pack):
    tree = package(module=decides("return {'BLOCK_SIZE_M': 16, 'BLOCK_SIZE_N': 16}"))
    ran = apply(muhmod, pack(only=("BLOCK_SIZE_M",), **LITERAL), tree)
    assert ran.code == 3 and "no dict of it that is used names a tile in M, N and K" in ran.err


def test_a_dict_of_the_module_is_refused(muhmod, package, tmp_path, pack):
    rules = pack()
    rules.write_text(rules.read_text().replace('"get_default_config"', '"<module>"'))
    ran = apply(muhmod, rules, package(module=f"CONFIG = {WHOLE}\n"))
    assert ran.code == 3 and "this is no function that hands a dict on" in ran.err


def test_without_the_word_nothing_is_added_and_the_word_is_named(muhmod, package, pack):
    tree = package(module=decides(f"return {WHOLE}"))
    ran = apply(muhmod, pack(absent="error"), tree)
    assert ran.code == 3
    assert "the slot num_warps is not there" in ran.err
    assert 'when_absent = "add" writes num_warps' in " ".join(ran.err.split())
    assert apply(muhmod, pack(absent="ok"), tree).code == 0
    assert "num_warps" not in body(tree)


def test_where_some_dicts_hold_them_the_word_is_named_too(muhmod, package, pack):
    held = WHOLE[:-1] + ", 'num_warps': 4, 'num_stages': 3}"
    tree = package(module=decides("if M <= E:", f"    return {held}", f"return {WHOLE}"))
    ran = apply(muhmod, pack(absent="error"), tree)
    assert ran.code == 3 and 'when_absent = "add" writes num_warps' in " ".join(ran.err.split())
    assert apply(muhmod, pack(), tree).code == 0
    assert body(tree).count("num_warps") == 2


@pytest.mark.parametrize(
    ("more", "says"),
    [({"only": ("num_warps", "num_stages")}, "num_warps is derived together with BLOCK_SIZE_M"),
     ({"num_stages": '{ derive = "moe_stages", when_absent = "ok" }'}, "derived together with num_stages"),
     ({"GROUP_SIZE_M": '{ derive = "moe_group_m", when_absent = "add" }'}, "only num_warps and num_stages"),
     ({"absent": "sometimes"}, "when_absent must be one of ok, error, add")],
)  # fmt: skip
def test_a_pack_that_cannot_add_is_refused(muhmod, package, pack, more, says):
    ran = apply(muhmod, pack(**more), package(module=decides(f"return {WHOLE}")))
    assert ran.code == 2 and says in " ".join(ran.err.split()) and "mine.toml:" in ran.err


def test_what_arrives_together_must_fit(muhmod, package, pack):
    """One dict for all arms of a ladder, the last of which is tall: its stages are for all of them."""
    lines = ["config = " + WHOLE, "if M > E:", "    config['BLOCK_SIZE_M'] = 64", "return config"]
    tree = package(module=decides(*lines))
    tall = {"BLOCK_SIZE_N": '{ value = 256, reason = "wide" }',
            "BLOCK_SIZE_K": '{ value = 128, reason = "deep" }',
            "num_stages": '{ value = 3, reason = "ours", when_absent = "add" }'}  # fmt: skip
    assert apply(muhmod, pack(**tall), tree, "--check").code == 5
    ran = apply(muhmod, pack(**tall), tree)
    assert (ran.code, (tree / "module.py").read_text()) == (5, decides(*lines))
    assert "line 10: with what is written there, 128 x 256 x 128" in " ".join(ran.err.split()), ran.err
    assert "of shared memory, over 232,448 B" in " ".join(ran.err.split())


# Around the edit --------------------------------------------------------------------------------


@pytest.fixture
def written(muhmod, package, pack):
    """A tree with two dicts in lines, applied; the pack; the text before."""
    one = "{\n        'BLOCK_SIZE_M': 64,\n        'BLOCK_SIZE_N': 64,\n        'BLOCK_SIZE_K': 32\n    }"
    text = decides("config = " + one, "if M <= E:", "    config = " + one, "return config")
    tree, rules = package(module=text), pack()
    assert apply(muhmod, rules, tree).code == 0
    return tree, rules, text


def test_the_report_says_what_came(muhmod, package, pack):
    tree, rules = package(module=decides(f"return {WHOLE}")), pack()
    ran = apply(muhmod, rules, tree, "--check", "--output-format", "json")
    row = next(row for row in json.loads(ran.out)["sites"] if row["site"] == "moe-config")
    came = [slot for slot in row["slots"] if slot["name"] in OPTIONS]
    assert [(s["name"], s["line"], s["old"], s["new"], s["note"]) for s in came] == [
        ("num_warps", 10, "", "8", "added"), ("num_stages", 10, "", "4", "added")]  # fmt: skip
    assert all(slot["kind"] == "heuristic" and slot["derivation"] and "column" not in slot for slot in came)
    assert "num_warps nothing -> 8" in apply(muhmod, rules, tree, "--check").out
    says = muhmod("explain", "moe-config", "--rules", rules, tree).out
    assert "num_warps (line 10): nothing -> 8  (heuristic)  added" in says
    for name in ("sarif", "markdown", "github"):
        assert apply(muhmod, rules, tree, "--check", "--output-format", name).code == 1


def test_check_knows_an_edit_from_what_was_written(muhmod, written):
    tree, rules, _ = written
    path = tree / "module.py"
    text = path.read_text()
    path.write_text("# one line more\n" + text)
    moved = muhmod("check", "--rules", rules, tree)
    assert "otherwise unchanged" in moved.out and "drifted" not in moved.out

    path.write_text(text.replace("'num_warps': 8", "'num_warps': 2"))
    edited = muhmod("check", "--rules", rules, tree)
    assert edited.code == 3 and "somebody edited" in edited.out and "num_warps is 2" in edited.out

    path.write_text(text.replace("        'num_warps': 8,\n", ""))
    gone = muhmod("check", "--rules", rules, tree)
    assert gone.code == 3 and "drifted" in gone.out and "num_warps" in gone.out

    path.write_text(text.replace("return config\n", "return config or None\n"))
    upstream = muhmod("check", "--rules", rules, tree)
    assert upstream.code == 3 and "upstream moved" in upstream.out


def test_revert_after_lines_moved(muhmod, written):
    tree, _, text = written
    path = tree / "module.py"
    path.write_text("# one line more\n" + path.read_text())
    ran = muhmod("revert", tree)
    assert ran.code == 0, ran.err
    assert path.read_text() == "# one line more\n" + text


def test_revert_says_which_keys_go(muhmod, package, pack):
    given = {name: f'{{ value = {n}, reason = "measured", when_absent = "add" }}'
             for name, n in zip(OPTIONS, (4, 2), strict=True)}  # fmt: skip
    tree = package(module=decides(f"return {WHOLE}"))
    assert apply(muhmod, pack(only=(), **given), tree).code == 0
    rows = json.loads(muhmod("revert", "--output-format", "json", tree).out)["sites"]
    slots = [(slot["name"], slot["old"], slot["new"]) for row in rows for slot in row["slots"]]
    assert sorted(slots) == [("num_stages", "2", ""), ("num_warps", "4", "")]


def test_revert_by_structure_where_what_stands_around_changed(muhmod, written):
    tree, _, text = written
    path = tree / "module.py"
    path.write_text(re.sub(r"(BLOCK_SIZE_N': \d+),", r"\1,  # so", path.read_text()))
    ran = muhmod("revert", tree)
    assert ran.code == 0, ran.err
    assert path.read_text() == text.replace("BLOCK_SIZE_N': 64,", "BLOCK_SIZE_N': 64,  # so")


def test_keys_that_were_taken_out_by_hand_come_again(muhmod, written):
    """As a literal that is as upstream has it again; one of two alone is drift."""
    tree, rules, _ = written
    path = tree / "module.py"
    text = path.read_text()
    path.write_text(text.replace(",\n        'num_warps': 8,\n        'num_stages': 4", ""))
    assert "pending            moe-config" in muhmod("check", "--rules", rules, tree).out
    assert apply(muhmod, rules, tree).code == 0
    assert path.read_text() == text

    path.write_text(text.replace("        'num_warps': 8,\n", ""))
    ran = muhmod("check", "--rules", rules, tree)
    assert ran.code == 3 and "drifted            moe-config" in ran.out and "num_warps" in ran.out
    assert apply(muhmod, rules, tree).code == 3
    assert muhmod("accept", "moe-config", "--reason", "so be it", "--rules", rules, tree).code == 0
    assert apply(muhmod, rules, tree).code == 0
    assert body(tree).count("num_warps") == 2


def test_a_new_reader_is_seen_by_check(muhmod, written):
    tree, rules, _ = written
    (tree / "late.py").write_text("from .module import get_default_config\n\n\ndef late(a):\n"
                                  "    a.config = get_default_config(1, 1, 1, 1, 1)\n")  # fmt: skip
    ran = muhmod("check", "--rules", rules, tree)
    assert ran.code == 3 and "late.py:5: it is kept in `a.config`" in " ".join(ran.out.split())


def test_where_no_ladder_can_stand_keys_are_added_to_the_leaves(muhmod, package, pack):
    """The function is not told the dtype, so a ladder would not know what it decides for."""
    tree = package(module=decides(f"config = {WHOLE[:-1]}, 'GROUP_SIZE_M': 8}}", "return config"))
    rules = pack(emit="ladder-or-leaves")
    ran = apply(muhmod, rules, tree)
    assert ran.code == 0, ran.err
    assert "values in place instead" in " ".join(ran.out.split()) and "'num_warps': 8" in body(tree)
    assert "already" in apply(muhmod, rules, tree).out


def test_a_method_s_dict(muhmod, package, pack):
    text = f"""{HEAD}class Planner:
\tdef get_default_config(self, M, E):
\t\tconfig = {{
\t\t\t"BLOCK_SIZE_M": 64,
\t\t\t"BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32,
\t\t}}
\t\treturn config

\tdef run(self, x, M):
\t\tmoe_kernel[(M, )](x, **self.get_default_config(M, 1))
"""
    tree, rules = package(module=text), pack()
    rules.write_text(rules.read_text().replace('"get_default_config"', '"Planner.get_default_config"'))
    ran = apply(muhmod, rules, tree)
    assert ran.code == 0, ran.err
    assert (
        '\t\t\t"BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 64, "num_warps": 8, "num_stages": 4,\n\t\t}'
        in (tree / "module.py").read_text()
    )
    assert muhmod("revert", tree).code == 0
    assert (tree / "module.py").read_text() == text


def test_another_card_changes_the_values_and_revert_knows_the_way_back(muhmod, written):
    tree, rules, text = written
    first = (tree / "module.py").read_text()
    ran = apply(muhmod, rules, tree, "--hardware", "rtx3090")
    assert ran.code == 0, ran.err
    second = (tree / "module.py").read_text()
    assert second != first and second.count("num_warps") == 2
    assert apply(muhmod, rules, tree).code == 0
    assert (tree / "module.py").read_text() == first
    assert muhmod("revert", tree).code == 0
    assert (tree / "module.py").read_text() == text


@pytest.mark.parametrize(("answer", "count"), [("y\n", 1), ("n\n", 0), ("e\na\n", 1), ("q\n", 0)])
def test_one_answer_is_for_all_that_goes_together(muhmod, package, pack, answer, count):
    tree, rules = package(module=decides(f"return {WHOLE}")), pack()
    ran = muhmod("apply", "-i", "--rules", rules, "--select", "moe-config", tree, stdin=answer)
    assert ran.code == 0, ran.err
    assert "2 keys come, 3 values change" in ran.err
    assert body(tree).count("num_warps") == count
    assert ("'BLOCK_SIZE_M': 128" in body(tree)) is bool(count)


def test_a_literal_comes_with_its_reason_and_the_tile_is_derived_for_it(muhmod, package, pack):
    tree = package(module=decides(f"return {WHOLE}"))
    rules = pack(only=("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), **LITERAL)
    says = muhmod("explain", "moe-config", "--rules", rules, tree).out
    assert "the pack sets 8 warps and 2 stages" in says and "the rule pack sets 8: ours" in says
    assert apply(muhmod, rules, tree).code == 0
    assert "'num_warps': 8, 'num_stages': 2}" in body(tree)


# Real trees -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.5.2", "0.6.3", "0.7.0", "0.8.5.post1", "0.9.0"])
@pytest.mark.parametrize("card", ["h200", "t4", "mi300x"])
def test_a_release_takes_them(muhmod, tmp_path, pack, version, card):
    tree = shutil.copytree(trees.vllm(version), tmp_path / "vllm")
    before = tree_bytes(tree)
    rules = pack(card)
    assert apply(muhmod, rules, tree).code == 0
    c = on(card)
    from muhmod.derive.kernels import fused_moe

    for quantised in (False, True) if card != "t4" else (False,):
        for tile, element in configurations(decision(tree, card), quantised=quantised):
            assert fused_moe.refusal(c, tile, element) == ""
    names = decision(tree, card).__code__.co_varnames[:7]
    for tokens in (1, 4096):
        given = {"M": tokens, "E": 128, "N": 768, "K": 2048, "topk": 8, "dtype": None, "is_marlin": False}
        config = decision(tree, card)(**{name: given[name] for name in names if name in given})
        assert {*OPTIONS} <= {*config}
    assert "already" in apply(muhmod, rules, tree).out
    assert muhmod("revert", tree).code == 0
    assert tree_bytes(tree) == before


@pytest.mark.parametrize(
    ("version", "says"),
    [("0.11.2", "lora/layers/fused_moe.py:102: `shrink_config` goes where it cannot be followed"),
     ("0.33.0", "model_executor/models/k2_horizon.py:903: it is kept in `self.fused_mova_config`")],
)  # fmt: skip
def test_a_release_whose_reader_cannot_be_followed_is_refused(muhmod, pack, version, says):
    ran = apply(muhmod, pack(), trees.vllm(version), "--check")
    assert ran.code == 3 and says in " ".join(ran.err.split())


def test_in_enginex_they_arrive_nowhere(muhmod, pack):
    ran = apply(muhmod, pack(), trees.enginex(), "--check")
    said = " ".join(ran.err.split())
    assert ran.code == 3 and "num_stages arrives nowhere: of the dict, _custom_ops.py:785 reads" in said


def test_in_the_stand_in_of_enginex_too(muhmod, pack, enginex):
    before = tree_bytes(enginex)
    ran = apply(muhmod, pack(), enginex)
    assert ran.code == 3 and "num_stages arrives nowhere" in ran.err and "_custom_ops.py:" in ran.err
    assert tree_bytes(enginex) == before
