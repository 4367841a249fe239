"""When batches are collected, and when weights may be exchanged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pytest
from builders import group, train_sample

from da3po.rollout.pipeline import PublishBetweenBatches, RolloutPipeline
from da3po.types import StepBatch, StepStats


class Taken:
    """A snapshot of a story's collector; the story counts how often it was written out."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.collected = story.collected

    def state_dict(self) -> dict[str, Any]:
        self.story.num_written += 1
        return {"collected": self.collected}


class Story:
    """A collector, a learner and weights in one, that write down what happens in which order."""

    def __init__(self, collect_ticks: int = 3, learn_ticks: int = 3, fails_at: int = 0) -> None:
        self.collect_ticks = collect_ticks
        self.learn_ticks = learn_ticks
        self.fails_at = fails_at
        self.events: list[str] = []
        self.version = 0
        self.collected = 0
        self.num_written = 0
        self.collecting = False
        self.made_by: dict[int, int] = {}

    async def collect(self, step: int) -> StepBatch:
        self.events.append(f"collect {step}")
        self.collecting = True
        version = self.version
        try:
            for _ in range(self.collect_ticks):
                await asyncio.sleep(0)
                assert self.version == version, "weights were exchanged while a batch was collected"
            if step == self.fails_at:
                raise RuntimeError("no more prompts")
        finally:
            self.collecting = False
        self.collected = step
        self.made_by[step] = version
        self.events.append(f"collected {step}")
        sample = train_sample()._replace(prompt_uid=f"uid-{step}", prompt_ids=(1, 2, 3), response_ids=(10, 11))
        return StepBatch(
            step=step,
            samples=(sample,),
            group_sizes=(1,),
            stats=StepStats({"version": version}),
            groups=(group("C", draw=step, weight_version=version),),
            plain_advantages=(0.5,),
        )

    def snapshot(self) -> Taken:
        return Taken(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.collected = state["collected"]

    async def learn(self, step: int) -> None:
        self.events.append(f"learn {step}")
        for _ in range(self.learn_ticks):
            await asyncio.sleep(0)
        self.events.append(f"learned {step}")

    async def publish(self, version: int) -> StepStats:
        assert not self.collecting
        self.version = version
        self.events.append(f"publish {version}")
        return StepStats()


async def tell(story: Story, max_lag: int, until: int = 5, after: int = 0, state: Any = None) -> RolloutPipeline:
    """What the loop does."""
    pipeline = RolloutPipeline(story, max_lag)
    if state is not None:
        pipeline.load_state_dict(state)
    weights = PublishBetweenBatches(story, pipeline)
    await weights.publish(after)
    async with aclosing(pipeline.steps(after=after, until=until)) as batches:
        async for batch in batches:
            await story.learn(batch.step)
            await weights.publish(batch.step)
    return pipeline


TICKS = [(1, 1), (1, 9), (9, 1), (5, 5), (4, 0)]


@pytest.mark.parametrize(("collect_ticks", "learn_ticks"), TICKS)
async def test_on_policy_one_thing_follows_the_other(collect_ticks: int, learn_ticks: int) -> None:
    story = Story(collect_ticks, learn_ticks)
    await tell(story, max_lag=0, until=2)
    of_step = ["collect {0}", "collected {0}", "learn {0}", "learned {0}", "publish {0}"]
    assert story.events == ["publish 0", *(event.format(step) for step in (1, 2) for event in of_step)]


@pytest.mark.parametrize(("collect_ticks", "learn_ticks"), TICKS)
async def test_a_lag_of_one_collects_while_the_learner_works_and_is_the_same_for_every_timing(
    collect_ticks: int, learn_ticks: int
) -> None:
    story = Story(collect_ticks, learn_ticks)
    await tell(story, max_lag=1)
    assert story.made_by == {1: 0, 2: 0, 3: 1, 4: 2, 5: 3}
    for step in (2, 3, 4, 5):
        assert story.events.index(f"collect {step}") < story.events.index(f"publish {step - 1}")
    if learn_ticks > 1:
        assert story.events.index("collect 2") < story.events.index("learned 1")


async def test_a_longer_lag_runs_further_ahead_and_no_further() -> None:
    story = Story(collect_ticks=1, learn_ticks=50)
    await tell(story, max_lag=3, until=6)
    assert story.events.index("collected 4") < story.events.index("learned 1") < story.events.index("collect 5")
    assert {step - 1 - version for step, version in story.made_by.items()} <= {0, 1, 2, 3}
    assert max(step - 1 - version for step, version in story.made_by.items()) == 3


async def test_with_a_longer_lag_weights_wait_for_the_batch_at_hand_only() -> None:
    story = Story(collect_ticks=20, learn_ticks=5)
    await tell(story, max_lag=3, until=6)  # Story itself sees to it that none are exchanged within a batch
    assert max(step - 1 - version for step, version in story.made_by.items()) == 1


@pytest.mark.parametrize("max_lag", [0, 1, 2])
async def test_what_ends_the_collector_comes_up_where_its_batch_is_asked_for(max_lag: int) -> None:
    story = Story(fails_at=3)
    with pytest.raises(RuntimeError, match="no more prompts"):
        await asyncio.wait_for(tell(story, max_lag), 5)
    assert story.events[-1] == ("publish 2" if max_lag else "collect 3")
    assert "learned 2" in story.events


async def test_leaving_stops_the_collector() -> None:
    story = Story(collect_ticks=1_000_000)
    pipeline = RolloutPipeline(story, 1)
    telling = asyncio.create_task(anext(pipeline.steps(after=0, until=3)))
    await asyncio.sleep(0.01)
    assert story.collecting
    telling.cancel()
    await asyncio.wait({telling})
    assert not story.collecting


@pytest.mark.parametrize("stop", [1, 2, 4])
@pytest.mark.parametrize("lag_after", [0, 1])
async def test_the_state_of_a_step_holds_the_batch_that_was_collected_ahead(stop: int, lag_after: int) -> None:
    """Case C06: the saved position is that of what was trained and what is saved, and the samples come along."""
    story = Story()
    pipeline = RolloutPipeline(story, 1)
    weights = PublishBetweenBatches(story, pipeline)
    given = []
    async with aclosing(pipeline.steps(after=0, until=9)) as batches:
        async for batch in batches:
            given.append(batch)
            await story.learn(batch.step)
            await weights.publish(batch.step)
            if batch.step == stop:
                state = json.loads(json.dumps(pipeline.state_of(stop)))
                before = pipeline.state_of(stop - 1)
            if batch.step == stop + 1:
                break
    assert state["collector"] == {"collected": stop + 1}
    assert before["collector"] == {"collected": stop + 1}
    assert [ready["step"] for ready in before["ready"]] == [stop, stop + 1]

    resumed = Story()
    pipeline = RolloutPipeline(resumed, lag_after)
    pipeline.load_state_dict(state)
    async with aclosing(pipeline.steps(after=stop, until=stop + 2)) as batches:
        assert await anext(batches) == given[stop]
        assert pipeline.state_of(stop)["collector"]["collected"] >= stop + 1
        assert (await anext(batches)).step == stop + 2
    assert [event for event in resumed.events if event.startswith("collect ")] == [f"collect {stop + 2}"]


async def test_on_policy_the_state_of_a_step_is_the_position_alone() -> None:
    story = Story()
    pipeline = RolloutPipeline(story, 0)
    async with aclosing(pipeline.steps(after=4, until=6)) as batches:
        story.collected = 4
        await anext(batches)
        assert pipeline.state_of(5) == {"collector": {"collected": 5}, "ready": []}
        await anext(batches)
        assert pipeline.state_of(5) == {"collector": {"collected": 5}, "ready": []}


@pytest.mark.parametrize("max_lag", [0, 1])
async def test_the_collector_is_written_out_for_a_checkpoint_alone(max_lag: int) -> None:
    story = Story()
    pipeline = await tell(story, max_lag, until=4)
    assert story.num_written == 0
    assert pipeline.state_of(4)["collector"] == {"collected": 4}
    assert story.num_written == 1
