"""A decision over the workload as source: what vLLM's `get_default_config` could return on a card.

`emit` writes the body of a function of M (tokens), E (experts), N (intermediate size of a device), K (hidden
size) and topk, all known where the dict is made. No model is named: the body computes how many rows an
expert has and takes one of a few tiles, each legal on the card. Plain arithmetic, since it runs at each step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from muhmod.derive.kernels.card import Card, pipelines
from muhmod.derive.kernels.fused_moe import Tile, refusal
from muhmod.errors import LimitError

# A K loop of at least two steps of 128: shorter ones want steps of 64, so that stages have work.
SHORT_DEPTH = 256
# Blocks a multiprocessor below which narrow tiles spread the work, and deep stages keep memory busy.
FEW_BLOCKS = 3
# Empty blocks (of 32 columns) a multiprocessor up to which deep buffers do not stand in their way, and
# from which launching them costs more than wide tiles lose.
FEW_EMPTY, MANY_EMPTY = 16, 96
# Bounds of GROUP_SIZE_M: an expert's rows over a tile of 128, as `fused_moe.group` rounds them.
_GROUPS = ((128, 1), (2048, 16), (4096, 32))
_MOST_GROUP = 64
NAMES = {"M": "M", "E": "E", "N": "N", "K": "K", "topk": "topk"}


class Rung(NamedTuple):
    """One arm: the test under which it is taken (empty for the last), its tile, and why."""

    test: str
    tile: Tile
    why: str


def rungs(c: Card, element: int = 2) -> list[Rung]:
    """The arms for a card, first match first, each tile legal on it. `element`: bytes of a value.

    Raises LimitError where no tile of an arm fits.
    """
    wide = FEW_BLOCKS * c.sm_count * 64 // 2
    few, many = FEW_EMPTY * c.sm_count * 32, MANY_EMPTY * c.sm_count * 32
    blocks = f"{FEW_BLOCKS} blocks of 64 columns on each of {c.sm_count} multiprocessors"
    arms = [
        ("need > 64 and N % 128 and N < 512", (128, 128, 64, 3), "a tile of 256 would be partly empty"),
        ("need > 64", (128, 256, 64, 4), "the most reuse that accumulators allow"),
        ("need > 32", (64, 128, 64, 3), "one tile holds nearly every expert's rows"),
        (f"need > 16 and N >= {SHORT_DEPTH}", (32, 128, 128, 3), "long runs of memory"),
        ("need > 16", (32, 128, 64, 3), "a short K loop: more, smaller steps"),
        (f"active * N >= {wide} and N >= {SHORT_DEPTH}", (16, 64, 128, 3), f"at least {blocks}"),
        (f"active * N >= {wide}", (16, 64, 64, 3), f"at least {blocks}, a short K loop"),
        (f"E * max(K, 2 * N) >= {many}", (16, 128, 64, 5), "many empty blocks: wide tiles launch fewer"),
        (f"E * max(K, 2 * N) <= {few}", (16, 32, 128, 5), "few blocks, few empty ones: deep buffers"),
        ("", (16, 32, 64, 5), "few blocks among many empty ones: small buffers, many slots"),
    ]
    return [Rung(test, _legal(c, shape, element), why) for test, shape, why in arms]


def _legal(c: Card, shape: tuple[int, int, int, int], element: int) -> Tile:
    """The wanted tile with as many stages, then columns, then depth as fit the card."""
    bm, columns, depth, most = shape
    deepest = (2 if c.architecture == "cdna3" else most) if pipelines(c) else 1
    while depth >= 16:
        bn = columns
        while bn >= 32:
            for stages in range(deepest, 0, -1):
                tile = Tile(bm, bn, depth * 2 // element, 1, max(64, bn) // c.warp_size, stages)
                if not refusal(c, tile, element):
                    return tile
            bn //= 2
        depth //= 2
    raise LimitError(f"no tile of {bm} rows fits {c.smem_per_block:,} B of shared memory")


def emit(c: Card, indent: str = "    ", names: Mapping[str, str] = NAMES, element: int = 2) -> list[str]:
    """The body's lines: computes the rows of an expert and returns the dict, launch options included.

    `names` says what the source calls M, E, N, K and topk. Raises LimitError where nothing fits.
    """
    lines = [
        "rows = M * topk",
        "active = min(E, rows)",
        "# The rows of an expert and two deviations more: what one tile should hold.",
        "need = rows / active + 2 * (rows / active)**0.5",
    ]
    word = "if"
    for rung in _merged(rungs(c, element)):
        bm, bn, bk, _, warps, stages = rung.tile
        lines.append(f"{word} {rung.test}:" if rung.test else "else:")
        lines.append(f"    tile = ({bm}, {bn}, {bk}, {warps}, {stages})")
        word = "elif"
    arms = " else ".join(f"{size} if need <= {bound}" for bound, size in _GROUPS)
    lines += [
        "block_m, block_n, block_k, warps, stages = tile",
        f"group = {arms} else {_MOST_GROUP}",
        "return {",
        '    "BLOCK_SIZE_M": block_m,',
        '    "BLOCK_SIZE_N": block_n,',
        '    "BLOCK_SIZE_K": block_k,',
        '    "GROUP_SIZE_M": group,',
        '    "num_warps": warps,',
        '    "num_stages": stages,',
        "}",
    ]
    return [indent + _renamed(line, names) for line in lines]


def _merged(arms: list[Rung]) -> list[Rung]:
    """Without an arm whose tile is that of the arm behind it, where that one would take its cases too."""
    kept: list[Rung] = []
    for rung in reversed(arms):
        if not (kept and kept[-1].tile == rung.tile and rung.test.startswith(kept[-1].test)):
            kept.append(rung)
    return kept[::-1]


def _renamed(line: str, names: Mapping[str, str]) -> str:
    """The line with the source's own names; keys in quotes and comments stay."""
    if line.lstrip().startswith(('"', "#")):
        return line
    return re.sub(r"[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), line)


def explain(c: Card, element: int = 2) -> list[str]:
    """The arms, with their numbers."""
    return [
        f"{rung.test or 'else'}: {rung.tile.block_m} x {rung.tile.block_n} x {rung.tile.block_k}, "
        f"{rung.tile.warps} warps, {rung.tile.stages} stages: {rung.why}"
        for rung in rungs(c, element)
    ]
