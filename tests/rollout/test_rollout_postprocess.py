from __future__ import annotations

import json
import logging
import math

import pytest
from builders import group

from da3po.config.schema import (
    AlgoConfig,
    DaaConfig,
    DynamicSamplingConfig,
    OverlongConfig,
)
from da3po.rollout.postprocess import PostProcessor, StarvationError
from da3po.types import StepBatch

NO_SHAPING = OverlongConfig(enabled=False)
CONSTANT = DaaConfig(kind="constant")


def algo(
    daa: DaaConfig = CONSTANT, sampling: DynamicSamplingConfig | None = None, overlong: OverlongConfig = NO_SHAPING
) -> AlgoConfig:
    return AlgoConfig(daa=daa, dynamic_sampling=sampling or DynamicSamplingConfig(), overlong=overlong)


def opened(config: AlgoConfig, num_prompts: int = 1, max_tokens: int = 100) -> PostProcessor:
    post = PostProcessor(config, num_prompts, max_tokens)
    post.begin(1, weight_version=0)
    return post


def batch_of(post: PostProcessor, *outcomes: str, first_draw: int = 0) -> StepBatch:
    """Add a group for each; the last must fill the batch."""
    batches = [post.add(group(letters, draw=first_draw + index)) for index, letters in enumerate(outcomes)]
    assert batches[:-1] == [None] * (len(outcomes) - 1)
    assert batches[-1] is not None
    return batches[-1]


def rewards(batch: StepBatch) -> list[float]:
    return [sample.reward for sample in batch.samples]


def advantages(batch: StepBatch) -> list[float]:
    return [sample.advantage for sample in batch.samples]


def test_signal_of_a_hard_group() -> None:
    """1 of 4 correct: mean -0.5, deviations 1.5 and -0.5, sample std 1; DAA doubles the correct one."""
    batch = batch_of(opened(algo()), "WCWN")
    assert rewards(batch) == [-1.0, 1.0, -1.0, -1.0]
    assert advantages(batch) == pytest.approx([-0.5, 3.0, -0.5, -0.5], rel=1e-5)


def test_batch_carries_what_the_engine_sampled() -> None:
    batch = batch_of(opened(algo()), "CW")
    (source,) = batch.groups
    assert batch.step == 1
    assert batch.group_sizes == (2,)
    for sample, completion in zip(batch.samples, source.completions, strict=True):
        assert sample.prompt_uid == source.prompt.uid
        assert sample.prompt_ids is source.prompt.token_ids
        assert sample.response_ids is completion.token_ids
        assert sample.behaviour_logprobs is completion.logprobs


def test_p_hat_is_taken_from_outcomes_and_shaping_added_afterwards() -> None:
    """L_m 100, L_c 20: the correct sample of 100 tokens has R = 1 - 1 = 0; its group is hard, so it is amplified."""
    post = opened(algo(overlong=OverlongConfig(cache=20)))
    batch = post.add(group("CWW", lengths=[100, 10, 90], finishes=["length", "stop", "stop"]))
    assert batch is not None
    assert rewards(batch) == pytest.approx([0.0, -1.0, -1.5])
    mean, std = -2.5 / 3, math.sqrt((0.8333333**2 + 0.1666667**2 + 0.6666667**2) / 2)
    assert advantages(batch) == pytest.approx([2 * (0 - mean) / std, (-1 - mean) / std, (-1.5 - mean) / std], rel=1e-4)


def test_all_correct_is_dropped_whatever_the_lengths() -> None:
    """Case A09: the filter looks at raw accuracy, before the length penalty."""
    post = opened(algo(overlong=OverlongConfig(cache=20)))
    assert post.add(group("CC", lengths=[10, 100])) is None
    assert post.num_missing == 1


def test_failures_to_grade_are_masked_out_of_their_group() -> None:
    """Case R32: C and W of two samples have advantages of +-1/sqrt(2); the aborted, late and broken ones have none."""
    batch = batch_of(opened(algo(daa=DaaConfig(kind="off"))), "CATEW")
    assert batch.group_sizes == (2,)
    assert advantages(batch) == pytest.approx([2**-0.5, -(2**-0.5)], rel=1e-5)
    values = batch.stats.values
    assert (values["rollout/aborted"], values["reward/timeouts"], values["reward/errors"]) == (1, 1, 1)
    assert values["rollout/accuracy"] == 0.5


