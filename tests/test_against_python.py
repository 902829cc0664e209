"""The data flow against Python itself: random programs are run, and what arrives at a launch is compared.

Every literal that is a slot becomes a value that knows where it comes from. At each launch the value's
slot must be alive, of that role, and have a way there whose tests and arithmetic are those of this run.
"""

from __future__ import annotations

import itertools
import textwrap

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muhmod import catalog
from muhmod.flow import UNKNOWN
from muhmod.site import Module

NAMES = ("BLOCK", "NUM_WARPS", "x")
FLAGS = ("a", "b", "c")
ROLES = {"BLOCK_M": "BLOCK", "BLOCK_N": "BLOCK", "num_warps": "NUM_WARPS"}

names = st.sampled_from(NAMES)
flags = st.sampled_from(FLAGS)
values = st.one_of(st.integers(1, 999).map(str), names)


def block(lines):
    return textwrap.indent("\n".join(lines) or "pass", "    ")


simple = st.one_of(
    st.builds("{} = {}".format, names, values),
    st.builds("{} = {}".format, names, values),
    st.builds("{} = {} if {} else {}".format, names, values, flags, values),
    st.builds("{}, {} = {}, {}".format, names, names, values, values),
    st.builds("{0}, {1} = {1}, {0}".format, names, names),
    st.builds(
        "{}, {} = ({}, {}) if {} else ({}, {})".format, names, names, values, values, flags, values, values
    ),
    st.builds("{} = {} = {}".format, names, names, values),
    st.builds("{} //= 2".format, names),
    st.builds("{0} = {0} * 2".format, names),
    st.builds("{} = max({}, 16)".format, names, names),
    st.builds("kern[0](BLOCK_M={}, num_warps={})".format, names, names),
    st.builds("kern[0](BLOCK_M={}, BLOCK_N={}, num_warps={})".format, names, names, values),
    st.builds('opts["{}"] = {}'.format, st.sampled_from(sorted(ROLES)), values),
    st.builds('opts = {{"BLOCK_M": {}, "num_warps": {}}}'.format, values, values),
    st.builds("opts.update(num_warps={})".format, values),
    st.just("other = opts"),
    st.just("opts = dict(opts)"),
    st.just("opts = {**opts}"),
    st.builds('other["num_warps"] = {}'.format, values),
    st.just("kern[0](**opts)"),
    st.builds("if {}: return".format, flags),
    st.builds("if {}: raise Stop".format, flags),
    st.builds("assert {}".format, flags),
)


def nested(inner):
    body = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.builds(lambda f, p, q: f"if {f}:\n{block(p)}\nelse:\n{block(q)}", flags, body, body),
        st.builds(lambda f, p: f"if not {f}:\n{block(p)}", flags, body),
        st.builds(lambda n, v, p: f"if ({n} := {v}):\n{block(p)}", names, values, body),
        st.builds(lambda f, n, v, p: f"if {f} and ({n} := {v}):\n{block(p)}", flags, names, values, body),
        st.builds(lambda n, p: f"for _ in range({n}):\n{block(p)}", st.integers(0, 2), body),
        st.builds(lambda f, p: f"for _ in range(2):\n{block([*p, f'if {f}: break'])}", flags, body),
        st.builds(lambda p: f"while True:\n{block([*p, 'break'])}", body),
        st.builds(lambda f, p, q: f"try:\n{block([*p, f'if {f}: fail()'])}\nexcept KeyError:\n{block(q)}", flags, body, body),
        st.builds(lambda p, q: f"try:\n{block(p)}\nfinally:\n{block(q)}", body, body),
        st.builds(lambda f, p, q: f"match {f}:\n    case True:\n{block([block(p)])}\n    case _:\n{block([block(q)])}", flags, body, body),
        st.builds(lambda f, g, p, q: f"match {f}:\n    case _ if {g}:\n{block([block(p)])}\n    case False:\n{block([block(q)])}", flags, flags, body, body),
        st.builds(lambda p: f"with context():\n{block(p)}", body),
        st.builds(lambda n, v: f"def inner():\n    nonlocal {n}\n    {n} = {v}\ninner()", names, values),
    )  # fmt: skip


programs = st.lists(st.recursive(simple, nested, max_leaves=6), min_size=1, max_size=7)


