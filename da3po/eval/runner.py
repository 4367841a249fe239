"""One evaluation: sample every problem n times, grade, and say how good it was and how sure that is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from da3po.config.schema import EvalConfig
from da3po.eval.result import EvalResult, Sample, make_sample, summarise
from da3po.runtime.errors import first_error
from da3po.runtime.seeds import sample_seed
from da3po.types import Completion, Grade, GroupRequest, GroupResult, Outcome, Prompt, SamplingParams

Generate = Callable[[Sequence[GroupRequest]], AsyncIterator[GroupResult]]
GradeResponses = Callable[[str, Sequence[str]], Awaitable[list[Grade]]]
Done = Mapping[str, Sequence[Sample]]
OnProblem = Callable[[Prompt, Sequence[Sample]], None]


def _ignore(prompt: Prompt, samples: Sequence[Sample]) -> None:
    """No one is interested in single problems."""


async def evaluate(
    generate: Generate,
    grade: GradeResponses,
    prompts: Sequence[Prompt],
    config: EvalConfig,
    seed: int,
    *,
    done: Done | None = None,
    on_problem: OnProblem = _ignore,
) -> EvalResult:
    """Sample each problem config.num_samples times and grade the samples.

    Scores come from the grader's word alone, never from a training reward. Copies of a problem in `prompts` are asked
    once (and counted in the result), since copies are not more evidence. Sample i of a problem has a seed of its own,
    a function of `seed`, the problem's place and i, so two evaluations of the same weights agree.

    Args:
        done: samples of problems (by uid) that an interrupted evaluation has left; they are not asked again.
        on_problem: is called with each problem and its samples as soon as they are graded.
    """
    chosen, num_duplicates = choose(prompts, config.limit)
    if not chosen:
        raise ValueError("there are no problems to evaluate on")
    graded: dict[str, Sequence[Sample]] = dict(done or {})
    requests = [
        _request(place, prompt, config, seed) for place, prompt in enumerate(chosen) if prompt.uid not in graded
    ]

    async def finish(result: GroupResult) -> None:
        prompt = chosen[result.key]
        graded[prompt.uid] = await _grade(grade, prompt, result.completions)
        on_problem(prompt, graded[prompt.uid])

    if requests:
        with first_error():
            async with asyncio.TaskGroup() as grading:
                async for result in generate(requests):
                    grading.create_task(finish(result))
    missing = [prompt.uid for prompt in chosen if len(graded.get(prompt.uid, ())) != config.num_samples]
    if missing:
        raise RuntimeError(
            f"{len(missing)} problems came back without their {config.num_samples} samples: {missing[:3]}"
        )
    samples = [sample for prompt in chosen for sample in graded[prompt.uid]]
    return summarise(samples, config, num_duplicates=num_duplicates)


def choose(prompts: Sequence[Prompt], limit: int | None) -> tuple[list[Prompt], int]:
    """The first `limit` different problems, and how many of `prompts` are copies."""
    unique = list({prompt.uid: prompt for prompt in reversed(prompts)}.values())[::-1]
    return unique[:limit], len(prompts) - len(unique)


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
        make_sample(prompt, index, completion, aborted if completion.finish == "abort" else next(grades))
        for index, completion in enumerate(completions)
    ]


def rows(result: EvalResult, prompts: Iterable[Prompt]) -> list[dict[str, Any]]:
    """One JSON-able object per sample, for the record: what was asked, said, and how it was graded."""
    text = {prompt.uid: prompt.text for prompt in prompts}
    return [{"prompt": text[sample.uid], **sample.as_row()} for sample in result.samples]
