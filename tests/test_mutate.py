"""`muhmod test`: a pack's rules on trial, and the changes that they are tried with."""

from __future__ import annotations

import ast
import json
import shutil

import black
import pytest

from muhmod import mutate, pins, rulebook, tree, trial
from muhmod.mutate import Change, Mutation, Splice, Spot
from muhmod.site import Module

from . import trees
from .conftest import FIXTURES, tree_bytes
from .test_fixtures import _pack

# The changes, text to text ----------------------------------------------------------------------

TEXT = """\
import torch
from m import run

LIMIT = 4


def pick(n, m):
    if m < 9:
        n = n + 1
    if n > LIMIT:
        WARPS = 8
    else:
        WARPS = 2
    return run(n, WARPS)


def other():
    return 1
"""


def spot(text=TEXT, scope="pick", literals=("8", "2"), names=("WARPS",)):
    at = 0
    spans = []
    for literal in literals:
        at = text.index(f"WARPS = {literal}", at) + len("WARPS = ")
        spans.append((at, at + len(literal)))
    return Spot(Module(text), scope, 0, tuple(spans), names, "file")


def changed(change, of):
    made = change(of)
    return None if made is None else made.files(of.module.text)


def replaced(*pairs, text=TEXT):
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return {"": text}


PICK = TEXT[TEXT.index("def pick") : TEXT.index("\n\ndef other")]
HEAD = "import torch\nfrom m import run\n"
IF = "    if n > LIMIT:\n"
MUTATED = {
    mutate.lines_above: replaced(("import torch\n", "# one more line\n" * 9 + "import torch\n")),
    mutate.twin_above: replaced((PICK, f"{PICK.replace('pick', 'pick_twin')}\n{PICK}")),
    mutate.twin_below: replaced((PICK, f"{PICK}\n{PICK.replace('pick', 'pick_twin')}")),
    mutate.twin_elsewhere: {"": TEXT, "_twin": TEXT},
    mutate.second_above: replaced((PICK, f"{PICK}\n{PICK}")),
    mutate.second_below: replaced((PICK, f"{PICK}\n{PICK}")),
    mutate.take_name: replaced(
        (PICK, PICK.replace("= 8", "= 16").replace("= 2", "= 4") + "\n" + PICK.replace("pick", "pick_v2"))
    ),
    mutate.rebind: replaced((PICK, f"{PICK}\npick = upstream_has(pick)\n")),
    mutate.overwrite: replaced(("WARPS = 8\n", "WARPS = 8\n\n        WARPS = upstream_has(WARPS)\n")),
    mutate.decoy_comments: replaced(
        (PICK, "".join(f"# {line}\n" for line in PICK.splitlines()) + "\n" + PICK)
    ),
    mutate.decoy_string: replaced((PICK, f"_DECOY = r'''\n{PICK}'''\n\n\n{PICK}")),
    mutate.rename_definition: replaced(("pick", "pick_v2")),
    mutate.rename_variable: {"": TEXT.replace("WARPS", "WARPS_v2")},
    mutate.rename_file: {"_renamed": TEXT},
    mutate.leave_copy: {"_moved": TEXT, **replaced(("pick", "pick_v2"))},
    mutate.move_definition: {
        **replaced((PICK, "from .file_moved import pick\n")),
        "_moved": "import torch\n\nfrom m import run\n\n" + PICK,
    },
    mutate.move_down: {"": TEXT.replace(PICK, "") + f"\n\n{PICK}"},
    mutate.change_literals: replaced(("= 8", "= 16"), ("= 2", "= 4")),
    mutate.change_one_literal: replaced(("= 2", "= 4")),
    mutate.change_sibling: replaced(("< 9", "< 18")),
    mutate.negate_guard: replaced(("n > LIMIT", "not (n > LIMIT)")),
    mutate.negate_neighbour: replaced(("m < 9", "not (m < 9)")),
    mutate.swap_arms: replaced(("= 8", "= X"), ("= 2", "= 8"), ("= X", "= 2")),
    mutate.change_threshold: replaced(("> LIMIT", "> (LIMIT) + 1")),
    mutate.wrap_if: replaced(
        ("        WARPS = 8\n", "        if UPSTREAM_WANTS_IT:\n            WARPS = 8\n")
    ),
    mutate.wrap_try: replaced(
        (
            "        WARPS = 8\n",
            "        try:\n            WARPS = 8\n        except RuntimeError:\n            raise\n",
        )
    ),
    mutate.wrap_definition: replaced(
        (PICK, "if UPSTREAM_WANTS_IT:\n" + "".join(f"    {line}\n" for line in PICK.splitlines()))
    ),
    mutate.vanish: replaced(("WARPS = 8", "pass")),
    mutate.grow: replaced(("    return run", "    upstream_counts = 1\n    return run")),
    mutate.extract_helper: replaced(
        (PICK, f"def _extracted():\n    return (8)\n\n\n{PICK}".replace("WARPS = 8", "WARPS = _extracted()"))
    ),
    mutate.extract_constant: replaced(
        (PICK, f"_EXTRACTED = (8)\n\n\n{PICK}".replace("WARPS = 8", "WARPS = _EXTRACTED"))
    ),
    mutate.reformat: {"": TEXT},
    mutate.rename_class: None,
    mutate.rebind_from_outside: None,
    mutate.negate_outer_guard: None,
}  # fmt: skip


