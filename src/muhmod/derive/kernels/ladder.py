"""A decision over the workload as source: what vLLM's `get_default_config` could return on a card.

`emit` writes a block over M (tokens), E (experts), N (intermediate size of a device), K (hidden size) and
topk, all known where the dict is made. No model is named: the block computes how many rows an expert has
and takes one of a few tiles, each legal on the card. Plain arithmetic, since it runs at each step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from muhmod.derive.kernels.card import Card, pipelines
from muhmod.derive.kernels.fused_moe import Tile, refusal, row_bytes
from muhmod.errors import LimitError
from muhmod.model import LADDER_KEYS, Spelling

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
# The M tiles of a ladder over an expert's rows alone: tl.dot's least, and what accumulators carry.
ROWS = (16, 32, 64, 128)
_NAMES = ("block_m", "block_n", "block_k", "group", "warps", "stages")


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
    depth = min(depth, row_bytes(c)[-1] // 2)
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


def emit(c: Card, spelling: Spelling = Spelling(), element: int = 2) -> list[str]:  # noqa: B008
    """The lines of a ladder that sets all of LADDER_KEYS, formatted like the source.

    Raises LimitError where nothing fits the card.
    """
    decision = []
    word = "if"
    for rung in _merged(rungs(c, element)):
        bm, bn, bk, _, warps, stages = rung.tile
        decision.append(f"{word} {rung.test}:" if rung.test else "else:")
        decision.append(f"    tile = ({bm}, {bn}, {bk}, {warps}, {stages})")
        word = "elif"
    (first, least), (second, more), (third, most) = _GROUPS
    decision += [
        "block_m, block_n, block_k, warps, stages = tile",
        f"group = {least} if need <= {first} else {more} if need <= {second} else {most}",
        f"group = group if need <= {third} else {_MOST_GROUP}",
    ]
    return _block(decision, LADDER_KEYS, spelling)


def emit_rows(spelling: Spelling = Spelling()) -> list[str]:  # noqa: B008
    """The lines of a ladder that sets BLOCK_SIZE_M alone: what holds an expert's rows, on any card."""
    decision = []
    word = "if"
    for size in ROWS[:0:-1]:
        decision += [f"{word} need > {size // 2}:", f"    block_m = {size}"]
        word = "elif"
    return _block([*decision, "else:", f"    block_m = {ROWS[0]}"], LADDER_KEYS[:1], spelling)


def _block(decision: list[str], keys: Iterable[str], spelling: Spelling) -> list[str]:
    """The rows of an expert, the decision over them, and what is set; under the spelling's test."""
    lines = [
        "rows = M * topk",
        "active = max(1, min(E, rows))",
        "# The rows of an expert and two deviations more: what one tile should hold.",
        "need = rows / active + 2 * (rows / active)**0.5",
        *decision,
        *(
            f"{spelling.target}[{spelling.quote}{key}{spelling.quote}] = {name}"
            for key, name in zip(keys, _NAMES, strict=False)
        ),
    ]
    if spelling.test:
        lines = [f"if {spelling.test}:", *("    " + line for line in lines)]
    return [_spelled(line, spelling) for line in lines]


def _merged(arms: list[Rung]) -> list[Rung]:
    """Without an arm whose tile is that of the arm behind it, where that one would take its cases too."""
    kept: list[Rung] = []
    for rung in reversed(arms):
        if not (kept and kept[-1].tile == rung.tile and rung.test.startswith(kept[-1].test)):
            kept.append(rung)
    return kept[::-1]


def _spelled(line: str, spelling: Spelling) -> str:
    """The line as the source would write it: its indents, its names; keys and comments stay."""
    code = line.lstrip(" ")
    depth = (len(line) - len(code)) // 4
    names = dict(spelling.names)
    if not code.startswith(("#", f"{spelling.target}[")):
        code = re.sub(r"[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), code)
    return spelling.indent + spelling.step * depth + code


def shown(text: str) -> str:
    """A ladder in a word: its arms, and a hash by which two of them differ."""
    arms = text.count("tile = (") or text.count("block_m = ")
    return f"a ladder of {arms} arms ({sha256(text.encode()).hexdigest()[:6]})" if text else ""


def explain(c: Card, element: int = 2) -> list[str]:
    """The arms, with their numbers."""
    return [
        f"{rung.test or 'else'}: {rung.tile.block_m} x {rung.tile.block_n} x {rung.tile.block_k}, "
        f"{rung.tile.warps} warps, {rung.tile.stages} stages: {rung.why}"
        for rung in rungs(c, element)
    ]
