"""Gradient norms of the parts of the model: the embedding, each layer, the last norm, the output layer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor

from da3po.learner.megatron.model import PolicyModel


class LayerNorms(Protocol):
    """The norms of the gradients that the buffers hold after all reductions, before clipping."""

    def measure(self) -> dict[str, float]:
        """Part of the model -> norm, over all ranks and the same on each; all ranks together."""
        ...


class NoLayerNorms:
    def measure(self) -> dict[str, float]:
        return {}


class MeasuredLayerNorms:
    """A sum of squares per part over this rank's own gradients, then one reduction over the world."""

    def __init__(self, ddps: Sequence[DistributedDataParallel], models: Sequence[PolicyModel]) -> None:
        """ddps, models: this rank's stages; all ranks together. Errors: ValueError for a parameter of no known part."""
        own: list[tuple[str, Tensor]] = []
        names: set[str] = set()
        for ddp, model in zip(ddps, models, strict=True):
            first_layer = model.stage().first_layer
            parts = {value: part_of(name, first_layer) for name, value in model.named_parameters()}
            # The last stage's copy of a tied embedding is no part of its own.
            names.update(part for value, part in parts.items() if param_is_not_shared(value))
            own += [(parts[value], share) for value, share in _own_gradients(ddp) if _counts(value)]
        of_ranks: list[set[str]] = [set() for _ in range(dist.get_world_size())]
        dist.all_gather_object(of_ranks, names)
        self._parts = sorted(set().union(*of_ranks))
        self._own = [(self._parts.index(part), share) for part, share in own]
        self._device = next(models[0].parameters()).device

    def measure(self) -> dict[str, float]:
        squares = torch.zeros(len(self._parts), dtype=torch.float64, device=self._device)
        for number, share in self._own:
            squares[number] += torch.linalg.vector_norm(share, dtype=torch.float64) ** 2
        dist.all_reduce(squares)
        return dict(zip(self._parts, squares.sqrt().tolist(), strict=True))


def build_layer_norms(
    wanted: bool, ddps: Sequence[DistributedDataParallel], models: Sequence[PolicyModel]
) -> LayerNorms:
    return MeasuredLayerNorms(ddps, models) if wanted else NoLayerNorms()


def _own_gradients(ddp: DistributedDataParallel) -> Iterator[tuple[torch.nn.Parameter, Tensor]]:
    """Each parameter with that part of its gradient, a view, which the distributed optimizer leaves to this rank: a
    bucket is cut into as many equal shares as it has data-parallel ranks, wherever its parameters begin and end."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    for buffer in ddp.buffers:
        for bucket in buffer.buckets:
            size = bucket.grad_data.numel() // group.size()
            begin = group.rank() * size
            for parameter in bucket.params_list:
                first, last, _ = buffer.param_index_map[parameter]
                low, high = max(first - bucket.offset, begin), min(last - bucket.offset, begin + size)
                if low < high:
                    yield parameter, bucket.grad_data[low:high]


def _counts(parameter: torch.nn.Parameter) -> bool:
    """Whether no other rank has the same parameter and counts it, as in Megatron's gradient norm."""
    return param_is_not_shared(parameter) and param_is_not_tensor_parallel_duplicate(parameter)


def part_of(name: str, first_layer: int) -> str:
    """The part of the model that a parameter belongs to. first_layer: of its stage, counted from 0.

    Layers have two digits or more, so that names sort as the model runs.
    """
    if layer := re.match(r"decoder\.layers\.(\d+)\.", name):
        return f"layer_{first_layer + int(layer[1]):02d}"
    for prefix, part in (
        ("embedding.", "embedding"),
        ("decoder.final_layernorm.", "final_norm"),
        ("output_layer.", "output_layer"),
    ):
        if name.startswith(prefix):
            return part
    raise ValueError(f"parameter {name} belongs to no known part of the model")
