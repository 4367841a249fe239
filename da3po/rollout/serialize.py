"""Groups and batches as JSON-able dicts and back, for the checkpoint. Floats and ids survive exactly.

A batch may hold tens of millions of tokens, so ids and log-probs are packed: base64 of the numbers as the machine holds
them, after the array module's letter for their type. Log-probs take 4 bytes where that is exact, which it is for those
that an engine computed in single precision.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from da3po.types import (
    Completion,
    DroppedGroup,
    Grade,
    Group,
    Outcome,
    Prompt,
    StepBatch,
    StepStats,
    TrainSample,
)


def group_to_dict(group: Group) -> dict[str, Any]:
    return {
        "prompt": _prompt_to_dict(group.prompt),
        "completions": [_completion_to_dict(completion) for completion in group.completions],
        "grades": [
            {"outcome": grade.outcome.value, "answer": grade.answer, "detail": grade.detail} for grade in group.grades
        ],
    }


def group_from_dict(state: Mapping[str, Any]) -> Group:
    """The inverse of `group_to_dict`. A missing or unknown field raises KeyError or TypeError with its name."""
    return Group(
        prompt=Prompt(**{**state["prompt"], "token_ids": tuple(state["prompt"]["token_ids"])}),
        completions=tuple(_completion_from_dict(completion) for completion in state["completions"]),
        grades=tuple(Grade(**{**grade, "outcome": Outcome(grade["outcome"])}) for grade in state["grades"]),
    )


def batch_to_dict(batch: StepBatch) -> dict[str, Any]:
    return {
        "step": batch.step,
        "stats": dict(batch.stats.values),
        "groups": [group_to_dict(group) for group in batch.groups],
        "rewards": _packed("d", [sample.reward for sample in batch.samples]),
        "advantages": _packed("d", [sample.advantage for sample in batch.samples]),
        "plain_advantages": _packed("d", batch.plain_advantages),
        "fresh": [sample.fresh for sample in batch.samples],
        "dropped": [{"group": group_to_dict(dropped.group), "reason": dropped.reason} for dropped in batch.dropped],
    }


def batch_from_dict(state: Mapping[str, Any]) -> StepBatch:
    """The inverse of `batch_to_dict`."""
    groups = [group_from_dict(group) for group in state["groups"]]
    graded = [
        [completion for completion, grade in zip(group.completions, group.grades, strict=True) if grade.outcome.graded]
        for group in groups
    ]
    of_samples = [(group.prompt, completion) for group, own in zip(groups, graded, strict=True) for completion in own]
    samples = [
        TrainSample(
            prompt_uid=prompt.uid,
            prompt_ids=prompt.token_ids,
            response_ids=completion.token_ids,
            behaviour_logprobs=completion.logprobs,
            reward=reward,
            advantage=advantage,
            fresh=fresh,
        )
        for (prompt, completion), reward, advantage, fresh in zip(
            of_samples, _unpacked(state["rewards"]), _unpacked(state["advantages"]), state["fresh"], strict=True
        )
    ]
    return StepBatch(
        step=state["step"],
        samples=tuple(samples),
        group_sizes=tuple(map(len, graded)),
        stats=StepStats(state["stats"]),
        groups=tuple(groups),
        plain_advantages=_unpacked(state["plain_advantages"]),
        dropped=tuple(
            DroppedGroup(group=group_from_dict(dropped["group"]), reason=dropped["reason"])
            for dropped in state["dropped"]
        ),
    )


def _prompt_to_dict(prompt: Prompt) -> dict[str, Any]:
    return {
        "uid": prompt.uid,
        "draw": prompt.draw,
        "epoch": prompt.epoch,
        "text": prompt.text,
        "token_ids": list(prompt.token_ids),
        "gold": prompt.gold,
        "source": prompt.source,
    }


def _completion_to_dict(completion: Completion) -> dict[str, Any]:
    return {
        "token_ids": _packed("q", completion.token_ids),
        "logprobs": _packed("d", completion.logprobs),
        "text": completion.text,
        "finish": completion.finish,
        "weight_version": completion.weight_version,
        "versions": [list(stretch) for stretch in completion.versions],
    }


def _completion_from_dict(state: Mapping[str, Any]) -> Completion:
    return Completion(
        **{
            **state,
            "token_ids": _unpacked(state["token_ids"]),
            "logprobs": _unpacked(state["logprobs"]),
            "versions": tuple((version, count) for version, count in state["versions"]),
        }
    )


SMALLER = {"q": "i", "d": "f"}


def _packed(letter: str, values: Sequence[float]) -> str:
    whole = array(letter, values)
    try:
        half = array(SMALLER[letter], values)
        packed = half if array(letter, half) == whole else whole
    except OverflowError:
        packed = whole
    return packed.typecode + base64.b64encode(packed.tobytes()).decode("ascii")


def _unpacked(text: str) -> tuple[Any, ...]:
    numbers = array(text[0])
    numbers.frombytes(base64.b64decode(text[1:]))
    return tuple(numbers)
