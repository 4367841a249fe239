"""What may be given up half-way when a run is asked to end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from da3po.runtime.interruption import Interruption
from da3po.types import StepBatch


class Rollouts(Protocol):
    def steps(self, *, after: int, until: int) -> AsyncGenerator[StepBatch, None]: ...


class Evaluator(Protocol):
    async def opening(self, step: int) -> None: ...

    async def after(self, step: int) -> None: ...


class CutShortRollouts:
    """Waiting for a batch ends at once when the run is asked to end; the resumed run collects it anew."""

    def __init__(self, rollouts: Rollouts, interruption: Interruption) -> None:
        self._rollouts = rollouts
        self._interruption = interruption

    async def steps(self, *, after: int, until: int) -> AsyncGenerator[StepBatch, None]:
        async with aclosing(self._rollouts.steps(after=after, until=until)) as batches:
            while (batch := await self._interruption.cut_short(_next(batches))) is not None:
                yield batch


async def _next(batches: AsyncGenerator[StepBatch, None]) -> StepBatch | None:
    return await anext(batches, None)


class CutShortEvaluator:
    """An evaluation ends at once when the run is asked to end; the resumed run makes up for it."""

    def __init__(self, evaluator: Evaluator, interruption: Interruption) -> None:
        self._evaluator = evaluator
        self._interruption = interruption

    async def opening(self, step: int) -> None:
        await self._interruption.cut_short(self._evaluator.opening(step))

    async def after(self, step: int) -> None:
        await self._interruption.cut_short(self._evaluator.after(step))
