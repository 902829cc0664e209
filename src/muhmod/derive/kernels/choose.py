"""One kernel, one workload: what `muhmod derive --kernel` prints. No search, no table of measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from muhmod.derive.kernels import attention, fused_moe
from muhmod.derive.kernels.card import Card, card, pipelines
from muhmod.derive.kernels.shape import parse
from muhmod.derive.work import Facts, Work
from muhmod.errors import DisputedFactError, UsageError, nearest
from muhmod.model import Fact

Config: TypeAlias = "dict[str, int] | dict[str, int | bool]"
# What upstream takes from compute capability 8.0 on.
_UPSTREAM_BLOCK = 128


class Chosen(NamedTuple):
    """Configurations, best first, with numbered steps and the facts used."""

    kernel: str
    configs: tuple[Config, ...]
    steps: tuple[str, ...]
    facts: tuple[Fact, ...]
    ranked: bool = False


class Kernel(NamedTuple):
    """A kernel that has a model: the keys of its shape, and what derives its configurations."""

    keys: Mapping[str, str]
    choose: Callable[[Card, Mapping[str, int]], tuple[list[Config], list[str]]]
    ranked: bool = False


def _moe(c: Card, shape: Mapping[str, int]) -> tuple[list[Config], list[str]]:
    keys = ("M", "E", "N", "K", "topk", "element")
    workload = fused_moe.Workload(*(shape[key] for key in keys))
    if workload.topk > workload.experts:
        raise UsageError(f"--shape: topk={workload.topk} is more than the {workload.experts} experts")
    choice = fused_moe.choose(c, workload)
    return [choice.tile.config], fused_moe.explain(c, workload, choice)


def _heads(c: Card, shape: Mapping[str, int]) -> tuple[attention.Heads, list[str]]:
    if shape["H"] % shape["HKV"]:
        raise UsageError(f"--shape: H={shape['H']} is no multiple of HKV={shape['HKV']}")
    heads = attention.Heads(shape["D"], shape["element"])
    note = f", padded to {heads.width}" if heads.width != heads.head_dim else ""
    return heads, [
        f"head size {heads.head_dim}{note}, {heads.element} B an element; a block has "
        f"{c.smem_per_block:,} B of shared memory, a multiprocessor {c.smem_per_sm:,} B, of which "
        f"{c.smem_reserved:,} B a block are the system's",
        f"a thread keeps up to {attention.most_accumulators(c)} of its {c.max_registers_per_thread} "
        "registers as accumulators"
        + ("" if pipelines(c) else f"; {c.architecture} copies nothing in the background: one stage"),
    ]


def _attn_fwd(c: Card, shape: Mapping[str, int]) -> tuple[list[Config], list[str]]:
    heads, steps = _heads(c, shape)
    tiles = attention.attn_fwd(c, heads)
    steps.append(
        "BLOCK_M % BLOCK_N = 0, or the causal mask is lost where the length is a multiple of the tile"
    )
    steps += [
        attention.explain(c, heads, tile, attention.THREADS // (tile.warps * c.warp_size)) for tile in tiles
    ]
    rows = shape["B"] * shape["H"] * -(-shape["S"] // tiles[0].block_m)
    steps.append(
        f"{shape['B']} x {shape['H']} heads x {-(-shape['S'] // tiles[0].block_m)} tiles = {rows:,} blocks "
        f"of the first, {rows / c.sm_count:.3g} a multiprocessor"
    )
    return [tile.config for tile in tiles], steps


def _prefix_prefill(c: Card, shape: Mapping[str, int]) -> tuple[list[Config], list[str]]:
    heads, steps = _heads(c, shape)
    tile = attention.prefix_prefill(c, heads)
    steps.append("BLOCK_M = BLOCK_N, as the source ties them; with BLOCK_M > BLOCK_N the kernel gives NaN")
    block = tile.block_m * 2
    while block <= _UPSTREAM_BLOCK:
        larger = attention.Tile(block, block, False, tile.warps, 1)
        steps.append(f"{block} x {block}: {attention.refusal(c, heads, larger)}")
        block *= 2
    steps.append(attention.explain(c, heads, tile, 1))
    if tile.block_m < _UPSTREAM_BLOCK:
        steps.append(
            f"loses to upstream's {_UPSTREAM_BLOCK} x {_UPSTREAM_BLOCK} with one stage where there is little "
            "or no context and the prompt is long: up to 16 % at head size 256 on an H200"
        )
    return [tile.tied], steps


_ATTENTION = {"D": "head size", "B": "sequences"}
_HEADS = {"H": "query heads", "HKV": "key and value heads"}
KERNELS = {
    "fused_moe": Kernel({"M": "tokens", "E": "experts", "N": "intermediate size of a device",
                         "K": "hidden size", "topk": "experts a token"}, _moe),
    "attn_fwd": Kernel({**_ATTENTION, "S": "tokens a sequence", **_HEADS}, _attn_fwd, ranked=True),
    "prefix_prefill": Kernel({**_ATTENTION, "Q": "new tokens a sequence", "CTX": "cached tokens a sequence",
                              **_HEADS}, _prefix_prefill),
}  # fmt: skip


def derive(kernel: str, facts: Facts, shape: str) -> Chosen:
    """The configurations of a kernel for one workload.

    Raises UsageError for an unknown kernel or key, DerivationError where a fact is missing, disputed with
    different results, or nothing fits.
    """
    if kernel not in KERNELS:
        raise UsageError(f"unknown kernel {kernel!r}{nearest(kernel, KERNELS)}")
    return _derived(kernel, facts, parse(shape, kernel, KERNELS[kernel].keys))


def _derived(kernel: str, facts: Facts, shape: Mapping[str, int]) -> Chosen:
    work = Work(facts)
    try:
        configs, steps = KERNELS[kernel].choose(card(work), shape)
    except DisputedFactError as dispute:
        return _harmless(kernel, facts, shape, dispute)
    return Chosen(kernel, tuple(configs), tuple(steps), tuple(work.used.values()), KERNELS[kernel].ranked)


def _harmless(kernel: str, facts: Facts, shape: Mapping[str, int], dispute: DisputedFactError) -> Chosen:
    """The same configurations under every candidate are no dispute; anything else is refused."""
    name = dispute.name
    found = {c.value: _derived(kernel, facts.pin(name, c), shape) for c in facts.candidates(name)}
    first = next(iter(found.values()))
    if any(chosen.configs != first.configs for chosen in found.values()):
        shown = "; ".join(f"{name} = {value} gives {chosen.configs[0]}" for value, chosen in found.items())
        raise DisputedFactError(f"{dispute.message}: {shown}", dispute.hint, name)
    words = ", ".join(map(str, found))
    return first._replace(steps=(*first.steps, f"{name} is disputed ({words}), harmless here"))
