"""Weights from a Hugging Face directory to Megatron's distributed format and back, by the family's table.

The distributed format knows no layout: every rank of any layout reads its part of whole tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from da3po.config.schema import ConfigError
from da3po.models.checkpoint_names import FORMAT, place_in_checkpoint
from da3po.models.distributed_io import DistributedReader, Piece, write_distributed
from da3po.models.families import hf_shapes, owned_weights, whole_model
from da3po.models.hf_config import ModelSpec
from da3po.models.safetensors_io import CheckpointReader, plan_files, write_file, write_index


def export_weights(checkpoint: Path, spec: ModelSpec, target: Path, dtype: torch.dtype, max_bytes: int) -> None:
    """Write the safetensors files of a checkpoint into `target`, no file above `max_bytes` unless one tensor is."""
    stages = plan_files([hf_shapes(spec, whole_model(spec))], dtype, max_bytes)
    stream = stream_checkpoint(DistributedReader(checkpoint), spec)
    for plan in stages[0]:
        write_file(target, plan, dtype, stream)
    write_index(target, stages, dtype)


def stream_checkpoint(reader: DistributedReader, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    """(HF name, tensor) of everything in a checkpoint, in the table's order; mapped where that is possible."""
    for weight in owned_weights(spec, whole_model(spec)):
        place = place_in_checkpoint(weight.megatron)
        if not weight.layout.is_stack:
            yield from zip(weight.hf, weight.layout.join([reader.read(place)]), strict=True)
            continue
        first = 0
        for name, shape in weight.hf.items():
            yield name, reader.read(place, rows=(first, first + shape[0]))
            first += shape[0]


def import_weights(model_dir: Path, spec: ModelSpec, target: Path) -> None:
    """Write the weights of a model directory, as they are stored, as a checkpoint into `target`, an existing directory.

    Raises:
        ConfigError: the directory has no safetensors files, or not the tensors that its config asks for.
    """
    reader = open_model(model_dir)
    check_names(spec, reader.names(), model_dir)
    write_distributed(target, _pieces(reader, spec), {"format": FORMAT, "layout": None, "num_skipped_in_a_row": 0})


def open_model(model_dir: Path) -> CheckpointReader:
    try:
        return CheckpointReader(model_dir)
    except FileNotFoundError as error:
        raise ConfigError(f"{error}; weights in other files (.bin, .gguf) are not read") from error


def check_names(spec: ModelSpec, names: frozenset[str], model_dir: Path) -> None:
    """Raises ConfigError naming tensors that are missing, or there and of no known meaning.

    Copies of a tied embedding, and rotary frequencies that old files kept, change nothing and are passed over.
    """
    wanted = hf_shapes(spec, whole_model(spec)).keys()
    if missing := sorted(wanted - names):
        raise ConfigError(f"{model_dir} has no {_some(missing)}, which its config.json asks for")
    harmless = {"lm_head.weight"} if spec.tied else set()
    unknown = sorted(name for name in names - wanted - harmless if not name.endswith("rotary_emb.inv_freq"))
    if unknown:
        raise ConfigError(f"{model_dir} has {_some(unknown)}, which no {spec.family} model of its config has")


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def _pieces(reader: CheckpointReader, spec: ModelSpec) -> Iterator[Piece]:
    for weight in owned_weights(spec, whole_model(spec)):
        parts = [reader.read(name, shape) for name, shape in weight.hf.items()]
        if not weight.layout.is_stack:
            parts = [weight.layout.shard(parts, 0, 1)]
        num_rows = sum(len(part) for part in parts)
        first = 0
        for part in parts:
            yield Piece(
                place=place_in_checkpoint(weight.megatron),
                num_layers=spec.num_layers,
                first_row=first,
                num_rows=num_rows,
                tensor=part,
            )
            first += len(part)
