"""Attention for the CPU layer spec. Megatron's own refuses packed sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass

from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from da3po.learner.packed_attention import AttentionPlan, packed_attention, rotate


@dataclass
class PackedSequences(PackedSeqParams):
    """Megatron's description of a micro-batch, and what is worked out once for all layers.

    cos, sin: [T, 1, D], of each token's position.
    """

    cos: Tensor | None = None
    sin: Tensor | None = None
    plan: AttentionPlan | None = None


class PackedAttention(nn.Module):
    """Megatron's `core_attention`, for packed sequences on CPU."""

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **_: object) -> None:
        super().__init__()
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: object, packed_seq_params: PackedSequences, **__: object
    ) -> Tensor:
        """query: [T, H, D]; key, value: [T, K, D], before the rotary embedding. Returns [T, 1, H x D]."""
        packed = packed_seq_params
        assert packed.cos is not None and packed.sin is not None and packed.plan is not None
        query, key = rotate(query, packed.cos, packed.sin), rotate(key, packed.cos, packed.sin)
        return packed_attention(query, key, value, packed.plan, self.scale).flatten(1).unsqueeze(1)
