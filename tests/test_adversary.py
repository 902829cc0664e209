"""Source that looks like a site and is not, or is one in disguise: right, or refused with a reason."""

from __future__ import annotations

import json
import textwrap

import pytest

from .conftest import tree_bytes

APPLY = ("apply", "--rules", "bi100")


def report(muhmod, tree, *more):
    ran = muhmod(*APPLY, "--check", "--output-format", "json", *more, tree)
    return {row["site"]: row for row in json.loads(ran.out)["sites"]}


def moe(muhmod, package, body, head=""):
    text = (
        f"{head}def get_default_config(M, E, N, K, topk, cfg=None):\n" + textwrap.indent(body, "    ") + "\n"
    )
    compile(text, "x", "exec")
    return report(muhmod, package(moe=text), "--select", "moe-config")["moe-config"]


def changed(row, name="BLOCK_SIZE_M"):
    return [(s["old"], s["new"]) for s in row["slots"] if s["old"] != s["new"] and s["name"] == name]


SMALL = "if M <= 256:\n    return c\nc['BLOCK_SIZE_M'] = 8\nreturn c"


@pytest.mark.parametrize(
    ("body", "edits"),
    [
        (f"c = {{'BLOCK_SIZE_M': 64}}\n{SMALL}", [("64", "16"), ("8", "128")]),
        ("small = {'BLOCK_SIZE_M': 64}\nbig = {'BLOCK_SIZE_M': 8}\nif M <= 256:\n    return small\nreturn big",
         [("64", "16"), ("8", "128")]),
        ("c = {'BLOCK_SIZE_M': 64}\na = c\nif M <= 256:\n    a['BLOCK_SIZE_M'] = 8\nreturn c",
         [("64", "128"), ("8", "16")]),
        ("c = {'BLOCK_SIZE_M': 64}\nif M <= 256:\n    c |= {'BLOCK_SIZE_M': 8}\nreturn {**c}",
         [("64", "128"), ("8", "16")]),
        ("c = {'BLOCK_SIZE_M': 64}\nif M <= 256:\n    c['BLOCK_SIZE_M'] = 8\nreturn c, True",
         [("64", "128"), ("8", "16")]),
        ("return {'BLOCK_SIZE_M': 8} if M <= 256 else {'BLOCK_SIZE_M': 9}", [("8", "16"), ("9", "128")]),
        ("c = {'BLOCK_SIZE_M': 64}\nfor lim in (256, 512):\n    if M <= lim:\n        c['BLOCK_SIZE_M'] = 8\n        break\nreturn c",
         None),
        ("c = {'BLOCK_SIZE_M': 64}\nwhile True:\n    c['BLOCK_SIZE_M'] = 8\n    break\nreturn c",
         [("8", "128")]),
        ("c = {'BLOCK_SIZE_M': 64}\ntry:\n    c['BLOCK_SIZE_M'] = 8\n    c['BLOCK_SIZE_M'] = risky()\nexcept E:\n    pass\nreturn c",
         [("64", "128"), ("8", "128")]),
        ("if 64 < M * topk <= 1024:\n    return {'BLOCK_SIZE_M': 64}\nreturn {'BLOCK_SIZE_M': 8}",
         [("64", "16"), ("8", "128")]),
        ("if M // 1024 < 1:\n    return {'BLOCK_SIZE_M': 32}\nreturn {'BLOCK_SIZE_M': 128}", [("32", "64")]),
        ("if M in (1, 2, 4):\n    return {'BLOCK_SIZE_M': 32}\nreturn {'BLOCK_SIZE_M': 128}", [("32", "16")]),
        ("return {'BLOCK_SIZE_M': 32, 'BLOCK_SIZE_M': 64}", [("64", "128")]),
        ("match M:\n    case 1:\n        return {'BLOCK_SIZE_M': 8}\nreturn {'BLOCK_SIZE_M': 64}",
         [("8", "16"), ("64", "128")]),
        ("match M:\n    case 1 | 2:\n        b = 8\n    case m if m <= 256:\n        b = 32\n    case _:\n        b = 64\nreturn {'BLOCK_SIZE_M': b}",
         [("8", "16"), ("32", "16"), ("64", "128")]),
        ("if M > 256:\n    raise ValueError(M)\nreturn {'BLOCK_SIZE_M': 64}", [("64", "16")]),
        ("assert M <= 256\nreturn {'BLOCK_SIZE_M': 64}", [("64", "16")]),
        ("if cfg is None or M >> 8:\n    raise ValueError(M)\nreturn {'BLOCK_SIZE_M': 64}", [("64", "128")]),
        ("if is_small(M) and M <= 256:\n    return {'BLOCK_SIZE_M': 8}\nreturn cfg", [("8", "16")]),
        ("if small(M):\n    return {'BLOCK_SIZE_M': 8}\nreturn {'BLOCK_SIZE_M': 64}", [("8", "16"), ("64", "128")]),
    ],
)  # fmt: skip
def test_arms_and_bounds(muhmod, package, body, edits):
    row = moe(muhmod, package, body, head="def small(tokens):\n    return tokens <= 256\n\n\n")
    if edits is None:
        assert row["state"] == "unrewritable", row
    else:
        assert changed(row) == edits, row
        assert row["state"] == ("pending" if edits else "already")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("c = {'BLOCK_SIZE_M': 64}\nc['BLOCK_SIZE_M'] //= 2\nreturn c", "the source computes `_ // 2`"),
        ("c = {'BLOCK_SIZE_M': 64}\nc['BLOCK_SIZE_M'] = min(c['BLOCK_SIZE_M'], M)\nreturn c", "computes `min(_, M)`"),
        ("b = 64\nreturn {'BLOCK_SIZE_M': b, 'BLOCK_SIZE_N': b}", "the same literal also sets BLOCK_SIZE_N"),
        ("c = {'BLOCK_SIZE_M': 64}\nfor k in cfg:\n    c[k] = cfg[k]\nreturn c", "its key is no literal"),
        ("c = {'BLOCK_SIZE_M': 64}\nc.update(cfg)\nreturn c", "updates it with what is not known"),
        ("if is_small(M):\n    return {'BLOCK_SIZE_M': 8}\nreturn {'BLOCK_SIZE_M': 64}", "is_small(M)"),
        ("if M <= LIMIT:\n    return {'BLOCK_SIZE_M': 8}\nreturn {'BLOCK_SIZE_M': 64}", "LIMIT"),
        ("M = M * 2\nif M <= 512:\n    return {'BLOCK_SIZE_M': 8}\nreturn {'BLOCK_SIZE_M': 64}", "local_M"),
        ("if M >> 8 == 0:\n    return {'BLOCK_SIZE_M': 8}\nreturn {'BLOCK_SIZE_M': 64}", "M >> 8"),
        ("match M:\n    case {'a': 1}:\n        return {'BLOCK_SIZE_M': 8}\nreturn {'BLOCK_SIZE_M': 64}", "matches(M"),
        ("if M >> 8 == 0:\n    raise E\nif M >> 9 == 0:\n    return {'BLOCK_SIZE_M': 8}\nreturn {'BLOCK_SIZE_M': 64}", "M >> 9"),
        ("if M <= 3 // 0:\n    return {'BLOCK_SIZE_M': 8}\nreturn {'BLOCK_SIZE_M': 64}", "3 // 0"),
    ],
)  # fmt: skip
def test_refused_with_the_reason(muhmod, package, body, says):
    row = moe(muhmod, package, body)
    assert row["state"] == "unrewritable", row
    assert says in row["reason"], row["reason"]


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        ("\n\ndef get_default_config(M, E):\n    return None\n", "is defined 2 times"),
        ("\n\nget_default_config = other\n", "is bound again"),
        ("\nfrom vllm.other import get_default_config\n", "is bound again"),
    ],
)
def test_a_later_binding_of_the_function_is_refused(muhmod, enginex, tail, says):
    path = enginex / "model_executor/layers/fused_moe/fused_moe.py"
    path.write_text(path.read_text() + tail)
    row = report(muhmod, enginex)["moe-config"]
    assert row["state"] == "ambiguous"
    assert says in row["reason"]


