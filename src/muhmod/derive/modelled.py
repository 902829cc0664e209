"""Derivations on cards whose generation has a kernel model. Imported only for those."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from muhmod.derive.attention import key, refused_keys
from muhmod.derive.kernels import attention as model
from muhmod.derive.kernels import fused_moe
from muhmod.derive.kernels.card import Card, card
from muhmod.derive.work import Ask, Work
from muhmod.model import Entry, Scalar


def square(work: Work, head_dim: int, element: int) -> Callable[[int], tuple[bool, str]]:
    """How a square tile of prefix_prefill is judged: whether it fits, and the numbers that tell."""
    c, heads = card(work), model.Heads(head_dim, element)

    def judged(tile: int) -> tuple[bool, str]:
        fitting = model.tied(c, heads, tile)
        if fitting:
            return True, f"fits: {model.explain(c, heads, fitting, 1)}"
        widest = model.Tile(tile, tile, False, model.THREADS // c.warp_size, 1)
        return False, model.refusal(c, heads, widest)

    return judged


def standing(work: Work, tile: Mapping[str, int]) -> str:
    """What a tile of prefix_prefill that stands in the source needs, and whether that is there."""
    c, heads = card(work), model.Heads(work.integer("head_dim"), work.element_size())
    of = model.Tile(
        tile["BLOCK_M"], tile["BLOCK_N"], False, tile.get("NUM_WARPS", 4), tile.get("num_stages", 1)
    )
    return f"as it stands, {of.block_m} x {of.block_n}, {of.warps} warps, {of.stages} stages: " + (
        model.refusal(c, heads, of) or f"fits, {model.shared_bytes(c, heads, of):,} B"
    )


def prefill(work: Work) -> model.Tile:
    """prefix_prefill's setting for the head size of the facts."""
    c = card(work)
    heads = model.Heads(work.integer("head_dim"), work.element_size())
    tile = model.prefix_prefill(c, heads)
    work.step(model.explain(c, heads, tile, 1))
    return tile


def configs(work: Work, ask: Ask) -> tuple[tuple[Entry, str, str], ...]:
    """The list of the kernel's model: what upstream has of it stays, the rest goes."""
    c = card(work)
    heads = model.Heads(work.integer("head_dim"), work.element_size())
    rocm = work.fact("platform").value == "rocm"
    preload = not ask.entries or any(entry.get("PRE_LOAD_V") is not None for entry in ask.entries)
    tiles = [tile for tile in model.listed(c, heads) if preload or not tile.pre_load_v]
    work.step(
        f"at most {c.smem_per_block:,} B of shared memory a block, {c.smem_per_sm:,} B a multiprocessor and "
        f"{model.most_accumulators(c)} accumulators a thread; BLOCK_M % BLOCK_N = 0 for the causal mask"
    )
    wanted: dict[tuple[Scalar | None, ...], model.Tile] = {tuple(tile): tile for tile in tiles}
    work.step(f"the list serves every head size: {heads.width} first, then the best of others that fit it")
    fates = []
    for entry in ask.entries:
        tile = wanted.get(_tile_of(entry))
        fate, why = ("keep", "") if tile else _against(c, heads, entry)
        foreign = next((name for name in refused_keys(work) if entry.get(name) is not None), "")
        if foreign and fate != "drop":
            fates.append((entry, "drop", f"it carries {foreign}, which Triton for CUDA refuses"))
        elif tile is None:
            fates.append((entry, fate, why))
        else:
            del wanted[tuple(tile)]
            fates.append((entry, "keep", model.explain(c, heads, tile, _resident(c, tile))))
    added = [tile for tile in tiles if tuple(tile) in wanted]
    work.step(f"{len(tiles) - len(added)} of upstream's {len(ask.entries)} stay, {len(added)} are added")
    return (*fates, *(
        (_model_entry(c, tile, rocm, preload), "add", model.explain(c, heads, tile, _resident(c, tile)))
        for tile in added
    ))  # fmt: skip


def _tile_of(entry: Entry) -> tuple[Scalar | None, ...]:
    bm, bn, warps, stages, loaded = key(entry)
    return bm, bn, bool(loaded), warps, stages