@pytest.mark.parametrize("change", MUTATED, ids=lambda change: change.__name__)
def test_each_change_of_a_function(change):
    assert changed(change, spot()) == MUTATED[change]


def test_every_change_is_tried_here():
    assert {m.change for m in mutate.MUTATIONS if m.change.__name__ != "change"} == set(MUTATED)


METHOD = """\
if torch:

    class Kernel:
        @staticmethod
        def launch(q):
            WARPS = 8 if q.fast else 2  # ten
            return run(q, WARPS)
"""
INDENTED = METHOD[METHOD.index("        @static") :]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (mutate.twin_above,
         METHOD.replace(INDENTED, f"{INDENTED.replace('launch', 'launch_twin')}\n{INDENTED}")),
        (mutate.rename_class, METHOD.replace("Kernel", "Kernel_v2")),
        (mutate.rebind, f"{METHOD}\n        launch = upstream_has(launch)\n"),
        (mutate.rebind_from_outside, f"{METHOD}\n\nKernel.launch = upstream_has(Kernel.launch)\n"),
        (mutate.swap_arms, METHOD.replace("8 if q.fast else 2", "(2) if q.fast else (8)")),
        (mutate.negate_guard, METHOD.replace("q.fast", "not (q.fast)")),
        (mutate.negate_outer_guard, METHOD.replace("if torch", "if not (torch)")),
        (mutate.extract_helper, "def _extracted(q):\n    return (8 if q.fast else 2)\n\n\n"
         + METHOD.replace("8 if q.fast else 2", "_extracted(q)")),
        (mutate.reformat, METHOD.replace("  # ten", "").replace("else 2", "else 2")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_each_change_of_a_method(change, text):
    at = METHOD.index("8 if")
    of = Spot(Module(METHOD), "Kernel.launch", 0, ((at, at + 1),), ("WARPS",), "file")
    assert changed(change, of) == {"": text}


def test_a_changed_literal_is_never_the_one_that_the_rule_would_write():
    of = spot(literals=("8",))._replace(taken=frozenset({"16", "32"}))
    assert changed(mutate.change_literals, of) == replaced(("= 8", "= 64"))


def test_both_changes_at_once_keep_the_old_literal_in_the_twin():
    (text,) = changed(mutate.both(mutate.twin_above, mutate.change_literals), spot()).values()
    twin, original = text.index("def pick_twin"), text.index("def pick(")
    assert twin < text.index("= 8") < text.index("= 2") < original < text.index("= 16") < text.rindex("= 4")


# Right or refused -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    """The stand-in tree, as it is in the repository: a trial only reads it."""
    return tree.locate(str(FIXTURES / "enginex" / "vllm"), ("vllm",))


def reports(muhmod, *arguments):
    ran = muhmod("test", "--output-format", "json", *arguments)
    return ran.code, json.loads(ran.out)


def test_misapplied_nowhere_on_the_small_tree(muhmod, enginex):
    before = tree_bytes(enginex.parent)
    code, report = reports(muhmod, "--mutate", "--rules", "bi100", enginex)
    assert code == 0
    ours = [run for run in report["mutations"] if run["tool"] == "muhmod"]
    assert {run["outcome"] for run in ours} == {"right", "refused"}
    assert all((run["outcome"] == "refused") == (run["code"] >= 3) for run in ours)
    assert {run["mutation"] for run in ours} == {mutation.name for mutation in mutate.MUTATIONS}
    assert report["tools"]["muhmod"]["misapplied"] == 0
    # What is not touched is found again, and not just refused.
    found = {run["mutation"] for run in ours if run["outcome"] == "right"}
    assert {"lines above", "twin above", "twin below", "file renamed", "reformatted"} <= found
    for tool in ("git apply", "patch"):
        if shutil.which(tool.split()[0]):
            assert report["tools"][tool]["misapplied"] > 0
    assert tree_bytes(enginex.parent) == before


def test_the_lock_of_the_applied_tree_is_as_good(small):
    pack = rulebook.load("bi100")
    runs = trial.trials(small, pack, tools=("muhmod",), wrote=True)
    assert [run for run in runs if run.outcome in trial.MISAPPLIED] == []
    assert trial.tally(runs, "muhmod").right > 40


def right_or_refused(of):
    """Two of the rules that write, which read the fewest files; `muhmod test` itself tries all."""
    pack = rulebook.load("bi100")
    rules = ("prefill-tile", "autotune-configs")
    pack = pack._replace(rules=tuple(rule for rule in pack.rules if rule.name in rules))
    runs = trial.trials(tree.locate(str(of), pack.packages), pack, tools=("muhmod",))
    assert [run for run in runs if run.outcome in trial.MISAPPLIED] == []
    assert trial.tally(runs, "muhmod").runs > 60


def test_misapplied_nowhere_on_vllm():
    right_or_refused(trees.vllm("0.6.3"))


def test_misapplied_nowhere_on_enginex():
    right_or_refused(trees.enginex())


def reflowed(width):
    def change(spot):
        text = spot.module.text
        new = black.format_str(text, mode=black.Mode(line_length=width, magic_trailing_comma=False))
        return Change((Splice(0, len(text), new),))

    return change


@pytest.mark.parametrize("width", [40, 200])
def test_a_formatter_changes_nothing(small, width):
    pack = rulebook.load("bi100")
    runs = trial.trials(small, pack, [Mutation("black", reflowed(width), True, layout=True)], ("muhmod",))
    assert {run.outcome for run in runs} == {"right"}
    assert len(runs) == len(pack.rules)


FORMS = sorted(path.parent for path in FIXTURES.glob("*/*/before.py"))[::6]


@pytest.mark.parametrize("form", FORMS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_misapplied_in_no_form(form, package, tmp_path):
    """Every sixth of the fixtures' forms; none of all of them, when this was written."""
    of = package(module=(form / "before.py").read_bytes())
    pack = rulebook.load(str(_pack(form, tmp_path)))
    rules = tuple(rule for rule in pack.rules if form.parent.name in (rule.name, rule.site))
    runs = trial.trials(tree.locate(str(of), ("vllm",)), pack._replace(rules=rules), tools=("muhmod",))
    assert [run for run in runs if run.outcome in trial.MISAPPLIED] == []


def test_what_was_written_after_a_change_is_taken_back(muhmod, small, tmp_path):
    """In the changed tree too: the mutant's own bytes."""
    pack = rulebook.load("bi100")
    written = 0
    for rule in pack.rules[2:4]:
        case = trial.Case(small, pack, rule, wrote=True)
        for mutant in trial.mutants(case, [m for m in mutate.MUTATIONS if m.keeps]):
            home = tmp_path / f"{rule.name} {mutant.mutation.name}"
            for file, data in mutant.files.items():
                path = home / "vllm" / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            (home / "muhmod.lock").write_bytes(case.lock)
            command = ("apply", "--rules", "bi100", "--select", rule.name, "-q", home / "vllm")
            if muhmod(*command).code == 0:
                written += 1
                assert tree_bytes(home / "vllm") != mutant.files
                assert muhmod("revert", home / "vllm").code == 0
                assert tree_bytes(home / "vllm") == mutant.files, home.name
    assert written > 15


# The trial itself can fail ----------------------------------------------------------------------


def test_a_tool_without_pins_is_found_out(muhmod, enginex, monkeypatch):
    def blind(rule, row, edits, own, stand, taken=""):
        return row, edits

    monkeypatch.setattr(pins, "hold", blind)
    ran = muhmod("test", "--mutate", "--rules", "bi100", "--select", "prefill-tile", enginex)
    assert ran.code == 3
    assert "prefill-tile: literals changed: silent" in ran.err
    assert "prefill-tile: neighbouring test turned round: silent" in ran.err


def test_an_edit_in_the_twin_is_found_out(muhmod, enginex, monkeypatch):
    """An apply that writes into the first function of the file that has the same text."""
    apply = trial._Copy.apply

    def blind(self, pack):
        made = apply(self, pack)
        for change in made.changes if self.lock.exists() else ():
            path = self.tree.package / change.file
            text = change.before.decode()
            for _, splice in change.splices:
                line = splice.head.rpartition("\n")[2]
                text = text.replace(line + splice.old, line + splice.new, 1)
            path.write_text(text)
        return made

    monkeypatch.setattr(trial._Copy, "apply", blind)
    ran = muhmod("test", "--mutate", "--rules", "bi100", "--select", "shared-memory", enginex)
    assert ran.code == 3
    assert "shared-memory: twin above: wrong place" in ran.err


def test_a_rule_that_is_not_taken_back_is_found_out(muhmod, enginex, monkeypatch):
    monkeypatch.setattr(trial._Copy, "revert", lambda self: 0)
    ran = muhmod("test", "--rules", "bi100", enginex)
    assert ran.code == 3
    assert "moe-config on tree: revert does not give back the bytes of model_executor" in ran.err


# The command ------------------------------------------------------------------------------------

PACK = """\
schema = "muhmod/rules/1"
hardware = "bi100"
model = "qwen3.6-35b-a3b"

[sites.chunk]
site = "q-chunk"
scope = "sdpa"
slots._Q_CHUNK = { value = 128, reason = "half the score matrix" }
"""
BEFORE = (FIXTURES / "q-chunk" / "local" / "before.py").read_bytes()
AFTER = (FIXTURES / "q-chunk" / "local" / "after.py").read_bytes()


@pytest.fixture
def pack(tmp_path):
    """A pack with one fixture, its files by name."""

    def make(**files):
        folder = tmp_path / "pack"
        form = folder / "fixtures" / "chunk" / "local"
        form.mkdir(parents=True)
        (folder / "mine.toml").write_text(PACK)
        for name, data in files.items():
            (form / f"{name}.py").write_bytes(data)
        return folder / "mine.toml"

    return make


@pytest.mark.parametrize(
    ("files", "code", "says"),
    [
        ({"before": BEFORE, "after": AFTER}, 0, "1 tried, all right"),
        ({"before": BEFORE, "after": BEFORE}, 3, "what it writes is not fixtures/chunk/local/after.py"),
        ({"before": BEFORE}, 3, "there is no fixtures/chunk/local/after.py"),
        ({"before": AFTER, "after": AFTER}, 0, "1 tried, all right"),
        ({"before": b"x = 1\n", "after": b"x = 1\n"}, 3, "it cannot be tried: no q-chunk in sdpa"),
        ({"before": b"def f(:\n", "after": b""}, 4, "it cannot be tried"),
        ({}, 2, "nothing to try mine on"),
    ],
)
def test_a_packs_own_fixtures(muhmod, pack, files, code, says):
    if files.get("before") == b"def f(:\n":
        files = files | {"before": b"_Q_CHUNK = sdpa\ndef sdpa(:\n"}
    ran = muhmod("test", "--rules", pack(**files))
    assert ran.code == code, ran.err
    assert says in ran.err


def test_each_rule_on_a_tree(muhmod, enginex):
    before = tree_bytes(enginex.parent)
    code, report = reports(muhmod, "--rules", "bi100", enginex)
    assert code == 0
    assert report["schema"] == "muhmod/test/1"
    assert {one["rule"]: one["state"] for one in report["cycles"]} == {
        "partition-size": "already", "v1-override": "held", "prefill-tile": "applied",
        "moe-config": "applied", "shared-memory": "applied", "autotune-configs": "applied",
    }  # fmt: skip
    assert tree_bytes(enginex.parent) == before


def test_a_users_own_lock_does_not_matter_and_stays(muhmod, enginex):
    assert muhmod("pin", "--rules", "bi100", "-q", enginex).code == 0
    before = tree_bytes(enginex.parent)
    assert muhmod("test", "--rules", "bi100", enginex).code == 0
    assert tree_bytes(enginex.parent) == before


def test_a_rule_that_is_lost_is_no_success(muhmod, enginex):
    path = enginex / "model_executor/layers/fused_moe/fused_moe.py"
    path.write_text(path.read_text().replace("def get_default_config", "def get_config"))
    ran = muhmod("test", "--mutate", "--rules", "bi100", "--select", "moe-config", enginex)
    assert ran.code == 3
    assert "moe-config on tree: it cannot be tried: no moe-config in get_default_config" in ran.err


def test_a_rule_whose_derivation_refuses_is_no_success(muhmod, enginex):
    ran = muhmod("test", "--rules", "bi100", "--set", "smem_per_block=1KiB", enginex)
    assert ran.code == 5
    assert "prefill-tile on tree: it cannot be tried: derivation refused" in ran.err


def test_a_rule_waits_for_no_other_when_it_is_tried(muhmod, tmp_path, enginex):
    text = rulebook.builtin("")["bi100"].read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(text.replace("[sites.moe-config]", '[sites.moe-config]\ndepends_on = ["v1-override"]'))
    code, report = reports(muhmod, "--rules", mine, "--select", "moe-config", enginex)
    assert [one["state"] for one in report["cycles"]] == ["applied"]
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--mutate", "--rules", "bi100"), "--mutate needs a TREE"),
        (("--rules", "bi100"), "nothing to try bi100 on"),
        (("--rules", "bi100", "--select", "moe-confi"), "has no site 'moe-confi'"),
        (("--rules", "bi100", "nowhere"), "no such path: nowhere"),
    ],
)
def test_wrong_usage(muhmod, arguments, says):
    ran = muhmod("test", *arguments)
    assert ran.code == 2
    assert says in ran.err


