"""Guards, as a user sees them: each holds on one tree, is false on another, and says why."""

from __future__ import annotations

import json
import os

import pytest

FACTS = 'schema = "muhmod/rules/1"\nhardware = "bi100"\nmodel = "qwen3.6-35b-a3b"\nmodules = ["ixformer"]\n'
CHUNK = '[sites.q-chunk]\nscope = "sdpa"\nslots._Q_CHUNK = { value = 128, reason = "ours" }\n'
FLAG = """[sites.triton-flag]
scope = "<module>"
slots.HAS_TRITON = { value = true, reason = "the image has it" }
"""
# A site, with what guards look at: stubs and what works, constants in many bindings, names from elsewhere.
FALLBACK = """import ixformer.functions as F
from vllm import ops
from vllm.sizes import PAGE, Sizes

THREADS: int = 4 * 64
SCALE, BIAS = 1.5, -3
FAST = True
NAME = "wide"
FROM_THERE = PAGE
TWICE = 2 * Sizes.ROWS
if FAST:
    MODE = 8
else:
    MODE = 16
if FAST:
    SAME = 8
else:
    SAME = 8
GROWN = 1
GROWN += 1
READ = F.version()


def setter():
    global SET
    SET = 2


SET = 1
LOOP = LOOPED
LOOPED = LOOP


def sdpa(q, k):
    _Q_CHUNK = 512
    ops.works(q)
    ops.only_raises(q)
    ops.idle(q)
    ops.hands_on(q)
    ops.hands_on_to_work(q)
    ops.answers(q)
    ops.decorated(q)
    ops.either(q)
    ops.foreign(q)
    for start in range(0, q.shape[0], _Q_CHUNK):
        k[start:start + _Q_CHUNK] = q[start:start + _Q_CHUNK]
    return k
"""
OPS = """import ixformer.functions as F
import registry
from vllm.sizes import FAST


def works(q):
    F.go(q)


def only_raises(q):
    \"\"\"To come.\"\"\"
    if q is None:
        raise ValueError("none")
    raise NotImplementedError


def idle(q):
    pass


def hands_on(q):
    return only_raises(q)


def hands_on_to_work(q):
    return works(q)


def answers(q):
    return 1024


@registry.fills
def decorated(q):
    pass


if FAST:
    def either(q):
        raise NotImplementedError
else:
    def either(q):
        F.go(q)


def foreign(q):
    registry.go(q)
"""
SIZES = """PAGE = 512
FAST = True


class Sizes:
    ROWS = 16

    def area(self):
        return self.ROWS


class Wide(Sizes):
    pass
"""


@pytest.fixture
def tree(package):
    folder = package(fallback=FALLBACK, ops=OPS, sizes=SIZES, kernels__inner="x = 1\n",
                     star="from vllm.sizes import *\n")  # fmt: skip
    (folder / "kernels" / "__init__.py").touch()
    (folder / "configs").mkdir()
    (folder / "configs" / "tuned.json").write_text("{}")
    outside = folder.parent / "outside.json"
    outside.write_text("{}")
    (folder / "out.json").symlink_to(outside)
    (folder / "in.json").symlink_to("configs/tuned.json")
    (folder / "nowhere.json").symlink_to("gone.json")
    return folder


@pytest.fixture
def pack(tmp_path):
    """Writes a pack of a q-chunk rule with the guards, and what else."""

    def make(guards, more="", head=""):
        path = tmp_path / "own.toml"
        path.write_text(f"{FACTS}{head}{CHUNK}guards = [{guards}]\n{more}")
        return path

    return make


@pytest.fixture
def guard(muhmod, pack, tree):
    """The exit code and row of the site under one guard, by `apply --check`."""

    def ask(text, *arguments, more=""):
        ran = muhmod("apply", "--rules", pack(text, more), "--check", "--output-format", "json", *arguments,
                     tree)  # fmt: skip
        assert ran.code in (0, 1, 3), ran.err
        (row,) = [row for row in json.loads(ran.out)["sites"] if row["site"] == "q-chunk"]
        return ran.code, row

    return ask


def symbol(kind, name, **more):
    shown = "".join(f", {key} = {json.dumps(value)}" for key, value in more.items())
    return f'{{ guard = "{kind}", symbol = "{name}"{shown} }}'


