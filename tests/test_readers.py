"""Who reads a dict that a function returns, and who would not take another key of it."""

from __future__ import annotations

import pytest

from muhmod.readers import readers
from muhmod.search import Reading
from muhmod.tree import locate

MAKES = """\
def make(M):
    config = {'BLOCK': 16}
    return config
"""
KERNEL = """
import triton

@triton.jit
def kernel(x, BLOCK):
    pass

def launch(x, config):
    kernel[(1,)](x, **config)
"""
TAKEN = {
    "a launch": """
def run(x):
    launch(x, make(1))
""",
    "a partial": """
import functools
def run(x):
    choose = functools.partial(make)
    config = choose(1)
    launch(x, config=config)
""",
    "a copy": """
def run(x):
    config = make(1).copy()
    config['SPLIT_K'] = 1
    launch(x, {**config})
""",
    "a merge": """
def run(x):
    config = make(1) | {'SPLIT_K': 1}
    launch(x, config)
""",
    "a closure": """
def run(x):
    config = make(1)
    def inner():
        return config['BLOCK']
    launch(x, config)
    return inner
""",
    "a look": """
def run(x):
    config = make(1)
    if config and len(config) > 1:
        print(config)
    launch(x, config or make(2))
""",
    "a method": """
class A:
    def choose(self):
        return make(1)
    def hand(self, x, config=None):
        launch(x, config)
    def run(self, x):
        self.hand(x, self.choose())
""",
}
# What a module does with the dict beside a launch, and what is said.
REFUSED = {
    "a signature": ("def f(BLOCK):\n    pass\ndef run():\n    f(**make(1))\n", "f takes no num_warps"),
    "a loop": ("def run():\n    for k in make(1):\n        pass\n", "gone through in a loop"),
    "items": ("def run():\n    c = make(1)\n    return list(c.items())\n", "gone through by items()"),
    "an unknown key": ("def run(k):\n    return make(1)[k]\n", "module.py:{last}: the key `k` is not known"),
    "an attribute": ("def run(a):\n    a.c = make(1)\n", "module.py:{last}: it is kept in `a.c`"),
    "a list": ("def run():\n    return [make(1)]\n", "goes where it cannot be followed"),
    "a vendor": ("import v\ndef run(x):\n    v.f(x, make(1))\n", "handed to v.f, which is not in the tree"),
    "the function": ("import v\ndef run():\n    v.f(make)\n", "the function make is handed on"),
    "the top": ("CONFIG = make(1)\n", "module.py:{last}: make is used outside of functions"),
    "arguments": ("def run(f, a):\n    launch(*a, make(1))\n", "behind *arguments"),
}
NOWHERE = {
    "one key": "def run():\n    return make(1)['BLOCK']\n",
    "behind a return": KERNEL.replace("    kernel[", "    return config['BLOCK']\n    kernel[")
    + "def run(x):\n    launch(x, make(1))\n",
}


def refusal(tree, keys=("num_warps",), file="module.py"):
    return found(tree, file).refusal(keys)


def found(tree, file):
    return readers(Reading(locate(str(tree), ("vllm",)), ("vllm",)), file, "make")


@pytest.mark.parametrize("use", TAKEN)
def test_a_key_that_every_reader_takes(package, use):
    assert refusal(package(module=MAKES + KERNEL + TAKEN[use])) == ""


@pytest.mark.parametrize("use", REFUSED)
def test_a_reader_that_may_not_take_a_key_is_named(package, use):
    text, says = REFUSED[use]
    text = MAKES + KERNEL + "def other(x):\n    launch(x, make(1))\n" + text
    assert says.format(last=len(text.splitlines())) in refusal(package(module=text))


@pytest.mark.parametrize("use", NOWHERE)
def test_a_key_that_arrives_nowhere(package, use):
    text = MAKES + NOWHERE[use]
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "['BLOCK']" in row)
    assert refusal(package(module=text)) == (
        f"num_warps arrives nowhere: of the dict, module.py:{line} reads BLOCK"
    )


def test_a_dict_that_nobody_reads(package):
    assert "nothing reads it" in refusal(package(module=MAKES))


def test_a_key_that_the_kernel_does_not_take(package):
    text = MAKES + KERNEL + TAKEN["a launch"]
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "**config" in row)
    assert refusal(package(module=text), ["SPLIT_K"]) == (
        f"module.py:{line} passes the dict on as keywords, and kernel takes no SPLIT_K"
    )


def test_readers_in_other_files(package):
    """By import, under another name, through a module that passes it on, and as a module's attribute."""
    tree = package(
        maker=MAKES,
        kernels=KERNEL,
        ops__passing="from ..maker import make as chosen\n",
        one="from vllm.ops.passing import chosen\nfrom vllm import kernels\n"
        "def f(x):\n    kernels.launch(x, chosen(1))\n",
        two="def f(x):\n    from vllm import maker as m\n    return m.make(1)['BLOCK']\n",
        other="def make(M):\n    return {}\ndef f(k):\n    return make(1)[k]\n",
    )
    assert refusal(tree, file="maker.py") == ""
    assert found(tree, "maker.py").keys == (("BLOCK", "two.py:3"),)
    assert [spread.place for spread in found(tree, "maker.py").spreads] == ["kernels.py:9"]


def test_a_file_that_cannot_be_read_is_told(package):
    tree = package(module=MAKES + KERNEL + TAKEN["a launch"], broken="from vllm.module import make\nif\n")
    assert "broken.py:1" in refusal(tree)
