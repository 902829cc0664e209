"""Does what a plan sets compile, and fit? Each site's configurations, compiled, against prediction and limit.

A site's values are read out of the text as rewritten, and so is the kernel that they go to.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from muhmod import catalog, compile, tree, triton_cpu
from muhmod.derive.arms import apply_transforms, reached
from muhmod.derive.attention import AMD_KEYS, DEFAULT_STAGES, smem_bytes
from muhmod.derive.kernels import attention, fused_moe
from muhmod.derive.kernels.card import Card, card, modelled, padded
from muhmod.derive.work import Facts, Work
from muhmod.engine import Plan
from muhmod.errors import FileError, UsageError
from muhmod.model import (
    LADDER,
    LADDER_KEYS,
    Arrival,
    Checked,
    Config,
    Found,
    Scalar,
    SiteReport,
    Slot,
    Verdict,
)
from muhmod.search import Reading
from muhmod.site import Module, Resolve
from muhmod.triton_cpu import Compiled, Job, Target

# Verdict: its exit code.
CODES: dict[Verdict, int] = {
    "fits": 0, "over limit": 5, "under-predicted": 5, "does not compile": 5, "unverifiable": 3,
}  # fmt: skip
# Sites whose values go to a Triton kernel. The others set host code and precompiled kernels.
SITES = ("autotune-configs", "moe-config", "prefill-tile")
# What a source calls the values, and what kernels and launches call them.
_SQUARE = ("BLOCK_M", "BLOCK_N")
_KEYWORDS = {"NUM_WARPS": ("num_warps",), "BLOCK": _SQUARE}
_MOE_KERNEL = "fused_moe_kernel"
_MOE_KEYS = LADDER_KEYS[:3]
_LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg")
# Tokens of the KV cache's blocks, and 16 bytes of a key's elements together in it.
_CACHE_BLOCK, _CACHE_RUN = 16, 16
# What Triton calls AMD's generations.
_AMD = {"cdna3": "hip:gfx942:64"}
_PLANNED = ("pending", "applied", "already", "held", "satisfied-upstream")


class Prepared(NamedTuple):
    """A configuration that can be compiled, with its row as far as it is known before."""

    row: Checked
    job: Job


# The target ------------------------------------------------------------------------------------


def known(facts: Facts) -> bool:
    """Whether Triton compiles for cards of this generation."""
    return modelled(Work(facts))


def own_target(facts: Facts) -> str:
    """The target of the card that the values are for, as the command line has it. Raises UsageError."""
    platform, capability = facts.get("platform"), facts.get("compute_capability")
    if not known(facts) or (platform != "rocm" and capability is None):
        raise UsageError("the card's target is not known: give --target", "cuda:75, cuda:80, cuda:90, …")
    return _AMD.get(str(facts.get("architecture")), "") if platform == "rocm" else f"cuda:{capability}"


def mismatch(facts: Facts, to: Target) -> str:
    """Why the target is not the card of the values; empty where it is, or where Triton has no such card."""
    if not known(facts):
        return ""
    platform, capability = facts.get("platform"), facts.get("compute_capability")
    if (platform == "rocm") is not (to.backend == "hip"):
        return f"the values are for {'AMD' if platform == 'rocm' else 'NVIDIA'}'s cards"
    if to.backend == "cuda" and str(capability) != to.arch:
        return f"the values are for compute capability {capability}"
    own = _AMD.get(str(facts.get("architecture")), "") if to.backend == "hip" else to.show()
    return f"the values are for {own}" if own != to.show() else ""


# Configurations --------------------------------------------------------------------------------


def prepare(plan: Plan, to: Target) -> list[Checked | Prepared]:
    """Every configuration of every site of the plan that goes to a Triton kernel.

    What cannot be compiled is a row already, with its reason. Raises DerivationError for missing facts.
    """
    reading = Reading(plan.tree, plan.pack.packages)
    after = {change.file: change.after for change in plan.changes}
    found: list[Checked | Prepared] = []
    for row in plan.sites:
        if row.site not in SITES or row.state in ("skipped", "absent"):
            continue
        if row.code or row.state not in _PLANNED:
            why = f"the site is {row.state}{': ' + row.reason if row.reason else ''}"
            found.append(_unverifiable(row, "", why, row.code or CODES["unverifiable"]))
            continue
        data = after.get(row.file)
        text = tree.decode(tree.read(plan.tree, row.file) if data is None else data, row.file).text
        found += _of_site(row, Module(text), reading, Work(plan.pack.facts), to)
    return found


def _unverifiable(row: SiteReport, kernel: str, why: str, code: int = 3) -> Checked:
    return Checked(row.site, row.file, row.line, kernel, (), "unverifiable", why, code=code)


def _of_site(
    row: SiteReport, module: Module, reading: Reading, work: Work, to: Target
) -> Iterator[Checked | Prepared]:
    resolve = reading.from_file(row.file)
    places = [one for one in catalog.site(row.site).find(module, resolve) if one.scope == row.scope]
    if len(places) != 1:
        yield _unverifiable(row, "", f"{row.scope} stands {len(places)} times in the file as rewritten")
        return
    uses = _uses(places[0].with_room(), module, resolve, reading)
    if not uses:
        yield _unverifiable(row, "", f"{row.scope} launches no kernel by its name")
    for use in uses:
        found = dict.fromkeys(_configs(use.place, work, to))
        configs = [config for config in found if config]
        if configs:
            yield from _of_kernel(row, use, configs, work, to)
        if len(configs) < len(found) or not found:
            why = "a way to the kernel gives it no whole configuration by literals"
            yield _unverifiable(row, use.kernel, why)


def _configs(place: Found, work: Work, to: Target) -> Iterator[Config]:
    """The configurations that a place's literals make together, on this card, for any number of tokens.

    An empty one stands for a way on which a part of it is no literal.
    """
    if place.site == "autotune-configs":
        for slot in place.slots:
            if slot.name != "configs" and slot.entry and any(reached(a, work, {}) for a in slot.arrivals):
                known = slot.entry.values + slot.entry.options
                yield _whole(known, DEFAULT_STAGES) if slot.entry.values else ()
        return
    stages = 2 if to.backend == "hip" else DEFAULT_STAGES
    if place.site == "prefill-tile":
        for pairs in _together(place.slots, work, {}):
            yield _whole(pairs, stages) if {*_SQUARE} <= {*dict(pairs)} else ()
        return
    # A generated ladder is for values of two bytes.
    ladder = next((slot.text for slot in place.slots if slot.name == LADDER), "")
    arms = _arms(ladder) if work.element_size() == 2 else []
    if arms and len(arms[0]) > 1:
        yield from (_whole(pairs, stages) for pairs in arms)
        return
    most = work.integer("max_num_batched_tokens")
    columns = -(-work.integer("moe_intermediate_size") // work.integer("tensor_parallel"))
    given: dict[str, Scalar] = {"is_marlin": False, "K": work.integer("hidden_size"), "N": columns,
                                "dtype": str(work.fact("dtype").value)}  # fmt: skip
    for tokens in [2**n for n in range(most.bit_length())]:
        names = {"M": tokens, "num_tokens": tokens, "numel": tokens * work.integer("experts_per_token")}
        for pairs in _together(place.slots, work, given | names):
            for arm in arms or [()]:
                config = dict(pairs) | dict(arm)
                yield _whole(config.items(), stages) if {*_MOE_KEYS} <= {*config} else ()


def _whole(pairs: Iterable[tuple[str, Scalar]], stages: int) -> Config:
    """With the launch options that hold where nothing is said; the tile first, they last."""
    config = {"num_warps": 4, "num_stages": stages} | dict(pairs)
    tile = [key for key in (*_SQUARE, *LADDER_KEYS[:-2]) if key in config]
    rest = [key for key in config if key not in (*tile, *_LAUNCH)]
    return tuple((key, config[key]) for key in (*tile, *rest, *(k for k in _LAUNCH if k in config)))


def _arms(ladder: str) -> list[tuple[tuple[str, Scalar], ...]]:
    """The tiles that a generated ladder may set, by key: whole tuples, or rows alone."""
    keys = (*_MOE_KEYS, "num_warps", "num_stages")
    found: list[tuple[tuple[str, Scalar], ...]] = []
    for node in ast.walk(ast.parse(f"if True:\n{ladder}" if ladder else "")):
        match node:
            case ast.Assign(targets=[ast.Name(id="tile")], value=ast.Tuple(elts=elts)):
                values = [one.value for one in elts if isinstance(one, ast.Constant)]
                whole = [value for value in values if isinstance(value, int)]
                if len(whole) == len(elts) == len(keys):
                    found.append((*zip(keys, whole, strict=True), ("GROUP_SIZE_M", 1)))
            case ast.Assign(targets=[ast.Name(id="block_m")], value=ast.Constant(value=int(value))):
                found.append((("BLOCK_SIZE_M", value),))
    return found


def _together(
    slots: Iterable[Slot], work: Work, given: dict[str, Scalar]
) -> Iterator[tuple[tuple[str, Scalar], ...]]:
    """The values that may arrive together: no test on their ways goes two ways.

    A name of which no value can arrive with the others is not bound on their way.
    """
    ways: dict[str, list[tuple[Scalar, frozenset[tuple[str, bool]]]]] = {}
    for slot in slots:
        if slot.name == LADDER or slot.value is None or not slot.live:
            continue
        for arrival in slot.arrivals:
            value = _arriving(slot.value, arrival, work) if reached(arrival, work, given) else None
            if value is not None:
                tests = frozenset((c.test, c.taken) for c in arrival.conditions)
                for name in (slot.name, *(also for also in slot.also if " " not in also)):
                    ways.setdefault(name, []).append((value, tests))
    every = {test for arriving in ways.values() for _, tests in arriving for test in tests}
    # Only what goes both ways tells values apart.
    apart = {(test, taken) for test, taken in every if (test, not taken) in every}
    worlds: dict[tuple[tuple[tuple[str, Scalar], ...], frozenset[tuple[str, bool]]], None] = {
        ((), frozenset()): None
    }
    for name, values in ways.items():
        worlds = {
            world: None
            for pairs, tests in worlds
            for world in [
                ((*pairs, *((key, value) for key in _KEYWORDS.get(name, (name,)))), tests | more)
                for value, more in dict.fromkeys((value, tests_ & apart) for value, tests_ in values)
                if not any((test, not taken) in tests for test, taken in more)
            ]
            or [(pairs, tests)]
        }
    yield from dict.fromkeys(pairs for pairs, _ in worlds if pairs)


def _arriving(value: Scalar, arrival: Arrival, work: Work) -> Scalar | None:
    return apply_transforms(value, arrival, work) if isinstance(value, int) else value


# Kernels ---------------------------------------------------------------------------------------


class _Use(NamedTuple):
    """A kernel that some of a site's values go to: its module, the launch, how the module sees others."""

    kernel: str
    module: Module
    launch: ast.Call | None
    resolve: Resolve
    place: Found


