"""Learners that begin with imported checkpoints, in real gloo processes; what they leave is converted by the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from learner_ranks import Scenario, _free_port, _join, _tell, _wait_for, packed_step

from da3po.learner.client import dp_index, updates_of


@dataclass(frozen=True, kw_only=True)
class Case:
    """scenario: layout, a model directory of the same shape and other weights, and where to leave what was seen.

    imported: the checkpoint to take the weights of.
    """

    scenario: Scenario
    imported: str


def run_cases(cases: Sequence[Case], timeout: float = 900.0) -> None:
    """Each rank leaves rank<i>.pt in the case's folder, and all together the checkpoints `untrained` and `trained`."""
    num_processes = max(case.scenario.parallel.num_ranks for case in cases)
    context = mp.start_processes(
        _run_rank, args=(tuple(cases),), nprocs=num_processes, join=False, start_method="spawn"
    )
    try:
        if not _join(context, timeout):
            raise TimeoutError(f"learners did not end within {timeout:g} s")
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