# Each guard, then a part of its evidence where it holds, and where its contrary does.
YES, NO, NEITHER = "holds", "is false", "not proven"
CASES = [
    (symbol("implemented", "works"), YES, "ops.py:6 has a body"),
    (symbol("implemented", "only_raises"), NO, "ops.py:14 only_raises only raises NotImplementedError"),
    (symbol("implemented", "idle"), NO, "ops.py:17 idle does nothing"),
    (symbol("implemented", "hands_on"), NO, "ops.py:14"),
    (symbol("implemented", "hands_on_to_work"), YES, "ops.py:6"),
    (symbol("implemented", "vllm.ops.works"), YES, "ops.py:6"),
    (symbol("implemented", "vllm.ops.idle"), NO, "ops.py:17"),
    (symbol("implemented", "not_called"), NEITHER, "has no call of not_called"),
    (symbol("implemented", "foreign"), NEITHER, "which is not in the tree"),
    (symbol("exists", "sdpa"), YES, "fallback.py:34 has sdpa"),
    (symbol("exists", "BIAS"), YES, "fallback.py:6 has BIAS"),
    (symbol("exists", "vllm.sizes.Sizes.ROWS"), YES, "sizes.py:6 has Sizes.ROWS"),
    (symbol("exists", "vllm.sizes.Sizes.area"), YES, "sizes.py:8"),
    (symbol("exists", "vllm.sizes.Sizes.volume"), NO, "Sizes.volume is nowhere in sizes.py"),
    (symbol("exists", "vllm.sizes.LINE"), NO, "LINE is nowhere in sizes.py"),
    (symbol("exists", "missing"), NO, "missing is nowhere in fallback.py"),
    (symbol("exists", "vllm.sizes.Wide.ROWS"), NEITHER, "Wide may have ROWS from elsewhere"),
    (symbol("exists", "vllm.star.PAGE"), NEITHER, "star.py:1 takes all names"),
    (symbol("exists", "vllm.gone.PAGE"), NEITHER, "nowhere in the tree"),
    (symbol("equals", "THREADS", value=256), YES, "fallback.py:5 THREADS = 4 * 64 = 256"),
    (symbol("equals", "THREADS", value=512), NO, "fallback.py:5 THREADS = 4 * 64 = 256"),
    (symbol("equals", "SCALE", value=1.5), YES, "fallback.py:6 SCALE = 1.5"),
    (symbol("equals", "BIAS", value=-3), YES, "fallback.py:6 BIAS = -3"),
    (symbol("equals", "FAST", value=True), YES, "FAST = True"),
    (symbol("equals", "FAST", value=1), NO, "FAST = True"),
    (symbol("equals", "NAME", value="wide"), YES, "NAME = 'wide'"),
    (symbol("equals", "NAME", value="narrow"), NO, "NAME = 'wide'"),
    (symbol("equals", "FROM_THERE", value=512), YES, "fallback.py:9 FROM_THERE = PAGE = 512"),
    (symbol("equals", "TWICE", value=32), YES, "TWICE = 2 * Sizes.ROWS = 32"),
    (symbol("equals", "PAGE", value=512), YES, "sizes.py:1 PAGE = 512"),
    (symbol("equals", "vllm.sizes.Sizes.ROWS", value=16), YES, "sizes.py:6"),
    (symbol("equals", "SAME", value=8), YES, "fallback.py:16 SAME = 8"),
    (symbol("equals", "MODE", value=8), NEITHER, "MODE is bound twice: 8 in fallback.py:12, 16 in"),
    (symbol("equals", "GROWN", value=1), NEITHER, "fallback.py:20 binds GROWN in a way"),
    (symbol("equals", "SET", value=1), NEITHER, "SET is bound anew by the function setter"),
    (symbol("equals", "READ", value=1), NEITHER, "F.version()"),
    (symbol("equals", "LOOP", value=1), NEITHER, "leads back to itself"),
    (symbol("equals", "missing", value=1), NEITHER, "missing is bound nowhere in fallback.py"),
    ('{ guard = "file", file = "configs/tuned.json" }', YES, "configs/tuned.json:1 is there"),
    ('{ guard = "file", file = "in.json" }', YES, "in.json:1 is there"),
    ('{ guard = "file", file = "ops.py" }', YES, "ops.py:1 is there"),
    ('{ guard = "file", file = "configs/other.json" }', NO, "configs/other.json is not there"),
    ('{ guard = "file", file = "vllm/ops.py" }', NO, "paths begin inside vllm/"),
    ('{ guard = "file", file = "configs" }', NO, "configs is a folder"),
    ('{ guard = "file", file = "out.json" }', NEITHER, "out.json is a link out of the tree"),
    ('{ guard = "file", file = "nowhere.json" }', NEITHER, "a link that leads nowhere"),
    ('{ guard = "formula", formula = "4 * warp_size <= max_threads_per_block" }', YES,
     "4 * 64 = 256 <= 1024"),
    ('{ guard = "formula", formula = "128 * warp_size <= max_threads_per_block" }', NO,
     "128 * 64 = 8192 > 1024"),
    ('{ guard = "formula", formula = "_Q_CHUNK == 128 and not async_copy" }', YES,
     "128 == 128 and async_copy is false"),
    ('{ guard = "formula", formula = "min(_Q_CHUNK, 32) // 3 > 20 or warp_size < 2" }', NO,
     "min(128, 32) // 3 = 10 <= 20, 64 >= 2"),
    ('{ guard = "formula", formula = "1 < warp_size <= 32 " }', NO, "64 > 32"),
    ('{ guard = "formula", formula = "platform == \'cuda\'" }', YES, "'cuda' == 'cuda'"),
    ('{ guard = "formula", formula = "l2_bandwidth_per_sm > 0" }', NEITHER,
     "the fact 'l2_bandwidth_per_sm' is not stated"),
    ('{ guard = "formula", formula = "smem_per_block > 0" }', NEITHER, "smem_per_block is disputed"),
    ('{ guard = "formula", formula = "warp_size / (num_experts - num_experts) > 1" }', NEITHER,
     "64 / (256 - 256) > 1 divides by zero"),
    ('{ guard = "formula", formula = "dtype > 3" }', NEITHER, "have no order"),
    ('{ guard = "formula", formula = "dtype == 3" }', NEITHER, "they cannot be compared"),
    ('{ guard = "formula", formula = "async_copy + 1 == 2" }', NEITHER, "async_copy is False, no number"),
    ('{ guard = "formula", formula = "warp_size" }', NEITHER, "neither true nor false"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "truth", "evidence"), CASES, ids=[f"{c[0]}" for c in CASES])
