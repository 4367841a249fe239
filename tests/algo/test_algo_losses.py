from __future__ import annotations

import math

import pytest
import torch
from builders import micro_batch

from da3po.algo.losses import SUMS, build_loss, finish_metrics
from da3po.config.schema import ConfigError, LossConfig

DAPO = LossConfig(clip_low=0.2, clip_high=0.28)
GSPO = LossConfig(ratio="sequence", clip_low=0.5, clip_high=0.5, aggregation="sequence_mean")


def single_token_loss(config: LossConfig, advantage: float, ratio: float) -> float:
    batch = micro_batch([([True], [1.0], advantage)])
    old = torch.zeros(1)
    return build_loss(config)(old + math.log(ratio), old, torch.zeros(1), batch).loss.item()


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss"),
    [(1.0, 5.0, -1.28), (1.0, 0.5, -0.5), (-1.0, 5.0, 3.0), (-1.0, 0.5, 0.8), (-1.0, 1.5, 1.5), (0.0, 5.0, 0.0)],
)
def test_dual_clip_bounds_negative_advantages_only(advantage: float, ratio: float, loss: float) -> None:
    config = LossConfig(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    assert single_token_loss(config, advantage, ratio) == pytest.approx(loss, rel=1e-6)


def test_without_dual_clip_a_bad_token_keeps_its_full_ratio() -> None:
    assert single_token_loss(DAPO, -1.0, 5.0) == pytest.approx(5.0, rel=1e-6)


def test_dual_clip_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="dual_clip"):
        LossConfig(dual_clip=0.5)


@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_loss_and_gradient_equal_the_formula_of_the_paper(dual_clip: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    advantages = torch.randn(400, generator=generator)
    old = torch.randn(400, generator=generator)
    current = (old + 0.6 * torch.randn(400, generator=generator)).requires_grad_()
    batch = micro_batch([([True], [1.0], advantage) for advantage in advantages.tolist()])
    config = LossConfig(clip_low=0.2, clip_high=0.28, dual_clip=dual_clip)

    loss = build_loss(config)(current, old, torch.zeros(400), batch).loss
    (gradient,) = torch.autograd.grad(loss, current)

    ratio = (current - old).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
    if dual_clip is not None:
        objective = torch.where(advantages < 0, torch.maximum(objective, dual_clip * advantages), objective)
    (expected_gradient,) = torch.autograd.grad(-objective.sum(), current)
    torch.testing.assert_close(loss, -objective.sum())
    torch.testing.assert_close(gradient, expected_gradient)


def test_the_opening_policy_has_ratio_one_and_the_policy_gradient() -> None:
    """Without old log-probs r = 1, so the loss is -sum(w A) and its gradient -w A."""
    batch = micro_batch([([False, True, True], [0.0, 0.25, 0.75], 2.0)])
    logprobs = torch.tensor([-9.0, -1.0, -2.0], requires_grad=True)
    terms = build_loss(DAPO)(logprobs, None, torch.zeros(3), batch)
    terms.loss.backward()
    assert terms.loss.item() == -2.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, -0.5, -1.5]


def test_sequence_ratio_is_the_geometric_mean_and_keeps_to_its_segment() -> None:
    """Log ratios (0.1, 0.3) have mean 0.2; the other sequence's are 0, and so is its sequence ratio's log."""
    batch = micro_batch([([False, True, True], [0.0, 0.25, 0.25], 1.0), ([True, True, False], [0.25, 0.25, 0.0], -2.0)])
    old = torch.tensor([5.0, -1.0, -2.0, -3.0, -4.0, 7.0])
    logprobs = (old + torch.tensor([9.0, 0.1, 0.3, 0.0, 0.0, 9.0])).requires_grad_()
    loss = build_loss(GSPO)(logprobs, old, torch.zeros(6), batch).loss
    loss.backward()
    ratio = math.exp(0.2)
    assert loss.item() == pytest.approx(-0.5 * ratio + 0.5 * 2.0, rel=1e-6)
    assert logprobs.grad is not None
    expected = torch.tensor([0.0, -0.25 * ratio, -0.25 * ratio, 0.5, 0.5, 0.0])
    torch.testing.assert_close(logprobs.grad, expected)


