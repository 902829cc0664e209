"""Tiles of the fused MoE kernel."""

from __future__ import annotations

from math import ceil, log2, sqrt
from typing import TYPE_CHECKING

from muhmod.derive.arms import possible, upper_bound
from muhmod.derive.kernels.card import card, modelled
from muhmod.derive.work import Ask, Work
from muhmod.errors import LimitError
from muhmod.model import LADDER_KEYS

if TYPE_CHECKING:
    from muhmod.derive.kernels.fused_moe import Tile

# The smallest M tile of tl.dot, and the largest that a block's accumulators carry.
SMALLEST, LARGEST = 16, 128


def moe_block_m(work: Work, ask: Ask) -> int:
    """BLOCK_SIZE_M (tokens a tile) for the most tokens with which the slot's arm is taken.

    t tokens reach each active expert on average. Their number varies by about sqrt(t), so a tile
    that holds t + 2*sqrt(t) covers nearly every expert in one block; tl.dot wants a power of two.
    """
    if modelled(work):
        return _checked(ask, "BLOCK_SIZE_M", _tile(work, ask).block_m)
    topk = work.integer("experts_per_token")
    experts = work.integer("num_experts")
    numel = _rows(work, ask, topk)
    active = min(experts, numel)
    t = numel / active
    work.step(f"{active} of {experts} experts are active: t = {numel:,} / {active} = {t:g} tokens each")
    wanted = t + 2 * sqrt(t)
    rounded = 1 << ceil(log2(wanted))
    value = max(SMALLEST, min(LARGEST, rounded))
    work.step(
        f"t + 2*sqrt(t) = {wanted:.4g}, next power of two {rounded}, within {SMALLEST}..{LARGEST}: {value}"
    )
    return _checked(ask, "BLOCK_SIZE_M", value)


def moe_block_n(work: Work, ask: Ask) -> int:
    """BLOCK_SIZE_N (columns a tile) for the most tokens with which the slot's arm is taken."""
    return _checked(ask, "BLOCK_SIZE_N", _tile(work, ask).block_n)


def moe_block_k(work: Work, ask: Ask) -> int:
    """BLOCK_SIZE_K (depth of a K step) for the most tokens with which the slot's arm is taken."""
    return _checked(ask, "BLOCK_SIZE_K", _tile(work, ask).block_k)


def moe_group_m(work: Work, ask: Ask) -> int:
    """GROUP_SIZE_M (M tiles that share weights) for the most tokens with which the slot's arm is taken."""
    return _checked(ask, "GROUP_SIZE_M", _tile(work, ask).group_m, least=1)


def moe_warps(work: Work, ask: Ask) -> int:
    """num_warps for the most tokens with which the slot's arm is taken."""
    return _checked(ask, "num_warps", _tile(work, ask._replace(launch=True)).warps, least=1)


def moe_stages(work: Work, ask: Ask) -> int:
    """num_stages for the most tokens with which the slot's arm is taken.

    Where warps and stages are not the rule's to choose together (`launch`): the stages of the source, as
    far as its own tile fits with them.
    """
    literal = ask.literal
    if literal is None and not ask.launch and _known(ask):
        return _stages_that_fit(work, ask)
    stages = _tile(work, ask._replace(launch=True)).stages
    if literal is None:
        return stages
    if type(literal) is not int or not 1 <= literal <= 16:
        raise LimitError(f"num_stages = {literal}: a whole number from 1 is needed")
    return literal


def _known(ask: Ask) -> bool:
    return {*LADDER_KEYS[:3], "num_stages"} <= {*ask.tile}


def _stages_that_fit(work: Work, ask: Ask) -> int:
    from muhmod.derive.modelled import moe_standing

    narrow = any("fp8" in c.test and c.taken for a in ask.arrivals for c in a.conditions)
    element = 1 if narrow else work.element_size()
    for stages in range(ask.tile["num_stages"], 0, -1):
        shown, refused = moe_standing(work, {**ask.tile, "num_stages": stages}, element)
        work.step(shown)
        if not refused:
            return stages
    raise LimitError(f"even one stage is {refused}: {shown}", "another tile is needed")


def moe_ladder(work: Work, ask: Ask) -> str:
    """The lines of a ladder that computes an expert's rows and decides by them, as the source writes it.

    Of no model: M, E, N, K and topk are known where the dict is made. Values of two bytes.
    """
    from muhmod.derive.kernels import ladder

    if ask.literal is not None:
        raise LimitError("a ladder has no single value")
    if ask.keys == LADDER_KEYS[:1]:
        lines = ladder.emit_rows(ask.spelling)
        work.step("an expert has rows / active rows on average; two deviations more are one tile's rows")
        work.step(f"tl.dot wants a power of two: one of {', '.join(map(str, ladder.ROWS))}")
    else:
        c = card(work)
        lines = ladder.emit(c, ask.spelling)
        for rung in ladder.explain(c):
            work.step(rung)
    return "".join(line + ask.spelling.newline for line in lines)


def _tile(work: Work, ask: Ask) -> Tile:
    """The model's tile for the most tokens of the arm; all slots of an arm get theirs from the same one."""
    from muhmod.derive.modelled import moe_standing, moe_tile

    if {*LADDER_KEYS[:3]} <= {*ask.tile}:
        work.step(f"as it stands, {moe_standing(work, ask.tile, work.element_size())[0]}")
    topk = work.integer("experts_per_token")
    tokens = max(1, round(_rows(work, ask, topk) / topk))
    return moe_tile(work, tokens, launch=ask.launch, options=ask.options)


def _rows(work: Work, ask: Ask, topk: int) -> int:
    """Rows (tokens x experts a token) of the most tokens with which the slot's arm is taken."""
    most = work.integer("max_num_batched_tokens")
    arrivals = [a for a in ask.arrivals if possible(a, work)] or list(ask.arrivals)
    tokens = max((upper_bound(a.conditions, work, most) for a in arrivals), default=float(most))
    numel = max(1, round(tokens * topk))
    if ask.arrivals and all(not a.conditions for a in ask.arrivals):
        work.step(f"no test bounds this value: up to {most:,} tokens x {topk} = {numel:,} rows")
    else:
        work.step(f"the arm is taken for up to {numel:,} rows (M x topk), topk = {topk}")
    return numel


def _checked(ask: Ask, key: str, value: int, least: int = SMALLEST) -> int:
    """The value, or the pack's literal if that is a tile at all."""
    literal = ask.literal
    if literal is None:
        return value
    if type(literal) is not int or not least <= literal <= 1024 or literal & (literal - 1):
        raise LimitError(f"{key} = {literal}: tl.dot needs a power of two, {least} to 1024")
    return literal
