"""Packed causal attention on CPU: rotary embedding and softmax(q k / sqrt(d)) v within each sequence.

Sequences of like length are grouped into padded batches, so that many short sequences cost a few calls. Padding comes
after a sequence's last token and attention is causal, so real tokens never look at it: the result is exact, and without
context parallelism needs no mask.

Shape legend: T tokens of the micro-batch, U tokens of it on this context-parallel rank (all of them without context
parallelism), B sequences of a batch, Q and L padded numbers of queries and of keys, R real queries of a batch, H query
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
    """Sequences, or chunks of them, of like length.

    queries: [B, Q], the token of this rank at each place. keys: [B, L], the token of the whole micro-batch. A padded
        place repeats the last token.
    mask: [B, 1, Q, L] bool, which keys a query sees; None if both are whole sequences.
    put: [R], flat places of queries that are real. tokens: [R], the token at each of them.
    """

    queries: Tensor
    keys: Tensor
    mask: Tensor | None
    put: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Batches that hold every query once. order: [U], where each token stands in the batches' real queries."""

    batches: tuple[LengthBatch, ...]
    order: Tensor


def plan_attention(cu_seqlens: Tensor) -> AttentionPlan:
    """The plan for [S+1] cumulative lengths; the same for all layers."""
    starts = cu_seqlens[:-1].long()
    lengths = cu_seqlens.diff().long()
    return _plan([_whole(starts[chosen], lengths[chosen]) for chosen in _cut(lengths)])


def plan_context_attention(cu_seqlens: Tensor, size: int, rank: int) -> AttentionPlan:
    """The plan of context-parallel rank `rank` of `size`, with the tokens that `da3po.pack.context` gives it as queries
    and those of all ranks, in the order of the micro-batch, as keys."""
    starts = cu_seqlens[:-1].long()
    chunks = cu_seqlens.diff().long() // (2 * size)
    own_starts = starts // size
    batches = []
    for half, number in enumerate((rank, 2 * size - 1 - rank)):
        for chosen in _cut(chunks):
            chunk = chunks[chosen]
            batches.append(_chunk(own_starts[chosen] + half * chunk, starts[chosen], number * chunk, chunk))
    return _plan(batches)


def _plan(batches: list[LengthBatch]) -> AttentionPlan:
    return AttentionPlan(tuple(batches), torch.argsort(torch.cat([batch.tokens for batch in batches])))


def _cut(lengths: Tensor) -> list[Tensor]:
    """Group the sequences, longest first, and begin another group where padding to the longest would cost more than
    another call."""
    by_length = torch.argsort(lengths, descending=True, stable=True)
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


def _whole(starts: Tensor, lengths: Tensor) -> LengthBatch:
    take, put = _places(starts, lengths)
    return LengthBatch(queries=take, keys=take, mask=None, put=put, tokens=take.flatten()[put])


def _chunk(query_starts: Tensor, key_starts: Tensor, before: Tensor, lengths: Tensor) -> LengthBatch:
    """One chunk of each sequence. query_starts: [B], where it begins on this rank; key_starts: [B], where its sequence
    begins in the micro-batch; before: [B], tokens of the sequence before it; lengths: [B], its tokens."""
    queries, put = _places(query_starts, lengths)
    keys, _ = _places(key_starts, before + lengths)
    places = before[:, None] + torch.arange(queries.shape[1], device=before.device)  # [B, Q]
    mask = torch.arange(keys.shape[1], device=before.device) <= places[..., None]  # [B, Q, L]
    return LengthBatch(queries=queries, keys=keys, mask=mask[:, None], put=put, tokens=queries.flatten()[put])


def _places(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """[B, L] tokens from each start on, the last one repeated, and the [R] flat places that are real."""
    places = torch.arange(int(lengths.max()), device=starts.device)  # [L]
    take = starts[:, None] + torch.minimum(places, lengths[:, None] - 1)
    return take, (places < lengths[:, None]).flatten().nonzero().squeeze(1)


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
    """Causal attention within each sequence. query: [U, H, D]; key, value: [T, K, D], head h of query uses head
    h // (H / K). Returns [U, H, D]."""
    outputs = []
    for batch in plan.batches:
        q = query[batch.queries].transpose(1, 2)  # [B, H, Q, D]
        k, v = (x[batch.keys].transpose(1, 2) for x in (key, value))  # [B, K, L, D]
        out = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=batch.mask, is_causal=batch.mask is None, scale=scale, enable_gqa=True
        )
        outputs.append(out.transpose(1, 2).flatten(0, 1)[batch.put])  # [R, H, D]
    return torch.cat(outputs)[plan.order]
