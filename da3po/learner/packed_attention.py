"""Packed causal attention on CPU: rotary embedding and softmax(q k / sqrt(d)) v within each sequence.

Sequences of like length are grouped into padded batches, so that many short sequences cost a few calls. Padding comes
after a sequence's last token and attention is causal, so real tokens never look at it and no mask is needed: the result
is exact.

Shape legend: T tokens of the micro-batch, B sequences of a batch, L padded length, R real tokens of a batch, H query
heads, K key/value heads, D head width (H and K of this tensor-parallel rank).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

PADDING_LIMIT = 1.25
"""A batch may be padded to this much of its real tokens before another batch is begun."""

CALL_TOKENS = 64
"""What one more attention call costs, in tokens of padding: short sequences are worth padding more."""


@dataclass(frozen=True, slots=True)
class LengthBatch:
    """Sequences of like length. take: [B, L], the token of the micro-batch at each place; a padded place repeats the
    sequence's last token. put: [R], flat places that are real. tokens: [R], the token at each of them."""

    take: Tensor
    put: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Batches that hold every sequence once. order: [T], where each token stands in the batches' real tokens."""

    batches: tuple[LengthBatch, ...]
    order: Tensor


def plan_attention(cu_seqlens: Tensor) -> AttentionPlan:
    """The plan for [S+1] cumulative lengths; the same for all layers."""
    starts = cu_seqlens[:-1].long()
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).long()
    by_length = torch.argsort(lengths, descending=True, stable=True)
    batches = tuple(_length_batch(starts[chosen], lengths[chosen]) for chosen in _cut(by_length, lengths))
    return AttentionPlan(batches, torch.argsort(torch.cat([batch.tokens for batch in batches])))


def _cut(by_length: Tensor, lengths: Tensor) -> list[Tensor]:
    """Cut the sequences, longest first, where padding to the longest would cost more than another call."""
    cuts: list[Tensor] = []
    begin, real = 0, 0
    ordered = lengths[by_length].tolist()
    for i, length in enumerate(ordered):
        if length == 0:
            break
        padded = ordered[begin] * (i - begin + 1)
        if padded > PADDING_LIMIT * (real + length) + CALL_TOKENS:
            cuts.append(by_length[begin:i])
            begin, real = i, 0
        real += length
    cuts.append(by_length[begin : sum(length > 0 for length in ordered)])
    return cuts


def _length_batch(starts: Tensor, lengths: Tensor) -> LengthBatch:
    places = torch.arange(int(lengths.max()), device=starts.device)  # [L]
    take = starts[:, None] + torch.minimum(places, lengths[:, None] - 1)  # [B, L]
    put = (places < lengths[:, None]).flatten().nonzero().squeeze(1)
    return LengthBatch(take=take, put=put, tokens=take.flatten()[put])


def rotary_tables(inv_freq: Tensor, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [T, 1, D] of the angles position x inv_freq, for a rotation of the two halves of a head."""
    angles = position_ids.float()[:, None] * inv_freq.float()  # [T, D/2]
    angles = torch.cat((angles, angles), dim=-1)[:, None]  # [T, 1, D]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [T, H, D]."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def packed_attention(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Causal attention within each sequence. query: [T, H, D]; key, value: [T, K, D], head h of query uses head
    h // (H / K). Returns [T, H, D]."""
    outputs = []
    for batch in plan.batches:
        q, k, v = (x[batch.take].transpose(1, 2) for x in (query, key, value))  # [B, heads, L, D]
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        outputs.append(out.transpose(1, 2).flatten(0, 1)[batch.put])  # [real tokens, H, D]
    return torch.cat(outputs)[plan.order]
