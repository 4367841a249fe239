"""The controller's side: one publication from the learner to all engines, and the proof that it was whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import zip_longest
from typing import Any, Protocol

from da3po.sync import SyncError
from da3po.types import BucketSum, PackedStep, StepStats, WeightManifest

logger = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 3.0
MAX_ATTEMPTS = 5


class WeightSource(Protocol):
    async def open_channel(self, num_receivers: int) -> str:
        """Open a channel for so many receivers, in place of the last one; return its address."""
        ...

    async def publish(self, version: int) -> WeightManifest:
        """Send one full set of weights; return what was sent, stage after stage.

        Raises SyncError if it did not go through and may be sent again over another channel.
        """
        ...


class Receivers(Protocol):
    """Some engines, for one publication. Whatever they raise is a SyncError that names the engine."""

    num_receivers: int

    @property
    def key(self) -> Hashable:
        """Equal for equal engines, which can go on with the channel that they have."""
        ...

    @property
    def engines(self) -> Sequence[int]:
        """Their numbers."""
        ...

    async def open_channel(self, address: str) -> None: ...

    async def receive(self, version: int) -> Sequence[WeightManifest]:
        """Let every engine take one full set of weights; return what each took, in order."""
        ...

    def confirm(self, version: int) -> None:
        """They may generate: all of them hold `version`, whole and verified."""
        ...

    async def inspect(self) -> None:
        """Give up those that are gone or hang."""
        ...


class WeightSinks(Protocol):
    @property
    def starving(self) -> bool:
        """Too few hold the weights of the last publication to generate."""
        ...

    def when_new(self, ask_for_weights: Callable[[], Awaitable[None]]) -> None:
        """Say who brings weights to engines that start later."""
        ...

    def everyone(self) -> AbstractAsyncContextManager[Receivers]:
        """All engines, none of which generates within the context."""
        ...

    def newcomers(self) -> AbstractAsyncContextManager[Receivers]:
        """Those that hold no whole weights."""
        ...

    def health(self) -> Mapping[str, float]: ...


class WeightPublisher:
    """Publishes versions, one at a time, over a channel that is opened anew when the engines change or it breaks.

    A publication that fails is done again from the start, over a new channel, to the engines that are still there.
    Engines take no part in generating from the moment they begin to receive until what they hold has been compared
    with what was sent.
    """

    def __init__(self, source: WeightSource, sinks: WeightSinks) -> None:
        self._source = source
        self._sinks = sinks
        self._lock = asyncio.Lock()
        self._version: int | None = None  # what the learner's present weights were published as, if they were
        self._unpublished: int | None = None  # what they will be published as, if they have not been
        self._channel: Hashable = None
        sinks.when_new(self.catch_up)

    async def publish(self, version: int) -> StepStats:
        """Bring the learner's present weights to all engines as `version`.

        Returns `sync/num_bytes`, `sync/num_attempts` and the state of the engines. Raises what the learner raises, and
        SyncError naming the engine and the first bucket in which it differs from the learner, when no attempt succeeds.
        """
        async with self._lock:
            sent, attempt = await self._send(self._sinks.everyone, version)
            self._version = version
        stats = {"sync/num_bytes": float(sent.num_bytes), "sync/num_attempts": float(attempt)}
        return StepStats(stats | dict(self._sinks.health()))

    async def catch_up(self) -> None:
        """Bring the published weights to engines that have started since; the others go on.

        Where the learner has moved on since they wait for the next publication with the others. Only if too few are
        left to generate is there nothing to wait for: then all get what the learner has now.
        """
        async with self._lock:
            if self._version is not None:
                await self._send(self._sinks.newcomers, self._version)
            elif self._unpublished is not None and self._sinks.starving:
                await self._send(self._sinks.everyone, self._unpublished)

    @asynccontextmanager
    async def learning(self, step: int) -> AsyncIterator[None]:
        """Within it the learner's weights become those of `step`: none are sent, and what was published is past."""
        async with self._lock:
            self._version = self._unpublished = None
            yield
            self._unpublished = step

    async def _send(
        self, to: Callable[[], AbstractAsyncContextManager[Receivers]], version: int
    ) -> tuple[WeightManifest, int]:
        """What was sent, and at which attempt. Raises the last attempt's SyncError."""
        attempt = 1
        while True:
            async with to() as receivers:
                try:
                    return await self._deliver(receivers, version), attempt
                except SyncError as error:
                    if attempt == MAX_ATTEMPTS:
                        raise
                    logger.warning("attempt %d to publish version %d failed: %s", attempt, version, error)
                    await receivers.inspect()
            attempt += 1

    async def _deliver(self, receivers: Receivers, version: int) -> WeightManifest:
        """Send and receive at the same time, compare both ends, and let the engines generate."""
        if receivers.num_receivers == 0:
            return WeightManifest(version=version, buckets=())
        if receivers.key != self._channel:
            self._channel = None
            await receivers.open_channel(await self._source.open_channel(receivers.num_receivers))
        self._channel = None  # until it has proved itself
        sending = asyncio.ensure_future(self._source.publish(version))
        receiving = asyncio.ensure_future(receivers.receive(version))
        await _both(sending, receiving)
        sent = sending.result()
        for engine, received in zip(receivers.engines, receiving.result(), strict=True):
            _compare(engine, sent, received, version)
        receivers.confirm(version)
        self._channel = receivers.key
        return sent


class Learner(Protocol):
    async def step(self, batch: PackedStep) -> StepStats: ...


class PublishedLearner:
    """A learner whose weights are not sent while they change."""

    def __init__(self, learner: Learner, publisher: WeightPublisher) -> None:
        self._learner = learner
        self._publisher = publisher

    async def step(self, batch: PackedStep) -> StepStats:
        async with self._publisher.learning(batch.step):
            return await self._learner.step(batch)


async def _both(sending: asyncio.Future[WeightManifest], receiving: asyncio.Future[Sequence[WeightManifest]]) -> None:
    """Wait for both ends. When one fails the other has a moment to say why: what is a broken connection to a sender may
    be the death of a receiver."""
    ends: set[asyncio.Future[Any]] = {sending, receiving}
    try:
        _, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_EXCEPTION)
        if pending:
            await asyncio.wait(pending, timeout=LAST_WORDS_SECONDS)
    finally:
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
    errors = [error for end in (receiving, sending) if not end.cancelled() and (error := end.exception())]
    for error in errors:
        if not isinstance(error, SyncError):
            raise error
    if errors:
        raise SyncError("\n".join(map(str, errors))) from errors[0]


def _compare(engine: int, sent: WeightManifest, received: WeightManifest, version: int) -> None:
    for end, manifest in (("the learner sent", sent), (f"engine {engine} received", received)):
        if manifest.version != version:
            raise SyncError(f"{end} version {manifest.version}, version {version} was published")
    for index, (ours, theirs) in enumerate(zip_longest(sent.buckets, received.buckets)):
        if ours != theirs:
            raise SyncError(f"engine {engine}, version {version}, bucket {index}: {_difference(ours, theirs)}")


def _difference(sent: BucketSum | None, received: BucketSum | None) -> str:
    if sent is None or received is None:
        return "never arrived" if received is None else "was never sent"
    if sent.names != received.names:
        first = next(pair for pair in zip_longest(sent.names, received.names) if pair[0] != pair[1])
        return f"sent {first[0]}, received {first[1]}"
    if sent.num_bytes != received.num_bytes:
        return f"sent {sent.num_bytes} bytes, received {received.num_bytes}"
    return f"sent checksum {sent.checksum}, received {received.checksum} ({sent.names[0]} .. {sent.names[-1]})"
