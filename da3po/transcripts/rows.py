"""A step's groups as rows, one for each response: what was asked, answered and graded, and what was made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from da3po.types import Completion, Grade, Group, StepBatch


def batch_rows(batch: StepBatch) -> list[dict[str, Any]]:
    """Trained groups first, in the order of the batch, then those that were dropped.

    A response that was not trained on has no reward and no advantage; a group without a graded response no p_hat.
    """
    rows: list[dict[str, Any]] = []
    start = 0
    for group, size in zip(batch.groups, batch.group_sizes, strict=True):
        signals = [
            {"reward": sample.reward, "advantage_before_daa": plain, "advantage": sample.advantage}
            for sample, plain in zip(
                batch.samples[start : start + size], batch.plain_advantages[start : start + size], strict=True
            )
        ]
        rows += _group_rows(batch.step, group, None, signals)
        start += size
    for dropped in batch.dropped:
        rows += _group_rows(batch.step, dropped.group, dropped.reason, [])
    return rows


def _group_rows(
    step: int, group: Group, dropped: str | None, signals: Sequence[dict[str, float]]
) -> Iterator[dict[str, Any]]:
    """signals: of the graded responses, in order, if they were trained on."""
    left = iter(signals)
    of_group = {
        "step": step,
        "prompt_uid": group.prompt.uid,
        "draw": group.prompt.draw,
        "epoch": group.prompt.epoch,
        "source": group.prompt.source,
        "prompt": group.prompt.text,
        "gold": group.prompt.gold,
        "p_hat": group.p_hat if group.num_graded else None,
        "dropped": dropped,
    }
    for index, (completion, grade) in enumerate(zip(group.completions, group.grades, strict=True)):
        signal = next(left, {}) if grade.outcome.graded else {}
        yield of_group | {"sample": index} | _response(completion, grade) | _NO_SIGNAL | signal


_NO_SIGNAL: dict[str, float | None] = {"reward": None, "advantage_before_daa": None, "advantage": None}


def _response(completion: Completion, grade: Grade) -> dict[str, Any]:
    num_tokens = len(completion.token_ids)
    versions = completion.versions or ((completion.weight_version, num_tokens),)
    return {
        "response": completion.text,
        "outcome": grade.outcome.value,
        "answer": grade.answer,
        "grading": grade.detail or None,
        "finish": completion.finish,
        "num_tokens": num_tokens,
        "mean_logprob": sum(completion.logprobs) / num_tokens if num_tokens else None,
        "versions": [list(stretch) for stretch in versions],
    }
