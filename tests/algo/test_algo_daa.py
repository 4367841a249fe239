from __future__ import annotations

import json

import pytest

from da3po.algo.daa import AdaptiveDaa, amplify, build_daa
from da3po.algo.theory import gamma
from da3po.config.schema import DaaConfig

HARD = [True, False, False, False]


def test_correct_samples_of_a_hard_group_are_doubled() -> None:
    daa = build_daa(DaaConfig(kind="constant"))
    assert daa.apply("p", [1.5, -0.5, -0.5, -0.5], HARD) == [3.0, -0.5, -0.5, -0.5]


def test_half_right_is_not_hard() -> None:
    advantages = [1.0] * 8 + [-1.0] * 8
    assert build_daa(DaaConfig(kind="constant")).apply("p", advantages, [True] * 8 + [False] * 8) == advantages


def test_seven_of_sixteen_is_hard() -> None:
    amplified = build_daa(DaaConfig(kind="constant")).apply("p", [1.0] * 16, [True] * 7 + [False] * 9)
    assert amplified == [2.0] * 7 + [1.0] * 9


def test_lambda_one_is_dapo() -> None:
    advantages = [1.5, -0.5, -0.5, -0.5]
    assert build_daa(DaaConfig(kind="constant", lambda_=1.0)).apply("p", advantages, HARD) == advantages
    assert build_daa(DaaConfig(kind="off")).apply("p", advantages, HARD) == advantages


@pytest.mark.parametrize(("only_positive", "first"), [(False, -0.4), (True, -0.2)])
def test_an_overlong_correct_sample_with_negative_advantage(only_positive: bool, first: float) -> None:
    amplified = amplify(
        [-0.2, 1.2, -0.5, -0.5, -0.5],
        [True, True, False, False, False],
        factor=2.0,
        tau=0.5,
        only_positive=only_positive,
    )
    assert amplified == [first, 2.4, -0.5, -0.5, -0.5]


def test_adaptive_undoes_gamma_at_the_posterior_mean() -> None:
    """1 of 8 correct with a prior of 2 samples: p = (1 + 1) / (8 + 2) = 0.2; alpha+ = 1, alpha- = 1 / (1 - 0.8^7)."""
    daa = AdaptiveDaa(DaaConfig(kind="adaptive"))
    daa.observe("p", 1, 8)
    expected = 1 / gamma(0.2, 8)
    assert expected == pytest.approx((1 - 0.2**7) / (1 - 0.8**7))
    assert daa.factor("p", 8) == pytest.approx(expected)
    correct = [True] + [False] * 7
    assert daa.apply("p", [2.0] + [-0.3] * 7, correct) == pytest.approx([2.0 * expected] + [-0.3] * 7)


def test_adaptive_adds_up_the_prompts_own_history() -> None:
    daa = AdaptiveDaa(DaaConfig(kind="adaptive", lambda_max=100.0))
    daa.observe("p", 0, 16)
    daa.observe("q", 16, 16)
    daa.observe("p", 1, 16)
    assert daa.factor("p", 16) == pytest.approx(1 / gamma(2 / 34, 16))
    assert daa.factor("q", 16) == 1.0
    assert daa.factor("unseen", 16) == pytest.approx(1.0)


def test_adaptive_is_capped() -> None:
    daa = AdaptiveDaa(DaaConfig(kind="adaptive", lambda_max=3.0))
    daa.observe("p", 1, 1000)
    assert daa.factor("p", 4) == 3.0


def test_adaptive_history_survives_a_checkpoint() -> None:
    config = DaaConfig(kind="adaptive")
    first = build_daa(config)
    first.observe("p", 1, 8)
    second = build_daa(config)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    advantages = [2.0] + [-0.3] * 7
    correct = [True] + [False] * 7
    assert second.apply("p", advantages, correct) == first.apply("p", advantages, correct)
    assert second.apply("p", advantages, correct) != advantages
    assert second.state_dict() == first.state_dict()


@pytest.mark.parametrize("kind", ["off", "constant"])
def test_the_other_kinds_have_no_state(kind: str) -> None:
    daa = build_daa(DaaConfig(kind=kind))
    daa.observe("p", 1, 8)
    daa.load_state_dict({"history": {"p": [1, 8]}})
    assert daa.state_dict() == {}