def test_a_guard_and_its_contrary(guard, text, truth, evidence):
    """Both polarities: what is not proven holds in neither."""
    for negated, asked in ((False, text), (True, text.replace(" }", ", not = true }"))):
        code, row = guard(asked)
        (said,) = row["guards"]
        stub = 'guard = "implemented"' in text and negated and truth is YES
        assert said["holds"] is (truth == (NO if negated else YES)), said
        assert evidence in said["evidence"] or stub, said
        assert said["evidence"].startswith("not proven: ") is (truth is NEITHER)
        if said["holds"]:
            assert (code, row["state"]) == (1, "pending")
        else:
            assert (code, row["state"]) == (3, "held")
            word = "not proven" if truth is NEITHER else "false"
            assert row["reason"].startswith(f"a guard is {word}, {said['guard']}: ")


@pytest.mark.parametrize(
    ("name", "holds", "evidence"),
    [
        ("only_raises", True, "ops.py:14 only_raises only raises NotImplementedError"),
        ("idle", True, "ops.py:17"),
        ("hands_on", True, "ops.py:14"),
        ("works", False, "ops.py:6 has a body"),
        ("answers", False, "not proven: ops.py:29 answers gives 1024"),
        ("decorated", False, "not proven: ops.py:34 decorated is decorated by registry.fills"),
        ("either", False, "ops.py:42 has a body"),
        ("not_called", False, "not proven: "),
    ],
)
def test_a_stub_is_proven_or_it_is_none(guard, name, holds, evidence):
    """`stub` is no mere lack of `implemented`: a function may be neither."""
    _, row = guard(symbol("stub", name))
    (said,) = row["guards"]
    assert said["guard"] == f"{name} is a stub"
    assert (said["holds"], said["evidence"].startswith(evidence)) == (holds, True), said
    if name in ("answers", "decorated", "either"):
        assert guard(symbol("implemented", name))[1]["guards"][0]["holds"] is False


