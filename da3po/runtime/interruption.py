"""A request to end, as a signal makes it, and which parts of a run it may cut short."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

SIGNAL_OFFSET = 128


class Interrupted(BaseException):
    """The command was asked to stop by a signal; `exit_code` follows the shell's convention, 128 + its number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = SIGNAL_OFFSET + number


class Interruption:
    """Whether the run was asked to end. What may be given up half-way is awaited through `cut_short`; all else goes on
    to its end, and the next `cut_short` ends the run."""

    def __init__(self, grace_seconds: float = 0.0) -> None:
        """grace_seconds: after the request, what is left for work that must not be cut short."""
        self.grace_seconds = grace_seconds
        self._asked = asyncio.Event()
        self._number = 0

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def ask(self, number: int) -> None:
        """number: of the signal."""
        self._number = number
        self._asked.set()

    def check(self) -> None:
        """Raises Interrupted if the run was asked to end."""
        if self.asked:
            raise Interrupted(self._number)

    async def cut_short(self, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled at the moment the run is asked to end. Raises Interrupted then."""
        task = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            if not self.asked:
                await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            self.check()
            return task.result()
        finally:
            asked.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