def test_sequence_gradient_equals_that_of_the_sequence_objective() -> None:
    """GSPO's own form, -A s with s = exp(mean log r) differentiated whole, against the stop-gradient form."""
    batch = micro_batch([([True] * 4, [0.25] * 4, 1.5)])
    old = torch.tensor([-1.0, -0.5, -2.0, -0.1])
    logprobs = (old + torch.tensor([0.02, -0.03, 0.05, 0.01])).requires_grad_()
    (gradient,) = torch.autograd.grad(build_loss(GSPO)(logprobs, old, torch.zeros(4), batch).loss, logprobs)
    (expected,) = torch.autograd.grad(-1.5 * (logprobs - old).mean().exp(), logprobs)
    torch.testing.assert_close(gradient, expected)


def test_sequence_clip_silences_every_token_of_the_sequence() -> None:
    config = LossConfig(ratio="sequence", clip_low=3e-4, clip_high=4e-4)
    batch = micro_batch([([True, True], [0.5, 0.5], 1.0)])
    logprobs = torch.tensor([-0.99, -1.0], requires_grad=True)
    terms = build_loss(config)(logprobs, torch.tensor([-1.0, -1.0]), torch.zeros(2), batch)
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(-1.0004)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0]
    assert finish_metrics(terms.sums, terms.maxima)["loss/clip_fraction_high"] == 1.0


def test_sequence_sums_can_be_reduced_over_ranks_that_share_a_sequence() -> None:
    """Two halves of one sequence, each with the other's partial sums added, give the losses of the whole."""
    old = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    logprobs = old + torch.tensor([0.1, 0.0, 0.2, -0.1])
    whole = micro_batch([([True] * 4, [0.25] * 4, 1.0)])
    half = micro_batch([([True] * 2, [0.25] * 2, 1.0)])
    partial: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    for rank in (0, 1):
        part = slice(2 * rank, 2 * rank + 2)
        build_loss(GSPO, lambda sums, rank=rank: partial[rank].append(sums) or sums)(
            logprobs[part], old[part], torch.zeros(2), half
        )
    totals = [first + second for first, second in zip(partial[0], partial[1], strict=True)]
    losses = []
    for rank in (0, 1):
        part, answers = slice(2 * rank, 2 * rank + 2), iter(totals)
        loss = build_loss(GSPO, lambda _, answers=answers: next(answers))
        losses.append(loss(logprobs[part], old[part], torch.zeros(2), half).loss)
    expected = build_loss(GSPO)(logprobs, old, torch.zeros(4), whole).loss
    torch.testing.assert_close(losses[0] + losses[1], expected)


@pytest.mark.parametrize("config", [DAPO, GSPO])
def test_no_response_tokens_give_zero_loss_zero_gradient_and_finite_metrics(config: LossConfig) -> None:
    batch = micro_batch([([False, False], [0.0, 0.0], 3.0)])
    logprobs = torch.tensor([-1.0, float("-inf")], requires_grad=True)
    terms = build_loss(config)(logprobs, torch.tensor([-2.0, -1.0]), torch.full((2,), float("nan")), batch)
    terms.loss.backward()
    assert terms.loss.item() == 0.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0]
    assert all(math.isfinite(value) for value in finish_metrics(terms.sums, terms.maxima).values())


