from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
import torch
from builders import step_batch, train_sample
from torch import Tensor

from da3po.algo.losses import build_loss
from da3po.config.schema import ConfigError, LossConfig
from da3po.pack.packer import Packer
from da3po.types import MicroBatch, PackedUpdate, TrainSample

DAPO = LossConfig()
GRPO = LossConfig(aggregation="sequence_mean")
GSPO = LossConfig(ratio="sequence", clip_low=3e-4, clip_high=4e-4, aggregation="sequence_mean")


def micro_batches(update: PackedUpdate) -> list[MicroBatch]:
    return [batch for rank in update.micro_batches for batch in rank]


def mean_of_losses(config: LossConfig, samples: list[TrainSample], losses: list[float], max_tokens: int = 64) -> float:
    """Sum of weight x token loss where every token of sample i, known by its first response id, has loss i."""
    update = Packer(loss=config, dp=1, max_tokens=max_tokens)(step_batch(samples)).updates[0]
    total = 0.0
    for batch in micro_batches(update):
        for segment in range(batch.num_sequences):
            in_segment = batch.loss_mask & (batch.segment_ids == segment)
            if in_segment.any():
                sample = int(batch.labels[in_segment][0]) // 1000 - 1
                total += losses[sample] * batch.weights[in_segment].sum().item()
    return total


TWO_RESPONSES = [train_sample(1, 2, first_id=1000), train_sample(1, 6, first_id=2000)]


@pytest.mark.parametrize(
    ("config", "max_tokens", "expected"),
    [
        (LossConfig(), 64, 2.5),
        (LossConfig(), 8, 2.5),
        (LossConfig(aggregation="sequence_mean"), 64, 2.0),
        (LossConfig(normalizer="reference"), 8, 2.0),
        (LossConfig(normalizer="reference"), 64, 2.5),
        (LossConfig(aggregation="sequence_mean", normalizer="reference"), 8, 2.0),
        (LossConfig(aggregation="sequence_mean", normalizer="reference"), 64, 2.0),
    ],
)
def test_two_tokens_of_loss_1_and_six_of_loss_3(config: LossConfig, max_tokens: int, expected: float) -> None:
    """The token mean is (2 x 1 + 6 x 3) / 8; a mean of means is (1 + 3) / 2, whatever the budget."""
    assert mean_of_losses(config, TWO_RESPONSES, [1.0, 3.0], max_tokens) == pytest.approx(expected)


def test_reference_weighs_micro_batches_by_their_sequences() -> None:
    """Two sequences of 2 tokens, losses 1 and 3, together; one of 6 tokens, loss 5, alone: (2 x 2 + 1 x 5) / 3."""
    samples = [
        train_sample(1, 2, first_id=1000),
        train_sample(1, 2, first_id=2000),
        train_sample(1, 6, first_id=3000),
    ]
    config = LossConfig(normalizer="reference")
    assert mean_of_losses(config, samples, [1.0, 3.0, 5.0], max_tokens=7) == pytest.approx(3.0)


