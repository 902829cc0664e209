"""A card as the kernel models see it, and what Triton makes of a tile on it. Bytes, threads, nanoseconds."""

from __future__ import annotations

from typing import NamedTuple

from muhmod.derive.work import Work
from muhmod.errors import DerivationError

# tl.dot multiplies tiles of at least 16 in each dimension.
DOT_MINIMUM = 16
# A warpgroup is four warps, and its instruction (wgmma) multiplies 64 rows.
WARPGROUP, WARPGROUP_ROWS = 4, 64
# Generations whose shared memory is known as Triton allocates it.
MODELLED = ("pascal", "volta", "turing", "ampere", "ada", "hopper", "cdna3")
# Triton 3.6 neither copies in the background nor knows the tensor cores of these: it multiplies in fp32,
# with operands that are widened on their way through shared memory.
_UNPIPELINED = ("pascal", "volta", "turing")
WIDENED = 4


class Card(NamedTuple):
    """The facts that bound a configuration and its speed.

    Shared memory and caches in bytes, bandwidths in bytes a nanosecond (GB/s), times in
    nanoseconds, `peak` in operations a nanosecond.
    """

    architecture: str
    warp_size: int
    sm_count: int
    smem_per_block: int
    smem_per_sm: int
    smem_reserved: int
    registers_per_sm: int
    max_registers_per_thread: int
    max_threads_per_block: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    l2_cache: int
    memory_bandwidth: float
    memory_latency: float
    l2_bandwidth_per_sm: float
    block_start: float
    block_exit: float
    block_launch: float
    kernel_launch: float
    peak: float


def modelled(work: Work) -> bool:
    """Whether the card's generation has a model; without one the earlier generator's formulas hold."""
    return work.facts.get("architecture") in MODELLED


def card(work: Work) -> Card:
    """The card from the facts, each recorded as used. Raises MissingFactError and DisputedFactError."""
    return Card(
        architecture=str(work.fact("architecture").value),
        warp_size=work.integer("warp_size"),
        sm_count=work.integer("sm_count"),
        smem_per_block=work.integer("smem_per_block"),
        smem_per_sm=work.integer("smem_per_sm"),
        smem_reserved=work.integer("smem_reserved"),
        registers_per_sm=work.integer("registers_per_sm"),
        max_registers_per_thread=work.integer("max_registers_per_thread"),
        max_threads_per_block=work.integer("max_threads_per_block"),
        max_threads_per_sm=work.integer("max_threads_per_sm"),
        max_blocks_per_sm=work.integer("max_blocks_per_sm"),
        l2_cache=work.integer("l2_cache"),
        memory_bandwidth=_number(work, "memory_bandwidth"),
        memory_latency=_number(work, "memory_latency"),
        l2_bandwidth_per_sm=_number(work, "l2_bandwidth_per_sm"),
        block_start=_number(work, "block_start"),
        block_exit=_number(work, "block_exit"),
        block_launch=_number(work, "block_launch"),
        kernel_launch=_number(work, "kernel_launch") * 1e3,
        peak=_number(work, "peak_fp16") * 1e3,
    )


def _number(work: Work, name: str) -> float:
    value = work.fact(name).value
    if isinstance(value, (bool, str)):
        raise DerivationError(f"the fact {name!r} is {value!r}; a number is needed")
    return float(value)


def pipelines(c: Card) -> bool:
    """Whether num_stages changes anything."""
    return c.architecture not in _UNPIPELINED


def warpgroups(c: Card, block_m: int, warps: int) -> bool:
    """Whether tl.dot becomes wgmma, which reads its tiles from shared memory."""
    return c.architecture == "hopper" and block_m >= WARPGROUP_ROWS and warps >= WARPGROUP


def buffers(c: Card, block_m: int, warps: int, stages: int) -> int:
    """How many copies of a loop's tiles Triton keeps in shared memory, where it pipelines.

    wgmma reads shared memory while the next stages arrive: one a stage. Elsewhere the operands
    are in registers by then: one less. Exact on 53,951 measured rows of Triton 3.6 on sm_90.
    """
    return stages if warpgroups(c, block_m, warps) else max(1, stages - 1)


def blocks_per_sm(c: Card, smem: int, registers: int, threads: int) -> int:
    """Blocks that a multiprocessor holds at once; 0 where one does not fit it."""
    # Registers are given out by eights a thread.
    registers = -(-registers // 8) * 8
    return min(
        c.registers_per_sm // (registers * threads),
        c.smem_per_sm // (smem + c.smem_reserved) if smem + c.smem_reserved else c.max_blocks_per_sm,
        c.max_threads_per_sm // threads,
        c.max_blocks_per_sm,
    )


def waves(c: Card, blocks: float, resident: int) -> tuple[float, float]:
    """Waves of a grid of blocks, and how full the last one is (0 to 1)."""
    count = blocks / (c.sm_count * resident)
    tail = count % 1
    return count, tail if tail or not count else 1.0


def bytes_to_fill(c: Card) -> float:
    """Bytes that must be under way on a multiprocessor to keep its share of the bandwidth (Little's law)."""
    return c.memory_bandwidth / c.sm_count * c.memory_latency


def padded(head_dim: int) -> int:
    """The head size that the attention kernels work on: the next power of two, at least 16."""
    return max(DOT_MINIMUM, 1 << (head_dim - 1).bit_length())
