"""Tiles of the attention kernels: prefix_prefill's `_fwd_kernel` and the autotuned `attn_fwd`.

The formula for shared memory and the score are those of the earlier generator for this card, kept
so that its figures can be reproduced; the limits beyond it are named where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from muhmod.derive.arms import apply_transforms, certain, holds, possible
from muhmod.derive.kernels.card import modelled
from muhmod.derive.work import Ask, Work
from muhmod.errors import LimitError
from muhmod.model import Arrival, Entry, Scalar

# tl.dot multiplies tiles of at least 16 in each dimension.
DOT_MINIMUM = 16
# Registers a thread that the earlier generator assumed for its occupancy.
REGISTERS_A_THREAD = 40
MOST_ENTRIES = 16
# Tokens of a page that is no power of two which prefix_prefill reads at once.
ODD_PAGE = 32
# What Triton takes for AMD's cards only.
AMD_KEYS = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
# What triton.Config takes where an entry says nothing; older releases took 2.
DEFAULT_STAGES = 3
GRID = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (16, 32, 64, 128),
    "num_warps": (2, 4, 8),
    "num_stages": (1, 2),
    "PRE_LOAD_V": (False, True),
    "waves_per_eu": (1, 2, 4),
}


def smem_bytes(block_m: int, block_n: int, head_dim: int, element: int) -> int:
    """Shared memory (bytes) of a Q tile, a K tile and two fp32 softmax values a row."""
    return (block_m * head_dim + head_dim * block_n) * element + block_m * 8


def prefill_block(work: Work, ask: Ask) -> int:
    """BLOCK (rows and columns of the square tile) of prefix_prefill: the largest that fits."""
    limit = work.integer("smem_per_block")
    head_dim = work.integer("head_dim")
    element = work.element_size()
    work.step(f"a block has {limit:,} B of shared memory; head_dim {head_dim}, {element} B an element")
    fits = _fit(work, limit, head_dim, element)
    value = None
    for literal in (ask.literal,) if ask.literal is not None else (128, 64, 32, 16, 8):
        if not isinstance(literal, int) or isinstance(literal, bool):
            raise LimitError(f"BLOCK = {literal!r} is no whole number")
        if _prefill_fits(literal, fits, work, ask):
            value = literal
            break
    if value is None:
        raise LimitError(
            f"no tile of at least {DOT_MINIMUM} fits {limit:,} B at head_dim {head_dim} "
            f"with {element} B an element",
            "tl.dot needs tiles of 16; another dtype or another card is needed",
        )
    warned: set[int] = set()
    for arrival in ask.arrivals:
        at_kernel = apply_transforms(value, arrival, work)
        if at_kernel is None or at_kernel in warned or certain(arrival, work):
            continue
        if at_kernel < DOT_MINIMUM:
            warned.add(at_kernel)
            work.warnings.append(
                f"where {_path(arrival, work)}, the source makes {value} into {at_kernel}, "
                f"under the {DOT_MINIMUM} that tl.dot needs"
            )
    return value


def prefill_side(work: Work, ask: Ask) -> int:
    """BLOCK_M or BLOCK_N where prefix_prefill's launch names each: the side of the largest square that fits.

    Where the cache's pages are no power of two, upstream keeps the tile within them.
    """
    _as_it_stands(work, ask)
    side = prefill_block(work, ask)
    odd = any("cache.shape[3]" in c.test and not c.taken for a in ask.arrivals for c in a.conditions)
    if odd and ask.literal is None and side > ODD_PAGE:
        work.step(f"pages of the cache that are no power of two are read by {ODD_PAGE}: {ODD_PAGE}")
        return ODD_PAGE
    return side


def _as_it_stands(work: Work, ask: Ask) -> None:
    """What the source's own tile needs, for people; nothing where not all of it is known."""
    if modelled(work) and {"BLOCK_M", "BLOCK_N"} <= {*ask.tile}:
        from muhmod.derive.modelled import standing

        work.step(standing(work, ask.tile))


