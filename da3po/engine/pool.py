"""All engines as one: who samples what, and which weights they hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from da3po.engine.protocol import Engine, EngineError
from da3po.types import GroupRequest, GroupResult, WeightManifest

FIRST_VERSION = 0
T = TypeVar("T")


class EnginePool:
    """Spreads groups over engines and keeps the engines on one version of the weights.

    All samples of a prompt go to one engine, which computes the prompt once. An error of any engine ends the call with
    an EngineError that names the engine.
    """

    def __init__(self, engines: Sequence[Engine], *, workers_per_engine: int = 1) -> None:
        """Args: workers_per_engine: tensor-parallel workers of each engine; every one of them receives weights."""
        if not engines:
            raise ValueError("a pool needs at least one engine")
        self._engines = tuple(engines)
        self._versions: list[int | None] = [FIRST_VERSION] * len(engines)  # None: not whole
        self._num_in_flight = [0] * len(engines)  # samples
        self.num_receivers = len(engines) * workers_per_engine

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        """Sample every group and yield each as it completes. Leaving early aborts the rest.

        The same requests to an idle pool go to the same engines, in the same order.
        Raises EngineError if the engines do not all hold the same, whole weights.
        """
        self._check_versions()
        arrived: asyncio.Queue[GroupResult | EngineError] = asyncio.Queue()
        relays = [
            asyncio.create_task(self._relay(index, share, arrived))
            for index, share in enumerate(self._assign(requests))
            if share
        ]
        try:
            for _ in requests:
                result = await arrived.get()
                if isinstance(result, EngineError):
                    raise result
                yield result
        finally:
            for relay in relays:
                relay.cancel()
            await asyncio.gather(*relays, return_exceptions=True)

    async def open_channel(self, address: str) -> None:
        """Let every engine join the weight channel at `address`, as the receiver of its own index."""
        await self._on_all("open_channel", [engine.open_channel(address, i) for i, engine in enumerate(self._engines)])

    async def receive(self, version: int) -> list[WeightManifest]:
        """Let every engine take one full set of weights; return what each took, in the order of the engines.

        After an error the pool refuses to generate until every engine has taken a whole set.
        """
        self._versions = [None] * len(self._engines)
        manifests = await self._on_all("receive", [engine.receive(version) for engine in self._engines])
        self._versions = [manifest.version for manifest in manifests]
        return manifests

    async def close(self) -> None:
        """Close every engine, also after one failed to; then raise the first error."""
        outcomes = await asyncio.gather(*(engine.close() for engine in self._engines), return_exceptions=True)
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, Exception):
                raise _named(index, "close", outcome) from outcome

    def _check_versions(self) -> None:
        if None in self._versions or len(set(self._versions)) > 1:
            held = ", ".join(f"engine {i}: {'not whole' if v is None else v}" for i, v in enumerate(self._versions))
            raise EngineError(f"the engines hold different weights ({held}); publish again before generating")

    def _assign(self, requests: Sequence[GroupRequest]) -> list[list[GroupRequest]]:
        """Each request to the engine with the fewest samples in flight, the first of equals."""
        shares: list[list[GroupRequest]] = [[] for _ in self._engines]
        load = list(self._num_in_flight)
        for request in requests:
            index = load.index(min(load))
            shares[index].append(request)
            load[index] += len(request.seeds)
        return shares

    async def _relay(
        self, index: int, share: Sequence[GroupRequest], arrived: asyncio.Queue[GroupResult | EngineError]
    ) -> None:
        """Pass on what one engine yields, or its error."""
        left = {request.key: len(request.seeds) for request in share}
        self._num_in_flight[index] += sum(left.values())
        try:
            async for result in self._engines[index].generate(share):
                self._num_in_flight[index] -= left.pop(result.key)
                arrived.put_nowait(result)
            if left:
                raise EngineError(f"engine {index} ended without the groups {sorted(left)}")
        except Exception as error:  # noqa: BLE001 - any error of an engine is the pool's to report
            arrived.put_nowait(_named(index, "generate", error))
        finally:
            self._num_in_flight[index] -= sum(left.values())

    async def _on_all(self, what: str, calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Results in order; the first failure at once, whatever the other engines are still waiting for."""

        async def one(index: int, call: Coroutine[Any, Any, T]) -> T:
            try:
                return await call
            except Exception as error:
                raise _named(index, what, error) from error

        tasks = [asyncio.create_task(one(index, call)) for index, call in enumerate(calls)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _named(index: int, what: str, error: Exception) -> EngineError:
    """`error` as one that names the engine."""
    if isinstance(error, EngineError) and f"engine {index}" in str(error):
        return error
    named = EngineError(f"engine {index}: {what} failed: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named
