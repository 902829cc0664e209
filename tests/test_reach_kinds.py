"""Reach where a reader of real releases found it wrong once: each kind, in small trees of our own."""

from __future__ import annotations

import pytest

from .test_reach import KERNELS, tree_of, verdicts

PLATFORM = """class Here:
    def is_rocm(self): return self.kind == "rocm"
    def is_cuda(self): return self.kind == "cuda"
here = Here()
"""
KERNEL = KERNELS.partition("def get_default_config")[0]
HEAD = KERNEL + "from vllm.plat import here\nimport torch\n"
TABLE = 'def get_default_config(M, E):\n    return {"BLOCK_SIZE_M": 64}\n'


def told(muhmod, tmp_path, platform="cuda", literal="64", **files):
    """The verdict on a literal, and why."""
    files = {"__init__": "from vllm import use\n", "plat": PLATFORM, **files}
    rows = verdicts(muhmod, tree_of(tmp_path, **files), "--platform", platform)
    return next(row[3:] for row in rows if row[2] == literal)


# A value that changes an object in place is in it from then on ---------------------------------

CHANGES = {
    "index of a store": "p[torch.arange(64) // Q_CHUNK] = 1",
    "slice of a store": "p[:Q_CHUNK] = 0",
    "slice of two": "p[0, Q_CHUNK:] = 0",
    "value of a store": "p[0] = Q_CHUNK",
    "augmented": "p[Q_CHUNK:] += 1",
    "in-place method": "p.fill_(Q_CHUNK)",
    "in-place method of a view": "p[3:].fill_(Q_CHUNK)",
    "in-place by keyword": "p.clamp_(min=Q_CHUNK)",
    "out": "torch.mul(p, Q_CHUNK, out=p)",
    "function in place": "torch.nn.init.constant_(p, Q_CHUNK)",
    "deleted slice": "del p[Q_CHUNK:]",
    "popped": "p.pop(Q_CHUNK)",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("where", ["here", "returned", "attribute", "handed"])
def test_what_is_changed_in_place_is_followed(muhmod, tmp_path, change, where):
    line = CHANGES[change]
    body = {
        "here": f"p = torch.empty(64)\n{line}\none_kernel[(1,)](p)\n",
        "returned": f"def made():\n    p = torch.empty(64)\n    {line}\n    return p\none_kernel[(1,)](made())\n",
        "attribute": "class Holder:\n    def __init__(self):\n        self.p = torch.empty(64)\n"
        f"        {line.replace('p', 'self.p', 1) if line[0] == 'p' else line.replace('(p', '(self.p').replace('=p)', '=self.p)').replace('del p', 'del self.p')}\n"
        "    def run(self):\n        one_kernel[(1,)](self.p)\nHolder().run()\n",
        "handed": f"def change(p):\n    {line}\nq = torch.empty(64)\nchange(q)\none_kernel[(1,)](q)\n",
    }[where]
    verdict, why = told(muhmod, tmp_path, literal="16", use=f"{HEAD}Q_CHUNK = 16\n{body}")
    assert verdict in ("reaches", "unknown"), why
    assert (verdict, change) != ("unknown", "value of a store")


def test_who_reads_an_attribute_of_what_is_not_known_is_unknown(muhmod, tmp_path):
    body = "def run(param):\n    param.data.copy_(torch.arange(64) // Q_CHUNK)\n"
    verdict, why = told(
        muhmod, tmp_path, literal="16", use=f"{HEAD}Q_CHUNK = 16\n{body}run(torch.empty(1))\n"
    )
    assert verdict == "unknown" and "param.data" in why


# Each function on a way is run -------------------------------------------------------------------


def test_a_way_through_a_function_that_nobody_calls_is_none(muhmod, tmp_path):
    ops = "import torch\ndef shared(a):\n    torch.ops._C.paged(a)\n"
    use = ("import torch\nfrom vllm import ops\n_PARTITION_SIZE = 512\n"
           "def nobody(n):\n    ops.shared(torch.empty((n + _PARTITION_SIZE - 1) // _PARTITION_SIZE))\n"
           "def somebody(n):\n    ops.shared(torch.empty(n))\nsomebody(3)\n")  # fmt: skip
    assert told(muhmod, tmp_path, literal="512", ops=ops, use=use) == (
        "stopped", "nobody has no caller in the tree",
    )  # fmt: skip
    verdict, _ = told(muhmod, tmp_path / "b", literal="512", ops=ops, use=f"{use}nobody(3)\n")
    assert verdict == "reaches"


def test_what_a_process_starts_in_is_called_from_outside(muhmod, tmp_path):
    engine = f"{HEAD}{TABLE}class Engine:\n    def step(self):\n        one_kernel[(1,)](0, **get_default_config(1, 2))\n"
    assert told(muhmod, tmp_path, **{"engine/core": engine, "use": ""})[0] == "reaches"
    private = engine.replace("def step", "def _step")
    assert told(muhmod, tmp_path / "b", **{"engine/core": private, "use": ""})[0] == "stopped"


# What the platform decides -----------------------------------------------------------------------

LAUNCH = "one_kernel[(1,)](0, **get_default_config(1, 2))\n"
DECIDED = {
    "and": "def special():\n    return here.is_rocm() and torch.rand(1) > 0\n",
    "early return": "def special():\n    if not here.is_rocm():\n        return False\n    return bool(torch.rand(1))\n",
    "not or": "def special():\n    return not (here.is_cuda() or torch.rand(1) > 0)\n",
    "through another": "def rocm():\n    return here.is_rocm()\ndef special():\n    return rocm() and torch.rand(1) > 0\n",
}


@pytest.mark.parametrize("form", DECIDED)
def test_a_function_that_asks_the_platform_is_folded(muhmod, tmp_path, form):
    table = "def get_default_config(M, E):\n    return {'BLOCK_SIZE_M': 32} if special() else {'BLOCK_SIZE_M': 64}\n"
    use = f"{HEAD}{DECIDED[form]}{table}{LAUNCH}"
    assert told(muhmod, tmp_path, literal="32", use=use) == ("stopped", "`special()` does not hold")
    assert told(muhmod, tmp_path, literal="64", use=use)[0] == "reaches"
    assert told(muhmod, tmp_path, platform="rocm", literal="32", use=use)[0] == "reaches"


def test_a_method_that_a_derived_class_answers_otherwise_is_not_folded(muhmod, tmp_path):
    plat = ("class Base:\n    def narrow(self):\n        return False\n"
            "class Wide(Base):\n    def narrow(self):\n        return True\n"
            "import os\nhere = Wide() if os.environ.get('W') else Base()\n")  # fmt: skip
    use = (f"{HEAD}def get_default_config(M, E):\n"
           f"    return {{'BLOCK_SIZE_M': 32}} if here.narrow() else {{'BLOCK_SIZE_M': 64}}\n{LAUNCH}")  # fmt: skip
    assert told(muhmod, tmp_path, literal="32", plat=plat, use=use)[0] == "reaches"


def test_what_a_method_asks_of_itself_may_be_answered_by_a_derived_class(muhmod, tmp_path):
    plat = ("class Base:\n    def narrow(self):\n        return False\n"
            "    def tight(self):\n        return self.narrow()\n"
            "class Wide(Base):\n    def narrow(self):\n        return True\nhere = Wide()\n")  # fmt: skip
    use = (f"{HEAD}def get_default_config(M, E):\n"
           f"    return {{'BLOCK_SIZE_M': 32}} if here.tight() else {{'BLOCK_SIZE_M': 64}}\n{LAUNCH}")  # fmt: skip
    assert told(muhmod, tmp_path, literal="32", plat=plat, use=use)[0] == "reaches"


@pytest.mark.parametrize("leaves", ["raise ValueError", "return None"])
@pytest.mark.parametrize("test", ["not here.is_rocm() or n < 2", "here.is_cuda()", "n < 2 or here.is_cuda()"])
def test_a_block_that_is_always_left_goes_no_further(muhmod, tmp_path, test, leaves):
    before = f"def run(n):\n    if {test}:\n        {leaves}\n"
    use = f"{HEAD}{TABLE}{before}    {LAUNCH}run(4)\n"
    assert told(muhmod, tmp_path, use=use)[0] == "stopped"
    assert told(muhmod, tmp_path, platform="rocm", use=use)[0] == "reaches"
    importing = f"from vllm.plat import here\n{before}    from vllm import amd\n    amd.launch()\nrun(4)\n"
    amd = f"{KERNEL}{TABLE}def launch():\n    {LAUNCH}"
    assert told(muhmod, tmp_path / "b", amd=amd, use=importing)[0] == "stopped"


@pytest.mark.parametrize(
    "test", ["x.device.type == 'xpu'", "x.device.type in ('xpu', 'hpu')", "device_type == 'tpu'"]
)
def test_a_kind_of_device_that_is_not_here(muhmod, tmp_path, test):
    use = f"{HEAD}{TABLE}def run(x, device_type):\n    if {test}:\n        {LAUNCH}run(torch.empty(1), 'x')\n"
    for platform in ("cuda", "rocm"):
        assert told(muhmod, tmp_path, platform=platform, use=use)[0] == "stopped"
    assert told(muhmod, tmp_path, use=use.replace(test, "x.device.type == 'cuda'"))[0] == "reaches"
    assert told(muhmod, tmp_path, use=use.replace(test, "x.device.type in ('xpu', 'cuda')"))[0] == "reaches"


def test_a_backend_of_another_platform_is_not_chosen(muhmod, tmp_path):
    back = f"{KERNEL}{TABLE}class Back:\n    def forward(self):\n        {LAUNCH}"
    use = ("import enum, importlib\nclass Which(enum.Enum):\n    ROCM_ATTN = 'vllm.back.Back'\n    FLASH = 'vllm.flash.Flash'\n"
           "    def get(self):\n        module, _, name = self.value.rpartition('.')\n"
           "        return getattr(importlib.import_module(module), name)\n"
           "def run(which):\n    which.get()().forward()\nrun(Which.FLASH)\n")  # fmt: skip
    assert told(muhmod, tmp_path, back=back, use=use)[0] == "stopped"
    assert told(muhmod, tmp_path, platform="rocm", back=back, use=use)[0] in ("reaches", "unknown")
    assert told(muhmod, tmp_path, back=back, use=use.replace("ROCM_ATTN", "OTHER"))[0] in (
        "reaches",
        "unknown",
    )


# A file that cannot be read may do anything --------------------------------------------------------


@pytest.mark.parametrize("broken", ["def (\n", "x = 1\n  y = 2\n", "\x00"])
def test_what_only_a_broken_file_might_call_or_import_is_unknown(muhmod, tmp_path, broken):
    use = f"{HEAD}{TABLE}def run():\n    {LAUNCH}"
    for mention in ("from vllm.use import run\nrun()\n", "import vllm.use as u\nu.run()\n"):
        files = {"__init__": "", "worker/main": f"{mention}{broken}", "use": use}
        verdict, why = told(muhmod, tmp_path, **files)
        assert (verdict, "worker/main.py" in why) == ("unknown", True), why


# What only a computed name might run -------------------------------------------------------------

NOBODY = f"{HEAD}{TABLE}def nobody():\n    {LAUNCH}"


def test_an_attribute_of_the_name_of_a_module_does_not_load_it(muhmod, tmp_path):
    files = {"amd/topk_pick": f"{KERNEL}{TABLE}{LAUNCH}",
             "use": "from vllm.plat import here\nprint(getattr(here, 'topk_pick', None))\n"
             "if here.is_rocm():\n    from vllm.amd import topk_pick\n"}  # fmt: skip
    assert told(muhmod, tmp_path, **files)[0] == "stopped"
    assert told(muhmod, tmp_path, platform="rocm", **files)[0] == "reaches"


@pytest.mark.parametrize("asks", ["globals()[name]()", "getattr(sys.modules[__name__], name)()"])
def test_a_computed_name_of_the_module_may_be_it(muhmod, tmp_path, asks):
    verdict, why = told(muhmod, tmp_path, use=f"import sys, os\n{NOBODY}name = os.environ['X']\n{asks}\n")
    assert verdict == "unknown"
    assert "gives nobody" in why and "vllm" not in why.partition("use.py:")[0]


@pytest.mark.parametrize(
    "asks",
    ["class Stage:\n    def __init__(self, m):\n        self.__dict__['m'] = m\n"
     "    def __getattr__(self, name):\n        return getattr(self.__dict__['m'], name)\nprint(Stage(1).weight)\n",
     "SHORT = {'a': 1}\ndef of(key, field):\n    return getattr(SHORT[key], field)\nprint(of('a', input()))\n"],
    ids=["kept for itself", "of no module"],
)  # fmt: skip
def test_a_computed_name_of_something_else_is_not(muhmod, tmp_path, asks):
    files = {"__init__": "from vllm import use, wrap\n", "wrap": asks, "use": NOBODY}
    assert told(muhmod, tmp_path, **files)[0] == "stopped"


def test_a_dict_that_may_hold_the_module_may_give_it(muhmod, tmp_path):
    wrap = "from vllm import use\nKNOWN = {'use': use}\ndef of(key, field):\n    getattr(KNOWN[key], field)()\nof('use', input())\n"
    files = {"__init__": "from vllm import use, wrap\n", "wrap": wrap, "use": NOBODY}
    assert told(muhmod, tmp_path, **files)[0] in ("reaches", "unknown")


def test_what_hangs_on_a_perhaps_is_unknown_too(muhmod, tmp_path):
    use = (f"import os\n{HEAD}{TABLE}def inner():\n    {LAUNCH}def outer():\n    inner()\n"
           "globals()[os.environ['X']]()\n")  # fmt: skip
    verdict, _ = told(muhmod, tmp_path, use=use)
    assert verdict == "unknown"
