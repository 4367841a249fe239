"""Waiting, in one event loop, for something to become true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Signal:
    """Wakes those who wait for something to become true."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Something has changed: everyone looks again."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._event.wait()
