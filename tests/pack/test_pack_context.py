from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from da3po.pack.context import context_shard, local_tokens
from da3po.pack.tensors import build_micro_batch
from da3po.types import TrainSample


def cumulative(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def sample(prompt: int, response: int) -> TrainSample:
    return TrainSample(
        prompt_uid="uid",
        prompt_ids=tuple(range(1, prompt + 1)),
        response_ids=tuple(range(11, response + 11)),
        behaviour_logprobs=(-1.0,) * response,
        reward=1.0,
        advantage=2.0,
        fresh=True,
    )


def test_a_rank_takes_an_early_and_a_late_chunk_of_every_sequence() -> None:
    """Two ranks, sequences of 8 and 4 tokens: chunks of 2 and of 1."""
    bounds = cumulative([8, 4])
    assert local_tokens(bounds, 2, 0).tolist() == [0, 1, 6, 7, 8, 11]
    assert local_tokens(bounds, 2, 1).tolist() == [2, 3, 4, 5, 9, 10]


@given(chunks=st.lists(st.integers(1, 9), min_size=1, max_size=6), size=st.integers(1, 4))
def test_every_token_is_on_one_rank_and_all_ranks_have_the_same_work(chunks: list[int], size: int) -> None:
    lengths = [2 * size * chunk for chunk in chunks]
    bounds = cumulative(lengths)
    of_ranks = [local_tokens(bounds, size, rank) for rank in range(size)]
    assert sorted(torch.cat(of_ranks).tolist()) == list(range(sum(lengths)))
    positions = torch.cat([torch.arange(length) for length in lengths])
    # The keys that a causal query looks at are those up to its own position.
    assert len({int((positions[tokens] + 1).sum()) for tokens in of_ranks}) == 1


def test_a_sequence_that_cannot_be_cut_is_named() -> None:
    with pytest.raises(ValueError, match="a sequence of 6 tokens cannot be cut into 4 equal chunks"):
        local_tokens(cumulative([8, 6]), 2, 0)


def test_sequences_are_padded_at_their_ends_without_weight() -> None:
    batch = build_micro_batch([sample(2, 3), sample(1, 1)], [0.25, 0.5], pad_to_multiple=4, sequence_multiple=4)
    assert batch.cu_seqlens.tolist() == [0, 8, 12]
    assert batch.input_ids.tolist() == [1, 2, 11, 12, 13, 0, 0, 0, 1, 11, 0, 0]
    assert batch.position_ids.tolist() == [*range(8), *range(4)]
    assert batch.loss_mask.nonzero().flatten().tolist() == [1, 2, 3, 8]
    assert batch.labels[batch.loss_mask].tolist() == [11, 12, 13, 11]
    assert batch.weights.tolist() == [0, 0.25, 0.25, 0.25, 0, 0, 0, 0, 0.5, 0, 0, 0]
    assert batch.behaviour_logprobs.tolist() == [0, -1, -1, -1, 0, 0, 0, 0, -1, 0, 0, 0]


def test_a_shard_keeps_what_describes_the_whole() -> None:
    batch = build_micro_batch([sample(2, 3), sample(1, 1)], [0.25, 0.5], pad_to_multiple=4, sequence_multiple=4)
    shards = [context_shard(batch, 2, rank) for rank in range(2)]
    assert shards[0].input_ids.tolist() == [1, 2, 0, 0, 1, 0]
    assert shards[1].position_ids.tolist() == [2, 3, 4, 5, 1, 2]
    assert shards[1].segment_ids.tolist() == [0, 0, 0, 0, 1, 1]
    assert all(shard.cu_seqlens is batch.cu_seqlens for shard in shards)
    assert sum(float(shard.weights.sum()) for shard in shards) == float(batch.weights.sum())
