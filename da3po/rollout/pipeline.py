"""Batches, collected up to a set number of steps ahead of the one that is trained.

With `max_lag` 0 a batch is collected when it is asked for. With 1, collecting the next one begins as soon as one is
given away, and goes on while the learner works on that one. New weights are exchanged between two batches:

    learner     |  step k-1   |P|   step k     |P|   step k+1   |P        P: publication, of the step before it
    collector   |  batch k    |P|   batch k+1  |P|   batch k+2  |P

so batch k+1 comes from the weights of step k-1, one step older than on-policy, in every run alike: a publication waits
until the batch after the one just trained is complete, and the batch after that waits for the publication. With more
than 1 it waits for a batch that is being collected to end, and timing decides which versions make a batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from da3po.rollout.serialize import batch_from_dict, batch_to_dict
from da3po.runtime.waiting import Signal
from da3po.types import StepBatch, StepStats


class Snapshot(Protocol):
    def state_dict(self) -> dict[str, Any]:
        """Ready for JSON; asked for when a checkpoint is saved, and not after every step."""
        ...


class BatchCollector(Protocol):
    async def collect(self, step: int) -> StepBatch: ...

    def snapshot(self) -> Snapshot:
        """What the next step depends on, as it is now, whatever is collected later."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Weights(Protocol):
    async def publish(self, version: int) -> StepStats: ...


class RolloutPipeline:
    """The loop's rollouts: it alone decides when a batch is collected, and when not."""

    def __init__(self, collector: BatchCollector, max_lag: int) -> None:
        self._collector = collector
        self._max_lag = max_lag
        self._snapshots: dict[int, Snapshot] = {}  # of the collector, after each step's batch
        self._batches: dict[int, StepBatch] = {}
        self._asked = 0  # the last step that was asked for
        self._collected = 0  # the last step whose batch is there
        self._limit = 0  # the last step that may be collected now
        self._last_step = 0
        self._collecting = False
        self._producer: asyncio.Future[None] | None = None
        self._changed = Signal()

    async def steps(self, *, after: int, until: int) -> AsyncGenerator[StepBatch, None]:
        """The batches of steps `after` + 1 to `until`. Whoever iterates publishes a step's weights before asking on."""
        self._last_step = until
        self._collected = max([after, *self._batches])
        self._snapshots.setdefault(self._collected, self._collector.snapshot())
        self._producer = asyncio.ensure_future(self._produce())
        self._producer.add_done_callback(lambda _: self._changed.ring())
        try:
            for step in range(after + 1, until + 1):
                yield await self._batch(step)
        finally:
            self._producer.cancel()
            await asyncio.gather(self._producer, return_exceptions=True)

    @asynccontextmanager
    async def between_batches(self) -> AsyncIterator[None]:
        """Inside, no batch is being collected. Entering waits for the one that is, and with lag for the next batch."""
        due = min(self._asked + min(self._max_lag, 1), self._last_step)
        self._limit = due
        await self._changed.until(lambda: not self._collecting and (self._collected >= due or self._has_ended))
        try:
            yield
        finally:
            self._allow()

    def state_of(self, step: int) -> dict[str, Any]:
        """What a run that goes on after `step` needs, ready for JSON: the last step that was asked for, or the one
        before it. It holds the batches that were collected ahead, so that the run trains on the same samples."""
        last = step if not self._max_lag and step in self._snapshots else self._collected
        return {
            "collector": self._snapshots[last].state_dict(),
            "ready": [batch_to_dict(self._batches[ahead]) for ahead in range(step + 1, last + 1)],
        }

    def state_after_failure(self) -> dict[str, Any]:
        """Of a collector that could not fill a batch: a run that goes on from it draws the prompts after those."""
        return {"collector": self._collector.snapshot().state_dict(), "ready": []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Before `steps`."""
        self._collector.load_state_dict(state["collector"])
        self._batches = {batch.step: batch for batch in map(batch_from_dict, state["ready"])}

    async def _batch(self, step: int) -> StepBatch:
        """Raises what ended the collector, if the batch has not come."""
        self._asked = step
        self._allow()
        await self._changed.until(lambda: self._collected >= step or self._has_ended)
        if self._collected < step:
            assert self._producer is not None
            self._producer.result()
        # A checkpoint of the step before may still be asked for.
        self._batches = {ahead: batch for ahead, batch in self._batches.items() if ahead >= step}
        self._snapshots = {after: taken for after, taken in self._snapshots.items() if after >= step - 1}
        return self._batches[step]

    async def _produce(self) -> None:
        while self._collected < self._last_step:
            await self._changed.until(lambda: self._collected < self._limit)
            self._collecting = True
            try:
                step = self._collected + 1
                self._batches[step] = await self._collector.collect(step)
                self._snapshots[step] = self._collector.snapshot()
                self._collected = step
            finally:
                self._collecting = False
                self._changed.ring()

    @property
    def _has_ended(self) -> bool:
        return self._producer is not None and self._producer.done()

    def _allow(self) -> None:
        self._limit = min(self._asked + self._max_lag, self._last_step)
        self._changed.ring()


class PublishBetweenBatches:
    """Publishes weights when no batch is being collected."""

    def __init__(self, weights: Weights, pipeline: RolloutPipeline) -> None:
        self._weights = weights
        self._pipeline = pipeline

    async def publish(self, version: int) -> StepStats:
        """Adds `time/sync_wait`, the seconds that this took."""
        start = time.perf_counter()
        async with self._pipeline.between_batches():
            waited = StepStats({"time/sync_wait": time.perf_counter() - start})
            return waited | await self._weights.publish(version)