def test_the_batch_is_refilled_up_to_its_last_group() -> None:
    """Case S03: 4 prompts of 4 samples; two of the first four groups are degenerate."""
    post = opened(algo(), num_prompts=4)
    batch = batch_of(post, "CWWW", "CCCC", "CCWW", "WWWW", "CWWW", "CCCW")
    assert [source.prompt.draw for source in batch.groups] == [0, 2, 4, 5]
    assert len(batch.samples) == 16
    assert [(dropped.group.prompt.draw, dropped.reason) for dropped in batch.dropped] == [
        (1, "all_correct"),
        (3, "all_wrong"),
    ]
    with pytest.raises(ValueError, match="draw 6 came after the batch of step 1 was full"):
        post.add(group("CW", draw=6))


def test_samples_of_the_opening_weights_are_fresh() -> None:
    post = PostProcessor(algo(), 2, 100)
    post.begin(4, weight_version=3)
    post.add(group("CW", draw=0, weight_version=1))
    batch = post.add(group("CW", draw=1, weight_version=3))
    assert batch is not None
    assert [sample.fresh for sample in batch.samples] == [False, False, True, True]
    values = batch.stats.values
    assert (values["rollout/staleness_mean"], values["rollout/staleness_max"]) == (1.0, 2)


def test_completion_order_cannot_choose_the_batch() -> None:
    post = opened(algo(), num_prompts=3)
    post.add(group("CW", draw=5))
    with pytest.raises(ValueError, match="draw 4 came after draw 5"):
        post.add(group("CW", draw=4))


def test_switched_off_every_graded_group_is_trained_on() -> None:
    post = opened(algo(sampling=DynamicSamplingConfig(enabled=False)), num_prompts=3)
    batch = batch_of(post, "CC", "TE", "WW", "CW")
    assert advantages(batch)[:4] == [0.0, 0.0, 0.0, 0.0]
    assert batch.stats.values["rollout/dropped_too_few_graded"] == 1


@pytest.mark.parametrize("order", [["CW", "WW"], ["WW", "CW"]])
def test_advantages_are_normalised_within_a_group_never_over_the_batch(order: list[str]) -> None:
    """Case A01."""
    post = opened(algo(daa=DaaConfig(kind="off"), sampling=DynamicSamplingConfig(enabled=False)), num_prompts=2)
    found = advantages(batch_of(post, *order))
    expected = {"CW": [2**-0.5, -(2**-0.5)], "WW": [0.0, 0.0]}
    assert found == pytest.approx([value for letters in order for value in expected[letters]], rel=1e-5)


def test_one_loser_among_winners_is_kept_whole() -> None:
    """Case S04: eight finite advantages, the loser's negative, their sum 0."""
    found = advantages(batch_of(opened(algo()), "WCCCCCCC"))
    assert found == pytest.approx([-2.4749] + [0.3536] * 7, abs=1e-4)