@pytest.mark.parametrize(
    ("package_", "holds", "evidence"),
    [
        ("ixformer.functions", True, "the pack declares ixformer present"),
        ("vllm.kernels", True, "kernels/__init__.py:1 is vllm.kernels"),
        ("vllm.ops", True, "ops.py:1 is vllm.ops"),
        ("json", True, "json is of Python's standard library"),
        ("concurrent.futures", True, "standard library"),
        ("json.nothing", False, "not proven: json is of Python's standard library, but"),
        ("vllm._C", False, "not proven: vllm._C is no Python file of the tree"),
        ("deep_gemm", False, "not proven: the pack does not declare it present"),
    ],
)
def test_a_package_is_importable_where_the_tree_will_run(guard, package_, holds, evidence):
    code, row = guard(f'{{ guard = "importable", package = "{package_}" }}')
    (said,) = row["guards"]
    assert (said["guard"], said["holds"]) == (f"{package_} is importable", holds)
    assert evidence in said["evidence"]
    assert code == (1 if holds else 3)


def test_hold_and_refuse(muhmod, pack, tree):
    for word, code in (("hold", 0), ("refuse", 3), ("error", 3)):
        own = pack(symbol("exists", "missing"), f'when_guard_false = "{word}"\n')
        ran = muhmod("apply", "--rules", own, tree)
        assert (ran.code, "missing is nowhere in fallback.py" in ran.out) == (code, True), ran.err
    assert (tree / "fallback.py").read_text() == FALLBACK


# Formulas ---------------------------------------------------------------------------------------


def test_a_formula_sees_what_will_be_written_not_what_stands_there(guard):
    _, row = guard('{ guard = "formula", formula = "_Q_CHUNK * warp_size == 8192" }')
    assert row["guards"][0]["evidence"] == "128 * 64 = 8192 == 8192"
    assert [(slot["old"], slot["new"]) for slot in row["slots"]] == [("512", "128")]


def test_a_formula_sees_another_rules_values(guard):
    more = FLAG.replace("HAS_TRITON", "HAS_OTHER")
    assert guard('{ guard = "formula", formula = "_Q_CHUNK > 1" }', more=more)[1]["state"] == "pending"
    code, row = guard('{ guard = "formula", formula = "triton-flag.HAS_OTHER" }', more=more)
    assert (code, row["state"]) == (3, "held")
    assert "triton-flag is lost: its HAS_OTHER is not derived" in row["reason"]


def test_the_values_of_another_rule(muhmod, enginex, tmp_path):
    """The tile of one kernel against the partition of another, by the rules' own names."""
    own = tmp_path / "own.toml"
    for formula, state, numbers in (
        ("partition-size._PARTITION_SIZE >= prefill-tile.BLOCK * 2", "pending", "512 >= 32 * 2 = 64"),
        ("partition-size._PARTITION_SIZE < BLOCK", "held", "512 >= 32"),
    ):
        own.write_text(f"""schema = "muhmod/rules/1"
extends = "bi100"
[sites.prefill-tile]
scope = "context_attention_fwd"
slots.BLOCK = {{ derive = "prefill_block" }}
guards = [{{ guard = "formula", formula = "{formula.replace("prefill-tile.", "")}" }}]
when_guard_false = "hold"
""")
        ran = muhmod("apply", "--rules", own, "--check", "--output-format", "json", enginex)
        (row,) = [row for row in json.loads(ran.out)["sites"] if row["site"] == "prefill-tile"]
        assert (row["state"], row["guards"][0]["evidence"]) == (state, numbers)


def test_a_formula_of_a_list_holds_for_all_that_will_stand_in_it(muhmod, enginex, tmp_path):
    own = tmp_path / "own.toml"
    for most, state in ((4096, "pending"), (256, "held")):
        own.write_text(f"""schema = "muhmod/rules/1"
extends = "bi100"
[sites.autotune-configs]
scope = "attn_fwd"
slots.configs = {{ derive = "attention_configs" }}
guards = [{{ guard = "formula", formula = "num_warps * warp_size <= {most}" }}]
when_guard_false = "hold"
""")
        ran = muhmod("apply", "--rules", own, "--check", "--output-format", "json", enginex)
        (row,) = [row for row in json.loads(ran.out)["sites"] if row["site"] == "autotune-configs"]
        assert row["state"] == state, row["guards"]
    assert "not the same for all values: " in row["guards"][0]["evidence"]


