"""An engine in a process of its own that takes weights over a real channel, and samples nothing but what it holds.

A sample's tokens are the values found in all its tensors: one value, the version, if the weights are of one piece.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import signal
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import torch

from da3po.engine.protocol import EngineError
from da3po.sync.channel import ReceiverChannels, SourceChannel
from da3po.sync.receive import receive_weights
from da3po.sync.send import send_weights
from da3po.sync.store import ChannelPlan, host_store
from da3po.types import Completion, GroupRequest, GroupResult, StepStats, WeightManifest

TIMEOUT = 20.0
NUM_TENSORS = 12
CONTEXT = mp.get_context("forkserver")
CONTEXT.set_forkserver_preload(["engine_light"])


def weights(version: int) -> list[tuple[str, torch.Tensor]]:
    return [(f"w{i}", torch.full((1000 + i,), float(version))) for i in range(NUM_TENSORS)]


class LightEngine:
    """Calls are answered one after another, but for the heartbeat, which says whether the process lives."""

    def __init__(self) -> None:
        self._wire, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._thread = ThreadPoolExecutor(1)
        self.num_aborted_tokens = 0
        self.dies_after: int | None = None  # buckets of the next publication

    async def _call(self, method: str, *args: Any) -> Any:
        def ask() -> Any:
            self._wire.send((method, args))
            return self._wire.recv()

        try:
            is_error, value = await asyncio.get_running_loop().run_in_executor(self._thread, ask)
        except (EOFError, OSError) as error:
            raise EngineError("the process is gone") from error
        if is_error:
            raise EngineError(value)
        return value

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        for request in requests:
            version, values = await self._call("sample")
            completion = Completion(
                token_ids=values, logprobs=(-1.0,) * len(values), text="", finish="stop", weight_version=version
            )
            yield GroupResult(key=request.key, completions=(completion,) * len(request.seeds))

    async def open_channel(self, address: str, rank: int) -> None:
        await self._call("open_channel", address, rank)

    async def receive(self, version: int) -> WeightManifest:
        dies_after, self.dies_after = self.dies_after, None
        return await self._call("receive", version, dies_after)

    async def heartbeat(self) -> int:
        if not self._process.is_alive():
            raise EngineError("the process is gone")
        return 0

    async def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.kill()


class _Served:
    def __init__(self) -> None:
        self._held = dict(weights(0))
        self._version = 0
        self._channels: ReceiverChannels | None = None

    def sample(self) -> tuple[int, tuple[int, ...]]:
        values = torch.cat(list(self._held.values())).unique()
        return self._version, tuple(int(value) for value in values)

    def open_channel(self, address: str, rank: int) -> None:
        if self._channels is not None:
            self._channels.close()
        self._channels = ReceiverChannels(address, rank, TIMEOUT)

    def receive(self, version: int, dies_after: int | None) -> WeightManifest:
        num_buckets = 0

        def load(tensors: list[tuple[str, torch.Tensor]]) -> None:
            nonlocal num_buckets
            if num_buckets == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)
            num_buckets += 1
            for name, tensor in tensors:
                self._held[name] = tensor.clone()

        assert self._channels is not None
        manifest = receive_weights(self._channels, version, load)
        self._version = version
        return manifest


def _serve(wire: Connection) -> None:
    torch.set_num_threads(1)
    served = _Served()
    while True:
        method, args = wire.recv()
        try:
            answer = (False, getattr(served, method)(*args))
        except Exception as error:  # noqa: BLE001 - the other process raises it
            answer = (True, f"{type(error).__name__}: {error}")
        wire.send(answer)


class ChannelLearner:
    """The learner's end of real channels. Its calls queue, as those of a rank do."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._channel: SourceChannel | None = None
        self.num_channels = 0

    async def open_channel(self, num_receivers: int) -> str:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._open, num_receivers)

    async def publish(self, version: int) -> WeightManifest:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._publish, version)

    async def step(self, batch: object) -> StepStats:
        return StepStats()

    def _open(self, num_receivers: int) -> str:
        if self._channel is not None:
            self._channel.close()
        store, address = host_store(
            ChannelPlan(backend="gloo", num_stages=1, num_receivers=num_receivers, shared_memory=True), TIMEOUT
        )
        self._channel = SourceChannel(store, address, 0, TIMEOUT)
        self.num_channels += 1
        return address

    def _publish(self, version: int) -> WeightManifest:
        assert self._channel is not None
        return WeightManifest(version=version, buckets=send_weights(self._channel, version, weights(version), 1))
