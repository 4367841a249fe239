"""The remote learner on ranks that only write down how they are called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import micro_batch

from da3po.config.schema import ParallelConfig
from da3po.learner.client import dp_index, start_learner
from da3po.learner.spec import LearnerSpec
from da3po.types import BucketSum, PackedStep, PackedUpdate, StepStats

LAYOUT = ParallelConfig(tp=2, dp=2, pp=2)


class RecordedRanks:
    """calls: method -> the arguments of each rank. answers: method -> what each rank returns."""

    def __init__(self, num_ranks: int, **answers: Sequence[Any]) -> None:
        self.calls: dict[str, list[tuple[Any, ...]]] = {}
        self._num_ranks = num_ranks
        self._answers = answers

    async def call_all(self, method: str, *args: Any) -> list[Any]:
        return await self.call_each(method, [args] * self._num_ranks)

    async def call_each(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        self.calls[method] = list(args)
        return list(self._answers.get(method, [None] * self._num_ranks))


def test_ranks_count_tp_fastest_then_dp_then_pp() -> None:
    assert [dp_index(rank, LAYOUT) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [dp_index(rank, ParallelConfig(dp=4)) for rank in range(4)] == [0, 1, 2, 3]


async def test_every_rank_gets_the_micro_batches_of_its_data_parallel_index() -> None:
    batches = [micro_batch([([True, False], [1.0, 0.0], float(i))]) for i in range(4)]
    updates = tuple(
        PackedUpdate(micro_batches=((first,), (second,)), num_sequences=2, num_response_tokens=2, num_packed_tokens=4)
        for first, second in (batches[:2], batches[2:])
    )
    ranks = RecordedRanks(8, step=[{"actor/lr": 1.0}] * 8)
    learner = await start_learner(ranks, LearnerSpec(model_path="m", train_steps=1, parallel=LAYOUT), "127.0.0.1", 1)
    stats = await learner.step(PackedStep(step=7, updates=updates, stats=StepStats()))
    assert stats.values == {"actor/lr": 1.0}
    for rank, (step, own) in enumerate(ranks.calls["step"]):
        assert step == 7
        dp = dp_index(rank, LAYOUT)
        assert [mb for update in own for mb in update] == [batches[dp], batches[2 + dp]]


async def test_setup_tells_each_rank_its_number_and_all_the_same_place() -> None:
    ranks = RecordedRanks(2)
    spec = LearnerSpec(model_path="m", train_steps=1, parallel=ParallelConfig(tp=2))
    await start_learner(ranks, spec, "10.0.0.1", 29500)
    assert ranks.calls["init"] == [(0, 2, "10.0.0.1", 29500), (1, 2, "10.0.0.1", 29500)]
    assert ranks.calls["setup"] == [(spec,)] * 2


async def test_a_manifest_has_the_buckets_of_all_stages_in_order() -> None:
    first, second = (BucketSum(names=(name,), num_bytes=4, checksum=name) for name in ("a", "b"))
    ranks = RecordedRanks(4, publish=[(first,), (), (second,), ()], open_channel=["h:1"] * 4)
    spec = LearnerSpec(model_path="m", train_steps=1, parallel=ParallelConfig(tp=2, pp=2))
    learner = await start_learner(ranks, spec, "127.0.0.1", 1)
    assert await learner.open_channel(3) == "h:1"
    assert ranks.calls["open_channel"] == [(3, "127.0.0.1")] * 4
    manifest = await learner.publish(5)
    assert manifest.version == 5
    assert manifest.buckets == (first, second)


@pytest.mark.parametrize("verb", ["save", "load", "export"])
async def test_directories_go_to_every_rank(verb: str) -> None:
    ranks = RecordedRanks(2)
    learner = await start_learner(
        ranks, LearnerSpec(model_path="m", train_steps=1, parallel=ParallelConfig(dp=2)), "127.0.0.1", 1
    )
    await getattr(learner, verb)(Path("x"))
    assert ranks.calls[verb] == [(Path("x"),)] * 2
