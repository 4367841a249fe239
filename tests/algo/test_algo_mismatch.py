from __future__ import annotations

import pytest

from da3po.algo.mismatch import METRIC, TREND, MismatchError, MismatchGate
from da3po.config.schema import MismatchConfig


def measured(mean: float, *, kl: float = 0.0, ess: float = 1.0, num_tokens: int = 10) -> dict[str, float]:
    return {METRIC: mean, "mismatch/kl": kl, "mismatch/ess": ess, "mismatch/num_tokens": num_tokens}


def test_a_difference_up_to_the_limit_passes() -> None:
    MismatchGate(MismatchConfig(max_mean=1e-3)).check(1, measured(1e-3))


def test_a_larger_one_stops_the_run_and_says_what_to_look_at() -> None:
    with pytest.raises(MismatchError, match=r"step 7: .* 2\.00e-03 .* mismatch\.max_mean is 1\.00e-03.*sync"):
        MismatchGate(MismatchConfig(max_mean=1e-3)).check(7, measured(2e-3))


@pytest.mark.parametrize(
    "config", [MismatchConfig(max_mean=1e-3), MismatchConfig(max_kl=1), MismatchConfig(min_ess=0.1)]
)
def test_a_value_that_is_no_number_does_not_pass(config: MismatchConfig) -> None:
    nan = float("nan")
    with pytest.raises(MismatchError):
        MismatchGate(config).check(1, measured(nan, kl=nan, ess=nan))


def test_without_a_limit_everything_passes() -> None:
    MismatchGate(MismatchConfig()).check(1, measured(1.0, kl=5.0, ess=0.01))


def test_every_broken_limit_is_named() -> None:
    config = MismatchConfig(max_mean=1e-3, max_kl=1e-4, min_ess=0.9)
    MismatchGate(config).check(1, measured(1e-3, kl=1e-4, ess=0.9))
    with pytest.raises(MismatchError, match=r"on average.*KL divergence.*2\.00e-04.*effective sample size is 0\.8000"):
        MismatchGate(config).check(1, measured(2e-3, kl=2e-4, ess=0.8))


def test_the_trend_compares_five_steps_with_the_five_before() -> None:
    gate = MismatchGate(MismatchConfig(max_trend=2.0))
    trends = [gate.check(step, measured(1e-4)).values[TREND] for step in range(1, 11)]
    assert trends == [1.0] * 10
    # Four of the last five steps at 1e-4 and one at 3e-4, over five at 1e-4.
    assert gate.check(11, measured(3e-4)).values[TREND] == pytest.approx(7 / 5)
    with pytest.raises(MismatchError, match=r"grown 2\.20-fold.*mismatch\.max_trend is 2\.0"):
        gate.check(12, measured(5e-4))


def test_steps_without_fresh_tokens_pass_and_have_no_part_in_the_trend() -> None:
    gate = MismatchGate(MismatchConfig(max_mean=1e-3, min_ess=0.5))
    for step in range(1, 11):
        gate.check(step, measured(1e-4))
        assert gate.check(step, measured(0.0, num_tokens=0)).values[TREND] == 1.0
