"""How a tuned block shrinks or grows with the element's size, as the earlier C++ headers scale it.

For the derivations of kernels that are tuned for 4-byte elements: a memory-bound one keeps its
bytes, a register-bound one its registers. All sizes in bytes, all counts whole numbers.
"""

from __future__ import annotations

WARP = 32


def scale_mem_bound(
    nominal_threads: int, nominal_items: int, type_size: int, smem: int = 49152
) -> tuple[int, int]:
    """(items a thread, threads) that keep the bytes of the nominal block, within shared memory."""
    items = max(1, min(nominal_items * 4 // type_size, nominal_items * 2))
    return items, min(nominal_threads, _round_up(smem // (type_size * items)))


def scale_reg_bound(
    nominal_threads: int, nominal_items: int, type_size: int, smem: int = 49152
) -> tuple[int, int]:
    """(items a thread, threads) that keep the registers of the nominal block."""
    items = max(1, nominal_items * 4 // max(4, type_size))
    return items, min(nominal_threads, _round_up(smem // (type_size * items)))


def bytes_in_flight(bandwidth: float, latency: float) -> float:
    """Bytes under way to keep one multiprocessor's share of the bandwidth (GB/s) over a latency (ns)."""
    return bandwidth * latency


def _round_up(threads: int) -> int:
    return -(-threads // WARP) * WARP
