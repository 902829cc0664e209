"""Tiles of the attention kernels: `attn_fwd`, prefix_prefill's `_fwd_kernel`, paged attention's partition.

Limits of correctness that no fact of a card tells, both measured: prefix_prefill gives NaN with
BLOCK_M > BLOCK_N; attn_fwd loses the causal mask with BLOCK_N > BLOCK_M where the length is a multiple of
the tile, so BLOCK_M % BLOCK_N must be 0.
"""

from __future__ import annotations

from typing import NamedTuple

from muhmod.derive.kernels.card import (
    DOT_MINIMUM,
    WIDENED,
    Card,
    buffers,
    padded,
    pipelines,
    warpgroups,
)
from muhmod.errors import LimitError

# Accumulators a thread (result and scores) that leave room for the softmax: 9/16 of its registers.
# On sm_90 Triton spills from 144 of 255.
ACCUMULATOR_SHARE = 9 / 16
# Threads that a multiprocessor's tensor cores are kept busy with: eight warps of 32.
THREADS = 256
MOST_ENTRIES = 9
# Head sizes of most models.
HEAD_DIMS = (64, 128, 256)
# Bytes of block metadata that V2's reduction keeps beside a partition's scores.
_REDUCTION = 2 * 32 * 4


class Heads(NamedTuple):
    """Head size and bytes an element; the kernels pad a head to a power of two."""

    head_dim: int
    element: int = 2

    @property
    def width(self) -> int:
        """The padded head size."""
        return padded(self.head_dim)


class Tile(NamedTuple):
    """One configuration of an attention kernel."""

    block_m: int
    block_n: int
    pre_load_v: bool
    warps: int
    stages: int

    @property
    def config(self) -> dict[str, int | bool]:
        """The keys of attn_fwd's `triton.Config`, launch options included."""
        keys = ("BLOCK_M", "BLOCK_N", "PRE_LOAD_V", "num_warps", "num_stages")
        return dict(zip(keys, self, strict=True))

    @property
    def tied(self) -> dict[str, int]:
        """The keys of prefix_prefill's launch."""
        return {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n,
                "num_warps": self.warps, "num_stages": self.stages}  # fmt: skip


def shared_bytes(c: Card, h: Heads, tile: Tile) -> int:
    """Shared memory of a block as Triton 3.6 allocates it: Q, K and V tiles, and scores that pass through it.

    wgmma keeps the scores in registers and one copy of K and V a stage; elsewhere one less, and the scores
    are turned into an operand through shared memory. With one stage K and V share their place, unless V is
    loaded ahead; in fp32 the widened operands of the second product take that of the first's. Exact with
    wgmma on sm_90 and on sm_75; elsewhere never under, and at most 32 KiB over. On cdna3 the scores stay in
    registers, and two fp32 values a row pass through: what Triton took until 2025 (vllm #12498), where
    3.6 takes less.
    """
    q, kv = tile.block_m * h.width * h.element, tile.block_n * h.width * h.element
    if warpgroups(c, tile.block_m, tile.warps):
        return q + (2 * kv * tile.stages if tile.stages > 1 or tile.pre_load_v else kv)
    scores = tile.block_m * (8 if c.architecture == "cdna3" else tile.block_n * h.element)
    if not pipelines(c):
        return (q + max(kv, scores)) // h.element * WIDENED
    shared = tile.stages == 1 and not tile.pre_load_v
    return q + (kv if shared else 2 * kv * buffers(c, tile.block_m, tile.warps, tile.stages)) + scores


def accumulators(c: Card, h: Heads, tile: Tile) -> float:
    """fp32 values a thread: the result and one tile of scores."""
    return tile.block_m * (h.width + tile.block_n) / (c.warp_size * tile.warps)


def most_accumulators(c: Card) -> int:
    """Accumulators a thread that leave room for the softmax."""
    return int((c.max_registers_per_thread + 1) * ACCUMULATOR_SHARE)


def refusal(c: Card, h: Heads, tile: Tile, blocks: int = 1) -> str:
    """Why `blocks` of this configuration do not run on a multiprocessor, or an empty string."""
    needed, threads = shared_bytes(c, h, tile), tile.warps * c.warp_size
    if needed > c.smem_per_block:
        return f"needs {needed:,} B of shared memory, over {c.smem_per_block:,} B"
    if blocks * (needed + c.smem_reserved) > c.smem_per_sm:
        return f"{blocks} blocks need {blocks * (needed + c.smem_reserved):,} B, over {c.smem_per_sm:,} B"
    if threads > c.max_threads_per_block:
        return f"{tile.warps} x {c.warp_size} = {threads:,} threads, over {c.max_threads_per_block:,} a block"
    if blocks * threads > c.max_threads_per_sm:
        return f"{blocks} x {threads:,} threads, over {c.max_threads_per_sm:,}"
    if accumulators(c, h, tile) > most_accumulators(c):
        return f"{accumulators(c, h, tile):g} accumulators a thread, over {most_accumulators(c)}"
    return ""


