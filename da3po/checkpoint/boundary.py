"""Where a run may stop: between two steps, with the rollouts' state as it was there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from da3po.runtime.interruption import Interruption
from da3po.types import StepBatch


class Rollouts(Protocol):
    def steps(self, *, after: int, until: int) -> AsyncIterator[StepBatch]: ...

    def state_dict(self) -> dict[str, Any]:
        """What decides the batches after the last one that `steps` gave; JSON-able, and not changed afterwards."""
        ...


class Evaluator(Protocol):
    async def opening(self, step: int) -> None: ...

    async def after(self, step: int) -> None: ...


class Boundaries:
    """Passes batches on and remembers the rollouts' state as of each, for a step is saved while the next one is under
    way. Collecting a batch ends at once when the run is asked to end."""

    def __init__(self, rollouts: Rollouts, interruption: Interruption, *, after: int) -> None:
        """after: the step that the rollouts go on from."""
        self._rollouts = rollouts
        self._interruption = interruption
        self._states = {after: rollouts.state_dict()}

    async def steps(self, *, after: int, until: int) -> AsyncIterator[StepBatch]:
        batches = aiter(self._rollouts.steps(after=after, until=until))
        while (batch := await self._interruption.cut_short(_next(batches))) is not None:
            before = self._states.get(batch.step - 1)
            self._states = {batch.step: self._rollouts.state_dict()}
            if before is not None:
                self._states[batch.step - 1] = before
            yield batch

    def state_of(self, step: int) -> dict[str, Any]:
        """Of the last batch that was given, or of the one before it."""
        return self._states[step]


async def _next(batches: AsyncIterator[StepBatch]) -> StepBatch | None:
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
