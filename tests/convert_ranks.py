"""Learners that begin with imported checkpoints, in real gloo processes; what they leave is converted by the tests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from learner_ranks import Scenario, _free_port, _tell, _wait_for, packed_step

from da3po.learner.client import dp_index, updates_of


@dataclass(frozen=True, kw_only=True)
class Case:
    """scenario: layout, a model directory of the same shape and other weights, and where to leave what was seen.

    imported: the checkpoint to take the weights of.
    """

    scenario: Scenario
    imported: str


FRESH_EVERY = 16
"""Cases that the same processes go through: what gloo leaves behind of each adds up."""


def run_cases(cases: Sequence[Case], timeout: float = 900.0) -> None:
    """Each rank leaves rank<i>.pt in the case's folder, and all together the checkpoints `untrained` and `trained`.

    timeout: of FRESH_EVERY cases.
    """
    for first in range(0, len(cases), FRESH_EVERY):
        _run_together(cases[first : first + FRESH_EVERY], time.monotonic() + timeout)


def _run_together(cases: Sequence[Case], deadline: float) -> None:
    num_processes = max(case.scenario.parallel.num_ranks for case in cases)
    context = mp.start_processes(
        _run_rank, args=(tuple(cases),), nprocs=num_processes, join=False, start_method="spawn"
    )
    try:
        # `join` returns at each process that ends.
        while not context.join(timeout=max(0.0, deadline - time.monotonic())):
            if time.monotonic() > deadline:
                raise TimeoutError("learners did not end in time")
    finally:
        for process in context.processes:
            process.kill()


def _run_rank(rank: int, cases: Sequence[Case]) -> None:
    torch.set_num_threads(1)
    for case in cases:
        out = Path(case.scenario.out)
        if rank == 0:
            _tell(out / "port", str(_free_port()))
        if rank < case.scenario.parallel.num_ranks:
            _run(case, rank, int(_wait_for(out / "port")), out)


def _run(case: Case, rank: int, port: int, out: Path) -> None:
    from da3po.learner.megatron.worker import LearnerRank

    parallel = case.scenario.parallel
    learner = LearnerRank()
    learner.init(rank, parallel.num_ranks, "127.0.0.1", port)
    learner.setup(case.scenario.spec)
    updates = updates_of(packed_step(case.scenario, 1), dp_index(rank, parallel))
    learner.load_weights(Path(case.imported) / "learner")
    seen: dict[str, Any] = {"untrained": learner.logprobs(updates[0])}
    _save(learner, rank, out / "untrained")
    learner.step(1, updates)
    seen["trained"] = learner.logprobs(updates[0])
    _save(learner, rank, out / "trained")
    torch.save(seen, out / f"rank{rank}.pt")
    learner.close()


def _save(learner: Any, rank: int, path: Path) -> None:
    import torch.distributed as dist

    if rank == 0:
        path.mkdir()
    dist.barrier()
    learner.save(path)
