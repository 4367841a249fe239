"""Importance weights of samples that other weights made; all numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch
from builders import micro_batch
from torch import Tensor

from da3po.algo.losses import LossTerms, build_loss, finish_metrics
from da3po.config.schema import ConfigError, LossConfig
from da3po.types import MicroBatch

# Two sequences of two response tokens after one of prompt. w of the tokens: 4, 0.5 and 0.25, 1.
TOKEN_WEIGHTS = [4.0, 0.5, 0.25, 1.0]
SEQUENCE_WEIGHTS = [2.0, 2.0, 0.25, 0.25]
OLD = torch.tensor([9.0, -1.0, -2.0, 9.0, -1.5, -0.5])


def batch(fresh: list[bool] | None = None) -> MicroBatch:
    mu = OLD.clone()
    mu[[1, 2, 4, 5]] -= torch.tensor(TOKEN_WEIGHTS).log()
    mu[[0, 3]] = 100.0  # of the prompt: never to be used
    row = ([False, True, True], [0.0, 0.25, 0.25])
    return micro_batch([(*row, 1.0), (*row, -2.0)], behaviour_logprobs=mu.tolist(), fresh=fresh)


def run(
    correction: str, low: float = 0.5, high: float = 1.5, whole: MicroBatch | None = None
) -> tuple[LossTerms, Tensor]:
    config = LossConfig(correction=correction, correction_low=low, correction_high=high)  # type: ignore[arg-type]
    logprobs = OLD.clone().requires_grad_()
    terms = build_loss(config)(logprobs, None, torch.zeros(6), whole or batch())
    terms.loss.backward()
    assert logprobs.grad is not None
    return terms, logprobs.grad


@pytest.mark.parametrize(
    ("correction", "factors", "corrected"),
    [
        ("none", [1, 1, 1, 1], 0),
        ("token_tis", [1.5, 0.5, 0.25, 1], 1),
        ("token_mask", [0, 0.5, 0, 1], 2),
        ("sequence_tis", [1.5, 1.5, 0.25, 0.25], 2),
        ("sequence_mask", [0, 0, 0, 0], 4),
    ],
)
def test_the_loss_and_its_gradient_are_weighted(correction: str, factors: list[float], corrected: int) -> None:
    """On the policy that opens the step r = 1: the loss is -sum(weight w A) and its gradient -weight w A."""
    terms, gradient = run(correction)
    signal = [factor * advantage for factor, advantage in zip(factors, [1, 1, -2, -2], strict=True)]
    assert terms.loss.item() == pytest.approx(-0.25 * sum(signal), abs=1e-6)
    assert gradient[[1, 2, 4, 5]].tolist() == pytest.approx([-0.25 * value for value in signal], abs=1e-6)
    assert gradient[[0, 3]].tolist() == [0.0, 0.0]
    metrics = finish_metrics(terms.sums, terms.maxima)
    assert metrics["offpolicy/corrected_fraction"] == corrected / 4


def test_a_mask_with_room_keeps_the_weights() -> None:
    terms, _ = run("sequence_mask", low=0.2, high=3.0)
    assert terms.loss.item() == pytest.approx(-0.25 * (2 + 2 - 0.5 - 0.5), abs=1e-6)


@pytest.mark.parametrize(("correction", "weights"), [("none", TOKEN_WEIGHTS), ("sequence_tis", SEQUENCE_WEIGHTS)])
def test_metrics_of_all_tokens(correction: str, weights: list[float]) -> None:
    terms, _ = run(correction)
    metrics = finish_metrics(terms.sums, terms.maxima)
    assert metrics["offpolicy/ess"] == pytest.approx(sum(weights) ** 2 / (4 * sum(w * w for w in weights)))
    assert metrics["offpolicy/kl"] == pytest.approx(sum(w - 1 - math.log(w) for w in TOKEN_WEIGHTS) / 4, rel=1e-5)


def test_metrics_of_fresh_tokens() -> None:
    """Of the second sequence alone: w 0.25 and 1."""
    terms, _ = run("none", whole=batch(fresh=[False] * 3 + [True] * 3))
    metrics = finish_metrics(terms.sums, terms.maxima)
    assert metrics["mismatch/num_tokens"] == 2
    assert metrics["mismatch/mean_abs_logprob"] == pytest.approx(math.log(4) / 2, rel=1e-6)
    assert metrics["mismatch/kl"] == pytest.approx((0.25 - 1 + math.log(4)) / 2, rel=1e-5)
    assert metrics["mismatch/ess"] == pytest.approx(1.25**2 / (2 * (0.25**2 + 1)), rel=1e-6)


def test_of_nothing_fresh_no_mismatch_is_told() -> None:
    terms, _ = run("none", whole=batch(fresh=[False] * 6))
    metrics = finish_metrics(terms.sums, terms.maxima)
    assert metrics["mismatch/num_tokens"] == 0
    assert [name for name in metrics if name.startswith("mismatch/")] == ["mismatch/num_tokens"]


def test_weights_are_those_of_the_policy_that_opens_the_step_not_of_the_present_one() -> None:
    """r = 1.1 against old, w = 0.5 against the engine: -0.5 x 1.1 x A."""
    whole = micro_batch([([True], [1.0], 1.0)], behaviour_logprobs=[math.log(2.0) - 1.0])
    old = torch.tensor([-1.0])
    config = LossConfig(correction="token_tis")
    loss = build_loss(config)(old + math.log(1.1), old, torch.zeros(1), whole).loss
    assert loss.item() == pytest.approx(-0.55, rel=1e-5)


def test_sequence_weights_are_summed_over_context_parallel_ranks() -> None:
    """Each rank has one token of either sequence; the partial sums of both together give the weights of the whole."""
    whole, expected = batch(), run("sequence_tis")[0].loss
    config = LossConfig(correction="sequence_tis", correction_high=1.5)
    parts = [micro_batch([([True], [0.25], 1.0), ([True], [0.25], -2.0)]) for _ in range(2)]
    losses, partial = [], [torch.zeros(2), torch.zeros(2)]
    for second in (False, True):
        for rank, tokens in enumerate(([1, 4], [2, 5])):
            object.__setattr__(parts[rank], "behaviour_logprobs", whole.behaviour_logprobs[tokens])

            def reduce(sums: Tensor, rank: int = rank, second: bool = second) -> Tensor:
                partial[rank] = sums
                return partial[0] + partial[1] if second else sums

            terms = build_loss(config, reduce)(OLD[tokens], None, torch.zeros(2), parts[rank])
            if second:
                losses.append(terms.loss)
    assert sum(losses).item() == pytest.approx(expected.item(), rel=1e-6)  # type: ignore[union-attr]


def test_weights_beyond_all_measure_stay_finite() -> None:
    whole = micro_batch([([True], [1.0], 1.0)], behaviour_logprobs=[-500.0])
    terms = build_loss(LossConfig(correction="token_tis"))(torch.tensor([-1.0]), None, torch.zeros(1), whole)
    assert terms.loss.item() == -2.0
    assert all(math.isfinite(value) for value in finish_metrics(terms.sums, terms.maxima).values())


@pytest.mark.parametrize("bounds", [(1.0, 2.0), (0.5, 0.9), (-0.1, 2.0)])
def test_bounds_must_have_one_between_them(bounds: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="correction_low"):
        LossConfig(correction_low=bounds[0], correction_high=bounds[1])
