"""What learner ranks really hold and send: the part of tests/plan/test_plan_state.py that runs in gloo processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gloo_ranks import open_channel, run_on_ranks
from learner_ranks import Scenario, packed_step

from da3po.learner.client import dp_index, updates_of


@dataclass(frozen=True, kw_only=True)
class Held:
    """Counted on one rank. published: bytes of the buckets that it sent. rates: learning rates of its optimizer."""

    num_parameters: int
    num_buffer: int
    num_owned: int
    weights: int
    gradients: int
    optimizer: int
    published: int
    rates: tuple[Any, ...]


def measure(scenarios: Sequence[Scenario]) -> dict[str, list[Held]]:
    """Scenario name -> what each of its ranks held after one step."""
    run_on_ranks(_hold, scenarios)
    return {
        one.name: [
            torch.load(Path(one.out) / f"held{rank}.pt", weights_only=False) for rank in range(one.parallel.num_ranks)
        ]
        for one in scenarios
    }


def _hold(scenario: Scenario, rank: int, port: int) -> None:
    from da3po.learner.megatron.worker import LearnerRank

    out = Path(scenario.out)
    learner = LearnerRank()
    learner.init(rank, scenario.parallel.num_ranks, "127.0.0.1", port)
    learner.setup(scenario.spec)
    learner.step(1, updates_of(packed_step(scenario, 1), dp_index(rank, scenario.parallel)))
    published = 0
    if scenario.receives:
        open_channel(learner, out, rank)
        published = sum(bucket.num_bytes for bucket in learner.publish(1))
    torch.save(_count(learner.trainer, published), out / f"held{rank}.pt")
    learner.close()


def _count(trainer: Any, published: int) -> Held:
    buffers = [buffer for ddp in trainer.ddps for buffer in ddp.buffers]
    parameters = [parameter for model in trainer.models for parameter in model.parameters()]
    optimizers = trainer.optimizer.inner.chained_optimizers
    moments = [
        tensor
        for one in optimizers
        for state in one.optimizer.state.values()
        for name, tensor in state.items()
        if name in ("exp_avg", "exp_avg_sq")
    ]
    main = [
        part for one in optimizers for group in one.shard_fp32_from_float16_groups for part in group if part is not None
    ]
    return Held(
        num_parameters=sum(parameter.numel() for parameter in parameters),
        num_buffer=sum(buffer.numel for buffer in buffers),
        num_owned=sum(tensor.numel() for tensor in moments) // 2,
        weights=sum(buffer.param_data.nbytes for buffer in buffers),
        gradients=sum(buffer.grad_data.nbytes for buffer in buffers),
        optimizer=sum(tensor.nbytes for tensor in (*moments, *main)),
        published=published,
        rates=tuple(group["lr"] for group in trainer.optimizer.inner.param_groups),
    )