def _uses(place: Found, module: Module, resolve: Resolve, reading: Reading) -> list[_Use]:
    """The kernels that a site's values go to, each with the slots that may reach it."""
    if place.site == "moe-config":
        where, look = _moe_module(module, resolve, reading)
        return [_Use(_MOE_KERNEL, where, _launch_of(_MOE_KERNEL, where.tree), look, place)]
    if place.site == "autotune-configs":
        name = place.scope.rpartition(".")[2]
        return [_Use(name, module, _launch_of(name, module.tree), resolve, place)]
    node = next(
        (s.node for s in module.scopes() if s.path == place.scope and s.node is not None), module.tree
    )
    calls = [*compile.launches(node)]
    inside = {slot: call for _, call in calls for slot in place.slots if _spans(call, slot)}
    return [
        _Use(name, module, call, resolve, place._replace(slots=(
            *(slot for slot in place.slots if inside.get(slot) is call),
            *(slot for slot in place.slots if slot not in inside),
        )))
        for name, call in calls
    ]  # fmt: skip


def _launch_of(kernel: str, node: ast.AST) -> ast.Call | None:
    return next((call for name, call in compile.launches(node) if name == kernel), None)


def _spans(call: ast.Call, slot: Slot) -> bool:
    return call.lineno <= slot.line <= (call.end_lineno or 0)