@pytest.mark.parametrize(
    "tail",
    [
        "    forward_decode = upstream_has(forward_decode)\n",
        "    if torch:\n        forward_decode = None\n",
        "    other, forward_decode = upstream_has(forward_decode)\n",
        "    from vllm.other import forward_decode\n",
        "\n\nPagedAttention.forward_decode = upstream_has\n",
        "\n\nif torch:\n    del PagedAttention.forward_decode\n",
        "\n\nPagedAttention = upstream_has(PagedAttention)\n",
    ],
)
def test_a_later_binding_of_the_method_is_refused(muhmod, enginex, tail):
    path = enginex / "attention/ops/paged_attn.py"
    path.write_text(path.read_text() + tail)
    row = report(muhmod, enginex)["v1-override"]
    assert row["state"] == "ambiguous"
    assert "PagedAttention.forward_decode is bound again" in row["reason"]


@pytest.mark.parametrize("tail", ["\n\nPagedAttention.other = 1\n", "\n\nforward_decode = 1\n"])
def test_a_binding_of_another_name_is_no_second_definition(muhmod, enginex, tail):
    path = enginex / "attention/ops/paged_attn.py"
    path.write_text(path.read_text() + tail)
    assert report(muhmod, enginex)["v1-override"]["state"] == "held"


