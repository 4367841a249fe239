"""One evaluation: sample every problem n times, grade, and say how good it was and how sure that is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from da3po.config.schema import EvalConfig
from da3po.eval.result import EvalResult, Sample, summarise
from da3po.runtime.errors import first_error
from da3po.runtime.seeds import sample_seed
from da3po.types import Completion, Grade, GroupRequest, GroupResult, Outcome, Prompt, SamplingParams

Generate = Callable[[Sequence[GroupRequest]], AsyncIterator[GroupResult]]
GradeResponses = Callable[[str, Sequence[str]], Awaitable[list[Grade]]]


async def evaluate(
    generate: Generate, grade: GradeResponses, prompts: Sequence[Prompt], config: EvalConfig, seed: int
) -> EvalResult:
    """Sample each problem config.num_samples times and grade the samples.

    Scores come from the grader's word alone, never from a training reward. Copies of a problem in `prompts` are asked
    once (and counted in the result), since copies are not more evidence. Sample i of a problem has a seed of its own,
    a function of `seed`, the problem's place and i, so two evaluations of the same weights agree.
    """
    unique = list({prompt.uid: prompt for prompt in reversed(prompts)}.values())[::-1]
    chosen = unique[: config.limit]
    if not chosen:
        raise ValueError("there are no problems to evaluate on")
    requests = [_request(place, prompt, config, seed) for place, prompt in enumerate(chosen)]
    graded: dict[int, list[Sample]] = {}

    async def finish(result: GroupResult) -> None:
        graded[result.key] = await _grade(grade, chosen[result.key], result.completions)

    with first_error():
        async with asyncio.TaskGroup() as grading:
            async for result in generate(requests):
                grading.create_task(finish(result))
    missing = [chosen[place].uid for place in range(len(chosen)) if len(graded.get(place, ())) != config.num_samples]
    if missing:
        raise RuntimeError(
            f"{len(missing)} problems came back without their {config.num_samples} samples: {missing[:3]}"
        )
    samples = [sample for place in range(len(chosen)) for sample in graded[place]]
    return summarise(samples, config, num_duplicates=len(prompts) - len(unique))


def _request(place: int, prompt: Prompt, config: EvalConfig, seed: int) -> GroupRequest:
    return GroupRequest(
        key=place,
        prompt_ids=prompt.token_ids,
        seeds=tuple(sample_seed(seed, "eval", place, index) for index in range(config.num_samples)),
        sampling=SamplingParams(
            temperature=config.temperature, top_p=config.top_p, top_k=config.top_k, max_tokens=config.max_tokens
        ),
    )


async def _grade(grade: GradeResponses, prompt: Prompt, completions: Sequence[Completion]) -> list[Sample]:
    """An aborted completion is not graded: it is a failure of ours, and no answer of the model's."""
    whole = [completion for completion in completions if completion.finish != "abort"]
    grades = iter(await grade(prompt.gold, [completion.text for completion in whole]))
    aborted = Grade(outcome=Outcome.ABORTED)
    return [
        Sample(
            uid=prompt.uid,
            source=prompt.source,
            gold=prompt.gold,
            index=index,
            grade=aborted if completion.finish == "abort" else next(grades),
            completion=completion,
        )
        for index, completion in enumerate(completions)
    ]


def rows(result: EvalResult, prompts: Iterable[Prompt]) -> list[dict[str, Any]]:
    """One JSON-able object per sample, for the record: what was asked, said, and how it was graded."""
    text = {prompt.uid: prompt.text for prompt in prompts}
    return [{"prompt": text[sample.uid], **sample.as_row()} for sample in result.samples]
