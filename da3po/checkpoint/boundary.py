"""Where a run may stop: between two steps, with the rollouts' state as it was there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Protocol

from da3po.runtime.interruption import Interruption
from da3po.types import StepBatch


class Rollouts(Protocol):
    def steps(self, *, after: int, until: int) -> AsyncIterator[StepBatch]: ...


class StatefulRollouts(Rollouts, Protocol):
    def state_dict(self) -> dict[str, Any]:
        """What decides the batches after the last one that `steps` gave; JSON-able, and not changed afterwards."""
        ...


class Evaluator(Protocol):
    async def opening(self, step: int) -> None: ...

    async def after(self, step: int) -> None: ...


class Boundaries:
    """Passes batches on and remembers the rollouts' state as of each, for a step is saved while the next one is under
    way."""

    def __init__(self, rollouts: StatefulRollouts, *, after: int) -> None:
        """after: the step that the rollouts go on from."""
        self._rollouts = rollouts
        self._states = {after: rollouts.state_dict()}

    async def steps(self, *, after: int, until: int) -> AsyncGenerator[StepBatch, None]:
        async for batch in self._rollouts.steps(after=after, until=until):
            before = {step: state for step, state in self._states.items() if step == batch.step - 1}
            self._states = {**before, batch.step: self._rollouts.state_dict()}
            yield batch

    def state_of(self, step: int) -> dict[str, Any]:
        """Of the last batch that was given, or of the one before it."""
        return self._states[step]


class CutShortRollouts:
    """Waiting for a batch ends at once when the run is asked to end; the resumed run collects it anew."""

    def __init__(self, rollouts: Rollouts, interruption: Interruption) -> None:
        self._rollouts = rollouts
        self._interruption = interruption

    async def steps(self, *, after: int, until: int) -> AsyncGenerator[StepBatch, None]:
        batches = aiter(self._rollouts.steps(after=after, until=until))
        try:
            while (batch := await self._interruption.cut_short(_next(batches))) is not None:
                yield batch
        finally:
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()


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