def attn_fwd(c: Card, h: Heads) -> list[Tile]:
    """The autotune list of `attn_fwd`, best first, at most nine. Raises LimitError where nothing fits.

    Two blocks of four warps hide each other's softmax; one of eight halves the traffic. Either way each
    warp has 16 rows, and BLOCK_N is the largest that registers and shared memory hold.
    """
    depths = [(3, False), (3, True), (2, True), (4, False), (2, False)] if pipelines(c) else []
    if c.architecture == "cdna3":
        depths = [(2, False), (2, True)]
    found: dict[Tile, None] = {}
    for stages, pre_load_v in [*depths, (1, False), (1, True)]:
        for blocks in (2, 1):
            tile = _largest(c, h, THREADS // blocks // c.warp_size, blocks, stages, pre_load_v)
            if tile:
                found[tile] = None
    if not found:
        raise LimitError(f"no configuration of attn_fwd fits {c.smem_per_block:,} B at head size {h.width}")
    return list(found)[:MOST_ENTRIES]


def listed(c: Card, h: Heads) -> list[Tile]:
    """The autotune list as a source holds it, at most nine: it serves every head size.

    The last places are the first two of each other head size, where they fit this one too.
    """
    own = attn_fwd(c, h)
    others: dict[Tile, None] = {}
    for width in HEAD_DIMS:
        if width != h.width:
            try:
                others |= dict.fromkeys(attn_fwd(c, h._replace(head_dim=width))[:2])
            except LimitError:
                continue
    rest = [tile for tile in others if tile not in own and not refusal(c, h, tile)]
    return [*own[: MOST_ENTRIES - len(rest)], *rest]


def _largest(c: Card, h: Heads, warps: int, blocks: int, stages: int, pre_load_v: bool) -> Tile | None:
    """The tallest tile with 16 rows a warp of 32, then the widest, that fits; shorter only if none does."""
    if warps < 1:
        return None
    tallest = warps * c.warp_size // 2
    for block_m in (m for m in (tallest, tallest // 2, tallest // 4) if m >= DOT_MINIMUM):
        block_n = block_m
        while block_n >= DOT_MINIMUM:
            tile = Tile(block_m, block_n, pre_load_v, warps, stages)
            if not refusal(c, h, tile, blocks):
                return tile
            block_n //= 2
    return None


def prefix_prefill(c: Card, h: Heads) -> Tile:
    """One setting of prefix_prefill with BLOCK_M = BLOCK_N, as its source ties them.

    Eight warps: each K and V row is gathered from the paged cache once a tile of queries, so the tallest
    tile whose accumulators stay in registers wins; then as many stages as fit, up to three.
    Raises LimitError where nothing fits.
    """
    for block in (128, 64, 32, 16):
        tile = tied(c, h, block)
        if tile:
            return tile
    raise LimitError(f"no tile of prefix_prefill fits {c.smem_per_block:,} B at head size {h.width}")


def tied(c: Card, h: Heads, block: int) -> Tile | None:
    """prefix_prefill's setting for a square tile of this size, or None where none fits.

    A warp has a square of 16 rows and columns at least, so small tiles have fewer threads.
    """
    for threads in (t for t in (THREADS, THREADS // 2, THREADS // 4) if t <= 4 * block):
        for stages in (3, 2, 1) if pipelines(c) and c.architecture != "cdna3" else (1,):
            tile = Tile(block, block, False, threads // c.warp_size, stages)
            if not refusal(c, h, tile):
                return tile
    return None


def explain(c: Card, h: Heads, tile: Tile, blocks: int) -> str:
    """One configuration's numbers."""
    q, kv = tile.block_m * h.width * h.element, tile.block_n * h.width * h.element
    together = "together" if pipelines(c) else "widened to fp32 together"
    return (
        f"{tile.block_m} x {tile.block_n}, {tile.warps} warps, {tile.stages} stages"
        f"{', V loaded ahead' if tile.pre_load_v else ''}: Q {q:,} B, K and V {kv:,} B each, "
        f"{together} {shared_bytes(c, h, tile):,} B, {blocks} a multiprocessor; "
        f"{tile.block_m}*({h.width} + {tile.block_n})/({c.warp_size}*{tile.warps}) = "
        f"{accumulators(c, h, tile):g} accumulators a thread"
    )


def partition_bytes(partition: int, head_dim: int, threads: int, warp_size: int) -> int:
    """Shared memory (bytes) of a block of paged attention V2: fp32 scores, or the warps' partial results."""
    partial = max(1, threads // warp_size // 2) * head_dim * 4
    return max(partition * 4, partial) + _REDUCTION


def partitions(tokens: int, partition: int) -> int:
    """Partitions of a sequence: each is a block's work, and their results are reduced by a second kernel."""
    return -(-tokens // partition)


def partition_waves(c: Card, sequences: int, heads: int, tokens: int, partition: int) -> float:
    """Blocks of paged attention V2 a multiprocessor: under 1, some have nothing to do."""
    return sequences * heads * partitions(tokens, partition) / c.sm_count
