from __future__ import annotations

import dataclasses
import json

import pytest
from builders import completion, group

from da3po.config.schema import AlgoConfig, OverlongConfig
from da3po.rollout.postprocess import PostProcessor
from da3po.rollout.serialize import batch_from_dict, batch_to_dict, group_from_dict, group_to_dict
from da3po.types import Group


def test_a_group_survives_json_exactly() -> None:
    original = group("CWNTEA", draw=7, lengths=[0, 1, 2, 3, 4, 5], weight_version=3)
    assert group_from_dict(json.loads(json.dumps(group_to_dict(original)))) == original


def test_numbers_of_any_size_survive() -> None:
    """An id beyond 32 bits, log-probs that single precision holds and those it does not."""
    original = group("CW")
    odd = [
        dataclasses.replace(completion(3), token_ids=(1, 2**40, 7), logprobs=(-0.1, -1e-300, float("-inf"))),
        dataclasses.replace(completion(2), logprobs=(-0.5, -0.25), versions=((1, 1), (2, 1))),
    ]
    original = Group(prompt=original.prompt, completions=tuple(odd), grades=original.grades)
    assert group_from_dict(json.loads(json.dumps(group_to_dict(original)))) == original


def test_a_batch_survives_json_exactly() -> None:
    post = PostProcessor(AlgoConfig(overlong=OverlongConfig(enabled=False)), 2, 100)
    post.begin(3, weight_version=2)
    for draw, letters in enumerate(["CWTN", "CC"]):
        post.add(group(letters, draw=draw, weight_version=1))
    batch = post.add(group("CWWE", draw=2, lengths=[5, 4, 3, 2], weight_version=2))
    assert batch is not None
    assert batch.dropped
    assert batch_from_dict(json.loads(json.dumps(batch_to_dict(batch)))) == batch


def test_a_missing_field_is_named() -> None:
    state = group_to_dict(group("CW"))
    del state["prompt"]["gold"]
    with pytest.raises(TypeError, match="gold"):
        group_from_dict(state)