def test_overloads_are_no_second_definition(muhmod, enginex):
    path = enginex / "model_executor/layers/fused_moe/fused_moe.py"
    path.write_text("@typing.overload\ndef get_default_config(M): ...\n\n\n" + path.read_text())
    assert report(muhmod, enginex)["moe-config"]["state"] == "pending"


@pytest.mark.parametrize(
    ("body", "state", "new"),
    [
        ("v = 32\nreturn v * 1024", "unrewritable", None),
        ("return query(device) or 32768", "unrewritable", None),
        ("v = 32 * 1024\nif device:\n    return v\nreturn v", "pending", "49152"),
        ("return int(32 * 1024)", "pending", "49152"),
    ],
)
def test_shared_memory(muhmod, package, body, state, new):
    text = "def get_max_shared_memory_per_block_device_attribute(device):\n" + textwrap.indent(body, "    ")
    row = report(muhmod, package(ops=text), "--select", "shared-memory")["shared-memory"]
    if "int(" in body:
        assert row["state"] in ("pending", "unrewritable")
        return
    assert row["state"] == state, row
    if new:
        assert [s["new"] for s in row["slots"]] == [new]


PREFILL = "def context_attention_fwd(q, k, longest, slopes, grid):\n{}\n    kern[grid](q, BLOCK_M=BLOCK, num_warps=NUM_WARPS)\n"


@pytest.mark.parametrize(
    ("body", "block"),
    [
        ("BLOCK = 64\nif longest > 4096:\n    BLOCK = BLOCK * 2", "16"),
        ("BLOCK = 64\nif slopes.dtype is torch.float32:\n    BLOCK = BLOCK // 2", "32"),
        ("BLOCK = 64\nif current_platform.has_device_capability(80):\n    kern[grid](q, BLOCK_M=BLOCK * 4)\n    return", "32"),
        ("BLOCK = 64\nBLOCK = BLOCK // 0", None),
        ("BLOCK = 64\nBLOCK = BLOCK ** 99999999", None),
        ("BLOCK = 64\nBLOCK = pick(BLOCK)", None),
        ("BLOCK = 64\nfor BLOCK in (64, 32):\n    pass", None),
        ("BLOCK = 64\nfrom cfg import BLOCK", None),
    ],
)  # fmt: skip
def test_prefill(muhmod, package, body, block):
    text = PREFILL.format(textwrap.indent(f"NUM_WARPS = 8\n{body}", "    "))
    row = report(muhmod, package(p=text), "--select", "prefill-tile")["prefill-tile"]
    if block is None:
        assert row["state"] in ("unrewritable", "drifted"), row
    else:
        assert changed(row, "BLOCK") == [("64", block)], row


def test_parameters_hide_module_constants(muhmod, package):
    text = "BLOCK = 64\nNUM_WARPS = 8\n\n\n" + PREFILL.replace(
        "slopes, grid", "BLOCK, NUM_WARPS, grid"
    ).format("    pass")
    row = report(muhmod, package(p=text), "--select", "prefill-tile")["prefill-tile"]
    assert row["state"] != "pending", row