# Whether a square tile fits, and the sum that tells.
Fit = Callable[[int], tuple[bool, str]]


def _fit(work: Work, limit: int, head_dim: int, element: int) -> Fit:
    """How a tile is judged: by the kernel's model, or by the earlier generator's formula for this card."""
    if not modelled(work):

        def parity(tile: int) -> tuple[bool, str]:
            needed = smem_bytes(tile, tile, head_dim, element)
            verdict = "fits" if needed <= limit else f"over {limit:,} B"
            return needed <= limit, (
                f"({tile}*{head_dim} + {head_dim}*{tile})*{element} + {tile}*8 = {needed:,} B, {verdict}"
            )

        return parity
    from muhmod.derive.modelled import square

    return square(work, head_dim, element)


def _prefill_fits(literal: int, fits: Fit, work: Work, ask: Ask) -> bool:
    """Whether the tile that arrives at the kernel is legal and fits, for every sure arrival."""
    sure = [a for a in ask.arrivals if certain(a, work)]
    # Without a path that is known to be taken, the literal itself is what the kernel gets.
    tiles = {apply_transforms(literal, a, work) for a in sure} or {literal}
    for tile in tiles:
        if tile is None:
            raise LimitError(f"what the source makes of BLOCK = {literal} is not known")
        if tile < DOT_MINIMUM or tile & (tile - 1):
            work.step(f"{literal}: the kernel gets {tile}, and tl.dot needs a power of two >= 16")
            return False
        fitting, sum_ = fits(tile)
        work.step(
            f"{tile} x {tile}: {sum_}" + (f" (from {literal} in the source)" if tile != literal else "")
        )
        if not fitting:
            return False
    return _maybe_fits(literal, tiles, fits, work, ask)


def _maybe_fits(literal: int, sure: set[int | None], fits: Fit, work: Work, ask: Ask) -> bool:
    """Whether the tiles of the paths that may be taken fit too; the sure ones do."""
    for arrival in ask.arrivals:
        tile = apply_transforms(literal, arrival, work) if possible(arrival, work) else None
        if tile is None and possible(arrival, work):
            raise LimitError(f"what the source makes of BLOCK = {literal} is not known")
        if tile is not None and tile not in sure and not fits(tile)[0]:
            work.step(
                f"{literal}: where {_path(arrival, work)}, the kernel gets {tile}, and that does not fit"
            )
            return False
    return True


def _path(arrival: Arrival, work: Work) -> str:
    """The tests on the way that are not known to be passed, as one condition."""
    tests = [c for c in arrival.conditions if holds(c.test, work) is not c.taken]
    return " and ".join(c.test if c.taken else f"not ({c.test})" for c in tests)


def prefill_warps(work: Work, ask: Ask) -> int:
    """NUM_WARPS of prefix_prefill: the model's, or the pack's literal; checked against a block's threads."""
    if ask.literal is None and modelled(work):
        from muhmod.derive.modelled import prefill

        warps = prefill(work).warps
        check_threads(work, warps)
        return warps
    if ask.literal is None:
        raise LimitError("num_warps has no derivation here", "give the rule a value and a reason")
    check_threads(work, ask.literal)
    return int(ask.literal)


def prefill_stages(work: Work, ask: Ask) -> int:
    """num_stages of prefix_prefill: up to three, as many as fit; the pack's literal is taken as it is."""
    if ask.literal is not None:
        if type(ask.literal) is not int or ask.literal < 1:
            raise LimitError(f"num_stages = {ask.literal!r}: a whole number from 1 is needed")
        return ask.literal
    from muhmod.derive.modelled import prefill

    return prefill(work).stages


def check_threads(work: Work, warps: Scalar) -> None:
    """num_warps x warp_size must stay within the threads of a block."""
    warp_size = work.integer("warp_size")
    most = work.integer("max_threads_per_block")
    if not isinstance(warps, int) or isinstance(warps, bool) or warps < 1 or warps & (warps - 1):
        raise LimitError(f"num_warps = {warps!r}: Triton needs a power of two")
    threads = warps * warp_size
    if threads > most:
        raise LimitError(f"{warps} warps x {warp_size} = {threads:,} threads, over {most:,} a block")
    work.step(f"{warps} warps x {warp_size} threads = {threads:,}, within {most:,} a block")


