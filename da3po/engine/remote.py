"""An engine in another process, behind the Engine protocol."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from da3po.engine.protocol import RequestError, WorkAbandoned
from da3po.types import GroupRequest, GroupResult, WeightManifest


class WorkerHandle(Protocol):
    """A process that hosts one object (see da3po.cluster.workers.Worker).

    Its errors have the exception that was raised there, if one was, as `cause`.
    """

    async def call(self, method: str, *args: Any) -> Any: ...
    def stream(self, method: str, *args: Any) -> AsyncIterator[Any]: ...
    def kill(self) -> None: ...


class RemoteEngine:
    """Implements Engine by calls on a worker that hosts one."""

    def __init__(self, worker: WorkerHandle) -> None:
        self._worker = worker
        self._calls = itertools.count()
        self.num_aborted_tokens = 0

    async def start(self) -> None:
        """Load the model; may take minutes."""
        await self._worker.call("start")

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        call = next(self._calls)
        try:
            async for result in self._worker.stream("generate", tuple(requests), call):
                yield result
        except (GeneratorExit, asyncio.CancelledError):
            # The other process learns of it by a call alone: nobody there sees that this end has stopped listening.
            self.num_aborted_tokens += await self._worker.call("abort", call)
            raise
        except Exception as error:
            if isinstance(cause := getattr(error, "cause", None), RequestError | WorkAbandoned):
                raise cause from error
            raise

    async def open_channel(self, address: str, rank: int) -> None:
        await self._worker.call("open_channel", address, rank)

    async def receive(self, version: int) -> WeightManifest:
        return await self._worker.call("receive", version)

    async def heartbeat(self) -> int:
        return await self._worker.call("heartbeat")

    async def close(self) -> None:
        """End the engine and its process."""
        try:
            await self._worker.call("close")
        finally:
            self._worker.kill()

    def kill(self) -> None:
        self._worker.kill()
