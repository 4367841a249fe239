import pytest

from da3po.algo.mismatch import METRIC, MismatchError, MismatchGate
from da3po.config.schema import MismatchConfig


def test_a_difference_up_to_the_limit_passes():
    MismatchGate(MismatchConfig(max_mean=1e-3)).check(1, {METRIC: 1e-3})


def test_a_larger_one_stops_the_run_and_says_what_to_look_at():
    with pytest.raises(MismatchError, match=r"step 7: .* 2\.00e-03 .* mismatch\.max_mean is 1\.00e-03.*sync"):
        MismatchGate(MismatchConfig(max_mean=1e-3)).check(7, {METRIC: 2e-3})


def test_a_value_that_is_no_number_does_not_pass():
    with pytest.raises(MismatchError):
        MismatchGate(MismatchConfig(max_mean=1e-3)).check(1, {METRIC: float("nan")})


def test_without_a_limit_everything_passes():
    MismatchGate(MismatchConfig(max_mean=None)).check(1, {METRIC: 1.0})