def test_metrics() -> None:
    """Groups 1/4, 3/4, 0/4, 4/4, a group outside the band and an ungraded one; what each metric is, by hand."""
    post = opened(algo(sampling=DynamicSamplingConfig(low=0.2)), num_prompts=2)
    for draw, letters in enumerate(["CWNW", "WWWW", "CCCC", "C" + "W" * 9, "TTCA"]):
        assert post.add(group(letters, draw=draw)) is None
    batch = post.add(group("CCCW", draw=5, lengths=[3, 5, 7, 100], finishes=["stop", "stop", "stop", "length"]))
    assert batch is not None
    values = batch.stats.values
    assert values["rollout/num_prompts_generated"] == 6
    assert values["rollout/num_prompts_kept"] == values["rollout/num_prompts_trained"] == 2
    for reason in ("all_correct", "all_wrong", "outside_band", "too_few_graded"):
        assert values[f"rollout/dropped_{reason}"] == 1
    assert values["rollout/accuracy"] == pytest.approx((1 + 0 + 4 + 1 + 1 + 3) / (4 + 4 + 4 + 10 + 1 + 4))
    assert values["rollout/truncated_fraction"] == pytest.approx(1 / 29)
    assert values["rollout/response_length_mean"] == pytest.approx((2 * 25 + 115) / 29)
    assert values["rollout/response_length_max"] == 100
    assert values["rollout/empty_responses"] == 0
    assert (values["rollout/aborted"], values["reward/timeouts"], values["reward/no_answer"]) == (1, 2, 1)
    assert values["p_hat/mean"] == pytest.approx((0.25 + 0 + 1 + 0.1 + 1 + 0.75) / 6)
    counts = [values[f"p_hat/count_{bucket}"] for bucket in ("0", "0_25", "25_50", "50_75", "75_100", "100")]
    assert counts == [1, 1, 1, 0, 1, 2]
    assert values["p_hat/accuracy_0_25"] == pytest.approx(0.1)
    assert values["p_hat/accuracy_75_100"] == 0.75
    assert values["reward/mean"] == 0.0
    assert values["daa/amplified_groups"] == 0.5
    assert values["daa/amplified_tokens"] == pytest.approx(2 / 123)
    assert values["daa/mean_abs_advantage_before"] == pytest.approx(0.75, rel=1e-5)
    assert values["daa/mean_abs_advantage_after"] == pytest.approx((6 + 1.5) / 8, rel=1e-5)
    assert values["daa/group_mean_after"] == pytest.approx((1.5 / 4 + 0) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("length", "finish", "fraction"), [(100, "length", 0.25), (100, "stop", 0.0), (8, "stop", 0.0)]
)
def test_truncated_means_that_the_engine_cut(length: int, finish: str, fraction: float) -> None:
    """Case O01."""
    batch = opened(algo()).add(group("CWWW", lengths=[3, 5, 7, length], finishes=["stop", "stop", "stop", finish]))
    assert batch is not None
    assert batch.stats.values["rollout/truncated_fraction"] == fraction


def test_empty_responses_are_wrong_counted_and_finite() -> None:
    batch = opened(algo()).add(group("CN", lengths=[4, 0]))
    assert batch is not None
    assert batch.stats.values["rollout/empty_responses"] == 1
    assert all(math.isfinite(value) for value in batch.stats.values.values())
    assert [len(sample.response_ids) for sample in batch.samples] == [4, 0]


def test_every_step_counts_its_own_groups() -> None:
    post = opened(algo(), num_prompts=1)
    first = batch_of(post, "CW")
    post.begin(2, weight_version=1)
    second = batch_of(post, "WW", "CW", first_draw=1)
    assert [batch.stats.values["rollout/num_prompts_generated"] for batch in (first, second)] == [1, 2]
    assert [batch.stats.values["rollout/dropped_all_wrong"] for batch in (first, second)] == [0, 1]


def test_every_token_is_accounted_for() -> None:
    """Of 5 groups: one kept and its late sample masked out, one all correct, one all wrong, one with a failure."""
    post = opened(algo(), num_prompts=2)
    batch = batch_of(post, "CWT", "CC", "WWW", "TT", "CW")
    values = batch.stats.values
    assert values["rollout/tokens_generated"] == 2 * (3 + 2 + 3 + 2 + 2)
    assert values["rollout/tokens_trained"] == 2 * (2 + 2)
    assert values["rollout/tokens_dropped_all_correct"] == 4
    assert values["rollout/tokens_dropped_all_wrong"] == 6
    assert values["rollout/tokens_dropped_too_few_graded"] == 4
    assert values["rollout/tokens_dropped_outside_band"] == 0


def starving(on_starvation: str, **options: int) -> PostProcessor:
    sampling = DynamicSamplingConfig(on_starvation=on_starvation, low=0.3, **options)  # type: ignore[arg-type]
    return opened(algo(sampling=sampling, overlong=OverlongConfig(cache=20)), num_prompts=3)


def test_short_batch_trains_on_what_there_is(caplog: pytest.LogCaptureFixture) -> None:
    post = starving("short_batch")
    post.add(group("WWWW", draw=0))
    post.add(group("CW", draw=1))
    with caplog.at_level(logging.WARNING):
        batch = post.starve()
    assert batch is not None
    assert batch.group_sizes == (2,)
    assert "step 1 trains on 1 of 3 prompts" in caplog.text
    post.begin(2, weight_version=1)
    assert post.num_missing == 3