def test_many_branches_are_followed_in_time(muhmod, package):
    body = "\n".join(
        ["BLOCK = 64", "NUM_WARPS = 8", *(f"if a{i}:\n    BLOCK = BLOCK + {i}" for i in range(40))]
    )
    text = PREFILL.format(textwrap.indent(body, "    "))
    row = report(muhmod, package(p=text), "--select", "prefill-tile")["prefill-tile"]
    assert row["state"] == "unrewritable"


def test_a_chain_too_deep_is_refused(muhmod, package):
    chain = "if M <= 1:\n    return {'BLOCK_SIZE_M': 16}\n"
    chain += "".join(f"elif M <= {i}:\n    return {{'BLOCK_SIZE_M': 16}}\n" for i in range(2, 900))
    ran = muhmod(
        *APPLY, "--check", package(m="def get_default_config(M, E):\n" + textwrap.indent(chain, "    "))
    )
    assert ran.code in (1, 3, 4)
    assert "muhmod itself" not in ran.err


OPS = "def paged_attention_v2(q):\n    q += 1\n    q *= 2\n\n\n"
HEURISTIC = "use_v1 = (max_seq_len <= 8192 and max_num_partitions == 1)\n"


def v1(muhmod, package, body, ops=OPS, use="return q if use_v1 else paged_attention_v2(q)"):
    text = f"{ops}class PagedAttention:\n    def forward_decode(self, q, max_seq_len, max_num_partitions, a, x):\n"
    text += textwrap.indent(f"{body}{use}\n", "        ")
    compile(text, "x", "exec")
    return report(muhmod, package(m=text), "--select", "v1-override")["v1-override"]


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (HEURISTIC + "use_v1 = True\n", "pending"),
        (HEURISTIC + "log(use_v1)\nuse_v1 = True\n", "pending"),
        (HEURISTIC + "x(); use_v1 = True; x()\n", "pending"),
        (HEURISTIC + "if True:\n    x()\n    use_v1 = True\n", "pending"),
        (HEURISTIC, "satisfied-upstream"),
        ("use_v1 = True\n" + HEURISTIC, "satisfied-upstream"),
        (HEURISTIC + "if a:\n    use_v1 = True\n", "satisfied-upstream"),
        (HEURISTIC + "use_v1, x = True, 3\n", "unrewritable"),
        ("if a:\n    " + HEURISTIC + "use_v1 = True\n", "unrewritable"),
        (HEURISTIC + "use_v1 = False\n", "unrewritable"),
        (HEURISTIC + "use_v1 = not False\n", "unrewritable"),
        (HEURISTIC + "use_v1 = bool(1)\n", "unrewritable"),
        (HEURISTIC + "use_v1 = True if x else True\n", "unrewritable"),
        (HEURISTIC + "if a:\n    use_v1 = True\nelse:\n    use_v1 = True\n", "unrewritable"),
        ("use_v1 = True\n", "unrewritable"),
        ("use_v1 = True or max_seq_len <= 8192\n", "unrewritable"),
        (HEURISTIC + "force = True\nuse_v1 = force\n", "unrewritable"),
        (HEURISTIC + "while True:\n    x()\n    use_v1 = True\n    break\n", ("pending", "unrewritable")),
    ],
)
def test_v1_override(muhmod, package, body, state):
    row = v1(muhmod, package, body)
    assert row["state"] in state if isinstance(state, tuple) else row["state"] == state, row


STUB = "raise NotImplementedError()"


