"""Process groups of one rank, and where it stands in the layout.

Ranks are numbered as Megatron does by default, tp fastest, then cp, dp and pp: rank = tp + TP (cp + CP (dp + DP pp)).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from da3po.config.schema import ParallelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """tp, cp, dp, pp: this rank's index along each axis. last_stage: it has the loss."""

    tp: int
    cp: int
    dp: int
    pp: int
    last_stage: bool

    @property
    def sends_weights(self) -> bool:
        """One rank of each pipeline stage has the gathered weights and speaks for the stage."""
        return self.tp == 0 and self.cp == 0 and self.dp == 0


def join(rank: int, world_size: int, address: str, port: int, backend: str, timeout: float = 1800.0) -> None:
    """Join the learner's default process group, hosted by rank 0 at address:port."""
    dist.init_process_group(
        backend,
        init_method=f"tcp://{address}:{port}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout),
    )


def split(parallel: ParallelConfig, seed: int) -> Position:
    """Make the groups of the layout and seed this rank. Errors: ValueError if the layout does not fill the world."""
    if parallel.num_ranks != dist.get_world_size():
        raise ValueError(f"layout of {parallel.num_ranks} ranks on {dist.get_world_size()} processes")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tp,
        pipeline_model_parallel_size=parallel.pp,
        virtual_pipeline_model_parallel_size=parallel.vpp if parallel.vpp > 1 else None,
        context_parallel_size=parallel.cp,
    )
    model_parallel_cuda_manual_seed(seed)
    return Position(
        tp=parallel_state.get_tensor_model_parallel_rank(),
        cp=parallel_state.get_context_parallel_rank(),
        dp=parallel_state.get_data_parallel_rank(),
        pp=parallel_state.get_pipeline_model_parallel_rank(),
        last_stage=parallel_state.is_pipeline_last_stage(),
    )


def leave() -> None:
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