def test_a_disputed_fact_counts_once_it_is_chosen_or_under_every_claim(guard, muhmod, pack, tree):
    text = '{ guard = "formula", formula = "smem_per_block >= 40000" }'
    assert guard(text)[1]["state"] == "held"
    assert guard(text, "--set", "smem_per_block=48KiB")[1]["state"] == "pending"
    assert guard(text, "--set", "smem_per_block=32KiB")[1]["state"] == "held"
    own = pack(text, head='[choose]\nsmem_per_block = { value = "48KiB", reason = "read" }\n')
    assert muhmod("apply", "--rules", own, "--check", tree).code == 1
    ran = muhmod("apply", "--rules", own, "--check", "--robust", tree)
    assert (ran.code, "not the same for all values" in " ".join(ran.out.split())) == (3, True)


def test_explain_shows_the_numbers_and_the_facts(muhmod, pack, tree):
    own = pack('{ guard = "formula", formula = "_Q_CHUNK <= max_threads_per_block" }, '
               '{ guard = "file", file = "ops.py" }')  # fmt: skip
    ran = muhmod("explain", "--rules", own, "q-chunk", tree)
    assert "guard holds: _Q_CHUNK <= max_threads_per_block: 128 <= 1024" in ran.out
    assert "guard holds: the file ops.py is there: ops.py:1 is there" in ran.out
    assert "fact max_threads_per_block = 1024" in ran.out


# States -----------------------------------------------------------------------------------------


STATE = '{ guard = "state", site = "triton-flag", states = ["applied", "already"] }'


def flagged(tree, value):
    (tree / "flag.py").write_text(f"HAS_TRITON = {value}\n")


def test_a_state_is_the_same_in_every_mode(muhmod, pack, tree):
    """What would be applied is applied: --check, --diff, the write, and the run after it agree."""
    flagged(tree, "False")
    own = pack(STATE, FLAG)
    for mode, code in (["--check"], 1), (["--diff"], 1), ([], 0), ([], 0), (["--check"], 0):
        ran = muhmod("apply", "--rules", own, *mode, "--output-format", "json", tree)
        assert ran.code == code, ran.err
        if mode != ["--diff"]:
            rows = {row["site"]: row for row in json.loads(ran.out)["sites"]}
            assert rows["q-chunk"]["guards"][0]["holds"] is True
    assert muhmod("check", tree).code == 0
    assert "_Q_CHUNK = 128" in (tree / "fallback.py").read_text()


def test_a_state_that_is_another(guard, tree):
    flagged(tree, "False  # muhmod: skip[triton-flag] not on this image")
    code, row = guard(STATE, more=FLAG)
    assert (code, row["state"]) == (3, "held")
    assert row["guards"] == [
        {"guard": "triton-flag is applied or already", "holds": False,
         "evidence": "flag.py:1 triton-flag is skipped"}
    ]  # fmt: skip
    code, row = guard(STATE.replace(" }", ", not = true }"), more=FLAG)
    assert row["state"] == "pending"
    assert row["guards"][0]["guard"] == "triton-flag is not applied or already"


def test_a_state_is_of_the_site_as_decided_whatever_stands_first(muhmod, tmp_path, tree):
    """The rule that waits stands first in the pack; a chain of three is decided from its end."""
    flagged(tree, "False  # muhmod: skip[triton-flag] not here")
    own = tmp_path / "own.toml"
    third = CHUNK.replace("sites.q-chunk", "sites.third").replace("sdpa", "other")
    held = '{ guard = "state", site = "triton-flag", states = ["skipped"], not = true }'
    own.write_text(
        f'{FACTS}{third}site = "q-chunk"\n'
        'guards = [{ guard = "state", site = "q-chunk", states = ["held"] }]\n'
        f'{CHUNK}guards = [{held}]\nwhen_guard_false = "hold"\n{FLAG}'
    )
    (tree / "other.py").write_text(FALLBACK.replace("def sdpa", "def other"))
    ran = muhmod("apply", "--rules", own, "--check", "--output-format", "json", tree)
    states = {row.get("rule", row["site"]): row["state"] for row in json.loads(ran.out)["sites"]}
    assert states == {"third": "pending", "q-chunk": "held", "triton-flag": "skipped"}