class Value(int):
    """A literal that knows its place in the source, and whether it was computed with."""

    place: int
    computed: bool

    def made(self, number, computed=True):
        return value(number, self.place, computed)

    def __floordiv__(self, other):
        return self.made(int(self) // other)

    def __mul__(self, other):
        return self.made(int(self) * other)


def value(number, place, computed=False):
    made = Value(number)
    made.place, made.computed = place, computed
    return made


class Stop(Exception):
    """An error path of a program."""


class Kernel:
    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda **options: self.launches.append(options)


def source(program):
    head = 'BLOCK = 7\nNUM_WARPS = 8\nx = 9\nopts = {"BLOCK_M": 5, "num_warps": 6}\nother = opts'
    tail = "kern[0](BLOCK_M=BLOCK, num_warps=NUM_WARPS)"
    return "def context_attention_fwd(a, b, c):\n" + block([head, *program, tail]) + "\n"


def run(text, slots, flags_, name="context_attention_fwd"):
    """The launches and the result of one run, with every literal slot a Value."""
    for slot in sorted(slots, key=lambda s: -s.start):
        if slot.value is not None:
            text = f"{text[: slot.start]}V({slot.value}, {slot.start}){text[slot.end :]}"
    import contextlib

    kernel = Kernel()
    gives = None

    def fail():
        raise KeyError

    def largest(one, other):
        return one.made(max(int(one), int(other))) if isinstance(one, Value) else max(one, other)

    scope = {"V": value, "kern": kernel, "fail": fail, "Stop": Stop, "max": largest,
             "context": contextlib.nullcontext}  # fmt: skip
    exec(text, scope)
    with contextlib.suppress(Stop, AssertionError):
        gives = scope[name](*flags_)
    return kernel.launches, gives


def returned(text, slots, flags_):
    """What a program of the MoE kind returns."""
    return run(text, slots, flags_, "get_default_config")[1]


def agrees(arrival, flags_, computed):
    """Whether a way to the launch is that of this run."""
    known = dict(zip(FLAGS, flags_, strict=True))
    if UNKNOWN in arrival.transforms:
        return True
    if bool(arrival.transforms) is not computed:
        return False
    for condition in arrival.conditions:
        try:
            held = bool(eval(condition.test, {}, known))
        except NameError:
            continue
        if held is not condition.taken:
            return False
    return True


@given(programs)
@settings(
    deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
def test_what_arrives_is_what_python_launches(program):
    text = source(program)
    try:
        compile(text, "program", "exec")
    except SyntaxError:
        return
    found = [f for f in catalog.site("prefill-tile").find(Module(text)) if f.scope == "context_attention_fwd"]
    assert found, text
    if found[0].problem:
        return
    slots = {slot.start: slot for slot in found[0].slots}
    for flags_ in itertools.product((True, False), repeat=3):
        for launch in run(text, found[0].slots, flags_)[0]:
            for keyword, arrived in launch.items():
                assert isinstance(arrived, Value), (f"{keyword}={arrived} comes from no slot", text)
                slot = slots[arrived.place]
                about = f"line {slot.line} {slot.name} at {keyword} with {flags_}\n{text}"
                assert slot.live, f"dead: {about}"
                assert ROLES[keyword] in {ROLES.get(n, n) for n in (slot.name, *slot.also)}, f"role: {about}"
                assert any(agrees(way, flags_, arrived.computed) for way in slot.arrivals), f"way: {about}"


def as_moe(program):
    """The same program, giving back its dict under the keys of the MoE kernel."""
    text = source([*program, "return opts"]).replace("context_attention_fwd", "get_default_config")
    for keyword, key in KEYS.items():
        text = text.replace(f'"{keyword}"', f'"{key}"').replace(f"update({keyword}=", f"update({key}=")
    return text.replace("    kern[0](BLOCK_M=BLOCK, num_warps=NUM_WARPS)\n", "")


KEYS = {"BLOCK_M": "BLOCK_SIZE_M", "BLOCK_N": "BLOCK_SIZE_N", "num_warps": "GROUP_SIZE_M"}


@given(programs)
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_returned_is_what_python_returns(program):
    text = as_moe(program)
    try:
        compile(text, "program", "exec")
    except SyntaxError:
        return
    (found,) = catalog.site("moe-config").find(Module(text))
    if found.problem:
        return
    slots = {slot.start: slot for slot in found.slots}
    for flags_ in itertools.product((True, False), repeat=3):
        for key, arrived in (returned(text, found.slots, flags_) or {}).items():
            if not isinstance(arrived, Value):
                assert key not in KEYS.values(), (f"{key}={arrived} comes from no slot", text)
                continue
            slot = slots[arrived.place]
            about = f"line {slot.line} {slot.name} at {key} with {flags_}\n{text}"
            assert slot.live, f"dead: {about}"
            assert key in (slot.name, *slot.also) or key not in KEYS.values(), f"role: {about}"
            assert any(agrees(way, flags_, arrived.computed) for way in slot.arrivals), f"way: {about}"
