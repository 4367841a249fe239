"""Groups as JSON-able dicts and back, for the checkpoint. Floats and ids survive exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from da3po.types import Completion, Grade, Group, Outcome, Prompt


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
        completions=tuple(
            Completion(
                **{
                    **completion,
                    "token_ids": tuple(completion["token_ids"]),
                    "logprobs": tuple(completion["logprobs"]),
                }
            )
            for completion in state["completions"]
        ),
        grades=tuple(Grade(**{**grade, "outcome": Outcome(grade["outcome"])}) for grade in state["grades"]),
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
        "token_ids": list(completion.token_ids),
        "logprobs": list(completion.logprobs),
        "text": completion.text,
        "finish": completion.finish,
        "weight_version": completion.weight_version,
    }
