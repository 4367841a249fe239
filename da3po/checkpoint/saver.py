"""Saves the steps of a run that are due, at once or beside the steps that follow."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from da3po.checkpoint.directory import Checkpoint, CheckpointDirectory, CheckpointError, write_state
from da3po.checkpoint.retention import Best, BestRule
from da3po.types import StepStats

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
# Less free than this after a failed write: the disk was full.
FULL_BYTES = 1 << 20


class SaveError(RuntimeError):
    """A step could not be saved; the message says why, and what is there to go on from."""


class Learner(Protocol):
    async def save(self, path: Path) -> None:
        """Write everything under `path`, an existing empty directory."""
        ...

    async def start_saving(self, path: Path) -> None:
        """Take a copy of everything and begin to write it; the learner may be trained on when this returns."""
        ...

    async def is_saving(self) -> bool:
        """Whether some rank is still writing."""
        ...

    async def finish_saving(self) -> None:
        """Wait for the writing to end on all ranks, and make the directory whole. Raises what went wrong there."""
        ...


class Writer(Protocol):
    """How the learner's part gets to disk: `start` is what training waits for."""

    async def start(self, path: Path) -> None: ...

    async def finish(self) -> None: ...


class AtOnce:
    """Training waits until all is written."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    async def start(self, path: Path) -> None:
        await self._learner.save(path)

    async def finish(self) -> None:
        pass


class Beside:
    """Training waits for a copy in host memory only."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    async def start(self, path: Path) -> None:
        await self._learner.start_saving(path)

    async def finish(self) -> None:
        while await self._learner.is_saving():
            await asyncio.sleep(POLL_SECONDS)
        await self._learner.finish_saving()