def test_widen_band_takes_dropped_groups_whose_rewards_differ() -> None:
    """Outside the band, and all correct with different lengths; not all wrong of one length, nor one graded sample."""
    post = starving("widen_band")
    post.add(group("WWWW", draw=0))
    post.add(group("CWWWW", draw=1))
    post.add(group("CW", draw=2))
    post.add(group("CT", draw=3))
    post.add(group("CC", draw=4, lengths=[10, 100]))
    post.add(group("CWWWW", draw=5))
    batch = post.starve()
    assert batch is not None
    assert [source.prompt.draw for source in batch.groups] == [1, 2, 4]
    assert [dropped.group.prompt.draw for dropped in batch.dropped] == [0, 3, 5]


def test_a_starved_batch_has_the_signals_that_its_groups_had_when_they_came() -> None:
    """And not what adaptive DAA would make of them after the step's later groups."""
    sampling = DynamicSamplingConfig(on_starvation="short_batch")
    config = algo(daa=DaaConfig(kind="adaptive"), sampling=sampling)
    starved, full = opened(config, num_prompts=2), opened(config, num_prompts=1)
    whole = full.add(group("CWWW", draw=0, uid="p"))
    starved.add(group("CWWW", draw=0, uid="p"))
    starved.add(group("WWWW", draw=1, uid="p"))
    batch = starved.starve()
    assert batch is not None and whole is not None
    assert batch.samples == whole.samples


def test_widen_band_holds_groups_of_its_own_step_only() -> None:
    post = starving("widen_band")
    post.add(group("CWWWW", draw=0))
    assert post.starve() is not None
    post.begin(2, weight_version=1)
    with pytest.raises(StarvationError):
        post.starve()


def test_raise_says_what_was_found() -> None:
    post = starving("raise")
    for draw, letters in enumerate(["WWWW", "CW", "CCCC", "WWWW", "TT"]):
        post.add(group(letters, draw=draw))
    with pytest.raises(
        StarvationError, match=r"step 1 wants 3 prompts and has 1: of 5 generated.*2 all wrong"
    ) as error:
        post.starve()
    assert (error.value.num_generated, error.value.num_kept) == (5, 1)
    assert error.value.dropped == {"all_correct": 1, "all_wrong": 2, "outside_band": 0, "too_few_graded": 1}


def test_empty_steps_end_the_run_at_their_limit() -> None:
    post = starving("short_batch", max_empty_steps=3)
    post.add(group("WW", draw=0))
    assert post.starve() is None
    assert post.starve() is None
    with pytest.raises(StarvationError, match=r"reward\.grader"):
        post.starve()


def test_a_batch_ends_the_row_of_empty_steps() -> None:
    post = starving("short_batch", max_empty_steps=2)
    assert post.starve() is None
    post.add(group("CW", draw=0))
    assert post.starve() is not None
    post.begin(2, weight_version=1)
    assert post.starve() is None


def test_a_restored_stage_goes_on_exactly_as_the_first_would() -> None:
    config = algo(daa=DaaConfig(kind="adaptive"))
    first = opened(config, num_prompts=2)
    for draw, letters in enumerate(["CWWW", "WWWW", "CCWW"]):
        first.add(group(letters, draw=draw, uid=f"p{draw % 2}"))
    second = PostProcessor(config, 2, 100)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    batches = []
    for post in (first, second):
        post.begin(2, weight_version=1)
        post.add(group("CWWW", draw=3, uid="p1", weight_version=1))
        batches.append(post.add(group("CWWW", draw=4, uid="p0", weight_version=1)))
    assert batches[0] is not None
    assert batches[0] == batches[1]


def test_the_share_of_groups_kept_is_that_of_the_step() -> None:
    post = opened(algo(), num_prompts=3)
    assert post.keep_rate == 0.0
    for draw, letters in enumerate(["WW", "CW", "CW", "CC"]):
        post.add(group(letters, draw=draw))
    assert post.keep_rate == 0.5
    post.begin(2, weight_version=1)
    assert post.keep_rate == 0.0
