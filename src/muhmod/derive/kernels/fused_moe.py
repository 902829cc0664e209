"""vLLM's `fused_moe_kernel`: one tile for the two GEMMs of a layer, from a small model of their time.

A layer of M tokens multiplies `rows = M*topk` rows twice: by w1 (E, 2N, K) and by w2 (E, K, N), N the
intermediate size of this device and K the hidden size. Rows are sorted by expert and padded to BLOCK_SIZE_M.
The model counts, for each GEMM: bytes from memory, the time of a block's K loop (transfer, latency over the
buffers in flight, tensor cores), how many blocks run at once, and the empty blocks that vLLM's padded
grid launches. The candidates are few, and every one is legal.
"""

from __future__ import annotations

from itertools import product
from math import ceil, erfc, log2, sqrt
from typing import NamedTuple

from muhmod.derive.kernels.card import (
    WIDENED,
    Card,
    blocks_per_sm,
    buffers,
    bytes_to_fill,
    pipelines,
    warpgroups,
)
from muhmod.errors import LimitError

# Accumulators a thread from which Triton spills: half of 255 registers.
MOST_ACCUMULATORS = 128
# Bytes of a tile's row: shorter runs waste bandwidth, longer ones only shared memory.
ROW_BYTES = (128, 256)
# What a run of consecutive bytes costs beyond its own length, in bytes.
RUN_OVERHEAD = 8
# mma.sync reaches half of wgmma's rate on Hopper.
SYNC_SHARE = 0.5
# Limits overlap, but not wholly: (a**3 + b**3)**(1/3), where max(a, b) would be the ideal.
OVERLAP = 3
# What a launch takes where the dict names neither num_warps nor num_stages.
DEFAULT_LAUNCH = (4, 3)
# Copies of the loop's tiles that are worth their shared memory.
MOST_BUFFERS = 4
# Predictions closer than this are a tie: the model's own error is larger.
TIE = 0.01
# Part of a wave's idle slots that is lost; the rest is used by the blocks still running.
TAIL = 0.12
# M tiles that a group of neighbours shares where an expert has more than one: near the square
# sqrt(multiprocessors * BLOCK_SIZE_N / BLOCK_SIZE_M) that loads the fewest tiles a wave.
LEAST_GROUP, MOST_GROUP = 16, 64