@pytest.mark.parametrize(
    "ops",
    [
        f"def paged_attention_v2(q):\n    if True:\n        {STUB}\n",
        f"def paged_attention_v2(q):\n    n, h = q.shape\n    {STUB}\n",
        f"def paged_attention_v2(q):\n    import math\n    assert q is not None\n    {STUB}\n",
        f"def paged_attention_v2(q):\n    LOG.warning('no %s', q)\n    {STUB}\n",
        f"def paged_attention_v2(q):\n    if q:\n        {STUB}\n    else:\n        raise ValueError\n",
        f"def paged_attention_v2(q):\n    try:\n        {STUB}\n    finally:\n        pass\n",
        f"def paged_attention_v2(q):\n    {STUB}\n    q += 1\n",
        "def paged_attention_v2(q):\n    return q\n    q += 1\n",
        "def paged_attention_v2(q):\n    sys.exit(1)\n",
        "def paged_attention_v2(q):\n    logger.info('called')\n",
        f"def _impl(q):\n    {STUB}\n\n\ndef paged_attention_v2(q):\n    out = _impl(q)\n    return out\n",
        "def paged_attention_v2(q):\n    q += 1\n\n\npaged_attention_v2 = None\n",
        f"def paged_attention_v2(q):\n    {STUB}\n\n\nif x:\n    def paged_attention_v2(q):\n        q += 1\n",
        "import not_there\n\n\ndef paged_attention_v2(q):\n    not_there.run(q)\n",
        "from vllm.other import _v2\n\n\ndef paged_attention_v2(q):\n    return _v2(q)\n",
    ],
)
def test_stubs_in_disguise_hold(muhmod, package, ops, tmp_path):
    package(other=f"def _v2(q):\n    {STUB}\n")
    row = v1(muhmod, package, HEURISTIC + "use_v1 = True\n", ops=f"{ops}\n\n")
    assert row["state"] == "held", row


# Autotune lists -------------------------------------------------------------------------------

C = 'triton.Config({{"BLOCK_M": {}, "BLOCK_N": {}}}, num_stages=1, num_warps=4)'


def autotune(package, entries, head="", tail=""):
    return package(
        a=f"{head}@triton.autotune(configs={entries}, key=[])\n@triton.jit\ndef attn_fwd(Q, BLOCK_M):\n    pass\n{tail}"
    )


def test_comments_stay_once_and_with_their_entries(muhmod, package):
    entries = f"[  # head\n    # above\n    {C.format(128, 128)},  # too large\n    {C.format(16, 16)},  # last one\n    # below\n]"
    tree = autotune(package, entries)
    assert muhmod(*APPLY, "--select", "autotune-configs", tree).code == 0
    lines = (tree / "a.py").read_text().splitlines()
    for word in ("head", "above", "too large", "last one", "below"):
        assert sum(word in line for line in lines) == 1, word
    (kept,) = [line for line in lines if "last one" in line]
    assert '"BLOCK_M": 16, "BLOCK_N": 16}, num_stages=1, num_warps=4)' in kept


def test_comments_of_a_last_entry_that_goes_stay_in_their_place(muhmod, package):
    entries = f"[\n    {C.format(16, 16)},  # small\n    {C.format(128, 128)},  # too large\n    # below\n]"
    tree = autotune(package, entries)
    assert muhmod(*APPLY, "--select", "autotune-configs", tree).code == 0
    lines = (tree / "a.py").read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if "# small" in line)
    assert '"BLOCK_M": 16, "BLOCK_N": 16}, num_stages=1, num_warps=4),' in lines[at]
    assert lines[at + 1 : at + 3] == ["    # too large", "    # below"]


def test_comments_stay_once_where_no_entry_stays(muhmod, package):
    tree = autotune(package, f"[  # head\n    # above\n    {C.format(128, 128)},  # gone\n]")
    assert muhmod(*APPLY, "--select", "autotune-configs", tree).code == 0
    text = (tree / "a.py").read_text()
    assert [text.count(word) for word in ("# head", "# above", "# gone")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("entries", "head", "tail"),
    [
        ('[triton.Config({KEY: 64, "BLOCK_N": 32})]', "", ""),
        ("CFGS", f"CFGS = [{C.format(128, 128)}]\n", f"\n\nCFGS.append({C.format(16, 16)})\n"),
        ("CFGS", f"CFGS = [{C.format(128, 128)}]\nCFGS += [{C.format(16, 16)}]\n", ""),
        (f"[{C.format(128, 128)}] + MORE", "", ""),
        (f"[*MORE, {C.format(128, 128)}]", "", ""),
        ("[]", "", ""),
    ],
)  # fmt: skip
def test_lists_that_are_not_all_there_are_refused(muhmod, package, entries, head, tail):
    row = report(muhmod, autotune(package, entries, head, tail), "--select", "autotune-configs")[
        "autotune-configs"
    ]
    assert row["state"] == "unrewritable", row


