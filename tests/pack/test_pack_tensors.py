from __future__ import annotations

import pytest
import torch
from builders import train_sample

from da3po.pack.tensors import build_micro_batch


def test_every_tensor_of_two_sequences_and_their_padding() -> None:
    first = train_sample(prompt_tokens=2, response_tokens=2, advantage=1.5, first_id=10)
    second = train_sample(prompt_tokens=1, response_tokens=3, advantage=-0.5, first_id=20, fresh=False)
    batch = build_micro_batch([first, second], [0.25, 0.125], pad_to_multiple=5)
    assert batch.input_ids.tolist() == [1, 2, 10, 11, 1, 20, 21, 22, 0, 0]
    assert batch.labels.tolist() == [2, 10, 11, 0, 20, 21, 22, 0, 0, 0]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 4, 8, 10]
    assert batch.max_seqlen == 4
    assert batch.segment_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert batch.loss_mask.tolist() == [False, True, True, False, True, True, True, False, False, False]
    assert batch.weights.tolist() == [0, 0.25, 0.25, 0, 0.125, 0.125, 0.125, 0, 0, 0]
    assert batch.advantages.tolist() == [0, 1.5, 1.5, 0, -0.5, -0.5, -0.5, 0, 0, 0]
    assert batch.behaviour_logprobs.tolist() == [0, -0.5, -0.75, 0, -0.5, -0.75, -1.0, 0, 0, 0]
    assert batch.fresh.tolist() == [True] * 4 + [False] * 6
    assert batch.num_sequences == 2


def test_dtypes_are_those_of_the_carrier() -> None:
    batch = build_micro_batch([train_sample()], [1.0], pad_to_multiple=4)
    for name in ("input_ids", "labels", "position_ids", "segment_ids"):
        assert getattr(batch, name).dtype == torch.int64
    for name in ("weights", "advantages", "behaviour_logprobs"):
        assert getattr(batch, name).dtype == torch.float32
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.loss_mask.dtype == batch.fresh.dtype == torch.bool


def test_no_padding_sequence_where_none_is_needed() -> None:
    batch = build_micro_batch([train_sample(2, 2)], [1.0], pad_to_multiple=4)
    assert batch.cu_seqlens.tolist() == [0, 4]


@pytest.mark.parametrize("length", [1, 7, 8, 9])
def test_padding_to_a_multiple(length: int) -> None:
    batch = build_micro_batch([train_sample(1, length - 1)], [1.0], pad_to_multiple=8)
    assert len(batch.input_ids) == -(-length // 8) * 8
    assert batch.loss_mask.sum() == length - 1
    assert not batch.loss_mask[length - 1 :].any()


def test_nothing_but_padding() -> None:
    batch = build_micro_batch([], [], pad_to_multiple=4)
    assert batch.cu_seqlens.tolist() == [0, 4]
    assert batch.num_sequences == 0
    assert not batch.loss_mask.any()
    assert not batch.weights.any()


def test_an_empty_response_has_no_token_in_the_loss() -> None:
    batch = build_micro_batch([train_sample(3, 0)], [0.0], pad_to_multiple=1)
    assert batch.input_ids.tolist() == [1, 2, 3]
    assert not batch.loss_mask.any()
