"""Which values survive: the data flow behind `overwritten`, on the ways in which Python can say it."""

from __future__ import annotations

import textwrap

import pytest

from muhmod import catalog
from muhmod.site import Module

# Source of get_default_config's body; the values of BLOCK_SIZE_M that arrive, and those that never do.
MOE = {
    "ladder": ("c = {'BLOCK_SIZE_M': 1}\nif M <= 2:\n    c['BLOCK_SIZE_M'] = 2\nelse:\n    c['BLOCK_SIZE_M'] = 3\nreturn c",
               {2, 3}, {1}),
    "ladder without else": ("c = {'BLOCK_SIZE_M': 1}\nif M <= 2:\n    c['BLOCK_SIZE_M'] = 2\nreturn c", {1, 2}, set()),
    "reassigned": ("c = {'BLOCK_SIZE_M': 1}\nc = {'BLOCK_SIZE_M': 2}\nreturn c", {2}, {1}),
    "alias": ("c = {'BLOCK_SIZE_M': 1}\nd = c\nd['BLOCK_SIZE_M'] = 2\nreturn c", {2}, {1}),
    "alias of a parameter": ("d = cfg\nd['BLOCK_SIZE_M'] = 2\nreturn cfg", {2}, set()),
    "copy is no alias": ("c = {'BLOCK_SIZE_M': 1}\nd = c.copy()\nd['BLOCK_SIZE_M'] = 2\nreturn c", {1}, {2}),
    "dict of a dict": ("c = {'BLOCK_SIZE_M': 1}\nreturn dict(c, BLOCK_SIZE_M=2)", {2}, {1}),
    "spread before": ("c = {'BLOCK_SIZE_M': 1}\nreturn {**c, 'BLOCK_SIZE_M': 2}", {2}, {1}),
    "spread after": ("c = {'BLOCK_SIZE_M': 1}\nreturn {'BLOCK_SIZE_M': 2, **c}", {1}, {2}),
    "union": ("c = {'BLOCK_SIZE_M': 1}\nreturn c | {'BLOCK_SIZE_M': 2}", {2}, {1}),
    "union in place": ("c = {'BLOCK_SIZE_M': 1}\nc |= {'BLOCK_SIZE_M': 2}\nreturn c", {2}, {1}),
    "update": ("c = {'BLOCK_SIZE_M': 1}\nc.update(BLOCK_SIZE_M=2)\nreturn c", {2}, {1}),
    "update with a dict": ("c = {'BLOCK_SIZE_M': 1}\nc.update({'BLOCK_SIZE_M': 2})\nreturn c", {2}, {1}),
    "setdefault": ("c = {'BLOCK_SIZE_M': 1}\nc.setdefault('BLOCK_SIZE_M', 2)\nreturn c", {1, 2}, set()),
    "pop": ("c = {'BLOCK_SIZE_M': 1}\nc.pop('BLOCK_SIZE_M')\nc['BLOCK_SIZE_M'] = 2\nreturn c", {2}, {1}),
    "read before": ("c = {'BLOCK_SIZE_M': 1}\nlaunch(c['BLOCK_SIZE_M'])\nc = {'BLOCK_SIZE_M': 2}\nreturn c", {1, 2}, set()),
    "passed on before": ("c = {'BLOCK_SIZE_M': 1}\nlaunch(c)\nc = {'BLOCK_SIZE_M': 2}\nreturn c", {1, 2}, set()),
    "kept elsewhere before": ("c = {'BLOCK_SIZE_M': 1}\nself.c = c\nc = {'BLOCK_SIZE_M': 2}\nreturn c", {1, 2}, set()),
    "in a tuple": ("c = {'BLOCK_SIZE_M': 1}\nreturn c, M", {1}, set()),
    "yielded": ("c = {'BLOCK_SIZE_M': 1}\nyield c\nc = {'BLOCK_SIZE_M': 2}\nyield c", {1, 2}, set()),
    "early return": ("c = {'BLOCK_SIZE_M': 1}\nif M <= 2:\n    return c\nc['BLOCK_SIZE_M'] = 2\nreturn c", {1, 2}, set()),
    "loop": ("c = {'BLOCK_SIZE_M': 1}\nfor _ in range(M):\n    c['BLOCK_SIZE_M'] = 2\nreturn c", {1, 2}, set()),
    "value used a turn later": (
        "c = {'BLOCK_SIZE_M': 1}\nfor _ in range(M):\n    launch(c)\n    c = {'BLOCK_SIZE_M': 2}\nreturn {'BLOCK_SIZE_M': 3}",
        {1, 2, 3}, set()),
    "break": ("c = {'BLOCK_SIZE_M': 1}\nwhile True:\n    c['BLOCK_SIZE_M'] = 2\n    if M:\n        break\nreturn c", {2}, {1}),
    "try": ("c = {'BLOCK_SIZE_M': 1}\ntry:\n    f()\n    c['BLOCK_SIZE_M'] = 2\nexcept E:\n    pass\nreturn c", {1, 2}, set()),
    "finally": ("c = {'BLOCK_SIZE_M': 1}\ntry:\n    f()\nfinally:\n    c['BLOCK_SIZE_M'] = 2\nreturn c", {2}, {1}),
    "with": ("c = {'BLOCK_SIZE_M': 1}\nwith f():\n    c['BLOCK_SIZE_M'] = 2\nreturn c", {2}, {1}),
    "match": ("c = {'BLOCK_SIZE_M': 1}\nmatch M:\n    case 1:\n        c['BLOCK_SIZE_M'] = 2\nreturn c", {1, 2}, set()),
    "match all": ("c = {'BLOCK_SIZE_M': 1}\nmatch M:\n    case 1:\n        c['BLOCK_SIZE_M'] = 2\n    case _:\n        c['BLOCK_SIZE_M'] = 3\nreturn c", {2, 3}, {1}),
    "names": ("m = 1\nif M <= 2:\n    m = 2\nreturn {'BLOCK_SIZE_M': m}", {1, 2}, set()),
    "a name that is replaced": ("m = 1\nm = 2\nreturn {'BLOCK_SIZE_M': m}", {2}, set()),
    "walrus": ("return {'BLOCK_SIZE_M': (m := 1)}", {1}, set()),
    "conditional dicts": ("return {'BLOCK_SIZE_M': 1} if M else {'BLOCK_SIZE_M': 2}", {1, 2}, set()),
    "captured": ("c = {'BLOCK_SIZE_M': 1}\ndef later():\n    return c\nc = {'BLOCK_SIZE_M': 2}\nreturn later", {1, 2}, set()),
    "constant test": ("c = {'BLOCK_SIZE_M': 1}\nif True:\n    c['BLOCK_SIZE_M'] = 2\nreturn c", {2}, {1}),
    "raise": ("c = {'BLOCK_SIZE_M': 1}\nif M:\n    c['BLOCK_SIZE_M'] = 2\nelse:\n    raise E\nreturn c", {2}, {1}),
    "underscores and hexadecimal": ("return {'BLOCK_SIZE_M': 0x1_0}", {16}, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", MOE)
def test_moe_values_that_arrive(name):
    body, live, dead = MOE[name]
    text = "def get_default_config(M, E, cfg):\n" + textwrap.indent(body, "    ") + "\n"
    (found,) = catalog.site("moe-config").find(Module(text))
    tiles = [slot for slot in found.slots if slot.name == "BLOCK_SIZE_M"]
    assert {slot.value for slot in tiles if slot.live and slot.value is not None} == live
    assert {slot.value for slot in tiles if not slot.live} == dead


# Source of context_attention_fwd's body; the (value, transforms) of BLOCK that arrive at a launch.
LAUNCH = "\nk[grid](q, BLOCK_M=BLOCK, num_warps=4)"
PREFILL = {
    "plain": ("BLOCK = 64", {(64, ())}),
    "halved": ("BLOCK = 64\nBLOCK //= 2", {(64, ("_ // 2",))}),
    "halved maybe": ("BLOCK = 64\nif q.dtype is f:\n    BLOCK = BLOCK // 2", {(64, ()), (64, ("_ // 2",))}),
    "clamped": ("BLOCK = 64\nBLOCK = min(BLOCK, 128)", {(64, ("min(_, 128)",))}),
    "twice": (
        "BLOCK = 64\nBLOCK = max(16, BLOCK // 2)\nBLOCK = BLOCK * 2",
        {(64, ("max(16, _ // 2)", "_ * 2"))},
    ),
    "through another name": ("base = 64\nBLOCK = base", {(64, ())}),
    "tuple": ("BLOCK, other = 64, 8", {(64, ())}),
    "conditional tuple": ("BLOCK, other = (64, 8) if M else (32, 4)", {(64, ()), (32, ())}),
    "chained": ("BLOCK = other = 64", {(64, ())}),
    "annotated": ("BLOCK: int = 64", {(64, ())}),
    "parenthesised": ("BLOCK = (\n    64)", {(64, ())}),
}


@pytest.mark.parametrize("name", PREFILL)
def test_prefill_values_that_arrive(name):
    body, wanted = PREFILL[name]
    text = "def context_attention_fwd(q, M, grid):\n" + textwrap.indent(body + LAUNCH, "    ") + "\n"
    (found,) = catalog.site("prefill-tile").find(Module(text))
    got = {
        (slot.value, arrival.transforms)
        for slot in found.slots
        if slot.name in ("BLOCK", "BLOCK_M") and slot.value is not None
        for arrival in slot.arrivals
    }
    assert got == wanted
