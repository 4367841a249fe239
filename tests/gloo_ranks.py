"""Learners in real gloo processes, one after another: starting a process with Megatron takes seconds.

What they see they leave on disk for the tests to compare.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.multiprocessing as mp

from da3po.cluster.network import free_port
from da3po.config.schema import ParallelConfig


class Item(Protocol):
    """One learner. out: a folder of its own. receives: a process besides takes the weights that it publishes."""

    @property
    def out(self) -> str: ...
    @property
    def parallel(self) -> ParallelConfig: ...
    @property
    def receives(self) -> bool: ...


T = TypeVar("T", bound=Item)
Work = Callable[[T, int, int], None]
"""Of one rank: the item, its rank, and the port at which the ranks meet."""


def run_on_ranks(work: Work[T], items: Sequence[T], *, num_versions: int = 1, timeout: float = 400.0) -> None:
    """Take every item through `work`, in as many processes as the largest needs. Errors: the first of any.

    work: a function of a module. num_versions: publications that a receiver takes, from version 1.
    """
    num_processes = max(item.parallel.num_ranks + item.receives for item in items)
    context = mp.start_processes(
        _go_through, args=(work, tuple(items), num_versions), nprocs=num_processes, join=False, start_method="spawn"
    )
    try:
        if not _join(context, timeout):
            raise TimeoutError(f"learners did not end within {timeout:g} s")
    finally:
        for process in context.processes:
            process.kill()


def _join(context: mp.ProcessContext, timeout: float) -> bool:
    """Whether all processes ended in time. `join` returns at each one that ends."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        if context.join(timeout=left):
            return True
    return False


def _go_through(rank: int, work: Work[T], items: Sequence[T], num_versions: int) -> None:
    torch.set_num_threads(1)
    for item in items:
        out = Path(item.out)
        if rank == 0:
            # Only now: a port that is chosen long before it is used may be another's by then.
            tell(out / "port", str(free_port()))
        if rank < item.parallel.num_ranks:
            work(item, rank, int(wait_for(out / "port")))
            # A group's threads end with the last reference to it, and until then spin on what its peers have closed.
            gc.collect()
        elif item.receives and rank == item.parallel.num_ranks:
            _receive(out, num_versions)
    assert "vllm" not in sys.modules and "ray" not in sys.modules


def tell(path: Path, text: str) -> None:
    """Write a file that other processes wait for; it appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def wait_for(path: Path) -> str:
    while not path.exists():
        time.sleep(0.02)
    return path.read_text()


def open_channel(learner: Any, out: Path, rank: int) -> None:
    """The learner's end of the weight channel to the item's receiver."""
    address = learner.open_channel(1, "127.0.0.1")
    if rank == 0:
        tell(out / "address", address)


def _receive(out: Path, num_versions: int) -> None:
    """The engine's end. Leaves the weights and the manifest of every version."""
    from da3po.sync.channel import ReceiverChannels
    from da3po.sync.receive import receive_weights

    channels = ReceiverChannels(wait_for(out / "address"), 0, timeout=60.0)
    received: list[dict[str, Any]] = []
    for version in range(1, num_versions + 1):
        weights: dict[str, torch.Tensor] = {}

        def keep(pairs: list[tuple[str, torch.Tensor]], into: dict[str, torch.Tensor] = weights) -> None:
            into.update({name: tensor.clone() for name, tensor in pairs})

        manifest = receive_weights(channels, version, keep)
        received.append({"weights": weights, "manifest": manifest})
    torch.save(received, out / "received.pt")
    channels.close()