class Config(NamedTuple):
    """One point of the grid, with its shared memory (bytes), blocks a multiprocessor, and score."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    pre_load_v: bool
    waves_per_eu: int
    smem: int
    occupancy: int
    score: float

    @property
    def key(self) -> tuple[int, int, int, int, bool]:
        """What makes two configurations the same to the kernel."""
        return self[:5]


class Card(NamedTuple):
    """The facts that bound a configuration."""

    head_dim: int
    element: int
    smem_per_block: int
    warp_size: int
    registers_per_sm: int
    max_threads_per_block: int


def card(work: Work) -> Card:
    """The card and head size from the facts."""
    return Card(
        work.integer("head_dim"),
        work.element_size(),
        work.integer("smem_per_block"),
        work.integer("warp_size"),
        work.integer("registers_per_sm"),
        work.integer("max_threads_per_block"),
    )


def refusal(c: Card, block_m: int, block_n: int, num_warps: int, num_stages: int, pre_load_v: bool) -> str:
    """Why this card cannot run the configuration, or an empty string."""
    needed = smem_bytes(block_m, block_n, c.head_dim, c.element)
    threads = num_warps * c.warp_size
    if needed > c.smem_per_block:
        return f"needs {needed:,} B of shared memory, over {c.smem_per_block:,} B"
    if threads > c.max_threads_per_block:
        return f"{num_warps} x {c.warp_size} = {threads:,} threads, over {c.max_threads_per_block:,}"
    if threads < block_m:
        return f"{threads} threads for {block_m} rows"
    if needed * num_stages > c.smem_per_block:
        return f"{num_stages} stages x {needed:,} B, over {c.smem_per_block:,} B"
    if c.registers_per_sm // (threads * REGISTERS_A_THREAD) < 1:
        return f"{threads} threads x {REGISTERS_A_THREAD} registers, over {c.registers_per_sm:,}"
    if pre_load_v and block_n * c.head_dim * c.element // 4 > 128:
        return "PRE_LOAD_V keeps more than 128 registers of V"
    return ""


@lru_cache(maxsize=8)
def grid(c: Card) -> tuple[Config, ...]:
    """Every configuration of the grid that the card can run, best score first (stable)."""
    found = []
    for bm, bn, warps, stages, preload, waves in product(*GRID.values()):
        if refusal(c, bm, bn, warps, stages, bool(preload)):
            continue
        found.append(_scored(c, bm, bn, warps, stages, bool(preload), waves))
    return tuple(sorted(found, key=lambda config: -config.score))


def unique(configs: Iterable[Config]) -> list[Config]:
    """The first of each key, in order."""
    seen: dict[tuple[int, ...], Config] = {}
    for config in configs:
        seen.setdefault(config.key, config)
    return list(seen.values())


def _scored(c: Card, bm: int, bn: int, warps: int, stages: int, preload: bool, waves: int) -> Config:
    needed = smem_bytes(bm, bn, c.head_dim, c.element)
    threads = warps * c.warp_size
    occupancy = min(
        c.max_threads_per_block // threads,
        c.smem_per_block // (needed * stages),
        c.registers_per_sm // (threads * REGISTERS_A_THREAD),
    )
    score = (
        bm * bn * max(occupancy, 1) * (1.15 if stages == 2 else 1.0) * (1.05 if preload else 1.0)
        * min(1.0, bm / threads) * min(1.5 * needed / c.smem_per_block, 1.0)
    )  # fmt: skip
    return Config(bm, bn, warps, stages, preload, waves, needed, occupancy, score)


def attention_configs(work: Work, ask: Ask) -> tuple[tuple[Entry, str, str], ...]:
    """The autotune list of `attn_fwd`: upstream's feasible entries, then derived ones by score.

    BLOCK_M % BLOCK_N == 0 is a limit of correctness that no fact of the card tells: with
    BLOCK_N > BLOCK_M the kernel drops the causal mask where the length is a multiple of the tile
    (measured on an H200).
    """
    if ask.literal is not None:
        raise LimitError("a list of configurations has no single value")
    if modelled(work):
        from muhmod.derive.modelled import configs

        return configs(work, ask)
    c = card(work)
    work.step(
        f"shared memory is (BLOCK_M*{c.head_dim} + {c.head_dim}*BLOCK_N)*{c.element} + BLOCK_M*8, "
        f"at most {c.smem_per_block:,} B; threads are num_warps*{c.warp_size}, "
        f"at most {c.max_threads_per_block:,}"
    )
    fates = [(entry, *_judge(c, entry)) for entry in ask.entries]
    kept = {key(entry) for entry, fate, _ in fates if fate == "keep"}
    ranked = [g for g in unique(grid(c)) if g.block_m % g.block_n == 0]
    if ask.entries and all(entry.get("PRE_LOAD_V") is None for entry in ask.entries):
        ranked = [g for g in ranked if not g.pre_load_v]
    room = max(0, MOST_ENTRIES - sum(fate == "keep" for _, fate, _ in fates))
    added = [g for g in ranked if g.key not in kept][:room]
    if not kept and not added:
        raise LimitError(
            f"no configuration fits {c.smem_per_block:,} B at head_dim {c.head_dim}",
            "another dtype or another card is needed",
        )
    work.step(
        f"{len(grid(c))} of the grid's points can run, {len(unique(grid(c)))} of them distinct, "
        f"{len(ranked)} with BLOCK_M % BLOCK_N == 0"
    )
    work.step(f"{len(kept)} of upstream's {len(ask.entries)} stay, {len(added)} are added by score")
    return (*fates, *((_entry(g), "add", _why(g)) for g in added))


def _judge(c: Card, entry: Entry) -> tuple[str, str]:
    """Whether an entry of the source stays, and why."""
    defaults = {"BLOCK_M": None, "BLOCK_N": None, "num_warps": 4, "num_stages": DEFAULT_STAGES}
    numbers = [entry.get(key, default) for key, default in defaults.items()]
    if not all(isinstance(n, int) and n > 0 for n in numbers):
        return "drop", "its tile, warps or stages are no positive whole numbers"
    bm, bn, warps, stages = (int(n) for n in numbers if n is not None)
    why = refusal(c, bm, bn, warps, stages, bool(entry.get("PRE_LOAD_V", False)))
    if why:
        return "drop", why
    if bm % bn:
        return "drop", "BLOCK_M % BLOCK_N != 0: the causal mask would be lost"
    return "keep", f"needs {smem_bytes(bm, bn, c.head_dim, c.element):,} B and fits"


def refused_keys(work: Work) -> tuple[str, ...]:
    """The keys of a configuration that Triton refuses: those for AMD's, on NVIDIA's cards."""
    return AMD_KEYS if modelled(work) and work.facts.get("platform") != "rocm" else ()


def key(entry: Entry) -> tuple[Scalar | None, ...]:
    """BLOCK_M, BLOCK_N, warps, stages and PRE_LOAD_V of an entry, with triton.Config's defaults."""
    return (
        entry.get("BLOCK_M"),
        entry.get("BLOCK_N"),
        entry.get("num_warps", 4),
        entry.get("num_stages", DEFAULT_STAGES),
        bool(entry.get("PRE_LOAD_V", False)),
    )


def _entry(g: Config) -> Entry:
    return Entry(
        (("BLOCK_M", g.block_m), ("BLOCK_N", g.block_n), ("waves_per_eu", g.waves_per_eu),
         ("PRE_LOAD_V", g.pre_load_v)),
        (("num_stages", g.num_stages), ("num_warps", g.num_warps)),
    )  # fmt: skip


def _why(g: Config) -> str:
    blocks = "block" if g.occupancy == 1 else "blocks"
    return f"needs {g.smem:,} B, {g.occupancy} {blocks} a multiprocessor, score {g.score:.4g}"
