"""Training state in Megatron's distributed checkpoint format, which any other layout can load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject

from da3po.learner.megatron.model import PolicyModel
from da3po.learner.megatron.optimizer import Optimizer
from da3po.learner.megatron.versions import SHARDING

FORMAT = 1
"""Goes up when what is saved changes in a way that older code cannot read."""


def save(path: Path, models: Sequence[PolicyModel], optimizer: Optimizer) -> None:
    """Write weights, optimizer and random-number state to `path`, an existing empty directory; all ranks together."""
    dist_checkpointing.save(_state(models, optimizer, is_loading=False), str(path), content_metadata=SHARDING)


def load(path: Path, models: Sequence[PolicyModel], optimizer: Optimizer) -> None:
    """Take over what `save` wrote, on this layout or another; all ranks together.

    Random-number state belongs to a layout: it is restored on the same one, and left alone on another.
    Errors: ValueError if the checkpoint has another format.
    """
    common = dist_checkpointing.load_common_state_dict(str(path))
    if common.get("format") != FORMAT:
        raise ValueError(f"{path}: checkpoint format {common.get('format')}, this version reads {FORMAT}")
    wanted = _state(models, optimizer, is_loading=True)
    if common["layout"] != wanted["layout"]:
        del wanted["rng"]
    state = dist_checkpointing.load(wanted, str(path))
    for number, model in enumerate(models):
        model.load_state_dict(state["model"][str(number)])
    optimizer.inner.load_state_dict(state["optimizer"])
    optimizer.num_skipped_in_a_row = state["num_skipped_in_a_row"]
    if "rng" in state:
        _set_random_state(state["rng"])


def _state(models: Sequence[PolicyModel], optimizer: Optimizer, is_loading: bool) -> dict[str, Any]:
    metadata = SHARDING | {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    # What is on disk is named by layer of the whole model: which stage a tensor was in leaves no trace.
    model = {str(number): model.sharded_state_dict(metadata=metadata) for number, model in enumerate(models)}
    return {
        "format": FORMAT,
        "layout": _layout(),
        "num_skipped_in_a_row": optimizer.num_skipped_in_a_row,
        "model": model,
        "optimizer": optimizer.inner.sharded_state_dict(model, is_loading=is_loading, metadata=metadata),
        "rng": _random_state(),
    }


def _layout() -> dict[str, int]:
    return {
        "cp": parallel_state.get_context_parallel_world_size(),
        "tp": parallel_state.get_tensor_model_parallel_world_size(),
        "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        "dp": parallel_state.get_data_parallel_world_size(),
    }


def _random_state() -> ShardedObject:
    """This rank's random-number state, one piece of an object that all ranks make up together."""
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    state = {"torch": torch.get_rng_state(), "tracker": get_cuda_rng_tracker().get_states()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return ShardedObject("rng", state, (dist.get_world_size(),), (dist.get_rank(),), replica_id=0)


def _set_random_state(state: dict[str, Any]) -> None:
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    torch.set_rng_state(state["torch"])
    get_cuda_rng_tracker().set_states(state["tracker"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
