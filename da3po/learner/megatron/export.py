"""The trained weights as a Hugging Face model directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from da3po.learner.megatron.model import PolicyModel
from da3po.learner.megatron.process_groups import Position
from da3po.learner.megatron.weights import drain, hf_stream
from da3po.models.companions import export_companions
from da3po.models.families import Stage, hf_shapes
from da3po.models.safetensors_io import plan_files, write_file, write_index


def export_hf(models: Sequence[PolicyModel], position: Position, companions: Mapping[str, bytes], target: Path) -> None:
    """Write `target`, in the dtype that the run's model directory has; all ranks together.

    companions: on rank 0, everything of that directory that is not weights (tokenizer, chat template, ...). It is
    written byte for byte, and config.json so that transformers 4 and 5 read the same. Each pipeline rank writes its own
    files, one tensor in memory at a time. The index, or the single file's name, is the same for every layout's readers.
    """
    spec = models[0].spec
    dtype: torch.dtype = getattr(torch, spec.dtype)
    of_ranks = [
        {name: shape for stage in stages for name, shape in hf_shapes(spec, stage).items()}
        for stages in _all_stages(models)
    ]
    files = plan_files(of_ranks, dtype)
    stream = hf_stream(models)
    if position.sends_weights:
        target.mkdir(parents=True, exist_ok=True)
        for plan in files[position.pp]:
            write_file(target, plan, dtype, stream)
    drain(stream)
    if dist.get_rank() == 0:
        export_companions(companions, target, spec.dtype)
        write_index(target, files, dtype)
    dist.barrier()


def _all_stages(models: Sequence[PolicyModel]) -> list[list[Stage]]:
    """The stages of every pipeline rank, in order."""
    group = parallel_state.get_pipeline_model_parallel_group()
    stages: list[list[Stage]] = [[] for _ in range(group.size())]
    dist.all_gather_object(stages, [model.stage() for model in models], group=group)
    return stages
