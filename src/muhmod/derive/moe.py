"""Tiles of the fused MoE kernel."""

from __future__ import annotations

from math import ceil, log2, sqrt

from muhmod.derive.arms import possible, upper_bound
from muhmod.derive.work import Ask, Work
from muhmod.errors import LimitError

# The smallest M tile of tl.dot, and the largest that a block's accumulators carry.
SMALLEST, LARGEST = 16, 128


def moe_block_m(work: Work, ask: Ask) -> int:
    """BLOCK_SIZE_M (tokens a tile) for the most tokens with which the slot's arm is taken.

    t tokens reach each active expert on average. Their number varies by about sqrt(t), so a tile
    that holds t + 2*sqrt(t) covers nearly every expert in one block; tl.dot wants a power of two.
    """
    topk = work.integer("experts_per_token")
    experts = work.integer("num_experts")
    most = work.integer("max_num_batched_tokens")
    arrivals = [a for a in ask.arrivals if possible(a, work)] or list(ask.arrivals)
    tokens = max((upper_bound(a.conditions, work, most) for a in arrivals), default=float(most))
    numel = max(1, round(tokens * topk))
    if ask.arrivals and all(not a.conditions for a in ask.arrivals):
        work.step(f"no test bounds this value: up to {most:,} tokens x {topk} = {numel:,} rows")
    else:
        work.step(f"the arm is taken for up to {numel:,} rows (M x topk), topk = {topk}")
    active = min(experts, numel)
    t = numel / active
    work.step(f"{active} of {experts} experts are active: t = {numel:,} / {active} = {t:g} tokens each")
    wanted = t + 2 * sqrt(t)
    rounded = 1 << ceil(log2(wanted))
    value = max(SMALLEST, min(LARGEST, rounded))
    work.step(
        f"t + 2*sqrt(t) = {wanted:.4g}, next power of two {rounded}, within {SMALLEST}..{LARGEST}: {value}"
    )
    if ask.literal is not None:
        literal = ask.literal
        if type(literal) is not int or not SMALLEST <= literal <= 1024 or literal & (literal - 1):
            raise LimitError(f"BLOCK_SIZE_M = {literal}: tl.dot needs a power of two, {SMALLEST} to 1024")
        return literal
    return int(value)
