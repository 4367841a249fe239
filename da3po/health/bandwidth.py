"""How fast two processes of this node exchange tensors: over NCCL if it has two GPUs, else over gloo."""

from __future__ import annotations

import multiprocessing
import queue
import socket
import time
from datetime import timedelta
from typing import Any

from da3po.health.finding import Finding

LOOPBACK = "127.0.0.1"
ROUNDS = 5
TIMEOUT = 90.0
SLOW = {"gloo": 0.2, "nccl": 20.0}
"""GB/s below which something is wrong with the connection."""


def check_bandwidth(megabytes: int = 64) -> Finding:
    """A broadcast from one process to another, the best of some."""
    try:
        import torch  # may be what is missing here
    except (ImportError, OSError) as error:
        name = "broadcast between two processes"
        return Finding(topic="network", name=name, value="failed", status="problem", meaning=str(error))
    backend = "nccl" if torch.cuda.device_count() > 1 else "gloo"
    name = f"broadcast between two processes, {backend}"
    with socket.create_server((LOOPBACK, 0)) as probe:
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[Any] = context.Queue()
    processes = [
        context.Process(target=_take_part, args=(rank, backend, port, megabytes, answers), daemon=True)
        for rank in (0, 1)
    ]
    try:
        for process in processes:
            process.start()
        answer = answers.get(timeout=TIMEOUT)
    except queue.Empty:
        answer = f"no answer within {TIMEOUT:g} s"
    finally:
        for process in processes:
            process.kill()
            process.join()
    if isinstance(answer, str):
        return Finding(topic="network", name=name, value="failed", status="problem", meaning=answer)
    fast = answer >= SLOW[backend]
    return Finding(
        topic="network",
        name=name,
        value=f"{answer:.2f} GB/s",
        status="ok" if fast else "note",
        meaning="" if fast else f"slow: {SLOW[backend]} GB/s and more are usual",
    )


def _take_part(rank: int, backend: str, port: int, megabytes: int, answers: multiprocessing.Queue[Any]) -> None:
    try:
        answers_of = _measure(rank, backend, port, megabytes)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        answers.put(f"{type(error).__name__}: {error}")
        return
    if rank == 0:
        answers.put(answers_of)


def _measure(rank: int, backend: str, port: int, megabytes: int) -> float:
    """GB/s of the fastest round."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        backend, init_method=f"tcp://{LOOPBACK}:{port}", rank=rank, world_size=2, timeout=timedelta(seconds=TIMEOUT)
    )
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    data = torch.zeros(megabytes << 20, dtype=torch.uint8, device=device)
    best = float("inf")
    for _ in range(ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        dist.broadcast(data, src=0)
        dist.barrier()
        if backend == "nccl":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    dist.destroy_process_group()
    return data.nbytes / best / 1e9
