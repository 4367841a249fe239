from __future__ import annotations

import pytest

from da3po.algo.overlong import build_overlong, overlong_penalty
from da3po.config.schema import ConfigError, OverlongConfig


@pytest.mark.parametrize(
    ("num_tokens", "penalty"), [(0, 0.0), (79, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (101, -1.0)]
)
def test_equation_8(num_tokens: int, penalty: float) -> None:
    assert overlong_penalty(num_tokens, max_tokens=100, cache=20) == pytest.approx(penalty)


def test_no_cache_switches_the_slope_off() -> None:
    assert [overlong_penalty(num_tokens, 100, 0) for num_tokens in (1, 99, 100, 101)] == [0.0, 0.0, 0.0, -1.0]


def test_a_cache_as_long_as_the_response_is_a_slope_from_the_start() -> None:
    assert overlong_penalty(25, max_tokens=100, cache=100) == -0.25


def test_switch() -> None:
    assert build_overlong(OverlongConfig(enabled=True, cache=20), 100)(90) == -0.5
    assert build_overlong(OverlongConfig(enabled=False, cache=20), 100)(100) == 0.0


def test_a_cache_longer_than_the_response_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algo\.overlong\.cache \(20\).*rollout\.max_tokens \(16\)"):
        build_overlong(OverlongConfig(cache=20), 16)