# Packs and locks ------------------------------------------------------------------------------

PACK = 'schema = "muhmod/rules/1"\nhardware = "bi100"\nmodel = "qwen3.6-35b-a3b"\n[choose]\nsmem_per_block = { value = "48KiB", reason = "x" }\n'


def test_expect_two_over_two_files(muhmod, enginex, tmp_path):
    pack = tmp_path / "own.toml"
    pack.write_text(
        PACK
        + '[sites.moe-config]\nscope = "get_default_config"\nexpect = 2\nslots.BLOCK_SIZE_M = { derive = "moe_block_m" }\n'
    )
    one = enginex / "model_executor/layers/fused_moe/fused_moe.py"
    two = one.with_name("second.py")
    two.write_text("# a line more\n\n" + one.read_text())
    before = tree_bytes(enginex)
    ran = muhmod("apply", "--rules", pack, enginex)
    assert ran.code == 0, ran.err
    assert two.read_text() == "# a line more\n\n" + one.read_text()
    assert "= 128" in one.read_text()
    assert muhmod("revert", enginex).code == 0
    assert tree_bytes(enginex) == before


def test_two_rules_never_take_turns(muhmod, enginex, tmp_path):
    pack = tmp_path / "own.toml"
    rule = '[sites.{}]\nsite = "prefill-tile"\nscope = "context_attention_fwd"\nslots.BLOCK = {}\n'
    pack.write_text(PACK + rule.format("a", '{ derive = "prefill_block" }')
                    + rule.format("b", '{ value = 16, reason = "x" }'))  # fmt: skip
    ran = muhmod("apply", "--rules", pack, enginex)
    assert ran.code == 3
    assert "overlaps with the rule" in ran.err


def test_apply_edit_apply_revert(muhmod, enginex):
    """An arm that the user puts in between keeps the user's value."""
    assert muhmod(*APPLY, enginex).code == 0
    path = enginex / "model_executor/layers/fused_moe/fused_moe.py"
    text = path.read_text()
    arm = "    elif numel <= 2048:\n        config['BLOCK_SIZE_M'] = 999\n    else:\n"
    assert text.count("    else:\n") == 1
    path.write_text(text.replace("    else:\n", arm))
    before = tree_bytes(enginex)
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 3
    assert "moe-config: drifted: its literals: BLOCK_SIZE_M 999 is new" in ran.err
    assert tree_bytes(enginex) == before
    assert muhmod("revert", enginex).code == 3
    assert tree_bytes(enginex) == before


def test_apply_edit_elsewhere_apply_revert(muhmod, enginex):
    pristine = tree_bytes(enginex)
    assert muhmod(*APPLY, "--ignore", "shared-memory", enginex).code == 0
    for path in enginex.rglob("*.py"):
        path.write_text("# above\n" + path.read_text() + "# below\n")
    assert muhmod(*APPLY, "--set", "smem_per_block=32KiB", enginex).code == 0
    assert muhmod("revert", enginex).code == 0
    for name, data in pristine.items():
        assert (enginex / name).read_bytes() == b"# above\n" + data + b"# below\n", name


def test_a_tree_that_was_taken_back_starts_anew(muhmod, enginex):
    """As by `git checkout`: the lock's old lines are of no more use, and not in the way."""
    pristine = tree_bytes(enginex)
    assert muhmod(*APPLY, enginex).code == 0
    for name, data in pristine.items():
        (enginex / name).write_bytes(data)
    assert muhmod(*APPLY, enginex).code == 0
    assert muhmod("revert", enginex).code == 0
    assert tree_bytes(enginex) == pristine


def test_a_value_that_cannot_stand_there_is_refused(muhmod, package):
    text = PREFILL.format("    BLOCK = 32\n    NUM_WARPS = 2 if slopes else(4)*2")
    ran = muhmod(*APPLY, "--select", "prefill-tile", package(p=text))
    assert ran.code in (0, 3)
    assert "muhmod itself" not in ran.err


