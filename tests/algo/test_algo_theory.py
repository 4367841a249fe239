from __future__ import annotations

import math
import random

import pytest

from da3po.algo.advantage import group_advantages
from da3po.algo.dynamic_sampling import build_filter
from da3po.algo.theory import alpha_minus, alpha_plus, gamma
from da3po.config.schema import AdvantageConfig, DynamicSamplingConfig


@pytest.mark.parametrize(("num_samples", "plus", "minus", "ratio"), [(8, 1.00, 1.92, 0.52), (16, 1.00, 1.26, 0.79)])
def test_numbers_of_the_paper(num_samples: int, plus: float, minus: float, ratio: float) -> None:
    assert alpha_plus(0.1, num_samples) == pytest.approx(plus, abs=0.005)
    assert alpha_minus(0.1, num_samples) == pytest.approx(minus, abs=0.005)
    assert gamma(0.1, num_samples) == pytest.approx(ratio, abs=0.005)


def test_formulas() -> None:
    assert alpha_plus(0.25, 3) == pytest.approx(1 / (1 - 0.0625))
    assert alpha_minus(0.25, 3) == pytest.approx(1 / (1 - 0.5625))
    assert alpha_minus(1e-18, 2) == pytest.approx(1e18)


@pytest.mark.parametrize("num_samples", [2, 4, 8, 16, 32])
def test_corollary(num_samples: int) -> None:
    assert all(gamma(p / 100, num_samples) < 1 for p in range(1, 50))
    assert all(gamma(p / 100, num_samples) > 1 for p in range(51, 100))
    assert gamma(0.5, num_samples) == 1.0


@pytest.mark.parametrize(("p", "num_samples"), [(0.0, 8), (1.0, 8), (0.5, 1)])
def test_the_borders_are_refused(p: float, num_samples: int) -> None:
    with pytest.raises(ValueError):
        gamma(p, num_samples)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    variance = math.fsum([(value - mean) ** 2 for value in values]) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.7])
def test_equations_12_and_13_by_monte_carlo(p: float) -> None:
    """Sample 0 is given as right or wrong, the others are drawn; the shipped filter and advantage do the rest.

    The ratio of both expectations must be alpha within 4 standard errors, and the error must be small enough for the
    test to tell alpha from 1.
    """
    num_samples, num_groups = 8, 6_000
    rng = random.Random(20)
    keep = build_filter(DynamicSamplingConfig())
    for first, alpha in ((1.0, alpha_plus(p, num_samples)), (-1.0, alpha_minus(p, num_samples))):
        everything: list[float] = []
        kept: list[float] = []
        for _ in range(num_groups):
            rewards = [first] + [1.0 if rng.random() < p else -1.0 for _ in range(num_samples - 1)]
            advantage = group_advantages(rewards, AdvantageConfig())[0]
            everything.append(advantage)
            if keep(rewards.count(1.0), num_samples) is None:
                kept.append(advantage)
        mean_all, error_all = mean_and_error(everything)
        mean_kept, error_kept = mean_and_error(kept)
        ratio = mean_kept / mean_all
        error = abs(ratio) * math.hypot(error_all / mean_all, error_kept / mean_kept)
        assert abs(ratio - alpha) < 4 * error
        assert error < 0.05
        if alpha > 1.3:
            assert ratio - 1 > 4 * error
