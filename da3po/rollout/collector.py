"""From prompts to the batch of a training step.

    cursor ──Prompt──▶ engines ──GroupResult──▶ grader ──Group, in draw order──▶ post-processing ──StepBatch──▶

A step asks for prompts in rounds. A round goes out as one set of requests, its groups are graded as they complete, and
they enter post-processing in the order in which their prompts were drawn, so that short answers, which finish first, do
not choose the batch. A round ends when its last group does; good groups beyond the batch are carried to the next step.
Rounds are sized from the share of groups that dynamic sampling has kept so far, which makes the set of prompts that a
step draws a function of the run's state alone: a resumed run draws the same.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

from da3po.config.schema import RolloutConfig
from da3po.rollout.postprocess import PostProcessor
from da3po.runtime.errors import first_error
from da3po.runtime.seeds import sample_seed
from da3po.types import (
    Grade,
    Group,
    GroupRequest,
    GroupResult,
    Outcome,
    Prompt,
    SamplingParams,
    StepBatch,
)

Generate = Callable[[Sequence[GroupRequest]], AsyncIterator[GroupResult]]
GradeResponses = Callable[[str, Sequence[str]], Awaitable[list[Grade]]]

# The share of groups that a fresh run expects dynamic sampling to keep, and how far each step moves the estimate.
INITIAL_KEEP_RATE = 2 / 3
KEEP_RATE_MOMENTUM = 0.5
# Batches in one round at most, whatever the estimate: the DAPO recipe generates three prompts for one it trains on.
MAX_ROUND = 3
# A round is somewhat larger than the estimate asks for: a second round costs more than a few surplus groups.
ROUND_MARGIN = 1.1


class Cursor(Protocol):
    """An endless, resumable supply of prompts."""

    def draw(self, count: int) -> list[Prompt]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Collector:
    """Collects the groups of one step after another."""

    def __init__(
        self,
        *,
        cursor: Cursor,
        generate: Generate,
        grade: GradeResponses,
        post: PostProcessor,
        config: RolloutConfig,
        max_rounds: int,
        filters: bool,
        seed: int,
    ) -> None:
        """
        Args:
            filters: whether dynamic sampling drops groups, so that a round must be larger than the batch.
            seed: of the run; every sample's seed derives from it, the prompt's draw and the sample's index.
        """
        self._cursor = cursor
        self._generate = generate
        self._grade = grade
        self._post = post
        self._config = config
        self._max_rounds = max_rounds
        self._seed = seed
        self._keep_rate = INITIAL_KEEP_RATE if filters else 1.0
        self._margin = ROUND_MARGIN if filters else 1.0
        self._sampling = SamplingParams(
            temperature=config.temperature, top_p=config.top_p, top_k=config.top_k, max_tokens=config.max_tokens
        )

    async def steps(self, *, after: int, until: int) -> AsyncIterator[StepBatch]:
        """The batches of steps `after` + 1 to `until`.

        Whoever iterates publishes the weights of a step before asking for the next one.
        """
        for step in range(after + 1, until + 1):
            yield await self.collect(step)

    async def collect(self, step: int) -> StepBatch:
        """The batch of one step. Raises what the starvation policy raises when prompts run dry."""
        batch = self._post.begin(step, weight_version=step - 1)
        while batch is None:
            batch = await self._attempt()
        return batch

    async def _attempt(self) -> StepBatch | None:
        """As many rounds as the limit allows; then the starvation policy gives a short batch, another attempt or up."""
        for _ in range(self._max_rounds):
            if batch := await self._round():
                return batch
        return self._post.starve()

    async def _round(self) -> StepBatch | None:
        prompts = self._cursor.draw(self._round_size())
        batch = None
        before = self._post.num_kept
        async for group in self._groups(prompts):
            batch = self._post.add(group) or batch
        kept = (self._post.num_kept - before) / len(prompts)
        self._keep_rate += KEEP_RATE_MOMENTUM * (kept - self._keep_rate)
        return batch

    def _round_size(self) -> int:
        """Enough prompts to fill the batch at the present keep rate, at most MAX_ROUND batches' worth."""
        if self._config.prompts_per_round is not None:
            return self._config.prompts_per_round
        missing = self._post.num_missing
        expected = math.ceil(missing / max(self._keep_rate, 1e-6) * self._margin)
        return max(1, min(expected, MAX_ROUND * self._config.num_prompts))

    async def _groups(self, prompts: Sequence[Prompt]) -> AsyncIterator[Group]:
        """Generate and grade, and yield in the order of `prompts`; grading runs beside generation."""
        by_draw = {prompt.draw: prompt for prompt in prompts}
        graded: dict[int, asyncio.Future[Group]] = {
            draw: asyncio.get_running_loop().create_future() for draw in by_draw
        }
        producer = asyncio.ensure_future(self._produce(by_draw, graded))
        try:
            for prompt in prompts:
                done, _ = await asyncio.wait({graded[prompt.draw], producer}, return_when=asyncio.FIRST_COMPLETED)
                if producer in done and not graded[prompt.draw].done():
                    await producer
                    raise RuntimeError(
                        f"the engines ended without an answer to prompt {prompt.uid} (draw {prompt.draw})"
                    )
                yield await graded[prompt.draw]
            await producer
        finally:
            producer.cancel()

    async def _produce(self, prompts: dict[int, Prompt], graded: dict[int, asyncio.Future[Group]]) -> None:
        requests = [
            GroupRequest(
                key=prompt.draw,
                prompt_ids=prompt.token_ids,
                seeds=tuple(
                    sample_seed(self._seed, "rollout", prompt.draw, index) for index in range(self._config.num_samples)
                ),
                sampling=self._sampling,
            )
            for prompt in prompts.values()
        ]
        with first_error():
            async with asyncio.TaskGroup() as grading:
                async for result in self._generate(requests):
                    grading.create_task(self._finish(prompts[result.key], result, graded[result.key]))

    async def _finish(self, prompt: Prompt, result: GroupResult, graded: asyncio.Future[Group]) -> None:
        if len(result.completions) != self._config.num_samples:
            raise RuntimeError(
                f"prompt {prompt.uid} (draw {prompt.draw}) came back with {len(result.completions)} samples, "
                f"not {self._config.num_samples}"
            )
        grades = [Grade(outcome=Outcome.ABORTED)] * len(result.completions)
        whole = [i for i, completion in enumerate(result.completions) if completion.finish != "abort"]
        texts = [result.completions[i].text for i in whole]
        for i, grade in zip(whole, await self._grade(prompt.gold, texts), strict=True):
            grades[i] = grade
        graded.set_result(Group(prompt=prompt, completions=result.completions, grades=tuple(grades)))

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what the next step draws; JSON-able."""
        return {"cursor": self._cursor.state_dict(), "post": self._post.state_dict(), "keep_rate": self._keep_rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._cursor.load_state_dict(state["cursor"])
        self._post.load_state_dict(state["post"])
        self._keep_rate = state["keep_rate"]
