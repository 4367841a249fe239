"""One engine for as long as a pool keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from da3po.engine.protocol import Engine, EngineLost

T = TypeVar("T")


class Member:
    """An engine in its place in the pool.

    index: of the place; a replacement has the same.
    version: of the weights that it holds whole and verified, None if it holds none such.
    newest: of the weights that it may hold: those it has, or is about to have.
    num_in_flight: samples that it has been asked for and has not delivered.
    receiving: it is taking weights, and may draw nothing meanwhile.
    """

    def __init__(self, index: int, engine: Engine, version: int | None) -> None:
        self.index = index
        self.engine = engine
        self.version = version
        self.newest = -1 if version is None else version
        self.num_in_flight = 0
        self.receiving = False
        self._reason = ""
        self._gone = asyncio.Event()

    @property
    def lost(self) -> bool:
        return self._gone.is_set()

    @property
    def busy(self) -> bool:
        return self.receiving or self.num_in_flight > 0

    def lose(self, reason: str) -> None:
        """It will not be used again: whatever waits for it ends with EngineLost."""
        self._reason = reason
        self._gone.set()
        self.engine.kill()

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which needs this engine. Raises EngineLost as soon as the engine is lost.

        When the call is cancelled it ends only after `work` has, so that the engine is left in a known state.
        """
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._gone.wait())
        task.add_done_callback(_note_exception)
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if self.lost:
                raise EngineLost(self._reason)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()


def _note_exception(task: asyncio.Future[Any]) -> None:
    """What a lost engine's calls still raise interests nobody, and asyncio would report it."""
    if not task.cancelled():
        task.exception()
