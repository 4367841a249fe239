"""Attention for the CPU layer spec. Megatron's own refuses packed sequences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from da3po.learner.packed_attention import AttentionPlan, packed_attention, rotate

Gather = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Keys and values of this context-parallel rank's tokens -> those of the whole micro-batch, in its order."""


@dataclass
class PackedSequences(PackedSeqParams):
    """Megatron's description of a micro-batch, and what is worked out once for all layers.

    cos, sin: [U, 1, D], of the position of each of this context-parallel rank's tokens.
    """

    cos: Tensor | None = None
    sin: Tensor | None = None
    plan: AttentionPlan | None = None
    gather: Gather | None = None


class PackedAttention(nn.Module):
    """Megatron's `core_attention`, for packed sequences on CPU."""

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **_: object) -> None:
        super().__init__()
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: object, packed_seq_params: PackedSequences, **__: object
    ) -> Tensor:
        """query: [U, H, D]; key, value: [U, K, D], before the rotary embedding. Returns [U, 1, H x D]."""
        packed = packed_seq_params
        assert packed.cos is not None and packed.sin is not None and packed.plan is not None and packed.gather
        query, key = rotate(query, packed.cos, packed.sin), rotate(key, packed.cos, packed.sin)
        key, value = packed.gather(key, value)
        return packed_attention(query, key, value, packed.plan, self.scale).flatten(1).unsqueeze(1)


def whole(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The `Gather` without context parallelism."""
    return key, value


def gather_over(group: dist.ProcessGroup, order: Tensor) -> Gather:
    """The `Gather` of a context-parallel group.

    order: [T], where the token of each place of the micro-batch stands among the tokens of all ranks put end to end.
    """

    def gather(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        # Each rank's queries look at all keys: the gradients of all ranks add up on the way back.
        both = gather_from_sequence_parallel_region(torch.stack((key, value), dim=1), group=group)[order]
        return both[:, 0], both[:, 1]

    return gather