class TinyModel(torch.nn.Module):
    """Log-probs of the next token from the token at hand; double precision, so that only the maths can differ."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = torch.nn.Parameter(torch.randn(vocabulary, vocabulary, generator=generator, dtype=torch.float64))

    def forward(self, batch: MicroBatch) -> Tensor:
        return self.table[batch.input_ids].log_softmax(-1).gather(1, batch.labels[:, None]).squeeze(1)


def gradient(config: LossConfig, update: PackedUpdate) -> tuple[float, Tensor]:
    model, loss = TinyModel(24), build_loss(config)
    value = torch.zeros((), dtype=torch.float64)
    for batch in micro_batches(update):
        logprobs = model(batch)
        # Old log-probs away from the current ones, as a function of the label, so that ratios and clips take part.
        old = logprobs.detach() - 0.3 * torch.sin(batch.labels.double())
        exact = dataclasses.replace(batch, weights=batch.weights.double(), advantages=batch.advantages.double())
        value = value + loss(logprobs, old, torch.zeros_like(old), exact).loss
    (table,) = torch.autograd.grad(value, [model.table])
    return value.item(), table


def random_samples(num: int, seed: int = 3) -> list[TrainSample]:
    rng = random.Random(seed)
    samples = [
        train_sample(rng.randint(1, 4), rng.choice([0, 1, 2, 3, 5, 9]), advantage=rng.uniform(-2, 2))
        for _ in range(num)
    ]
    # About what a model of 24 tokens that has learned nothing gives.
    chance = random.Random(seed)
    return [
        sample._replace(behaviour_logprobs=tuple(-3.2 + chance.uniform(-0.5, 0.5) for _ in sample.response_ids))
        for sample in samples
    ]


TIS = LossConfig(correction="token_tis", correction_high=1.1)
SEQUENCE_MASK = LossConfig(correction="sequence_mask", correction_low=0.1, correction_high=20.0)


@pytest.mark.parametrize(
    "config", [DAPO, GRPO, GSPO, TIS, SEQUENCE_MASK], ids=["dapo", "grpo", "gspo", "tis", "sequence_mask"]
)
def test_the_gradient_is_the_same_for_every_split(config: LossConfig) -> None:
    samples = random_samples(13)
    (whole,) = Packer(loss=config, dp=1, max_tokens=10_000)(step_batch(samples)).updates
    assert len(micro_batches(whole)) == 1
    expected_value, expected = gradient(config, whole)
    assert expected.abs().max() > 1e-3
    for dp, max_tokens, multiple in itertools.product((1, 2, 3, 16), (4, 16, 40), (1, 4)):
        packer = Packer(loss=config, dp=dp, max_tokens=max_tokens, pad_to_multiple=multiple)
        (update,) = packer(step_batch(samples)).updates
        value, table = gradient(config, update)
        assert value == pytest.approx(expected_value, rel=1e-6)
        torch.testing.assert_close(table, expected, rtol=1e-6, atol=1e-9)


def test_a_long_sequence_beside_short_ones_on_two_ranks() -> None:
    """Case A13."""
    samples = [train_sample(2, 8, advantage=1.0 + index) for index in range(3)] + [train_sample(1, 12, advantage=-1.0)]
    (whole,) = Packer(loss=DAPO, dp=1, max_tokens=1000)(step_batch(samples)).updates
    (split,) = Packer(loss=DAPO, dp=2, max_tokens=10)(step_batch(samples)).updates
    assert len(split.micro_batches[0]) == len(split.micro_batches[1]) == 2
    torch.testing.assert_close(gradient(DAPO, split)[1], gradient(DAPO, whole)[1])


def test_every_sample_contributes_exactly_once() -> None:
    """Case S06: 6 samples on 2 ranks; each has an advantage of its own."""
    samples = [train_sample(1, 2, advantage=float(index + 1)) for index in range(6)]
    (update,) = Packer(loss=DAPO, dp=2, max_tokens=12)(step_batch(samples)).updates
    seen = [
        batch.advantages[batch.segment_ids == segment].max().item()
        for batch in micro_batches(update)
        for segment in range(batch.num_sequences)
    ]
    assert sorted(seen) == [1, 2, 3, 4, 5, 6]
    assert update.num_sequences == 6
    assert update.num_response_tokens == 12


@pytest.mark.parametrize("config", [DAPO, GRPO, LossConfig(normalizer="reference")], ids=["dapo", "grpo", "reference"])
def test_empty_responses_do_not_divide_by_zero(config: LossConfig) -> None:
    """Case A10: one empty response among others, and nothing but empty ones."""
    for samples in ([train_sample(2, 0), train_sample(2, 3)], [train_sample(2, 0)] * 2):
        (update,) = Packer(loss=config, dp=2, max_tokens=8)(step_batch(samples)).updates
        value, table = gradient(config, update)
        assert table.isfinite().all()
        assert (value == 0) == (update.num_response_tokens == 0)


@pytest.mark.parametrize(("config", "share"), [(DAPO, 8 / 12), (GRPO, 2 / 3)], ids=["dapo", "grpo"])
def test_a_group_without_signal_counts_in_the_denominator_and_nowhere_else(config: LossConfig, share: float) -> None:
    """Case A04: 4 tokens of advantage 0 beside 3 + 5; by tokens the gradient shrinks to 8/12, by samples to 2/3."""
    useful = [train_sample(1, 3, advantage=1.0), train_sample(2, 5, advantage=-1.0)]
    packer = Packer(loss=config, dp=1, max_tokens=64)
    (alone,) = packer(step_batch(useful)).updates
    (diluted,) = packer(step_batch([*useful, train_sample(1, 4, advantage=0.0)])).updates
    torch.testing.assert_close(gradient(config, diluted)[1], share * gradient(config, alone)[1], rtol=1e-6, atol=1e-9)
    (nothing,) = packer(step_batch([train_sample(1, 4, advantage=0.0)] * 2)).updates
    assert not gradient(config, nothing)[1].any()


@pytest.mark.parametrize("config", [DAPO, GRPO, GSPO], ids=["dapo", "grpo", "gspo"])
def test_samples_without_advantage_are_told_apart_and_the_gradient_is_the_same(config: LossConfig) -> None:
    samples = [train_sample(1, 3 + index, advantage=[0.0, 1.0, -2.0, -0.0][index % 4]) for index in range(11)]
    packer = Packer(loss=config, dp=2, max_tokens=24)
    (together,) = packer(step_batch(samples)).updates
    packed = dataclasses.replace(packer, zero_advantage="measure")(step_batch(samples))
    (apart,) = packed.updates
    for rank in apart.micro_batches:
        assert [batch.learns for batch in rank] == sorted((batch.learns for batch in rank), reverse=True)
        assert all(batch.advantages.any() == batch.learns for batch in rank if batch.num_sequences)
    assert len({sum(batch.learns for batch in rank) for rank in apart.micro_batches}) == 1
    assert sum(batch.num_sequences for batch in micro_batches(apart)) == len(samples)
    assert packed.stats.values["pack/num_measured"] == 5
    learning = dataclasses.replace(
        apart, micro_batches=tuple(tuple(batch for batch in rank if batch.learns) for rank in apart.micro_batches)
    )
    (skipped,) = dataclasses.replace(packer, zero_advantage="skip")(step_batch(samples)).updates
    assert skipped.num_response_tokens == together.num_response_tokens
    for update in (learning, skipped):
        torch.testing.assert_close(gradient(config, update)[1], gradient(config, together)[1], rtol=1e-6, atol=1e-9)
    assert sum(batch.num_sequences for batch in micro_batches(skipped)) == 6


def test_what_is_left_out_is_no_waste() -> None:
    samples = [train_sample(1, 3, advantage=0.0), train_sample(2, 5, advantage=1.0), train_sample(4, 0, advantage=2.0)]
    step = Packer(loss=DAPO, dp=1, max_tokens=16, pad_to_multiple=8, zero_advantage="skip")(step_batch(samples))
    assert [batch.num_sequences for batch in micro_batches(step.updates[0])] == [1]
    assert step.stats.values["pack/num_tokens"] == 7
    assert step.stats.values["pack/waste"] == pytest.approx(1 / 8)
    assert step.stats.values["pack/num_sequences"] == 3
    assert step.stats.values["pack/num_response_tokens"] == 8


def test_all_samples_learn_where_none_has_an_advantage_or_the_mean_depends_on_the_split() -> None:
    """An update has at least one micro-batch that learns, even if nothing has a gradient."""
    nothing = [*[train_sample(1, 4, advantage=0.0)] * 3, train_sample(1, 0, advantage=1.0)]
    mixed = [*nothing, train_sample(1, 4, advantage=1.0)]
    for config, samples in ((DAPO, nothing), (LossConfig(normalizer="reference"), mixed)):
        packer = Packer(loss=config, dp=1, max_tokens=16, zero_advantage="skip")
        assert all(batch.learns for batch in micro_batches(packer(step_batch(samples)).updates[0]))


def test_updates_are_split_at_groups_and_the_last_may_be_smaller() -> None:
    samples = [train_sample(1, 2, advantage=float(index)) for index in range(9)]
    packed = Packer(loss=DAPO, dp=1, max_tokens=100, prompts_per_update=2)(step_batch(samples, [2, 3, 4], step=7))
    assert packed.step == 7
    assert [update.num_sequences for update in packed.updates] == [5, 4]
    assert [update.num_response_tokens for update in packed.updates] == [10, 8]
    for update in packed.updates:
        total = sum(batch.weights.sum().item() for batch in micro_batches(update))
        assert total == pytest.approx(1.0)


def test_stats() -> None:
    """3 + 5 real tokens on two ranks, each padded to a multiple of 4: 4 and 8."""
    batch = step_batch([train_sample(1, 2), train_sample(1, 4)])
    values = Packer(loss=DAPO, dp=2, max_tokens=8, pad_to_multiple=4)(batch).stats.values
    assert values == pytest.approx(
        {
            "pack/num_updates": 1,
            "pack/num_micro_batches": 1,
            "pack/num_sequences": 2,
            "pack/num_measured": 0,
            "pack/num_tokens": 8,
            "pack/num_response_tokens": 6,
            "pack/waste": 1 - 8 / 12,
            "pack/imbalance": 8 / 6 - 1,
        }
    )


def test_padding_stays_within_the_budget() -> None:
    samples = [train_sample(1, 2)] * 6
    (update,) = Packer(loss=DAPO, dp=1, max_tokens=11, pad_to_multiple=4)(step_batch(samples)).updates
    assert all(len(batch.input_ids) == 8 for batch in micro_batches(update))


def test_a_budget_below_the_padding_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.max_tokens_per_micro_batch"):
        Packer(loss=DAPO, dp=1, max_tokens=3, pad_to_multiple=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": ()}, "prompt uid has no tokens"),
        ({"behaviour_logprobs": (0.0,)}, "2 response tokens and 1 log-"),
    ],
)
def test_samples_that_cannot_be_trained_on_are_refused(change: dict[str, tuple[float, ...]], message: str) -> None:
    bad = train_sample()._replace(**change)
    with pytest.raises(ValueError, match=message):
        Packer(loss=DAPO, dp=1, max_tokens=16)(step_batch([train_sample(), bad]))


def test_equal_lengths_pad_a_rank_to_its_longest_micro_batch() -> None:
    samples = random_samples(9)
    packer = Packer(loss=DAPO, dp=2, max_tokens=24, pad_to_multiple=2, micro_batch_multiple=2, equal_lengths=True)
    step = packer(step_batch(samples))
    for rank in step.updates[0].micro_batches:
        assert len(rank) % 2 == 0
        assert len({len(batch.input_ids) for batch in rank}) == 1
    assert step.stats.values["pack/num_tokens"] == sum(len(s.prompt_ids) + len(s.response_ids) for s in samples)


def test_multiples_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="4 does not divide 6"):
        Packer(loss=DAPO, dp=1, max_tokens=64, pad_to_multiple=6, sequence_multiple=4)
