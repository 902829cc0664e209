"""Shared memory and what is compiled into a precompiled launcher: limits, not choices."""

from __future__ import annotations

from muhmod.derive.work import Ask, Work
from muhmod.errors import LimitError


def shared_memory(work: Work, ask: Ask) -> int:
    """Bytes of shared memory that one block may use, as the device attribute reports them."""
    fact = work.fact("smem_per_block")
    value = work.integer("smem_per_block")
    work.step(f"shared memory of a block is {value:,} B ({fact.status}: {fact.source})")
    if fact.chosen:
        work.step(f"the pack chooses this candidate: {fact.chosen}")
    for rival in fact.rivals:
        work.step(f"disputed: {rival.value:,} B ({rival.status}: {rival.source})")
    if ask.literal is not None:
        if type(ask.literal) is not int or ask.literal < 1:
            raise LimitError(f"{ask.literal!r} is no number of bytes")
        if ask.literal > value:
            raise LimitError(f"{ask.literal:,} B is over the {value:,} B of a block")
        return ask.literal
    return value


def partition_size(work: Work, ask: Ask) -> int:
    """Tokens per partition of paged attention V2: compiled into the launcher, so it must be equal."""
    fact = work.fact("paged_attention_partition")
    value = work.integer("paged_attention_partition")
    work.step(
        f"the V2 launcher is compiled for partitions of {value} tokens ({fact.source}); "
        "the Python constant sizes its buffers, so it must be the same number"
    )
    if ask.literal is not None and ask.literal != value:
        raise LimitError(
            f"{ask.literal} is not the {value} that is compiled into the V2 launcher",
            "rebuild the launcher and state its paged_attention_partition, or drop the value",
        )
    return value
