from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from da3po.learner.packed_attention import (
    packed_attention,
    plan_attention,
    plan_context_attention,
    rotary_tables,
    rotate,
)
from da3po.pack.context import local_tokens


def cumulative(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def reference(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scale: float) -> Tensor:
    """One sequence at a time, with an explicit mask and copied key/value heads."""
    outputs = []
    for q, k, v in zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True):
        repeats = q.shape[1] // k.shape[1]
        q, k, v = (x.transpose(0, 1) for x in (q, k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)))
        future = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(1, 2) * scale).masked_fill(future, -torch.inf)
        outputs.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(outputs)


LENGTHS = [[1], [7], [5, 5, 5], [1, 40, 3, 2, 39, 1, 1, 8], [3, 1] * 30 + [100], [0, 4, 0, 2]]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_equals_attention_one_sequence_at_a_time(lengths: list[int], kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    total = sum(lengths)
    query = torch.randn(total, 4, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    key = torch.randn(total, kv_heads, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    value = torch.randn(total, kv_heads, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    got = packed_attention(query, key, value, plan_attention(cumulative(lengths)), scale=0.3)
    expected = reference(query, key, value, lengths, scale=0.3)
    torch.testing.assert_close(got, expected)
    cotangent = torch.randn(got.shape, generator=generator, dtype=torch.float64)
    inputs = (query, key, value)
    for mine, theirs in zip(
        torch.autograd.grad(got, inputs, cotangent), torch.autograd.grad(expected, inputs, cotangent), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("chunks", [[1], [3, 1, 1, 2], [1, 40, 3, 2, 39]])
def test_context_parallel_ranks_together_equal_the_whole(chunks: list[int], size: int) -> None:
    lengths = [2 * size * chunk for chunk in chunks]
    bounds = cumulative(lengths)
    generator = torch.Generator().manual_seed(0)
    query, key, value, cotangent = (
        torch.randn(sum(lengths), heads, 8, generator=generator, dtype=torch.float64, requires_grad=True)
        for heads in (4, 2, 2, 4)
    )
    got = torch.empty_like(query)
    for rank in range(size):
        own = local_tokens(bounds, size, rank)
        got[own] = packed_attention(query[own], key, value, plan_context_attention(bounds, size, rank), scale=0.3)
    expected = reference(query, key, value, lengths, scale=0.3)
    torch.testing.assert_close(got, expected)
    inputs = (query, key, value)
    for mine, theirs in zip(
        torch.autograd.grad(got, inputs, cotangent), torch.autograd.grad(expected, inputs, cotangent), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_many_short_sequences_take_few_calls_and_little_padding() -> None:
    lengths = [1 + i % 30 for i in range(900)] + [500]
    plan = plan_attention(cumulative(lengths))
    assert len(plan.batches) <= 10
    assert sum(batch.queries.numel() for batch in plan.batches) <= 1.3 * sum(lengths)


def test_every_token_has_one_place() -> None:
    plan = plan_attention(cumulative([3, 1, 4, 1, 5]))
    tokens = torch.cat([batch.tokens for batch in plan.batches])
    assert tokens[plan.order].tolist() == list(range(14))


def test_rotation_turns_pairs_by_position_times_frequency() -> None:
    """D = 4, frequencies 1 and 0.1, position 2: halves (x0, x2) turn by 2 radians, (x1, x3) by 0.2."""
    cos, sin = rotary_tables(torch.tensor([1.0, 0.1]), torch.tensor([0, 2]), torch.float64)
    x = torch.tensor([[[1.0, 1.0, 0.0, 0.0]], [[1.0, 1.0, 0.0, 0.0]]], dtype=torch.float64)
    turned = rotate(x, cos, sin)
    assert turned[0, 0].tolist() == [1, 1, 0, 0]
    expected = torch.tensor([2.0, 0.2, 2.0, 0.2]).double()
    torch.testing.assert_close(turned[1, 0], torch.cat((expected[:2].cos(), expected[2:].sin())), atol=1e-6, rtol=0)
