"""Do a checkpoint and a model directory hold the same model? Key set, shapes, bytes, checksums, log-probs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from da3po.conversion.probe import Probe, build_probe, transformers_logprobs
from da3po.models.checkpoint_names import place_in_checkpoint
from da3po.models.distributed_io import DistributedReader
from da3po.models.families import Weight, hf_shapes, owned_weights, whole_model
from da3po.models.hf_config import ModelSpec, read_model_spec
from da3po.models.safetensors_io import INDEX, CheckpointReader

TOLERANCE = 1e-4

LearnerLogprobs = Callable[[Path, Path, Probe, str | None], Tensor]
"""(checkpoint, folder of its config.json, probe, dtype to round weights to) -> [rows, T] log-probs of the learner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at. detail: what was found, in words."""

    name: str
    passed: bool
    detail: str


@dataclass(slots=True, kw_only=True)
class Proof:
    """tensors: HF name -> shape, dtype and blake2b of its bytes in the model directory."""

    checks: list[Check] = field(default_factory=list)
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def add(self, name: str, problems: Sequence[str], detail: str) -> None:
        """A check that holds if there are no problems; the first few are told."""
        told = "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
        self.checks.append(Check(name=name, passed=not problems, detail=told or detail))


RoundTrip = Callable[[Weight, Tensor, Sequence[Tensor]], Iterator[tuple[str, Tensor, Tensor]]]
"""(parameter, its value in the checkpoint, its tensors in the model directory) -> (name, one, other) to be the same."""


def _from_checkpoint(weight: Weight, fused: Tensor, parts: Sequence[Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The exported tensors make up the parameter again, padding of the vocabulary aside."""
    again = weight.layout.shard(parts, 0, 1)
    yield weight.megatron, fused[: len(again)].to(again.dtype), again


def _from_model(weight: Weight, fused: Tensor, parts: Sequence[Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The parameter comes apart into the tensors that it was made of."""
    yield from zip(weight.hf, parts, weight.layout.join([fused]), strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """Which of the two was made of the other.

    back: the way back of the conversion. files_are_ours: the model directory holds what its config asks for and nothing
    else, in the dtype that its config names, which weights were rounded to.
    """

    back: RoundTrip
    files_are_ours: bool


EXPORT = Direction(back=_from_checkpoint, files_are_ours=True)
IMPORT = Direction(back=_from_model, files_are_ours=False)


def prove(
    checkpoint: Path, model_dir: Path, direction: Direction, *, learner: LearnerLogprobs | None, tolerance: float
) -> Proof:
    """Hold the two against each other. learner: runs the learner's model, and its errors are raised; None leaves
    log-probs out."""
    proof = Proof()
    spec = read_model_spec(model_dir)
    try:
        files, weights = CheckpointReader(model_dir), DistributedReader(checkpoint)
        _prove_names(proof, files, model_dir, spec, direction)
        _prove_tensors(proof, weights, files, spec, direction.back)
        if learner is None:
            return proof
        rounded = direction.files_are_ours and _is_rounded(weights, spec)
        probe = build_probe(model_dir, spec)
        theirs = transformers_logprobs(model_dir, probe)
    except (OSError, ValueError, RuntimeError) as error:  # what is broken enough cannot be compared
        proof.add("readable", [str(error)], "")
        return proof
    # Not among what is caught: a learner that cannot be run says nothing of the model.
    ours = learner(checkpoint, model_dir, probe, spec.dtype if rounded else None)
    _prove_logprobs(proof, ours, theirs, tolerance)
    return proof


def _prove_names(proof: Proof, files: CheckpointReader, model_dir: Path, spec: ModelSpec, direction: Direction) -> None:
    shapes = hf_shapes(spec, whole_model(spec))
    missing = [f"{name} is missing" for name in sorted(shapes.keys() - files.names())]
    more = sorted(files.names() - shapes.keys()) if direction.files_are_ours else []
    proof.add(
        "key set",
        missing + [f"{name} is too much" for name in more],
        f"{len(shapes)} tensors, as the table of {spec.family} has them",
    )
    if direction.files_are_ours:
        wanted = sum(torch.Size(shape).numel() for shape in shapes.values()) * getattr(torch, spec.dtype).itemsize
        found = sum(_data_bytes(file) for file in model_dir.glob("*.safetensors"))
        wrong = [] if found == wanted else [f"the files hold {found} bytes of tensors, {wanted} are expected"]
        index = model_dir / INDEX
        if index.is_file() and json.loads(index.read_text())["metadata"]["total_size"] != wanted:
            wrong.append(f"{INDEX} says another total_size than {wanted}")
        proof.add("total bytes", wrong, f"{wanted} bytes of {spec.dtype}")


def _data_bytes(file: Path) -> int:
    """Bytes of a safetensors file behind its header."""
    with file.open("rb") as stream:
        return file.stat().st_size - 8 - int.from_bytes(stream.read(8), "little")


def _prove_tensors(
    proof: Proof, checkpoint: DistributedReader, files: CheckpointReader, spec: ModelSpec, back: RoundTrip
) -> None:
    shapes, differing = [], []
    for weight in owned_weights(spec, whole_model(spec)):
        fused = checkpoint.read(place_in_checkpoint(weight.megatron))
        try:
            parts = [files.read(name, shape) for name, shape in weight.hf.items()]
        except ValueError as error:
            shapes.append(str(error))
            continue
        for name, part in zip(weight.hf, parts, strict=True):
            proof.tensors[name] = _describe(part)
        differing += [name for name, one, other in back(weight, fused, parts) if not _same_bytes(one, other)]
    proof.add("shapes", shapes, "as config.json makes them")
    proof.add(
        "round trip",
        [f"{name} comes back with other bytes" for name in differing],
        f"{len(proof.tensors)} tensors come back byte for byte",
    )


def _describe(tensor: Tensor) -> dict[str, Any]:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "blake2b": hashlib.blake2b(data, digest_size=16).hexdigest(),
    }


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    """Equal in every bit: a NaN is itself, and 0 is not -0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.dtype.itemsize]
    return torch.equal(one.contiguous().view(words), other.contiguous().view(words))


def _prove_logprobs(proof: Proof, ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    """The learner's log-probs, of weights rounded as the model directory has them, against those of transformers."""
    apart = float((ours - theirs).abs().max())
    found = f"learner and transformers differ by at most {apart:.1e} over {theirs.numel()} log-probs"
    # Not `apart > tolerance`, which a NaN passes.
    proof.add("log-probs", [] if apart <= tolerance else [f"{found}, {tolerance:.0e} is allowed"], found)


def _is_rounded(weights: DistributedReader, spec: ModelSpec) -> bool:
    places = [place_in_checkpoint(weight.megatron) for weight in owned_weights(spec, whole_model(spec))]
    wanted = getattr(torch, spec.dtype)
    return any(torch.promote_types(weights.dtype(place), wanted) != wanted for place in places)
