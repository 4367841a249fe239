"""Groups that have been asked for and not yet been taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from da3po.runtime.errors import first_error
from da3po.types import Grade, Group, GroupRequest, GroupResult, Outcome, Prompt


class Generate(Protocol):
    def __call__(self, requests: Sequence[GroupRequest], /) -> AsyncIterator[GroupResult]:
        """Yield each group as it completes; leaving early aborts the rest."""
        ...


GradeResponses = Callable[[str, Sequence[str]], Awaitable[list[Grade]]]


class InFlight:
    """Generates and grades side by side; gives groups back in the order in which they were asked for."""

    def __init__(self, generate: Generate, grade: GradeResponses, keeps: Callable[[Group], bool]) -> None:
        """keeps: whether the batch could use a group."""
        self._generate = generate
        self._grade = grade
        self._keeps = keeps
        self._useful: set[int] = set()
        self._generated: dict[int, int] = {}  # by draw, tokens of what the engines gave and nobody has taken
        self._waiting: deque[Prompt] = deque()
        self._finished: dict[int, Group] = {}
        self._arrived: asyncio.Queue[Group | Exception] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def num_waiting(self) -> int:
        """Groups that have not been taken, finished or not."""
        return len(self._waiting)

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) - len(self._finished)

    @property
    def num_ungraded_tokens(self) -> int:
        """Response tokens of groups that the engines gave and that are not finished, since they were not graded yet."""
        return sum(count for draw, count in self._generated.items() if draw not in self._finished)

    @property
    def finished(self) -> dict[int, Group]:
        """By draw, the groups that are finished and have not been taken."""
        return self._finished

    @property
    def num_useful(self) -> int:
        """Of the finished ones, those that the batch could use."""
        return len(self._useful)

    def ask(self, prompts: Sequence[Prompt], requests: Sequence[GroupRequest]) -> None:
        """Start on more prompts, which come after all before. One that has no request is there by `put`."""
        self._waiting.extend(prompts)
        if requests:
            by_draw = {prompt.draw: prompt for prompt in prompts}
            self._tasks.append(asyncio.create_task(self._produce(by_draw, requests)))

    def put(self, group: Group) -> None:
        """A finished group of a prompt that is, or is about to be, asked for."""
        self._finished[group.prompt.draw] = group
        if self._keeps(group):
            self._useful.add(group.prompt.draw)

    async def take(self) -> Group:
        """The next group in order, once it is finished. Raises what generating or grading raised."""
        draw = self._waiting[0].draw
        while draw not in self._finished:
            await self.arrival()
        self._waiting.popleft()
        self._useful.discard(draw)
        self._generated.pop(draw, None)
        return self._finished.pop(draw)

    @property
    def ready(self) -> bool:
        """Whether `take` has something at once."""
        return bool(self._waiting) and self._waiting[0].draw in self._finished

    async def arrival(self) -> None:
        """Wait until a group is finished, and note all that are. Raises what generating or grading raised."""
        self._note(await self._arrived.get())
        while not self._arrived.empty():
            self._note(self._arrived.get_nowait())

    async def close(self) -> None:
        """Abort what is not finished."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._arrived.empty():
            if isinstance(item := self._arrived.get_nowait(), Group):
                self.put(item)

    def _note(self, item: Group | Exception) -> None:
        if isinstance(item, Exception):
            raise item
        self.put(item)

    async def _produce(self, prompts: dict[int, Prompt], requests: Sequence[GroupRequest]) -> None:
        try:
            with first_error():
                async with asyncio.TaskGroup() as grading:
                    missing = {request.key: len(request.seeds) for request in requests}
                    async for result in self._generate(requests):
                        _check_size(result, missing.pop(result.key))
                        self._generated[result.key] = sum(len(c.token_ids) for c in result.completions)
                        grading.create_task(self._finish(prompts[result.key], result))
            if missing:
                raise RuntimeError(f"the engines ended without an answer to the prompts of draws {sorted(missing)}")
        except Exception as error:  # noqa: BLE001 - whoever takes groups raises it
            self._arrived.put_nowait(error)

    async def _finish(self, prompt: Prompt, result: GroupResult) -> None:
        grades = [Grade(outcome=Outcome.ABORTED)] * len(result.completions)
        whole = [i for i, completion in enumerate(result.completions) if completion.finish != "abort"]
        texts = [result.completions[i].text for i in whole]
        for i, grade in zip(whole, await self._grade(prompt.gold, texts), strict=True):
            grades[i] = grade
        self._arrived.put_nowait(Group(prompt=prompt, completions=result.completions, grades=tuple(grades)))


def _check_size(result: GroupResult, num_samples: int) -> None:
    if len(result.completions) != num_samples:
        raise RuntimeError(
            f"the prompt of draw {result.key} came back with {len(result.completions)} samples, not {num_samples}"
        )
