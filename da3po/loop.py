"""The training loop.

It knows what the parts do and nothing of how: whether the learner is Megatron on a cluster or a fake in a test, whether
this step is evaluated or saved, is decided by the objects that `Run` was built from.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from da3po.runtime.laps import Laps
from da3po.types import PackedStep, StepBatch, StepStats


class Rollouts(Protocol):
    def steps(self, *, after: int, until: int) -> AsyncGenerator[StepBatch, None]:
        """The batches of steps after + 1 ... until."""
        ...


class Learner(Protocol):
    async def step(self, batch: PackedStep) -> StepStats: ...


class Gate(Protocol):
    def check(self, step: int, values: Mapping[str, float]) -> StepStats:
        """Raise if the step's metrics say that going on makes no sense; return what comparing steps has shown."""
        ...


class Weights(Protocol):
    async def publish(self, version: int) -> StepStats:
        """Bring the learner's present weights to every engine, as `version`; verified when it returns."""
        ...


class Evaluator(Protocol):
    async def opening(self, step: int) -> None:
        """Evaluate the weights that the run starts with, if that is wanted."""
        ...

    async def after(self, step: int) -> None:
        """Evaluate the weights of `step` if they are due."""
        ...


class Checkpoints(Protocol):
    async def after(self, step: int) -> None:
        """Save `step` if it is due."""
        ...


class Recorder(Protocol):
    def step(self, samples: StepBatch, stats: StepStats) -> None: ...


@dataclass(slots=True, kw_only=True)
class Run:
    """A run in progress: step counts the finished training steps, which is also the version of the weights."""

    step: int
    last_step: int
    rollouts: Rollouts
    packer: Callable[[StepBatch], PackedStep]
    learner: Learner
    gate: Gate
    weights: Weights
    evaluator: Evaluator
    checkpoints: Checkpoints
    recorder: Recorder


async def train(run: Run) -> None:
    """Train from `run.step` to `run.last_step`. Whatever a part raises ends the run."""
    await run.weights.publish(version=run.step)
    await run.evaluator.opening(run.step)
    laps = Laps()
    async with aclosing(run.rollouts.steps(after=run.step, until=run.last_step)) as batches:
        async for samples in batches:  # rollout, grade, filter, DAA
            laps.lap("generate")
            batch = run.packer(samples)
            laps.lap("pack")
            learned = await run.learner.step(batch)
            laps.lap("learn")
            checked = run.gate.check(samples.step, learned.values)
            published = await run.weights.publish(version=samples.step)
            laps.lap("sync")
            run.step = samples.step
            told = samples.stats | batch.stats | learned | checked | published
            run.recorder.step(samples, told | _speed(samples, laps))
            await run.evaluator.after(run.step)
            await run.checkpoints.after(run.step)
            laps.restart()


def _speed(samples: StepBatch, laps: Laps) -> StepStats:
    """Times of the step's phases, and response tokens trained on per second of the whole step."""
    num_tokens = sum(len(sample.response_ids) for sample in samples.samples)
    return laps.stats() | StepStats({"tokens/per_second": num_tokens / laps.total})