def test_an_enormous_ratio_stays_finite() -> None:
    batch = micro_batch([([True, True], [0.5, 0.5], 1.0), ([True], [1.0], -1.0)])
    logprobs = torch.tensor([0.0, -1.0, 0.0], requires_grad=True)
    loss = build_loss(DAPO)(logprobs, torch.tensor([-200.0, -1.0, -200.0]), torch.zeros(3), batch).loss
    loss.backward()
    assert math.isfinite(loss.item())
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize("config", [DAPO, GSPO])
@pytest.mark.parametrize("poison", ["advantage", "logprob"])
def test_non_finite_input_reaches_the_loss(config: LossConfig, poison: str) -> None:
    """The learner skips an update whose gradient is not finite; hiding one here would train on it."""
    batch = micro_batch([([True], [1.0], float("inf") if poison == "advantage" else 1.0)])
    logprobs = torch.tensor([float("nan") if poison == "logprob" else -1.0], requires_grad=True)
    loss = build_loss(config)(logprobs, torch.tensor([-1.0]), torch.zeros(1), batch).loss
    loss.backward()
    assert logprobs.grad is not None
    assert not math.isfinite(logprobs.grad.item())


def test_metrics_are_over_response_tokens_and_mismatch_over_fresh_ones() -> None:
    batch = micro_batch(
        [([False, True, True, True, True], [0.0, 0.1, 0.2, 0.3, 0.4], 1.0)],
        behaviour_logprobs=[0.0, -1.1, -1.0, -1.0, -5.0],
        fresh=[True, True, True, True, False],
    )
    old = torch.tensor([9.0, -1.0, -1.0, -1.5, -1.0])
    ratios = torch.tensor([7.0, 1.0, 2.0, 0.5, 1.0])
    entropy = torch.tensor([100.0, 1.0, 2.0, 3.0, 4.0])
    terms = build_loss(DAPO)(old + ratios.log(), old, entropy, batch)
    metrics = finish_metrics(terms.sums, terms.maxima)
    assert metrics["loss/policy"] == pytest.approx(-(0.1 + 0.2 * 1.28 + 0.3 * 0.5 + 0.4), rel=1e-6)
    assert metrics["loss/num_tokens"] == 4
    assert metrics["loss/ratio_mean"] == pytest.approx(4.5 / 4)
    assert metrics["loss/ratio_max"] == pytest.approx(2.0)
    assert metrics["loss/clip_fraction_high"] == 0.25
    assert metrics["loss/clip_fraction_low"] == 0.0
    assert metrics["loss/approx_kl"] == pytest.approx((2 - 1 - math.log(2) + 0.5 - 1 + math.log(2)) / 4, rel=1e-5)
    assert metrics["actor/entropy"] == 2.5
    assert metrics["mismatch/num_tokens"] == 3
    assert metrics["mismatch/mean_abs_logprob"] == pytest.approx((0.1 + 0.0 + 0.5) / 3, rel=1e-5)
    assert metrics["mismatch/max_abs_logprob"] == pytest.approx(0.5)


def test_reduced_metrics_do_not_depend_on_the_split() -> None:
    first = ([True, True], [0.2, 0.2], 1.0)
    second = ([True, True, True], [0.2, 0.2, 0.2], -1.0)
    old = torch.tensor([-1.0, -2.0, -0.5, -1.5, -1.0])
    logprobs = old + torch.tensor([0.5, 0.1, -0.9, 0.0, 0.2])
    entropy = torch.arange(5.0)
    loss = build_loss(DAPO)
    whole = loss(logprobs, old, entropy, micro_batch([first, second]))
    parts = [
        loss(logprobs[:2], old[:2], entropy[:2], micro_batch([first])),
        loss(logprobs[2:], old[2:], entropy[2:], micro_batch([second])),
    ]
    sums = parts[0].sums + parts[1].sums
    maxima = torch.maximum(parts[0].maxima, parts[1].maxima)
    assert finish_metrics(sums, maxima) == pytest.approx(finish_metrics(whole.sums, whole.maxima))


def test_clip_fraction_low_counts_bad_tokens_that_are_already_unlikely() -> None:
    batch = micro_batch([([True], [0.5], -1.0), ([True], [0.5], 1.0)])
    old = torch.zeros(2)
    terms = build_loss(DAPO)(old + math.log(0.5), old, torch.zeros(2), batch)
    assert terms.sums[SUMS.index("clipped_low")].item() == 1
