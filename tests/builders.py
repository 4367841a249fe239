"""Small carriers for tests, with only what a test is about spelt out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from da3po.types import (
    Completion,
    FinishReason,
    Grade,
    Group,
    MicroBatch,
    Outcome,
    Prompt,
    StepBatch,
    StepStats,
    TrainSample,
)


def prompt(draw: int = 0, uid: str | None = None, num_tokens: int = 3) -> Prompt:
    return Prompt(
        uid=uid or f"uid-{draw}",
        draw=draw,
        epoch=0,
        text="problem",
        token_ids=tuple(range(1, num_tokens + 1)),
        gold="1",
        source="test",
    )


def completion(num_tokens: int = 2, finish: FinishReason = "stop", weight_version: int = 0) -> Completion:
    return Completion(
        token_ids=tuple(range(10, 10 + num_tokens)),
        logprobs=tuple(-0.5 - 0.25 * index for index in range(num_tokens)),
        text="response",
        finish=finish,
        weight_version=weight_version,
    )


def group(
    outcomes: str,
    *,
    draw: int = 0,
    uid: str | None = None,
    lengths: Sequence[int] | None = None,
    finishes: Sequence[FinishReason] | None = None,
    weight_version: int = 0,
) -> Group:
    """`outcomes`: a letter per sample, C correct, W wrong, N no answer, T timeout, E error, A aborted."""
    lengths = lengths or [2] * len(outcomes)
    finishes = finishes or ["abort" if letter == "A" else "stop" for letter in outcomes]
    by_letter = {outcome.name[0]: outcome for outcome in Outcome if outcome is not Outcome.ABORTED}
    by_letter["A"] = Outcome.ABORTED
    return Group(
        prompt=prompt(draw, uid),
        completions=tuple(
            completion(length, finish, weight_version) for length, finish in zip(lengths, finishes, strict=True)
        ),
        grades=tuple(Grade(outcome=by_letter[letter]) for letter in outcomes),
    )


def train_sample(
    prompt_tokens: int = 3, response_tokens: int = 2, *, advantage: float = 1.0, first_id: int = 10, fresh: bool = True
) -> TrainSample:
    return TrainSample(
        prompt_uid="uid",
        prompt_ids=tuple(range(1, prompt_tokens + 1)),
        response_ids=tuple(range(first_id, first_id + response_tokens)),
        behaviour_logprobs=tuple(-0.5 - 0.25 * index for index in range(response_tokens)),
        reward=1.0,
        advantage=advantage,
        fresh=fresh,
    )


def step_batch(samples: Sequence[TrainSample], group_sizes: Sequence[int] | None = None, step: int = 1) -> StepBatch:
    return StepBatch(
        step=step,
        samples=tuple(samples),
        group_sizes=tuple(group_sizes or (len(samples),)),
        stats=StepStats(),
    )


def micro_batch(
    sequences: Sequence[tuple[Sequence[bool], Sequence[float], float]],
    *,
    behaviour_logprobs: Sequence[float] | None = None,
    fresh: Sequence[bool] | None = None,
) -> MicroBatch:
    """Of every sequence: its loss mask, its weights and its advantage. A loss reads no ids or positions."""
    lengths = [len(mask) for mask, _, _ in sequences]
    num_tokens = sum(lengths)
    zeros = torch.zeros(num_tokens, dtype=torch.int64)
    return MicroBatch(
        input_ids=zeros,
        labels=zeros,
        position_ids=zeros,
        cu_seqlens=torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32),
        max_seqlen=max(lengths),
        segment_ids=torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
        loss_mask=torch.tensor([flag for mask, _, _ in sequences for flag in mask]),
        weights=torch.tensor([weight for _, weights, _ in sequences for weight in weights]),
        advantages=torch.tensor([advantage for mask, _, advantage in sequences for _ in mask]),
        behaviour_logprobs=torch.tensor(behaviour_logprobs) if behaviour_logprobs else torch.zeros(num_tokens),
        fresh=torch.tensor(fresh) if fresh else torch.ones(num_tokens, dtype=torch.bool),
        num_sequences=len(lengths),
    )
