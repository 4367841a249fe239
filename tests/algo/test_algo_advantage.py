from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from da3po.algo.advantage import group_advantages
from da3po.config.schema import AdvantageConfig

SAMPLE = AdvantageConfig(std="sample")
POPULATION = AdvantageConfig(std="population")


@pytest.mark.parametrize(
    ("config", "rewards", "loser"),
    [
        (SAMPLE, [0.35] + [0.95] * 7, -2.4749),
        (POPULATION, [0.35] + [0.95] * 7, -2.6458),
        (SAMPLE, [0.4] + [1.0] * 7, -2.4749),
        (POPULATION, [0.4] + [1.0] * 7, -2.6458),
        (SAMPLE, [0.0] + [0.95] * 7, -2.4749),
    ],
)
def test_one_loser_among_equals(config: AdvantageConfig, rewards: list[float], loser: float) -> None:
    advantages = group_advantages(rewards, config)
    assert advantages[0] == pytest.approx(loser, abs=1e-4)
    assert advantages[1:] == pytest.approx([-loser / 7] * 7, abs=1e-4)
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-12)


def test_two_samples() -> None:
    """Rewards 1 and -1: mean 0, sample std sqrt(2), population std 1."""
    assert group_advantages([1.0, -1.0], SAMPLE) == pytest.approx([2**-0.5, -(2**-0.5)], rel=1e-6)
    assert group_advantages([1.0, -1.0], POPULATION) == pytest.approx([1.0, -1.0], rel=1e-5)


@pytest.mark.parametrize("reward", [0.7, 0.95, 0.1, -1.0, 1 / 3])
@pytest.mark.parametrize("num", [2, 3, 8, 16])
def test_equal_rewards_give_exactly_zero(reward: float, num: int) -> None:
    assert group_advantages([reward] * num, SAMPLE) == [0.0] * num


def test_rewards_that_differ_by_rounding_only_stay_near_zero() -> None:
    assert group_advantages([0.7, 1.0 - 0.3, 0.1 + 0.6], SAMPLE) == pytest.approx([0.0] * 3, abs=1e-9)


@pytest.mark.parametrize("rewards", [[], [1.0]])
def test_fewer_than_two_rewards_are_refused(rewards: list[float]) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        group_advantages(rewards, SAMPLE)


@given(st.lists(st.floats(-2, 1), min_size=2, max_size=32))
def test_advantages_are_finite_centred_and_bounded(rewards: list[float]) -> None:
    """No sample of G can lie more than (G-1)/sqrt(G) sample deviations from the mean."""
    advantages = group_advantages(rewards, SAMPLE)
    bound = (len(rewards) - 1) / math.sqrt(len(rewards))
    assert all(abs(advantage) <= bound * (1 + 1e-9) for advantage in advantages)
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-8)
