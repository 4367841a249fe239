"""Which groups a step takes must not depend on what finishes first, or on how much is in flight."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence

import fakes
import pytest

from da3po.config.schema import AlgoConfig, DynamicSamplingConfig, OverlongConfig, RolloutConfig
from da3po.data.cursor import Cursor
from da3po.rollout.collector import MAX_BATCHES, Collector
from da3po.rollout.postprocess import PostProcessor, StarvationError
from da3po.types import Completion, Grade, Group, GroupRequest, GroupResult, StepBatch

NUM_PROMPTS, NUM_SAMPLES = 5, 4


class SlowEngines:
    """Answer after random times, each sample right half of the time as its seed decides; count what goes on.

    slowest: in turns of the event loop, so that a test is the same on every machine.
    """

    def __init__(self, seed: int, slowest: int = 60) -> None:
        self.random = random.Random(seed)
        self.slowest = slowest
        self.version = 0
        self.num_running = 0
        self.most_running = 0
        self.asked: list[int] = []
        self.num_aborted_tokens = 0

    async def generate(self, requests: Sequence[GroupRequest], /) -> AsyncIterator[GroupResult]:
        self.asked += [request.key for request in requests]
        self.num_running += len(requests)
        self.most_running = max(self.most_running, self.num_running)
        left = len(requests)
        tasks = [asyncio.create_task(self.answer(request)) for request in requests]
        try:
            for done in asyncio.as_completed(tasks):
                result = await done
                left -= 1
                self.num_running -= 1
                yield result
        finally:
            self.num_running -= left
            self.num_aborted_tokens += 7 * left
            for task in tasks:
                task.cancel()

    async def wait(self, most: int) -> None:
        for _ in range(self.random.randint(0, most)):
            await asyncio.sleep(0)

    async def answer(self, request: GroupRequest) -> GroupResult:
        await self.wait(self.slowest)
        texts = [fakes.coin_toss((), seed, 0.5) for seed in request.seeds]
        completions = tuple(
            Completion(token_ids=(1, 2), logprobs=(-0.5, -0.5), text=t, finish="stop", weight_version=self.version)
            for t in texts
        )
        return GroupResult(key=request.key, completions=completions)

    async def grade(self, gold: str, responses: Sequence[str]) -> list[Grade]:
        await self.wait(self.slowest // 2)
        return await fakes.grade_text(gold, responses)


def build(engines: SlowEngines, max_surplus_age: int = 0, max_in_flight: int | None = None, **sampling) -> Collector:
    algo = AlgoConfig(
        overlong=OverlongConfig(enabled=False),
        # With 4 samples of which each is right half of the time, 14 of 16 groups would be kept: too many for a test.
        dynamic_sampling=DynamicSamplingConfig(high=0.6, **sampling),
    )
    return Collector(
        cursor=Cursor(fakes.prompts(13), seed=1, shuffle=True),
        generate=engines.generate,
        grade=engines.grade,
        post=PostProcessor(algo, NUM_PROMPTS, 10),
        config=RolloutConfig(num_prompts=NUM_PROMPTS, num_samples=NUM_SAMPLES, max_in_flight=max_in_flight),
        max_rounds=algo.dynamic_sampling.max_rounds,
        filters=True,
        seed=1,
        max_surplus_age=max_surplus_age,
        aborted_tokens=lambda: engines.num_aborted_tokens,
    )


async def collect(collector: Collector, engines: SlowEngines, steps: Sequence[int]) -> list[StepBatch]:
    batches = []
    for step in steps:
        engines.version = step - 1
        batches.append(await collector.collect(step))
    return batches


def contents(batches: Sequence[StepBatch]) -> list[tuple[Sequence[Group], object]]:
    return [(batch.groups, batch.dropped) for batch in batches]


@pytest.fixture(scope="module")
def expected() -> list[tuple[Sequence[Group], object]]:
    """With everything at once, and no waiting."""
    engines = SlowEngines(0, slowest=0)
    return contents(asyncio.run(collect(build(engines), engines, range(1, 6))))


@pytest.mark.parametrize("max_in_flight", [None, 1, 3, 100])
@pytest.mark.parametrize("seed", range(3))
async def test_batches_are_the_same_for_every_timing(
    seed: int, max_in_flight: int | None, expected: list[tuple[Sequence[Group], object]]
) -> None:
    engines = SlowEngines(seed)
    batches = await collect(build(engines, max_in_flight=max_in_flight), engines, range(1, 6))
    assert contents(batches) == expected
    assert engines.num_running == 0
    if max_in_flight:
        assert engines.most_running <= max_in_flight


async def test_a_step_takes_consecutive_draws_and_the_next_one_goes_on_from_there() -> None:
    engines = SlowEngines(1)
    batches = await collect(build(engines), engines, range(1, 5))
    taken = [
        sorted([g.prompt.draw for g in batch.groups] + [dropped.group.prompt.draw for dropped in batch.dropped])
        for batch in batches
    ]
    assert [draw for draws in taken for draw in draws] == list(range(taken[-1][-1] + 1))
    for batch, draws in zip(batches, taken, strict=True):
        assert batch.groups[-1].prompt.draw == draws[-1]


async def test_what_a_full_batch_makes_surplus_is_stopped_and_counted() -> None:
    engines = SlowEngines(2)
    collector = build(engines)
    num_surplus = 0
    for step in range(1, 6):
        engines.asked.clear()
        aborted_before = engines.num_aborted_tokens
        (batch,) = await collect(collector, engines, [step])
        assert engines.num_running == 0
        surplus = [draw for draw in engines.asked if draw > batch.groups[-1].prompt.draw]
        num_surplus += len(surplus)
        values = batch.stats.values
        assert values["rollout/surplus_prompts"] == len(surplus)
        # 7 tokens for each that was stopped, 2 x 4 for each that was finished.
        aborted_tokens = engines.num_aborted_tokens - aborted_before
        num_finished = len(surplus) - aborted_tokens // 7
        assert values["rollout/tokens_surplus"] == aborted_tokens + 8 * num_finished
    assert num_surplus > 0
    assert engines.num_aborted_tokens > 0


@pytest.mark.parametrize("seed", range(3))
async def test_carried_groups_keep_their_place_and_are_not_generated_again(
    seed: int, expected: list[tuple[Sequence[Group], object]]
) -> None:
    engines = SlowEngines(seed)
    batches = await collect(build(engines, max_surplus_age=1), engines, range(1, 6))
    draws = [[g.prompt.draw for g in batch.groups] for batch in batches]
    assert draws == [[g.prompt.draw for g in groups] for groups, _ in expected]
    carried = [g for batch in batches for g in batch.groups if g.completions[0].weight_version != batch.step - 1]
    assert carried
    assert all(engines.asked.count(group.prompt.draw) == 1 for group in carried)
    assert sum(batch.stats.values["rollout/surplus_carried"] for batch in batches) >= len(carried)
    assert max(batch.stats.values["rollout/staleness_max"] for batch in batches) == 1


async def test_carried_groups_have_an_age_limit_and_a_place_in_the_state() -> None:
    engines = SlowEngines(3)
    collector = build(engines, max_surplus_age=1)
    step = 0
    while not collector.snapshot().surplus:
        step += 1
        await collect(collector, engines, [step])
    state = json.loads(json.dumps(collector.snapshot().state_dict()))
    assert state["surplus"]

    restored = build(engines, max_surplus_age=1)
    restored.load_state_dict(state)
    assert restored.snapshot().state_dict() == state
    (in_time,) = await collect(restored, engines, [step + 1])
    assert in_time.stats.values["rollout/surplus_carried"] == len(state["surplus"])

    late = build(engines, max_surplus_age=1)
    late.load_state_dict(state)
    (too_late,) = await collect(late, engines, [step + 2])
    assert too_late.stats.values["rollout/surplus_expired"] == len(state["surplus"])
    assert too_late.stats.values["rollout/staleness_max"] == 0
    assert [g.prompt.draw for g in too_late.groups] == [g.prompt.draw for g in in_time.groups]


async def test_a_snapshot_stays_as_it_was_whatever_is_collected_later() -> None:
    engines = SlowEngines(3)
    collector = build(engines, max_surplus_age=1)
    step = 0
    while not (taken := collector.snapshot()).surplus:
        step += 1
        await collect(collector, engines, [step])
    before = json.dumps(taken.state_dict())
    await collect(collector, engines, [step + 1])
    assert collector.snapshot() != taken
    assert json.dumps(taken.state_dict()) == before


async def test_a_step_gives_up_after_the_named_number_of_prompts() -> None:
    """Case S01."""
    engines = SlowEngines(4, slowest=0)
    collector = build(engines, low=0.55, max_rounds=2)
    with pytest.raises(StarvationError):
        await collector.collect(1)
    assert sorted(engines.asked) == list(range(2 * MAX_BATCHES * NUM_PROMPTS))


async def test_a_group_of_the_wrong_size_is_refused() -> None:
    """Case S08: a generator of another shape is told so, by name."""
    engines = SlowEngines(5)

    async def short(requests: Sequence[GroupRequest], /) -> AsyncIterator[GroupResult]:
        async for result in engines.generate(requests):
            yield GroupResult(key=result.key, completions=result.completions[:3])

    collector = build(engines)
    collector._generate = short
    with pytest.raises(RuntimeError, match="came back with 3 samples, not 4"):
        await collector.collect(1)


async def test_being_cancelled_stops_the_engines() -> None:
    engines = SlowEngines(6, slowest=10**9)
    collecting = asyncio.create_task(build(engines).collect(1))
    await asyncio.sleep(0.01)
    assert engines.num_running > 0
    collecting.cancel()
    await asyncio.wait({collecting})
    assert engines.num_running == 0
