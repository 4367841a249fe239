"""The simulation of generation against schedules worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from da3po.plan import work
from da3po.plan.lengths import ResponseLengths
from da3po.plan.rollouts import Batch, EngineRates, Engines, generate
from da3po.rollout import collector

STEP = EngineRates(step=1.0, sequence=0.0, context=0.0, prompt=0.0)
FIVE = ResponseLengths(mean=5.0, spread=0.0, longest=10)
BATCH = Batch(
    num_prompts=4, num_samples=2, prompt_tokens=3.0, lengths=FIVE, keep_rate=1.0, margin=1.0, max_in_flight=100
)


def engines(num_engines: int = 1, num_places: int = 8, rates: EngineRates = STEP) -> Engines:
    return Engines(num_engines=num_engines, num_places=num_places, rates=rates)


def test_a_plan_asks_for_as_much_as_the_collector() -> None:
    assert (work.MARGIN, work.MAX_BATCHES) == (collector.MARGIN, collector.MAX_BATCHES)


def test_all_at_once() -> None:
    found = generate(BATCH, engines())
    assert (found.seconds, found.groups, found.tokens) == (5.0, 4, 40)
    assert found.idle == 0 and found.tail == 0


def test_in_turns_where_places_are_few() -> None:
    assert generate(BATCH, engines(num_places=2)).seconds == 20.0
    assert generate(BATCH, engines(num_engines=2, num_places=2)).seconds == 10.0


def test_what_a_step_costs() -> None:
    rates = EngineRates(step=1.0, sequence=0.5, context=0.01, prompt=0.1)
    # four prompts of three tokens; then five steps of eight sequences over 24, 32, 40, 48 and 56 tokens in the cache
    expected = 4 * 3 * 0.1 + 5 * (1 + 8 * 0.5) + 0.01 * (24 + 32 + 40 + 48 + 56)
    assert generate(BATCH, engines(rates=rates)).seconds == pytest.approx(expected)


def test_what_is_dropped_is_asked_for_again() -> None:
    half = replace(BATCH, num_prompts=50, keep_rate=0.5)
    found = [generate(half, engines(num_places=1000), seed=seed) for seed in range(8)]
    # 100 groups at first; where fewer than 50 of them are kept, others follow once the first have ended
    assert all(one.groups >= 100 and one.seconds % 5 == 0 for one in found)
    assert {one.seconds for one in found} > {5.0} and max(one.groups for one in found) < 150
    more = generate(replace(half, margin=2.0, max_in_flight=1000), engines(num_places=1000))
    assert more.seconds == 5.0 and more.groups >= 200


def test_no_more_than_the_limit_are_in_flight() -> None:
    assert generate(replace(BATCH, max_in_flight=1), engines()).seconds == 20.0


def test_the_tail() -> None:
    lengths = ResponseLengths(mean=100.0, spread=1.0, longest=1000)
    found = generate(replace(BATCH, num_prompts=100, lengths=lengths), engines(num_places=10_000))
    assert found.tail > 0.5  # most of the time the last few are waited for
    crowded = generate(replace(BATCH, num_prompts=100, lengths=lengths), engines(num_places=10))
    assert crowded.tail < found.tail


def test_an_engine_without_work_idles() -> None:
    one = replace(BATCH, num_prompts=1)
    assert generate(one, engines(num_engines=4)).idle == pytest.approx(0.75)


def test_lengths_have_the_mean_and_the_limit() -> None:
    lengths = ResponseLengths(mean=1000.0, spread=0.8, longest=4096).quantiles(4000)
    assert sum(lengths) / len(lengths) == pytest.approx(1000, rel=0.01)
    assert max(lengths) == 4096 and min(lengths) >= 1
    assert ResponseLengths(mean=7.0, spread=0.8, longest=7).quantiles(3) == [7, 7, 7]
    cut = sum(length == 4096 for length in ResponseLengths(mean=2000.0, spread=0.8, longest=4096).quantiles(2000))
    assert 0 < cut / 2000 < 0.3
