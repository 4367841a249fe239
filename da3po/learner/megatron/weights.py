"""Weights between Hugging Face checkpoints and this rank's model, by the tables of `da3po.models.families`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from da3po.learner.megatron.model import PolicyModel
from da3po.models.families import Weight, owned_weights, stage_weights
from da3po.models.safetensors_io import CheckpointReader


@torch.no_grad()
def load_hf(model: PolicyModel, model_dir: str) -> None:
    """Fill every parameter of this rank's model. Errors: ValueError if the model and the table differ in parameters."""
    parameters = dict(model.named_parameters())
    rank, size = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
    reader = CheckpointReader(model_dir)
    for weight in stage_weights(model.spec, model.stage()):
        parameter = _take(parameters, model, weight)
        parts = [reader.read(name, shape) for name, shape in weight.hf.items()]
        parameter.copy_(weight.layout.shard(parts, rank, size))
        _mark_split(parameter, weight.layout.split_axis)
    if parameters:
        raise ValueError(f"the model has parameters that its family's table does not name: {sorted(parameters)}")


def hf_stream(
    models: Sequence[PolicyModel], of: Callable[[torch.nn.Parameter], Tensor] = torch.Tensor.detach
) -> Iterator[tuple[str, Tensor]]:
    """(HF name, whole tensor) of everything that this pipeline rank owns, stage by stage in the table's order.

    of: what to take of a parameter, shaped like it: the weight itself, its gradient, ...
    All tensor-parallel ranks must run through it together, since each tensor is gathered from all of them; each gets
    all tensors. Vocabulary padding is cut. A tensor is valid until the next is asked for.
    """
    group = parallel_state.get_tensor_model_parallel_group()
    for model in models:
        parameters = dict(model.named_parameters())
        for weight in owned_weights(model.spec, model.stage()):
            shard = of(_take(parameters, model, weight))
            yield from zip(weight.hf, weight.layout.join(_gather(shard, group)), strict=True)


def drain(stream: Iterable[object]) -> None:
    """Take part in a stream's collectives without using what it gives."""
    for _ in stream:
        pass


def _take(parameters: dict[str, torch.nn.Parameter], model: PolicyModel, weight: Weight) -> torch.nn.Parameter:
    name = model.backend.parameter_name(weight.megatron)
    if name not in parameters:
        raise ValueError(f"the table names {weight.megatron}, and the model has no parameter {name}")
    return parameters.pop(name)


def _mark_split(parameter: torch.nn.Parameter, axis: int | None) -> None:
    """Tell Megatron that each tensor-parallel rank has a part of its own, so that all parts count in the gradient norm.

    Megatron does so as it initialises weights, which we leave out.
    """
    parameter.tensor_model_parallel = axis is not None  # type: ignore[attr-defined]
    parameter.partition_dim = -1 if axis is None else axis  # type: ignore[attr-defined]
    parameter.partition_stride = 1  # type: ignore[attr-defined]


def _gather(shard: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    if group.size() == 1:
        return [shard]
    shards = [torch.empty_like(shard) for _ in range(group.size())]
    dist.all_gather(shards, shard.contiguous(), group=group)
    return shards