def _moe_module(module: Module, resolve: Resolve, reading: Reading) -> tuple[Module, Resolve]:
    """Where the kernel stands that multiplies values of two bytes: another file, if not this one."""
    if _MOE_KERNEL not in compile.kernels(module):
        for file in reading.files:
            if f"def {_MOE_KERNEL}(".encode() in reading.data(file):
                with suppress(FileError):
                    return reading.source(file).module, reading.from_file(file)
    return module, resolve


def _of_kernel(
    row: SiteReport, use: _Use, configs: list[Config], work: Work, to: Target
) -> Iterator[Checked | Prepared]:
    name = use.kernel
    try:
        taken = compile.cut(use.module, name, use.resolve)
    except compile.Uncut as error:
        yield _unverifiable(row, name, str(error))
        return
    whole = compile.kernels(use.module)[name][0]
    at = compile.launch(whole, use.launch)
    parameters = {a.arg for a in whole.args.args} | {a.arg for a in whole.args.kwonlyargs}
    options = _LAUNCH + (AMD_KEYS if to.backend == "hip" else ())
    # A card whose own Triton takes them, compiled for another in its place.
    spared = () if known(work.facts) else AMD_KEYS
    limit = work.integer("smem_per_block")
    element = triton_cpu.element(str(work.fact("dtype").value))
    problems: dict[str, None] = {}
    for config in configs:
        bare = Checked(row.site, row.file, row.line, name, config, "unverifiable", limit=limit)
        foreign = [key for key, _ in config if key not in {*parameters, *options, *spared}]
        if foreign:
            why = f"{name} has no parameter {foreign[0]}, and Triton for {to.backend} no such option"
            yield bare._replace(verdict="does not compile", reason=why, code=5)
            continue
        values = _values(parameters, work) | {key: v for key, v in config if key in parameters}
        signature = compile.signature(taken, at, element, values, whole)
        if signature.problem:
            problems[signature.problem] = None
            continue
        chosen = tuple((key, value) for key, value in config if key in options and key not in parameters)
        job = Job(taken.text, name, signature.types, signature.constants, signature.divisible, chosen)
        yield Prepared(bare._replace(predicted=_predicted(row.site, dict(config), work)), job)
    yield from (_unverifiable(row, name, problem) for problem in problems)


