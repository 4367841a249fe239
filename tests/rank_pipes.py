"""A real learner, one process for each rank, behind pipes: what a run has under Ray, without Ray.

The processes outlive a learner, for starting one with Megatron takes seconds.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any


def serve(pipe: Connection) -> None:
    """Lives in a rank's process: answers every call with its result or with what it raised."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from da3po.learner.megatron.worker import LearnerRank

    torch.set_num_threads(1)
    rank = LearnerRank()
    while True:
        method, args = pipe.recv()
        if method == "new":
            rank = LearnerRank()
            pipe.send((None, None))
            continue
        try:
            result = _weights(rank) if method == "weights" else getattr(rank, method)(*args)
            pipe.send((result, None))
        except Exception as error:  # noqa: BLE001 told to whoever called
            pipe.send((None, f"{type(error).__name__}: {error}"))


def _weights(rank: Any) -> dict[str, Any]:
    from da3po.learner.megatron.weights import hf_stream

    return {name: tensor.clone() for name, tensor in hf_stream(rank.trainer.models)}


class RankProcesses:
    def __init__(self, count: int) -> None:
        context = mp.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(there,), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def learner(self, count: int) -> PipedRanks:
        """Fresh ranks in the first `count` processes."""
        for pipe in self._pipes[:count]:
            pipe.send(("new", ()))
        for pipe in self._pipes[:count]:
            pipe.recv()
        return PipedRanks(self._pipes[:count])

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


class PipedRanks:
    """The `Ranks` of a RemoteLearner. Calls run one after another, as an actor's do."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes
        self._lock = asyncio.Lock()

    async def call_all(self, method: str, *args: Any) -> list[Any]:
        return await self.call_each(method, [args] * len(self._pipes))

    async def call_each(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        async with self._lock:
            for pipe, own in zip(self._pipes, args, strict=True):
                pipe.send((method, own))
            answers = await asyncio.gather(*(asyncio.to_thread(pipe.recv) for pipe in self._pipes))
        errors = [error for _, error in answers if error]
        if errors:
            raise RuntimeError(errors[0])
        return [result for result, _ in answers]
