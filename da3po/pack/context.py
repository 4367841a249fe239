"""Which tokens of a packed micro-batch a context-parallel rank holds.

Every sequence is cut into 2 n equal chunks for n ranks, and rank r takes chunks r and 2 n - 1 - r: a late chunk costs
causal attention more than an early one, and so all ranks have the same work. Transformer Engine cuts the same way.

Shape legend: T tokens of the whole micro-batch, S sequences in it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from da3po.types import MicroBatch

PER_SEQUENCE = frozenset({"cu_seqlens"})


def local_tokens(cu_seqlens: Tensor, size: int, rank: int) -> Tensor:
    """[T / size] int64: the tokens of rank `rank` of `size`, in ascending order.

    Errors: ValueError for a sequence that cannot be cut into 2 x size equal chunks.
    """
    lengths = cu_seqlens.diff().long()  # [S]
    uneven = (lengths % (2 * size)).nonzero()
    if len(uneven):
        raise ValueError(f"a sequence of {int(lengths[uneven[0]])} tokens cannot be cut into {2 * size} equal chunks")
    segments = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)  # [T]
    positions = torch.arange(len(segments), device=lengths.device) - cu_seqlens[segments]  # [T]
    chunks = positions // (lengths // (2 * size))[segments]  # [T]
    return ((chunks == rank) | (chunks == 2 * size - 1 - rank)).nonzero().squeeze(1)


def context_shard(batch: MicroBatch, size: int, rank: int) -> MicroBatch:
    """What rank `rank` of `size` works on: its tokens, with their positions and segments in the whole micro-batch.

    `cu_seqlens`, `max_seqlen` and `num_sequences` stay those of the whole.
    """
    tokens = local_tokens(batch.cu_seqlens, size, rank)
    own: dict[str, Any] = {
        field.name: value[tokens]
        for field in fields(batch)
        if isinstance(value := getattr(batch, field.name), Tensor) and field.name not in PER_SEQUENCE
    }
    return replace(batch, **own)