def test_select_looks_at_what_is_waited_for(muhmod, pack, tree):
    flagged(tree, "True")
    own = pack(STATE, FLAG)
    assert muhmod("apply", "--rules", own, "--check", "--select", "q-chunk", tree).code == 1
    flagged(tree, "False")
    ran = muhmod("apply", "--rules", own, "--check", "--select", "q-chunk", tree)
    assert (ran.code, "is not selected, and it would change" in " ".join(ran.out.split())) == (3, True)
    assert (tree / "flag.py").read_text() == "HAS_TRITON = False\n"


def test_a_declined_site_holds_what_waits_for_it(muhmod, pack, tree):
    flagged(tree, "False")
    ran = muhmod("apply", "--rules", pack(STATE, FLAG), "-i", tree, stdin="y\nn\n")
    assert "_Q_CHUNK = 512" in (tree / "fallback.py").read_text(), ran.out
    assert (tree / "flag.py").read_text() == "HAS_TRITON = False\n"


# The lock ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "change", "evidence"),
    [
        (symbol("stub", "only_raises"),
         lambda tree: (tree / "ops.py").write_text(OPS.replace("    raise NotImplementedError\n\n\ndef idle",
                                                               "    F.go(q)\n\n\ndef idle")),
         "ops.py:10 has a body"),
        (symbol("exists", "vllm.sizes.PAGE"),
         lambda tree: (tree / "sizes.py").write_text(SIZES.replace("PAGE", "LEAF")),
         "PAGE is nowhere in sizes.py"),
        (symbol("equals", "vllm.sizes.PAGE", value=512),
         lambda tree: (tree / "sizes.py").write_text(SIZES.replace("512", "256")),
         "sizes.py:1 PAGE = 256"),
        ('{ guard = "file", file = "configs/tuned.json" }',
         lambda tree: (tree / "configs" / "tuned.json").unlink(),
         "configs/tuned.json is not there"),
        ('{ guard = "file", file = "configs/other.json", not = true }',
         lambda tree: (tree / "configs" / "other.json").write_text("{}"),
         "configs/other.json:1 is there"),
        ('{ guard = "importable", package = "vllm.kernels.inner" }',
         lambda tree: (tree / "kernels" / "inner.py").unlink(),
         "vllm.kernels.inner is no Python file of the tree"),
        (STATE, lambda tree: flagged(tree, "bool(1)"), "triton-flag is drifted"),
    ],
    ids=["stub", "exists", "equals", "file", "no file", "importable", "state"],
)  # fmt: skip
@pytest.mark.parametrize("command", ["apply", "pin"])
def test_a_guard_that_held_and_does_not_any_more_is_drift(
    muhmod, pack, tree, text, change, evidence, command
):
    """By the short way of `check` too: it must see what a guard looked at."""
    flagged(tree, "True")
    own = pack(text, FLAG if text == STATE else "")
    assert muhmod(command, "--rules", own, tree).code == 0
    assert muhmod("check", tree).code == (0 if command == "apply" else 1)
    change(tree)
    from muhmod import unchanged

    assert unchanged.check([str(tree)]) is None
    ran = muhmod("check", "--output-format", "json", tree)
    (row,) = [row for row in json.loads(ran.out)["sites"] if row["site"] == "q-chunk"]
    assert (ran.code, row["state"]) == (3, "drifted")
    (difference,) = [one for one in row["differences"] if one["kind"] == "condition"]
    assert difference["text"].startswith("it was written" if command == "apply" else "it was pinned")
    assert evidence in difference["text"]
    assert muhmod("accept", "q-chunk", tree, "--reason", "looked at").code == 0
    rows = json.loads(muhmod("check", "--output-format", "json", tree).out)["sites"]
    assert [row["state"] for row in rows if row["site"] == "q-chunk"] == ["held"]


def test_the_short_way_of_check_is_taken_and_seen_through(muhmod, pack, tree):
    from muhmod import unchanged

    guards = '{ guard = "file", file = "configs/tuned.json" }, { guard = "file", file = "x.md", not = true }'
    assert muhmod("apply", "--rules", pack(guards), tree).code == 0
    assert unchanged.check([str(tree)]) is not None
    (tree / "x.md").write_text("")
    assert unchanged.check([str(tree)]) is None
    (tree / "x.md").unlink()
    (tree / "configs" / "tuned.json").write_text('{"any": 1}')
    assert unchanged.check([str(tree)]) is not None, "only its presence counts"
    (tree / "configs" / "tuned.json").unlink()
    (tree / "configs" / "tuned.json").symlink_to(os.devnull)
    assert unchanged.check([str(tree)]) is None