class Workload(NamedTuple):
    """Tokens, experts, intermediate size a device, hidden size, experts a token, bytes an element."""

    tokens: int
    experts: int
    intermediate: int
    hidden: int
    topk: int
    element: int = 2

    @property
    def rows(self) -> int:
        """Rows that are multiplied: each token once an expert."""
        return self.tokens * self.topk

    @property
    def active(self) -> float:
        """Experts that some token reaches, expected under even routing."""
        return float(self.experts * (1 - (1 - self.topk / self.experts) ** self.tokens))

    @property
    def gemms(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """(columns, depth of the K loop, rows of the input) of the two GEMMs."""
        return (2 * self.intermediate, self.hidden, self.tokens), (self.hidden, self.intermediate, self.rows)


class Tile(NamedTuple):
    """One configuration of the kernel."""

    block_m: int
    block_n: int
    block_k: int
    group_m: int
    warps: int
    stages: int

    @property
    def config(self) -> dict[str, int]:
        """The dict that vLLM hands to the launch."""
        keys = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
        return dict(zip(keys, self, strict=True))


class Cost(NamedTuple):
    """What the model says of one GEMM: nanoseconds, and the numbers behind them."""

    total: float
    memory: float
    blocks_time: float
    empty_time: float
    real: float
    launched: int
    resident: int


def accumulators(c: Card, tile: Tile) -> float:
    """fp32 accumulators a thread."""
    return tile.block_m * tile.block_n / (c.warp_size * tile.warps)


def shared_bytes(c: Card, tile: Tile, element: int = 2) -> int:
    """Shared memory of a block as Triton 3.6 allocates it: the loop's tiles, or the result on its way out.

    With more than four warps the result is turned around in shared memory, part by part. Exact for sm_75 and
    sm_90, and for sm_80 but for some tiles of eight warps and short K steps, which need less.
    """
    bm, bn = tile.block_m, tile.block_n
    if not pipelines(c):
        return max(bm, bn) * tile.block_k * WIDENED
    tiles = _tiles(c, tile, element)
    if tile.warps <= 4:
        return tiles
    return max(tiles, (min(bm, 128) if c.architecture == "hopper" else bm) * min(bn, 128) * element)


def _copies(c: Card, tile: Tile) -> int:
    """How many copies of the loop's tiles are kept. On cdna3 one a stage, as users met it (vllm #17744).

    That was Triton until 2025; 3.6 keeps fewer there, and which one will run is not known.
    """
    return tile.stages if c.architecture == "cdna3" else buffers(c, tile.block_m, tile.warps, tile.stages)


def _tiles(c: Card, tile: Tile, element: int) -> int:
    """Bytes of the loop's tiles, all buffers."""
    copies = _copies(c, tile)
    return (tile.block_m + tile.block_n) * tile.block_k * element * copies


def _sum(c: Card, tile: Tile, element: int) -> str:
    """The sum that gives the shared memory, for people."""
    bm, bn, bk = tile[:3]
    needed = shared_bytes(c, tile, element)
    if not pipelines(c):
        return f"max({bm}, {bn})*{bk}*{WIDENED} = {needed:,} B of shared memory, widened to fp32"
    copies, tiles = _copies(c, tile), _tiles(c, tile, element)
    result = f", {needed:,} B with the result" if needed > tiles else ""
    return f"({bm} + {bn})*{bk}*{element}*{copies} = {tiles:,} B of shared memory{result}"


def registers(c: Card, tile: Tile) -> int:
    """Registers a thread, about (10 off): accumulators, addresses of the tiles, and the operands."""
    fragments = (tile.block_m + tile.block_n) * tile.block_k / (c.warp_size * tile.warps)
    base, each = (16, 1.16) if warpgroups(c, tile.block_m, tile.warps) else (24, 1.5)
    return int(min(c.max_registers_per_thread, base + each * accumulators(c, tile) + 0.42 * fragments))


def refusal(c: Card, tile: Tile, element: int = 2) -> str:
    """Why this card cannot run the configuration well, or an empty string."""
    needed, threads = shared_bytes(c, tile, element), tile.warps * c.warp_size
    if needed > c.smem_per_block:
        return f"needs {needed:,} B of shared memory, over {c.smem_per_block:,} B"
    if threads > c.max_threads_per_block:
        return f"{tile.warps} x {c.warp_size} = {threads:,} threads, over {c.max_threads_per_block:,}"
    if accumulators(c, tile) > MOST_ACCUMULATORS:
        return f"{accumulators(c, tile):g} accumulators a thread, over {MOST_ACCUMULATORS}: they spill"
    return ""


def m_blocks(w: Workload, block_m: int) -> float:
    """M tiles that hold rows, expected: the sum over experts of ceil(rows of the expert / BLOCK_SIZE_M)."""
    share = w.topk / w.experts
    mean, spread = w.tokens * share, sqrt(max(w.tokens * share * (1 - share), 1e-9))
    count, edge = w.active / w.experts, block_m
    while edge < mean + 6 * spread:
        count += erfc((edge + 0.5 - mean) / spread / sqrt(2)) / 2
        edge += block_m
    return w.experts * count


def group(w: Workload, block_m: int) -> int:
    """GROUP_SIZE_M: 1 while an expert's rows (t and two deviations) fit one tile, else enough to hold them.

    Neighbours in a group read the same columns of an expert's weights while they are in L2.
    """
    t = w.rows / min(w.experts, w.rows)
    tiles = (t + 2 * sqrt(t)) / block_m
    return 1 if tiles <= 1 else max(LEAST_GROUP, min(MOST_GROUP, 1 << ceil(log2(tiles))))


def cost(c: Card, w: Workload, tile: Tile, gemm: int, real_m: float) -> Cost:
    """The model's time of one GEMM (0 or 1), given the M tiles that hold rows."""
    columns, depth, inputs = w.gemms[gemm]
    bm, bn, bk, _, warps, _ = tile
    wide = -(-columns // bn)
    real, launched = real_m * wide, -(-(w.rows + w.experts * (bm - 1)) // bm) * wide
    loops = -(-depth // bk)
    smem, regs = shared_bytes(c, tile, w.element), registers(c, tile)
    resident = max(1, blocks_per_sm(c, smem, regs, warps * c.warp_size))
    memory = _memory(c, w, tile, gemm, real_m) + (inputs * depth + w.rows * columns) * w.element
    memory /= c.memory_bandwidth * bk * w.element / (bk * w.element + RUN_OVERHEAD)
    # One K step of the blocks that share a multiprocessor.
    sharing = min(resident, max(1.0, real / c.sm_count))
    step = (min(bm, w.rows / real_m) + bn) * bk * w.element
    transfer = step / c.l2_bandwidth_per_sm
    flight = min(max(1, tile.stages - 1) if pipelines(c) else 1, loops)
    full = c.architecture != "hopper" or warpgroups(c, bm, warps)
    compute = 2 * bm * bn * bk * c.sm_count / (c.peak * (1 if full else SYNC_SHARE))
    loop = _together(sharing * transfer, (c.memory_latency + transfer) / flight, sharing * compute)
    slots = c.sm_count * resident
    turns = real / slots
    blocks = max(1.0, turns) * (c.block_start + loops * loop)
    busy = _together(memory, blocks, 0.0)
    if turns > 1:
        busy *= 1 + TAIL * (ceil(turns) - turns) / turns
    # Blocks without rows leave at once, first through the slots that are free meanwhile.
    free = max(0.0, resident - real / c.sm_count) * c.sm_count
    rate = min(1 / c.block_launch, free / c.block_exit)
    left = max(0.0, launched - real - rate * busy)
    empty = left / min(1 / c.block_launch, slots / c.block_exit)
    return Cost(c.kernel_launch + busy + empty, memory, blocks, empty, real, launched, resident)


def _memory(c: Card, w: Workload, tile: Tile, gemm: int, real_m: float) -> float:
    """Bytes of weights from memory: once an active expert, as long as its M tiles find them in L2."""
    columns, depth, _ = w.gemms[gemm]
    matrix = columns * depth * w.element
    tiles = real_m / w.active
    kept = min(1.0, c.l2_cache / matrix)
    again = 1.0 if tile.group_m >= tiles else kept + (1 - kept) * tiles / min(tile.group_m, tiles)
    return w.active * again * matrix


def _together(a: float, b: float, c: float) -> float:
    return float((a**OVERLAP + b**OVERLAP + c**OVERLAP) ** (1 / OVERLAP))


def candidates(c: Card, w: Workload, launch: tuple[int, int] | None = None) -> list[Tile]:
    """The legal configurations worth a look; with `launch`, those of its warps and stages.

    Each warp has as many columns as it has threads. BLOCK_SIZE_N of 256 needs two warpgroups, and so rows
    for them; M tiles far from the rows of an expert are left out.
    """
    t = w.rows / w.active
    rows = [bm for bm in (16, 32, 64, 128) if t / 2 <= bm <= max(16, 4 * t) or (bm == 128 and t > 128)]
    depths = (launch[1],) if launch else _depths(c)
    found = []
    for bm in rows:
        g = group(w, bm)
        for bn in (32, 64, 128, 256) if bm >= 64 else (32, 64, 128):
            warps = launch[0] if launch else max(64, bn) // c.warp_size
            if c.architecture == "hopper" and bm >= 64 and warps < 4:
                continue
            for run, stages in product(row_bytes(c), depths):
                tile = Tile(bm, bn, run // w.element, g, warps, stages)
                if buffers(c, bm, warps, stages) <= MOST_BUFFERS and not refusal(c, tile, w.element):
                    found.append(tile)
    return found


def row_bytes(c: Card) -> tuple[int, ...]:
    """Bytes of a tile's row to look at. Longer runs spill where operands are widened (vllm #47019, V100)."""
    return ROW_BYTES if pipelines(c) else ROW_BYTES[:1]


def _depths(c: Card) -> tuple[int, ...]:
    """Values of num_stages to look at: one where Triton does not pipeline, few where registers carry them."""
    if not pipelines(c):
        return (1,)
    return (2, 3) if c.architecture == "cdna3" else (2, 3, 4, 5)


class Choice(NamedTuple):
    """The chosen tile, its costs, and the next best with its time over the best (1.0 and up)."""

    tile: Tile
    costs: tuple[Cost, Cost]
    next_best: Tile | None
    ratio: float
    looked: int


def choose(c: Card, w: Workload, launch: tuple[int, int] | None = None) -> Choice:
    """The candidate with the least time; among near ties the one with the fewest accumulators a thread.

    `launch` holds (num_warps, num_stages) that cannot be chosen. Raises LimitError where none is legal.
    """
    tiles = candidates(c, w, launch)
    if not tiles:
        raise LimitError(f"no configuration of fused_moe_kernel fits {c.smem_per_block:,} B of shared memory")
    real = {bm: m_blocks(w, bm) for bm in {tile.block_m for tile in tiles}}
    timed = []
    for tile in tiles:
        costs = (cost(c, w, tile, 0, real[tile.block_m]), cost(c, w, tile, 1, real[tile.block_m]))
        timed.append((costs[0].total + costs[1].total, tile, costs))
    least = min(timed)[0]
    ties = [row for row in timed if row[0] <= least * (1 + TIE)]
    best = min(ties, key=lambda row: (accumulators(c, row[1]), row[0]))
    rest = [row for row in timed if row is not best]
    second = min(rest) if rest else None
    return Choice(best[1], best[2], second[1] if second else None,
                  second[0] / best[0] if second else 1.0, len(tiles))  # fmt: skip


def explain(c: Card, w: Workload, choice: Choice) -> list[str]:
    """The derivation, step by step, with its numbers."""
    tile = choice.tile
    bm, bn, bk, g, warps, stages = tile
    t = w.rows / w.active
    first = choice.costs[0]
    flight = first.resident * (bm + bn) * bk * w.element * max(1, stages - 1)
    steps = [
        f"{w.tokens:,} tokens x {w.topk} = {w.rows:,} rows reach {w.active:.4g} of {w.experts} experts: "
        f"t = {t:.4g} rows each",
        f"{choice.looked} configurations fit {c.smem_per_block:,} B of shared memory, "
        f"{c.max_threads_per_block:,} threads and {MOST_ACCUMULATORS} accumulators a thread",
        f"least time: {bm} x {bn} x {bk}, {warps} warps, {stages} stages: {_sum(c, tile, w.element)}; "
        f"{bm}*{bn}/({c.warp_size}*{warps}) = {accumulators(c, tile):g} accumulators a thread",
        f"{first.resident} blocks a multiprocessor: {flight:,} B under way, where "
        f"{c.memory_bandwidth:g} GB/s / {c.sm_count} x {c.memory_latency:g} ns = {bytes_to_fill(c):,.0f} B "
        "keep the memory busy",
    ]
    if not pipelines(c):
        steps.append(
            f"K steps of {row_bytes(c)[-1] // w.element}: longer ones spill, operands widened to fp32"
        )
    for name, (columns, depth, _), found in zip(("first", "second"), w.gemms, choice.costs, strict=True):
        steps.append(
            f"{name} GEMM ({columns:,} columns, K {depth:,}, {-(-depth // bk)} K steps): {found.real:,.0f} "
            f"of {found.launched:,} blocks hold rows; memory {found.memory / 1e3:.1f} us, "
            f"blocks {found.blocks_time / 1e3:.1f} us, empty blocks {found.empty_time / 1e3:.1f} us: "
            f"{found.total / 1e3:.1f} us with the launch"
        )
    spread = (w.rows / min(w.experts, w.rows) + 2 * sqrt(w.rows / min(w.experts, w.rows))) / bm
    steps.append(
        f"GROUP_SIZE_M {g}: an expert has up to (t + 2*sqrt(t)) / {bm} = {spread:.3g} M tiles"
        + ("" if g > 1 else ", so none shares its weights with a neighbour")
    )
    if choice.next_best:
        n = choice.next_best
        tie = " (a tie: fewer accumulators win)" if choice.ratio <= 1 + TIE else ""
        steps.append(
            f"next: {n.block_m} x {n.block_n} x {n.block_k}, {n.warps} warps, {n.stages} stages, "
            f"{choice.ratio - 1:+.1%} time{tie}"
        )
    return steps