def test_the_table_in_text_and_markdown(muhmod, enginex, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    command = ("test", "--mutate", "--rules", "bi100", "--select", "shared-memory", enginex)
    plain = muhmod(*command, "-v")
    assert plain.code == 0
    rows = [line.split("  ") for line in plain.out.splitlines()]
    said = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert said["twin above"] == ["1/0/0", "-", "-"]
    assert said["literals changed"] == ["0/1/0", "-", "-"]
    assert said["misapply rate"] == ["0.0%", "-", "-"]
    assert said["all"][1:] == ["not there", "not there"]
    assert (
        "shared-memory: literals changed: muhmod: refused (exit 3): drifted: return is 64 * 1024" in plain.out
    )
    assert "git apply: absent (exit -1): there is no git" in plain.out
    table = muhmod(*command, "--output-format", "markdown").out
    assert "| right/refused/misapplied | muhmod | git apply | patch |\n|---|---|---|---|\n" in table
    assert "| twin above | 1/0/0 | - | - |\n" in table
    assert "shared-memory" not in muhmod(*command, "-q").out


def test_a_file_keeps_its_line_ends_and_its_encoding(enginex):
    path = enginex / "_custom_ops.py"
    text = path.read_text().replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    pack = rulebook.load("bi100")
    rule = next(rule for rule in pack.rules if rule.name == "shared-memory")
    case = trial.Case(tree.locate(str(enginex), pack.packages), pack, rule)
    for mutant in trial.mutants(case, mutate.MUTATIONS):
        for data in mutant.files.values():
            assert b"\n" not in data.replace(b"\r\n", b"") or not data.startswith(b"\xef\xbb\xbf")
        ast.parse(mutant.files.get("_custom_ops.py", b""))
    runs = trial.trials(
        tree.locate(str(enginex), pack.packages), pack._replace(rules=(rule,)), tools=("muhmod",)
    )
    assert [run for run in runs if run.outcome in trial.MISAPPLIED] == []
    assert trial.tally(runs, "muhmod").right > 5