def test_another_fact_is_the_rules_doing_and_no_drift(muhmod, pack, tree):
    own = pack('{ guard = "formula", formula = "2 * _Q_CHUNK <= max_threads_per_block" }')
    assert muhmod("apply", "--rules", own, tree).code == 0
    ran = muhmod("check", "--rules", own, "--set", "max_threads_per_block=64", tree,
                 "--output-format", "json")  # fmt: skip
    (row,) = json.loads(ran.out)["sites"]
    assert (ran.code, row["state"], row["cause"]) == (3, "held", "rules changed")
    assert "2 * 128 = 256 > 64" in row["reason"]


def test_every_format_shows_the_guards(muhmod, pack, tree):
    own = pack('{ guard = "file", file = "ops.py" }')
    for form, words in (
        ("text", "guard: the file ops.py is there: yes (ops.py:1 is there)"),
        ("json", '"evidence": "ops.py:1 is there"'),
        ("sarif", "the file ops.py is there: yes: ops.py:1 is there"),
        ("markdown", "the file ops.py is there: ops.py:1 is there"),
    ):
        ran = muhmod("apply", "--rules", own, "--check", "--output-format", form, tree)
        assert words in " ".join(ran.out.split()), form
    ran = muhmod("rules", "show", own, "--output-format", "json")
    assert json.loads(ran.out)["sites"]["q-chunk"]["guards"] == [{"guard": "file", "file": "ops.py"}]