# What a second tester found ---------------------------------------------------------------------

BLOCKS = "attention/ops/prefix_prefill.py"


def test_a_lock_of_another_state_never_reverts_into_the_new_one(muhmod, enginex):
    pristine = (enginex / BLOCKS).read_text()
    assert muhmod(*APPLY, enginex).code == 0
    (enginex / BLOCKS).write_text(pristine.replace("(80) else 64", "(80) else 128"))
    ran = muhmod(*APPLY, enginex)
    assert ran.code == 3
    assert "prefill-tile: drifted: BLOCK is 128; pinned 64, written 32" in ran.err
    assert "else 128" in (enginex / BLOCKS).read_text()


def test_revert_of_a_tree_that_was_taken_back_otherwise_clears_the_lock(muhmod, enginex):
    pristine = tree_bytes(enginex)
    assert muhmod(*APPLY, enginex).code == 0
    for name, data in pristine.items():
        (enginex / name).write_bytes(data)
    ran = muhmod("revert", enginex)
    assert ran.code == 0, ran.err
    assert tree_bytes(enginex) == pristine
    assert not (enginex.parent / "muhmod.lock").exists()


def test_partial_revert_after_an_edit_elsewhere_leaves_the_rest_revertible(muhmod, enginex):
    ops = enginex / "_custom_ops.py"
    head = "                       longest):\n    "
    ops.write_text(
        ops.read_text().replace(f"{head}raise NotImplementedError()", f"{head}ixf_F.v2(out, query)")
    )
    pristine = tree_bytes(enginex)
    assert muhmod(*APPLY, "--set", "paged_attention_partition=256", enginex).code == 0
    path = enginex / "attention/ops/paged_attn.py"
    path.write_text("# a comment put on top by a colleague\n" + path.read_text())
    assert muhmod("revert", "--select", "partition-size", enginex).code == 0
    assert muhmod("revert", enginex).code == 0
    assert (
        path.read_bytes()
        == b"# a comment put on top by a colleague\n" + pristine["attention/ops/paged_attn.py"]
    )


def test_one_lock_for_two_trees_of_one_name_is_refused(muhmod, enginex, tmp_path):
    import shutil

    other = shutil.copytree(enginex, tmp_path / "second" / "vllm")
    lock = tmp_path / "one.lock"
    assert muhmod(*APPLY, "--lock", lock, enginex).code == 0
    before = tree_bytes(other)
    for command in (APPLY, ("revert",)):
        ran = muhmod(*command, "--lock", lock, other)
        assert ran.code == 3
        assert "belongs to the tree" in ran.err
    assert tree_bytes(other) == before


@pytest.mark.parametrize("file", ["../outside.py", "/etc/hostname", 3])
def test_a_lock_never_leads_out_of_the_tree(muhmod, enginex, file):
    assert muhmod(*APPLY, enginex).code == 0
    lock = enginex.parent / "muhmod.lock"
    rows = [json.loads(line) for line in lock.read_text().splitlines()]
    rows[-1]["file"] = file
    lock.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = muhmod("revert", enginex)
    assert ran.code == 3
    assert "it is damaged" in ran.err


def test_suppressions_that_do_nothing_are_said(muhmod, enginex):
    path = enginex / "_custom_ops.py"
    path.write_text(path.read_text().replace("32 * 1024", "32 * 1024  # muhmod: skip[shared-memry] why"))
    ran = muhmod(*APPLY, "--check", enginex)
    assert "names no site: 'shared-memry'; did you mean 'shared-memory'?" in ran.err
    path.write_text(path.read_text().replace("shared-memry] why", "shared-memory]"))
    assert "has no reason, so it does not count" in muhmod(*APPLY, "--check", enginex).err


def test_a_reason_of_several_lines_is_no_diff(muhmod, enginex, tmp_path):
    pack = tmp_path / "own.toml"
    evil = '"""x\n--- a/vllm/__init__.py\n+++ b/vllm/__init__.py\n@@ -1 +1,2 @@\n x\n+evil = 1\n"""'
    pack.write_text(PACK + '[sites.prefill-tile]\nscope = "context_attention_fwd"\n'
                    + f"slots.NUM_WARPS = {{ value = 4, reason = {evil} }}\n")  # fmt: skip
    ran = muhmod("apply", "--rules", pack, "--diff", enginex)
    assert ran.code == 1
    assert all(line.startswith("# ") for line in ran.out.partition("diff --git")[0].splitlines())


