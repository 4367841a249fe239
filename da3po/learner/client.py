"""The learner as the controller sees it: its ranks behind the `Learner` Protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from da3po.config.schema import ParallelConfig
from da3po.learner.spec import LearnerSpec
from da3po.sync import SyncError
from da3po.types import BucketSum, MicroBatch, PackedStep, StepStats, WeightManifest


class Ranks(Protocol):
    """The processes of a learner, each with a `LearnerRank`. The first exception on any rank is raised."""

    async def call_all(self, method: str, *args: Any) -> list[Any]:
        """The same call on every rank; results in the order of ranks."""
        ...

    async def call_each(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A call with arguments of its own on every rank."""
        ...


async def start_learner(ranks: Ranks, spec: LearnerSpec, master_address: str, master_port: int) -> RemoteLearner:
    """Set up fresh ranks, which meet at a free port of rank 0's host."""
    world_size = spec.parallel.num_ranks
    await ranks.call_each("init", [(rank, world_size, master_address, master_port) for rank in range(world_size)])
    await ranks.call_all("setup", spec)
    return RemoteLearner(ranks, spec.parallel, host=master_address)


class RemoteLearner:
    """A learner whose ranks are set up."""

    def __init__(self, ranks: Ranks, parallel: ParallelConfig, host: str) -> None:
        """host: address of rank 0's host, where the weight channel's store listens."""
        self._ranks = ranks
        self._parallel = parallel
        self._host = host

    async def step(self, batch: PackedStep) -> StepStats:
        """Each rank gets the micro-batches of its data-parallel index. Metrics are the same on all ranks."""
        per_dp = [updates_of(batch, dp) for dp in range(self._parallel.dp)]
        args = [(batch.step, per_dp[dp_index(rank, self._parallel)]) for rank in range(self._parallel.num_ranks)]
        metrics = await self._ranks.call_each("step", args)
        return StepStats(metrics[0])

    async def open_channel(self, num_receivers: int) -> str:
        addresses = await self._ranks.call_all("open_channel", num_receivers, self._host)
        return str(addresses[0])

    async def publish(self, version: int) -> WeightManifest:
        """Raises SyncError if a rank could not send, which leaves the learner as it was."""
        try:
            sent: list[tuple[BucketSum, ...]] = await self._ranks.call_all("publish", version)
        except Exception as error:
            if isinstance(getattr(error, "cause", None), SyncError):
                raise SyncError(str(error)) from error
            raise
        # Ranks are in the order of pipeline stages, and all but one of each stage have sent nothing.
        return WeightManifest(version=version, buckets=tuple(bucket for buckets in sent for bucket in buckets))

    async def save(self, path: Path) -> None:
        await self._ranks.call_all("save", path)

    async def start_saving(self, path: Path) -> None:
        await self._ranks.call_all("start_saving", path)

    async def is_saving(self) -> bool:
        return any(await self._ranks.call_all("is_saving"))

    async def finish_saving(self) -> None:
        await self._ranks.call_all("finish_saving")

    async def load(self, path: Path) -> None:
        await self._ranks.call_all("load", path)

    async def load_weights(self, path: Path) -> None:
        await self._ranks.call_all("load_weights", path)

    async def export(self, path: Path) -> None:
        await self._ranks.call_all("export", path)

    async def close(self) -> None:
        await self._ranks.call_all("close")


def dp_index(rank: int, parallel: ParallelConfig) -> int:
    """The data-parallel index of a rank. Ranks are numbered with tp fastest, then cp, dp and pp, as Megatron does."""
    return rank // (parallel.tp * parallel.cp) % parallel.dp


def updates_of(batch: PackedStep, dp: int) -> tuple[tuple[MicroBatch, ...], ...]:
    """The micro-batches of each update that go to data-parallel index `dp`."""
    return tuple(update.micro_batches[dp] for update in batch.updates)
