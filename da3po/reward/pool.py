"""Grader processes with hard deadlines.

    grade(gold, responses) ──chunk──▶ worker process ──▶ grades
                              │ deadline passed, or the worker died: it is killed and replaced
                              └──▶ every response of the chunk again, alone, with a deadline of its own

One hostile answer so costs itself and nothing else; a chunk without one costs a single message.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError

import pebble

from da3po.config.schema import RewardConfig
from da3po.reward import worker
from da3po.reward.graders import load_grader
from da3po.types import Grade, Outcome

logger = logging.getLogger(__name__)

MAX_CHUNK = 64
# Responses over which the share of failures is judged.
ALARM_WINDOW = 512


class GraderPool:
    """Grades responses in `config.num_workers` processes. Usable from any event loop, thread or actor."""

    def __init__(self, config: RewardConfig, *, watch_first: int = 0) -> None:
        """Start the workers. Raises GraderError at once if there is no such grader.

        watch_first: how many responses a run begins with of which one at least should be correct; 0 expects nothing.
        """
        load_grader(config.grader)
        self._config = config
        self._counts: collections.Counter[Outcome] = collections.Counter()
        self._num_first = watch_first
        self._first: collections.Counter[Outcome] | None = collections.Counter() if watch_first else None
        self._pool = pebble.ProcessPool(
            max_workers=config.num_workers,
            initializer=worker.start,
            initargs=(config.grader, config.memory_mb, os.getpid()),
            context=multiprocessing.get_context("spawn"),
        )
        self._pool.schedule(worker.grade_chunk, args=("", ()))  # starts the processes

    async def grade(self, gold: str, responses: Sequence[str]) -> list[Grade]:
        """One grade per response, in order. Raises GraderError if a custom grader breaks its contract."""
        chunks = [responses[i : i + MAX_CHUNK] for i in range(0, len(responses), MAX_CHUNK)]
        grades = [grade for chunk in await asyncio.gather(*(self._chunk(gold, c) for c in chunks)) for grade in chunk]
        self._watch_first(grades)
        self._watch(grades)
        return grades

    def _watch_first(self, grades: Sequence[Grade]) -> None:
        """Warn once if none of the first responses is correct: the grader may not see their answers."""
        if self._first is None:
            return
        self._first.update(grade.outcome for grade in grades)
        if self._first[Outcome.CORRECT]:
            self._first = None
        elif self._first.total() >= self._num_first:
            logger.warning(
                "none of the first %d responses is correct (%s); if their text shows right answers, check "
                "reward.grader and data.template",
                self._first.total(),
                ", ".join(f"{count} {outcome.value}" for outcome, count in self._first.items()),
            )
            self._first = None

    def _watch(self, grades: Sequence[Grade]) -> None:
        """Warn when too many of the last responses could not be graded."""
        self._counts.update(grade.outcome for grade in grades)
        num_graded = self._counts.total()
        if num_graded < ALARM_WINDOW:
            return
        counts, self._counts = self._counts, collections.Counter()
        timeouts, errors = counts[Outcome.TIMEOUT], counts[Outcome.ERROR]
        if timeouts + errors > self._config.max_failure_rate * num_graded:
            logger.warning(
                "%.1f %% of %d responses could not be graded (%d timeouts, %d errors); "
                "reward.max_failure_rate is %.1f %%",
                100 * (timeouts + errors) / num_graded,
                num_graded,
                timeouts,
                errors,
                100 * self._config.max_failure_rate,
            )

    def close(self) -> None:
        """End every worker, also one that is busy, and wait until they are gone."""
        self._pool.stop()
        self._pool.join()

    async def _chunk(self, gold: str, responses: Sequence[str]) -> list[Grade]:
        try:
            return await self._run(gold, responses)
        except (FutureTimeoutError, pebble.ProcessExpired) as error:
            if len(responses) == 1:
                return [_failure(error, self._config.timeout)]
        singly = await asyncio.gather(*(self._chunk(gold, [response]) for response in responses))
        return [grade for [grade] in singly]

    async def _run(self, gold: str, responses: Sequence[str]) -> list[Grade]:
        future = self._pool.schedule(worker.grade_chunk, args=(gold, tuple(responses)), timeout=self._config.timeout)
        return await asyncio.wrap_future(future)


def _failure(error: BaseException, timeout: float) -> Grade:
    if isinstance(error, FutureTimeoutError):
        return Grade(outcome=Outcome.TIMEOUT, detail=f"no grade within {timeout:g} s")
    return Grade(outcome=Outcome.ERROR, detail=f"the grader process died ({error})")