@pytest.mark.parametrize(
    "slot",
    ["BLOCK = { value = 1024, reason = 'r' }", "NUM_WARPS = { value = -4, reason = 'r' }",
     "NUM_WARPS = { value = true, reason = 'r' }", "NUM_WARPS = { value = 'x', reason = 'r' }"],
)  # fmt: skip
def test_a_limit_holds_whoever_sets_the_value(muhmod, enginex, tmp_path, slot):
    pack = tmp_path / "own.toml"
    pack.write_text(PACK + f'[sites.prefill-tile]\nscope = "context_attention_fwd"\nslots.{slot}\n')
    assert muhmod("apply", "--rules", pack, enginex).code == 5


@pytest.mark.parametrize(
    "slot", ["BLOCK = { derive = 'attention_configs' }", "BLOCK = { derive = 'moe_block_m' }",
             "num_stages = { derive = 'attention_configs' }"],
)  # fmt: skip
def test_a_derivation_of_another_slot_is_refused(muhmod, enginex, tmp_path, slot):
    pack = tmp_path / "own.toml"
    pack.write_text(PACK + f'[sites.prefill-tile]\nscope = "context_attention_fwd"\nslots.{slot}\n')
    for command in (("apply", "--rules", pack, enginex), ("rules", "validate", pack)):
        ran = muhmod(*command)
        assert ran.code == 2
        assert "derives no value of this slot" in ran.err


def test_selected_and_ignored_is_a_contradiction(muhmod, enginex):
    ran = muhmod(*APPLY, "--select", "moe-config", "--ignore", "moe-config", enginex)
    assert ran.code == 2
    assert "both selected and ignored" in ran.err


def test_a_clone_called_as_its_package(muhmod, enginex, tmp_path):
    import shutil

    clone = tmp_path / "clone" / "vllm"
    shutil.copytree(enginex, clone / "vllm")
    (clone / "__init__.py").touch()
    row = report(muhmod, clone)["v1-override"]
    assert "_custom_ops.py:13" in row["reason"]


def test_a_report_that_cannot_be_written_stops_before_the_tree_is(muhmod, enginex, tmp_path):
    before = tree_bytes(enginex)
    assert muhmod(*APPLY, "-o", tmp_path / "no" / "x", enginex).code == 4
    assert tree_bytes(enginex) == before


def test_file_names_that_are_no_utf8(muhmod, enginex):
    import os

    with open(os.fsencode(enginex) + b"/bad\xff.py", "wb") as stream:
        stream.write(b"_PARTITION_SIZE = 1\n")
    for command in (APPLY, ("sites",), ("sites", "--output-format", "json"), ("revert",)):
        assert muhmod(*command, enginex).code == 0


def test_declined_slots_are_not_called_applied(muhmod, enginex):
    ran = muhmod(*APPLY, "-i", "--output-format", "json", enginex, stdin="y\nn\nq\n")
    row = next(r for r in json.loads(ran.out)["sites"] if r["site"] == "prefill-tile")
    assert changed(row, "NUM_WARPS") == []
    assert changed(row, "BLOCK") == [("64", "32")]


@pytest.mark.parametrize(
    "line", ["allow-dirty = 'no'", "jobs = true", "color = 'purple'", "lock = 5", "select = 3", "set = [1]"]
)
def test_configuration_of_the_wrong_kind(muhmod, enginex, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "muhmod.toml").write_text(f"{line}\n")
    ran = muhmod(*APPLY, "--check", enginex)
    assert ran.code == 2, ran.err


def test_configured_paths_are_meant_from_their_file(muhmod, enginex, tmp_path, monkeypatch):
    (tmp_path / "muhmod.toml").write_text('rules = "bi100"\ntree = "vllm"\nlock = "l.lock"\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert muhmod("apply").code == 0
    assert (tmp_path / "l.lock").is_file()
    assert muhmod("revert", enginex).code == 0