# Packs that are wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{ symbol = 'x' }",
         "[sites.q-chunk.guards] the guard lacks its kind, guard = …; known: equals, exists"),
        ("3", "[sites.q-chunk.guards] is no table"),
        ("{ guard = 3 }", "unknown guard 3"),
        ("{ guard = 'stubb', symbol = 'x' }",
         "[sites.q-chunk.guards.guard] unknown guard 'stubb'; did you mean 'stub'?"),
        ("{ guard = 'exists', symbl = 'x' }",
         "[sites.q-chunk.guards.symbl] unknown key 'symbl'; did you mean 'symbol'?"),
        ("{ guard = 'exists', file = 'x' }", "[sites.q-chunk.guards.file] unknown key 'file'"),
        ("{ guard = 'exists' }", "[sites.q-chunk.guards.symbol] the guard lacks its symbol"),
        ("{ guard = 'exists', symbol = '' }", "symbol must be a word that is not empty"),
        ("{ guard = 'exists', symbol = 3 }", "symbol must be a word"),
        ("{ guard = 'exists', symbol = 'a b' }", "'a b' is no dotted name"),
        ("{ guard = 'exists', symbol = 'a', not = 1 }",
         "[sites.q-chunk.guards.not] not must be true or false"),
        ("{ guard = 'stub' }", "lacks its symbol"),
        ("{ guard = 'equals', symbol = 'x' }", "[sites.q-chunk.guards.value] the guard lacks its value"),
        ("{ guard = 'equals', symbol = 'x', value = [1] }", "value must be a number, a word or a flag"),
        ("{ guard = 'equals', symbol = 'x', value = nan }", "value must be a number"),
        ("{ guard = 'file' }", "[sites.q-chunk.guards.file] the guard lacks its file"),
        ("{ guard = 'file', file = '../x' }", "'../x' is no plain path inside the tree"),
        ("{ guard = 'file', file = '/etc/passwd' }", "is no plain path inside the tree"),
        ("{ guard = 'file', file = 'a//b' }", "is no plain path inside the tree"),
        ("{ guard = 'file', file = '*.json' }", "without wildcards"),
        ("{ guard = 'importable' }", "the guard lacks its package"),
        ("{ guard = 'importable', package = 'x', not = true }", "it can never hold"),
        ("{ guard = 'formula' }", "the guard lacks its formula"),
        ("{ guard = 'formula', formula = 'wrap_size > 1' }",
         "[sites.q-chunk.guards.formula] unknown fact or slot 'wrap_size'; did you mean 'warp_size'?"),
        ("{ guard = 'formula', formula = '_Q_CHUNKS > 1' }", "did you mean '_Q_CHUNK'?"),
        ("{ guard = 'formula', formula = 'xyzzy > 1' }",
         "unknown fact or slot 'xyzzy'; slots here: _Q_CHUNK"),
        ("{ guard = 'formula', formula = 'triton-flg.HAS_TRITON' }", "did you mean 'triton-flag'?"),
        ("{ guard = 'formula', formula = 'triton-flag.HAS_TRITN' }",
         "triton-flag sets no slot 'HAS_TRITN'; did you mean 'HAS_TRITON'?"),
        ("{ guard = 'formula', formula = 'q-chunk._Q_CHUNK > 1' }", "depends on itself"),
        ("{ guard = 'formula', formula = 'warp_size >' }", "is no expression"),
        ("{ guard = 'formula', formula = 'warp_size * 2' }", "it needs a comparison"),
        ("{ guard = 'formula', formula = '__import__(\"os\") == 1' }", "is outside of the language"),
        ("{ guard = 'formula', formula = 'warp_size ** 2 > 1' }", "is outside of the language"),
        ("{ guard = 'formula', formula = 'warp_size in (32, 64)' }", "is outside of the language"),
        ("{ guard = 'formula', formula = '(lambda: 1)() == 1' }", "is outside of the language"),
        ("{ guard = 'formula', formula = 'warp_size.real > 1' }", "unknown rule 'warp_size'"),
        ("{ guard = 'formula', formula = '1e999 > warp_size' }", "out of range"),
        ("{ guard = 'state', site = 'triton-flag' }",
         "[sites.q-chunk.guards.states] the guard lacks its states"),
        ("{ guard = 'state', states = ['held'] }", "[sites.q-chunk.guards.site] the guard lacks its site"),
        ("{ guard = 'state', site = 'triton-flg', states = ['held'] }",
         "[sites.q-chunk.guards.site] unknown rule 'triton-flg'; did you mean 'triton-flag'?"),
        ("{ guard = 'state', site = 'triton-flag', states = ['hold'] }",
         "unknown state 'hold'; did you mean 'held'?"),
        ("{ guard = 'state', site = 'triton-flag', states = [] }", "states must be a list"),
        ("{ guard = 'state', site = 'triton-flag', states = 'held' }", "states must be a list"),
        ("{ guard = 'state', site = 'triton-flag', states = ['pending'] }",
         "pending is not told from applied"),
        ("{ guard = 'state', site = 'triton-flag', states = ['applied'] }", "name both"),
        ("{ guard = 'state', site = 'q-chunk', states = ['held'] }",
         "[sites.q-chunk.guards] depends on itself"),
    ],
)  # fmt: skip
def test_a_wrong_guard(muhmod, pack, tree, row, says):
    own = pack(f"\n  {symbol('exists', 'sdpa')},\n  {row},\n", FLAG)
    for command in (["rules", "validate", own], ["apply", "--rules", own, tree]):
        ran = muhmod(*command)
        assert (ran.code, says in ran.err) == (2, True), ran.err
        line = 8 if "itself" in says or "guard =" not in row else 10
        assert f"own.toml:{line}: " in ran.err


def test_a_formula_that_is_too_deep_or_too_long(muhmod, pack):
    for text in ("(" * 400 + "1" + ")" * 400 + " < 2", "1 < " * 2000 + "2"):
        ran = muhmod("rules", "validate", pack(f'{{ guard = "formula", formula = "{text}" }}'))
        assert (ran.code, "[sites.q-chunk.guards.formula]" in ran.err) == (2, True), ran.err


def test_guards_in_a_ring(muhmod, pack):
    ring = FLAG + 'guards = [{ guard = "formula", formula = "q-chunk._Q_CHUNK > 1" }]\n'
    ran = muhmod("rules", "validate", pack(STATE, ring))
    assert (ran.code, "[sites.q-chunk.guards] depends on itself, in the end" in ran.err) == (2, True)


def test_the_line_of_a_key_in_a_table_of_its_own(muhmod, pack):
    more = """
[[sites.triton-flag.guards]]
guard = "exists"
symbol = "os"
[[sites.triton-flag.guards]]
guard = "state"
site = "q-chunk"
states = ["helt"]
"""
    own = pack(symbol("exists", "sdpa"), f"{FLAG}{more}")
    ran = muhmod("rules", "validate", own)
    line = own.read_text().splitlines().index('states = ["helt"]') + 1
    assert f"own.toml:{line}: [sites.triton-flag.guards.states] unknown state 'helt'" in ran.err