def _values(parameters: set[str], work: Work) -> dict[str, Scalar | None]:
    """The constants of vLLM's kernels that hang on the model, and those that name a case: causal, no bias."""

    def fact(name: str) -> Scalar | None:
        return work.facts.get(name)

    head = int(fact("head_dim") or 0)
    dtype = str(fact("dtype"))
    tokens, run = fact("max_num_batched_tokens"), _CACHE_RUN // work.element_size()
    values: dict[str, Scalar | None] = {
        "top_k": fact("experts_per_token"), "compute_type": f"tl.{dtype}",
        "HQ": fact("num_query_heads"), "HK": fact("num_kv_heads"),
        "MAX_SEQLENS_Q": tokens, "MAX_SEQLENS_K": tokens, "VARLEN": True, "IS_CAUSAL": True, "BIAS_TYPE": 0,
        "SLIDING_WINDOW": 0, "BLOCK_SIZE": _CACHE_BLOCK, "PHYSICAL_BLOCK_SIZE": _CACHE_BLOCK,
        "x": run, "stride_k_cache_bl": run, "IN_PRECISION": None, "MAX_Q_LEN": 0, "MAX_CTX_LEN": 0,
        "FP8_MIN": -448.0, "FP8_MAX": 448.0, "group_n": 0, "group_k": 0, "SPLIT_K": 1,
    }  # fmt: skip
    queries, keys = int(fact("num_query_heads") or 0), int(fact("num_kv_heads") or 0)
    if queries and keys:
        values["num_queries_per_kv"] = queries // keys
    if head:
        actual = "BLOCK_DMODEL_PADDED" in parameters
        values |= {"BLOCK_DMODEL": head if actual else padded(head), "BLOCK_DMODEL_PADDED": padded(head),
                   "ACTUAL_BLOCK_DMODEL": head}  # fmt: skip
    return {name: value for name, value in values.items() if name in parameters}