def _against(c: Card, heads: model.Heads, entry: Entry) -> tuple[str, str]:
    """Why an entry of the source goes: `drop` for a limit, `slower` where others are better."""
    bm, bn, warps, stages, loaded = key(entry)
    if not all(isinstance(n, int) and n > 0 for n in (bm, bn, warps, stages)):
        return "drop", "its tile, warps or stages are no positive whole numbers"
    tile = model.Tile(int(bm or 0), int(bn or 0), bool(loaded), int(warps or 0), int(stages or 0))
    if tile.block_m % tile.block_n:
        return "drop", "BLOCK_M % BLOCK_N != 0: the causal mask would be lost"
    refused = model.refusal(c, heads, tile)
    return ("drop", refused) if refused else ("slower", _slower(c, heads, tile))


def _slower(c: Card, heads: model.Heads, tile: model.Tile) -> str:
    """In which way a tile that can run is not among the model's best."""
    rows, even = tile.block_m / (tile.warps * c.warp_size / 32), 16
    if rows != even:
        return f"{rows:g} rows a warp of 32, not {even}: slower than the model's best"
    if tile.stages == 1 and any(other.stages > 1 for other in model.listed(c, heads)):
        return "one stage: nothing is loaded while it computes"
    return "not the widest tile that fits its warps and stages: slower than the model's best"


def _resident(c: Card, tile: model.Tile) -> int:
    return model.THREADS // (tile.warps * c.warp_size)


def _model_entry(c: Card, tile: model.Tile, rocm: bool, preload: bool) -> Entry:
    """The entry as the source writes it; waves_per_eu is the wavefronts of one of four SIMDs."""
    values: list[tuple[str, Scalar]] = [("BLOCK_M", tile.block_m), ("BLOCK_N", tile.block_n)]
    if rocm:
        values.append(("waves_per_eu", max(1, _resident(c, tile) * tile.warps // 4)))
    if preload:
        values.append(("PRE_LOAD_V", tile.pre_load_v))
    return Entry(tuple(values), (("num_stages", tile.stages), ("num_warps", tile.warps)))


def moe_standing(work: Work, tile: Mapping[str, int], element: int) -> tuple[str, str]:
    """What a tile of fused_moe_kernel that stands in the source needs, and why it cannot run, if so."""
    c = card(work)
    warps, stages = fused_moe.DEFAULT_LAUNCH
    of = fused_moe.Tile(
        tile["BLOCK_SIZE_M"], tile["BLOCK_SIZE_N"], tile["BLOCK_SIZE_K"], tile.get("GROUP_SIZE_M", 1),
        tile.get("num_warps", warps), tile.get("num_stages", stages),
    )  # fmt: skip
    needed = fused_moe.shared_bytes(c, of, element)
    refused = f"over {c.smem_per_block:,} B" if needed > c.smem_per_block else ""
    return (
        f"{of.block_m} x {of.block_n} x {of.block_k}, {element} B an element, {of.warps} warps, "
        f"{of.stages} stages: needs {needed:,} B of shared memory, {refused or 'fits'}"
    ), refused


def moe_tile(
    work: Work, tokens: int, *, launch: bool = False, options: tuple[int, ...] = ()
) -> fused_moe.Tile:
    """fused_moe_kernel's tile for the model of the facts.

    `launch`: warps and stages are chosen too; `options`: they are these.
    """
    topk = work.integer("experts_per_token")
    devices = work.integer("tensor_parallel")
    workload = fused_moe.Workload(
        tokens,
        work.integer("num_experts"),
        -(-work.integer("moe_intermediate_size") // devices),
        work.integer("hidden_size"),
        topk,
        work.element_size(),
    )
    c = card(work)
    if launch:
        choice = fused_moe.choose(c, workload)
    else:
        warps, stages = options or fused_moe.DEFAULT_LAUNCH
        whose = "the pack sets" if options else "the dict names no launch options: Triton's"
        work.step(f"{whose} {warps} warps and {stages} stages{'' if options else ' hold'}")
        choice = fused_moe.choose(c, workload, (warps, stages))
    for step in fused_moe.explain(c, workload, choice):
        work.step(step)
    return choice.tile
