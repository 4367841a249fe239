"""Deadlines for the phases of a step, and who is late when one has passed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from da3po.cluster.errors import ClusterError
from da3po.cluster.stacks import Stacks, read_stacks
from da3po.cluster.workers import Worker
from da3po.config.schema import WatchdogConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PhaseTimeoutError(ClusterError):
    """A phase was late and stayed so; the message names the late processes and the file with everyone's stacks."""


class Watchdog:
    """Watches the phases of a run."""

    def __init__(self, config: WatchdogConfig, workers: Callable[[], Sequence[Worker]], logs: Path) -> None:
        """
        Args:
            workers: the processes that there are now.
            logs: folder for the stacks.
        """
        self._grace = config.grace
        self._limits = {
            "generate": config.generate,
            "learn": config.learn,
            "sync": config.sync,
            "save": config.save,
            "evaluate": config.evaluate,
        }
        self._workers = workers
        self._logs = logs
        self._num_reports = 0

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        """Something that has to end in time. Raises PhaseTimeoutError if it has not after the grace."""
        limit = self._limits[name]
        if limit == 0:
            yield
            return
        said: list[str] = []
        guard: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(None) as scope:
                guard = asyncio.create_task(self._guard(name, limit, scope, said))
                yield
        except TimeoutError:
            if scope.expired():
                raise PhaseTimeoutError(said[-1]) from None
            raise
        finally:
            if guard is not None:
                guard.cancel()

    async def _guard(self, name: str, limit: float, scope: asyncio.Timeout, said: list[str]) -> None:
        await asyncio.sleep(limit)
        logger.warning("%s; the run ends in %g s (watchdog.grace)", await self._report(name, limit), self._grace)
        await asyncio.sleep(self._grace)
        said.append(await self._report(name, limit + self._grace))
        scope.reschedule(asyncio.get_running_loop().time())

    async def _report(self, name: str, seconds: float) -> str:
        """Write everyone's stacks down and say who is late."""
        workers = [worker for worker in self._workers() if worker.place is not None]
        found = await read_stacks([worker.place for worker in workers if worker.place is not None])
        stacks = {worker: found[worker.place] for worker in workers if worker.place is not None}
        self._num_reports += 1
        file = self._logs / f"stacks-{self._num_reports}-{name}.txt"
        where = f"all stacks are in {file}"
        try:
            file.write_text("\n".join(_section(worker, its) for worker, its in stacks.items()), encoding="utf-8")
        except OSError as error:  # a save hangs where nothing can be written
            where = f"the stacks could not be written: {error}"
        return f"{name} has taken {seconds:g} s (watchdog.{name}={self._limits[name]:g}); late: {late(stacks)}; {where}"


def late(stacks: Mapping[Worker, Stacks]) -> str:
    """Those that keep the others waiting: processes that can do nothing, else those that are at work on a call and not
    inside a collective, else all that are at work."""
    at_work = [worker for worker in stacks if worker.calls]
    unable = [worker for worker, its in stacks.items() if its.is_unable]
    busy = [worker for worker in at_work if not stacks[worker].waits_for_others]
    named = unable or busy or at_work
    return ", ".join(_named(worker, stacks[worker]) for worker in named) or "none of the processes, but the controller"


def _named(worker: Worker, stacks: Stacks) -> str:
    state = {"T": "stopped", "t": "stopped", "Z": "dead", "X": "dead", "": "gone"}.get(stacks.state, "running")
    return f"{worker.name} ({state}, in {', '.join(worker.calls) or 'no call'})"


def _section(worker: Worker, stacks: Stacks) -> str:
    return f"== {_named(worker, stacks)}, process {worker.place}\n{stacks.text}"


def watched(target: T, phases: Mapping[str, str], watchdog: Watchdog) -> T:
    """`target`, with each of the named methods a phase: a coroutine as a whole, an async generator item by item."""
    return cast(T, _Watched(target, phases, watchdog))


class _Watched:
    def __init__(self, target: object, phases: Mapping[str, str], watchdog: Watchdog) -> None:
        self._target = target
        self._phases = phases
        self._watchdog = watchdog

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        if name not in self._phases:
            return method
        phase = self._phases[name]

        @wraps(method)
        async def as_a_whole(*args: Any, **kwargs: Any) -> Any:
            async with self._watchdog.phase(phase):
                return await method(*args, **kwargs)

        @wraps(method)
        async def item_by_item(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            async with aclosing(method(*args, **kwargs)) as items:
                while True:
                    async with self._watchdog.phase(phase):
                        try:
                            item = await anext(items)
                        except StopAsyncIteration:
                            return
                    yield item

        return item_by_item if inspect.isasyncgenfunction(method) else as_a_whole
