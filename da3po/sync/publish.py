"""The controller's side: one publication from the learner to all engines, and the proof that it was whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import zip_longest
from typing import Protocol

from da3po.sync import SyncError
from da3po.types import BucketSum, StepStats, WeightManifest

LAST_WORDS_SECONDS = 3.0


class WeightSource(Protocol):
    async def publish(self, version: int) -> WeightManifest:
        """Send one full set of weights; return what was sent, stage after stage."""
        ...


class WeightSinks(Protocol):
    async def receive(self, version: int) -> Sequence[WeightManifest]:
        """Let every engine take one full set of weights; return what each took, in the order of the engines."""
        ...


class WeightPublisher:
    """Publishes versions. After an error the engines may hold mixed weights and must not generate."""

    def __init__(self, source: WeightSource, sinks: WeightSinks) -> None:
        self._source = source
        self._sinks = sinks

    async def publish(self, version: int) -> StepStats:
        """Send and receive `version` at the same time and compare both ends.

        Returns `sync/num_bytes`. Raises the first error of either side, after the other has
        been cancelled, or SyncError naming the engine and the first bucket in which it differs from the learner.
        """
        sending = asyncio.ensure_future(self._source.publish(version))
        receiving = asyncio.ensure_future(self._sinks.receive(version))
        await _both(sending, receiving)
        sent = sending.result()
        for engine, received in enumerate(receiving.result()):
            _compare(engine, sent, received, version)
        return StepStats({"sync/num_bytes": float(sent.num_bytes)})


async def _both(sending: asyncio.Future[WeightManifest], receiving: asyncio.Future[Sequence[WeightManifest]]) -> None:
    """Wait for both ends. When one fails the other has a moment to say why: what is a broken connection to a sender may
    be the death of a receiver."""
    ends = {sending, receiving}
    try:
        _, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_EXCEPTION)
        if pending:
            await asyncio.wait(pending, timeout=LAST_WORDS_SECONDS)
    finally:
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
    errors = [end.exception() for end in (receiving, sending) if not end.cancelled() and end.exception()]
    if len(errors) == 2:
        raise SyncError(f"{errors[0]}\n{errors[1]}") from errors[0]
    if errors:
        raise errors[0]


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
