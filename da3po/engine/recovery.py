"""Replacements for engines that are lost, within limits."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from da3po.config.schema import EngineConfig
from da3po.engine.protocol import Engine, EngineError

StartEngine = Callable[[int], Awaitable[Engine]]
"""Starts the engine of that index, with the model loaded; whatever it raises, it leaves no process behind."""


class Recovery:
    """Starts a new engine in the place of each that is lost."""

    def __init__(self, start: StartEngine, config: EngineConfig, start_seconds: float) -> None:
        """
        Args:
            config: how many attempts, of all places together, within how long.
            start_seconds: that one attempt may take.
        """
        self._start = start
        self._max_restarts = config.max_restarts
        self._window = config.restart_window
        self._start_seconds = start_seconds
        self._attempts: deque[float] = deque()

    async def replacement(self, index: int, reason: str) -> Engine:
        """A new engine for a place; one that does not start is tried again. Raises EngineError past the limit."""
        while True:
            self._count(reason)
            try:
                async with asyncio.timeout(self._start_seconds):
                    return await self._start(index)
            except TimeoutError:
                reason = f"the replacement of engine {index} did not start within {self._start_seconds:g} s"
            except Exception as error:  # noqa: BLE001 - however a start fails, the limit decides what follows
                reason = f"the replacement of engine {index} did not start: {error}"

    def _count(self, reason: str) -> None:
        now = time.monotonic()
        while self._attempts and now - self._attempts[0] > self._window:
            self._attempts.popleft()
        if len(self._attempts) >= self._max_restarts:
            raise EngineError(
                f"{reason}\nno more replacements: {len(self._attempts)} within {self._window:g} s "
                "(engine.max_restarts, engine.restart_window)"
            )
        self._attempts.append(now)