@dataclass(slots=True, kw_only=True)
class Contents:
    """What the saver puts beside the learner's part.

    rollouts: gives the state of cursor, dynamic sampling and DAA as it was at the end of a step.
    identity: what the run cannot change on resuming (see `check_identity`).
    config: the resolved config as YAML.
    """

    rollouts: Callable[[int], dict[str, Any]]
    identity: dict[str, Any]
    config: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Which steps are saved: every so many (0 for none), the last one, and those that evaluate best so far.

    best: what to look at in evaluations, or None.
    """

    every: int
    last_step: int
    best: BestRule | None = None

    def on_schedule(self, step: int) -> bool:
        return step == self.last_step or bool(self.every and step % self.every == 0)


@dataclass(slots=True, kw_only=True)
class _Save:
    """A save under way."""

    step: int
    writing: Path
    began: float
    blocked: float = 0.0
    seconds: float = 0.0
    task: asyncio.Task[Checkpoint] = field(init=False)


class Saver:
    """Puts everything that belongs to a step into one checkpoint. At most one save is under way."""

    def __init__(
        self,
        *,
        directory: CheckpointDirectory,
        learner: Learner,
        contents: Contents,
        due: Due,
        start: int,
        best: Best | None,
        asynchronous: bool,
        grace_seconds: float,
        record: Callable[[int, StepStats, str], None],
    ) -> None:
        """
        Args:
            start: the step that the run goes on from, which is saved already, or is 0.
            best: the best step up to there.
            asynchronous: whether training goes on while a step is written.
            grace_seconds: how long a run that ends by an error waits for the save that is under way.
            record: takes step, metrics and a line for people when a step is saved.
        """
        self._directory = directory
        self._writer: Writer = Beside(learner) if asynchronous else AtOnce(learner)
        self._asynchronous = asynchronous
        self._contents = contents
        self._due = due
        self._grace_seconds = grace_seconds
        self._record = record
        self._saved = start
        self._best = best
        self._save: _Save | None = None

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """Take note of an evaluation. A step that is the best so far is saved when it is over, due or not."""
        rule = self._due.best
        if rule is None:
            return
        if rule.metric not in values:  # the config's rules know the names, and have refused others before the run began
            raise CheckpointError(f"checkpoint.best={rule.metric} is not evaluated; there is: {', '.join(values)}")
        if step == 0 or not rule.improves(values[rule.metric], self._best):
            return
        self._best = Best(step=step, metric=rule.metric, value=values[rule.metric])
        if step == self._saved:  # the run was stopped after the save of this step and before its evaluation
            self._directory.mark_best(self._best)

    async def after(self, step: int) -> None:
        """Save `step` if it is due. Raises SaveError if this save, or the one under way, went wrong."""
        if self._save is not None and self._save.task.done():
            await self.settle()
        if self._due.on_schedule(step) or self._is_best(step):
            await self.save(step)

    async def save_last(self, step: int) -> None:
        """Save `step`, the last one that was finished, unless that was done; returns when it is on disk."""
        if step != self._saved:
            await self.save(step)
        await self.settle()

    async def save(self, step: int, rollouts: dict[str, Any] | None = None) -> None:
        """Save `step` now. rollouts: their state, if it is not that of the end of the step."""
        waited = await self.settle()
        if step == self._saved and rollouts is None:
            return
        began = time.perf_counter()
        try:
            save = _Save(step=step, writing=self._directory.begin(step), began=began)
        except OSError as error:
            raise SaveError(self._not_saved(step, str(error))) from error
        state = {
            "step": step,
            "identity": self._contents.identity,
            "rollouts": self._contents.rollouts(step) if rollouts is None else rollouts,
            "best": asdict(self._best) if self._best else None,
        }
        try:
            await self._writer.start(save.writing / "learner")
        except Exception as error:
            raise self._failed(save, error) from error
        save.task = asyncio.create_task(self._complete(save, state, self._best if self._is_best(step) else None))
        save.blocked = waited + time.perf_counter() - save.began
        self._save, self._saved = save, step
        if not self._asynchronous:
            await self.settle()

    async def _complete(self, save: _Save, state: dict[str, Any], best: Best | None) -> Checkpoint:
        await self._writer.finish()
        checkpoint = await asyncio.to_thread(self._commit, save, state, best)
        save.seconds = time.perf_counter() - save.began
        return checkpoint

    def _is_best(self, step: int) -> bool:
        return self._best is not None and self._best.step == step

    def _commit(self, save: _Save, state: dict[str, Any], best: Best | None) -> Checkpoint:
        write_state(save.writing, state, self._contents.config)
        return self._directory.commit(save.step, save.writing, identity=self._contents.identity, best=best)

    async def settle(self) -> float:
        """Wait for the save that is under way. Returns the seconds that took. Raises SaveError if it went wrong."""
        save = self._save
        if save is None:
            return 0.0
        began = time.perf_counter()
        try:
            checkpoint = await asyncio.shield(save.task)
        except Exception as error:
            self._save = None
            raise self._failed(save, error) from error
        self._save = None
        waited = time.perf_counter() - began
        save.blocked += waited
        values = {"checkpoint/seconds": save.seconds, "checkpoint/blocked_seconds": save.blocked}
        message = f"saved {checkpoint.path} in {save.seconds:.1f} s ({save.blocked:.1f} s of it training waited)"
        self._record(save.step, StepStats(values), message)
        return waited

    def _failed(self, save: _Save, error: Exception) -> SaveError:
        reason = f"No space left on device: {error}" if _is_full(save.writing) else str(error)
        self._directory.discard(save.writing)
        return SaveError(self._not_saved(save.step, reason))

    def _not_saved(self, step: int, reason: str) -> str:
        latest = self._directory.latest()
        rest = f"the newest checkpoint is {latest.path}" if latest else "there is no checkpoint yet"
        return f"step {step} could not be saved: {reason}; {rest}"

    async def __aenter__(self) -> Saver:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Whatever ended the run, a save under way is completed, within the grace time; not if that is over."""
        if self._save is None:
            return
        step = self._save.step
        if isinstance(error, asyncio.CancelledError):
            self._save.task.cancel()
            return
        try:
            async with asyncio.timeout(self._grace_seconds):
                await self.settle()
        except (SaveError, TimeoutError) as late:
            logger.warning("the save of step %d was not completed: %s", step, late)


def _is_full(path: Path) -> bool:
    """Asked after a write has failed, for torch's writer tells of a position and not of a full disk."""
    return path.exists() and shutil.disk_usage(path).free < FULL_BYTES


def check_identity(checkpoint: Checkpoint, saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Raises CheckpointError if the checkpoint belongs to a run of something else, naming what differs."""
    for key, value in here.items():
        if saved.get(key) != value:
            raise CheckpointError(
                f"{checkpoint.path} was made with {key}={saved.get(key)!r}, this run has {value!r}; "
                "choose another run.dir"
            )