def _predicted(site: str, config: Mapping[str, Scalar], work: Work) -> int | None:
    """Bytes of shared memory as the derivation has them; None where it has no formula for the card."""

    def number(key: str, default: int = 1) -> int:
        return int(config.get(key, default))

    c = card(work) if modelled(work) else None
    launch = number("num_warps"), number("num_stages")
    if site == "moe-config":
        if c is None:
            return None
        bm, bn, bk, group = (number(key) for key in (*_MOE_KEYS, "GROUP_SIZE_M"))
        tile = fused_moe.Tile(bm, bn, bk, group, *launch)
        return fused_moe.shared_bytes(c, tile, work.element_size())
    return _attention(c, (number("BLOCK_M"), number("BLOCK_N")), bool(config.get("PRE_LOAD_V")), launch, work)


def _attention(
    c: Card | None, block: tuple[int, int], loaded: bool, launch: tuple[int, int], work: Work
) -> int:
    heads = attention.Heads(work.integer("head_dim"), work.element_size())
    if c is None:
        return smem_bytes(*block, heads.head_dim, heads.element)
    return attention.shared_bytes(c, heads, attention.Tile(*block, loaded, *launch))


# Verdicts --------------------------------------------------------------------------------------


def check(
    found: list[Checked | Prepared], to: Target, compiled: Callable[[list[Job], Target], list[Compiled]]
) -> list[Checked]:
    """The rows with their verdicts, in order: each job compiled once."""
    jobs = list(dict.fromkeys(one.job for one in found if isinstance(one, Prepared)))
    results = dict(zip(jobs, compiled(jobs, to), strict=True)) if jobs else {}
    rows = [_judged(one.row, results[one.job]) if isinstance(one, Prepared) else one for one in found]
    return _without_blame(rows, to, {result.triton for result in results.values()})


def _judged(row: Checked, result: Compiled) -> Checked:
    if result.error:
        return row._replace(verdict="does not compile", reason=result.error, code=5)
    row = row._replace(shared=result.shared, registers=result.registers, spills=result.spills)
    verdict: Verdict = "fits"
    why = ""
    if row.limit is not None and result.shared > row.limit:
        verdict, why = "over limit", f"needs {result.shared:,} B of shared memory, over {row.limit:,} B"
    elif row.predicted is not None and result.shared > row.predicted:
        verdict = "under-predicted"
        why = f"needs {result.shared:,} B of shared memory, where {row.predicted:,} B were predicted"
    return row._replace(verdict=verdict, reason=why, code=CODES[verdict])


def _without_blame(rows: list[Checked], to: Target, versions: set[str]) -> list[Checked]:
    """Where no configuration of a kernel compiles, it is the kernel, the target or Triton: unverifiable."""
    which = f"Triton {', '.join(sorted(versions - {''}))}" if versions - {""} else "Triton"
    alive = {(r.site, r.file, r.kernel) for r in rows if r.verdict != "does not compile"}
    failed = {
        (r.site, r.file, r.kernel)
        for r in rows
        if r.verdict == "does not compile" and "has no parameter" not in r.reason
    } - alive
    return [
        r._replace(verdict="unverifiable", code=CODES["unverifiable"],
                   reason=f"{which} compiles no configuration of {r.kernel} for {to.show()}: {r.reason}")
        if (r.site, r.file, r.kernel) in failed else r
        for r in rows
    ]  # fmt: skip


def left_out(plan: Plan) -> list[str]:
    """The plan's other sites: their values go to no Triton kernel, or they are not there."""
    return [f"{row.site} ({row.state})" for row in plan.sites
            if row.site not in SITES or row.state in ("skipped", "absent")]  # fmt: skip


def refuse_nothing(found: list[Checked | Prepared], plan: Plan) -> None:
    """Raises UsageError where no site of the plan has a kernel."""
    if not found:
        named = ", ".join(left_out(plan))
        raise UsageError(f"no value goes to a Triton kernel: {named}", f"select one of {', '.join(SITES)}")
