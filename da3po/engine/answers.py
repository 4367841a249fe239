"""Whether what an engine answers is an answer to what it was asked."""

from __future__ import annotations

import math
from collections.abc import Mapping

from da3po.engine.protocol import EngineLost
from da3po.types import Completion, GroupRequest, GroupResult

# A log-prob above zero by more than rounding is none.
LARGEST_LOGPROB = 1e-3


def check_answer(result: GroupResult, asked: Mapping[int, GroupRequest], versions: tuple[int, int]) -> None:
    """Raises EngineLost if `result` cannot be trusted: an engine that answers nonsense once is not asked again.

    asked: what the engine owes, by key.
    versions: oldest and newest weights that can have drawn it.
    """
    request = asked.get(result.key)
    if request is None:
        raise EngineLost(f"answered request {result.key}, which it does not owe")
    if len(result.completions) != len(request.seeds):
        raise EngineLost(
            f"answered request {result.key} with {len(result.completions)} of {len(request.seeds)} samples"
        )
    for completion in result.completions:
        if fault := _fault(completion, request, versions):
            raise EngineLost(f"answered request {result.key} with {fault}")


def _fault(completion: Completion, request: GroupRequest, versions: tuple[int, int]) -> str | None:
    num_tokens, logprobs = len(completion.token_ids), completion.logprobs
    if num_tokens != len(logprobs):
        return f"{num_tokens} tokens and {len(logprobs)} log-probs"
    if num_tokens > request.sampling.max_tokens:
        return f"{num_tokens} tokens, more than the {request.sampling.max_tokens} asked for"
    if num_tokens and not (math.isfinite(sum(logprobs)) and max(logprobs) <= LARGEST_LOGPROB):
        return "log-probs that are none"
    if num_tokens and min(completion.token_ids) < 0:
        return "a negative token id"
    if not versions[0] <= completion.weight_version <= versions[1]:
        return f"samples of weights {completion.weight_version}, it holds {versions[1]}"
    return None
