"""Learners that begin with imported checkpoints, in real gloo processes; what they leave is converted by the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gloo_ranks import run_on_ranks
from learner_ranks import Scenario, packed_step

from da3po.config.schema import ParallelConfig
from da3po.learner.client import dp_index, updates_of


@dataclass(frozen=True, kw_only=True)
class Case:
    """scenario: layout, a model directory of the same shape and other weights, and where to leave what was seen.

    imported: the checkpoint to take the weights of.
    """

    scenario: Scenario
    imported: str

    @property
    def out(self) -> str:
        return self.scenario.out

    @property
    def parallel(self) -> ParallelConfig:
        return self.scenario.parallel

    @property
    def receives(self) -> bool:
        return False


def run_cases(cases: Sequence[Case], timeout: float) -> None:
    """Each rank leaves rank<i>.pt in the case's folder, and all together the checkpoints `untrained` and `trained`."""
    run_on_ranks(_run, cases, timeout=timeout)


def _run(case: Case, rank: int, port: int) -> None:
    from da3po.learner.megatron.worker import LearnerRank

    parallel, out = case.parallel, Path(case.out)
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
