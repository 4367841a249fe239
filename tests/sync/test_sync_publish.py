"""One publication, between stand-ins for both ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from da3po.sync import SyncError
from da3po.sync.publish import MAX_ATTEMPTS, WeightPublisher
from da3po.types import BucketSum, WeightManifest

BUCKETS = (
    BucketSum(names=("a", "b"), num_bytes=32, checksum="11"),
    BucketSum(names=("c",), num_bytes=16, checksum="22"),
)


class Learner:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def open_channel(self, num_receivers: int) -> str:
        return "127.0.0.1:1"

    async def publish(self, version: int) -> WeightManifest:
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        return WeightManifest(version=version, buckets=BUCKETS)


class Engines:
    """All engines, and their audience, in one."""

    starving = False
    key = "all"

    def __init__(self, *buckets: Sequence[BucketSum], hang: bool = False, version: int | None = None) -> None:
        self.buckets = buckets
        self.hang = hang
        self.version = version
        self.cancelled = False
        self.num_receivers = max(1, len(buckets))
        self.engines = range(len(buckets))
        self.confirmed: list[int] = []
        self.num_inspections = 0

    def when_new(self, ask_for_weights: object) -> None:
        pass

    @asynccontextmanager
    async def everyone(self) -> AsyncIterator[Engines]:
        yield self

    newcomers = everyone

    async def open_channel(self, address: str) -> None:
        pass

    async def receive(self, version: int) -> list[WeightManifest]:
        try:
            await asyncio.sleep(60 if self.hang else 0)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return [WeightManifest(version=self.version or version, buckets=tuple(b)) for b in self.buckets]

    def confirm(self, version: int) -> None:
        self.confirmed.append(version)

    async def inspect(self) -> None:
        self.num_inspections += 1

    def health(self) -> dict[str, float]:
        return {"engine/num_engines": 2.0}


def publish(learner: Learner, engines: Engines) -> dict[str, float]:
    return dict(asyncio.run(WeightPublisher(learner, engines).publish(3)).values)


def test_equal_manifests_pass_and_are_counted() -> None:
    stats = publish(Learner(), Engines(BUCKETS, BUCKETS))
    assert stats == {"sync/num_bytes": 48, "sync/num_attempts": 1, "engine/num_engines": 2}


@pytest.mark.parametrize(
    ("received", "message"),
    [
        ((BUCKETS[0],), "engine 1, version 3, bucket 1: never arrived"),
        ((*BUCKETS, BUCKETS[1]), "engine 1, version 3, bucket 2: was never sent"),
        ((BUCKETS[0], replace(BUCKETS[1], names=("d",))), "bucket 1: sent c, received d"),
        ((replace(BUCKETS[0], num_bytes=31), BUCKETS[1]), "bucket 0: sent 32 bytes, received 31"),
        ((BUCKETS[0], replace(BUCKETS[1], checksum="23")), "bucket 1: sent checksum 22, received 23"),
    ],
)
def test_the_first_difference_is_named(received: tuple[BucketSum, ...], message: str) -> None:
    engines = Engines(BUCKETS, received)
    with pytest.raises(SyncError, match=message):
        publish(Learner(), engines)
    assert engines.confirmed == []
    assert engines.num_inspections == MAX_ATTEMPTS - 1


def test_another_version_is_an_error() -> None:
    with pytest.raises(SyncError, match="engine 0 received version 2, version 3 was published"):
        publish(Learner(), Engines(BUCKETS, version=2))


def test_a_failing_side_cancels_the_other_and_its_own_error_comes_out() -> None:
    engines = Engines(BUCKETS, hang=True)
    with pytest.raises(RuntimeError, match="rank 1 died"):
        publish(Learner(error=RuntimeError("rank 1 died")), engines)
    assert engines.cancelled


def test_when_both_ends_fail_both_are_heard() -> None:
    """A receiver that died is a broken connection to its sender, which says so first."""

    class Dying(Engines):
        async def receive(self, version: int) -> list[WeightManifest]:
            await asyncio.sleep(0.02)
            raise SyncError("engine-1 died")

    with pytest.raises(SyncError, match=r"(?s)engine-1 died.*connection broke"):
        publish(Learner(SyncError("connection broke")), Dying(BUCKETS))
