"""Log-probs of a text under the weights of a checkpoint, from the learner's own model, on one CPU process.

Run as a program of its own, which Megatron needs to be patched in before it is imported:
`python -m da3po.learner.megatron.probe REQUEST ANSWER`. The weights of a layer are in memory while it computes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from da3po.config.schema import LearnerConfig, ParallelConfig
from da3po.learner.megatron.worker import prepare_device
from da3po.models.checkpoint_names import place_in_checkpoint
from da3po.models.distributed_io import DistributedReader
from da3po.models.families import stage_weights, whole_model
from da3po.models.hf_config import ModelSpec, read_model_spec
from da3po.models.streamed import filled, stream_weights
from da3po.runtime.platform import resolve
from da3po.types import MicroBatch

if TYPE_CHECKING:
    from da3po.learner.megatron.model import PolicyModel


class ProbeError(RuntimeError):
    """The learner's model could not be run; the message is what its process said last."""


class Probe(Protocol):
    """T tokens, and rows of labels to ask the log-probs of. input_ids, position_ids: [T]. labels: [rows, T]."""

    @property
    def input_ids(self) -> list[int]: ...

    @property
    def position_ids(self) -> list[int]: ...

    @property
    def labels(self) -> list[list[int]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A probe and what to put it to, as it goes to the process."""

    checkpoint: str
    model_dir: str
    input_ids: list[int]
    position_ids: list[int]
    labels: list[list[int]]
    rounded_to: str | None


def learner_logprobs(checkpoint: Path, model_dir: Path, probe: Probe, rounded_to: str | None) -> Tensor:
    """[rows, T] fp32: log p(label) at each token, worked out by a process of its own.

    checkpoint: directory in Megatron's format. model_dir: of its config.json.
    rounded_to: dtype that every weight is rounded to before it is used, "bfloat16" and the like; None: as it is stored.
    Errors: ProbeError.
    """
    request = Request(
        checkpoint=str(checkpoint),
        model_dir=str(model_dir),
        input_ids=probe.input_ids,
        position_ids=probe.position_ids,
        labels=probe.labels,
        rounded_to=rounded_to,
    )
    with TemporaryDirectory(prefix="da3po-probe-") as folder:
        question, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        question.write_text(json.dumps(asdict(request)), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "da3po.learner.megatron.probe", str(question), str(answer)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ProbeError(f"the learner's model could not be run: {said[-1]}")
        return torch.tensor(json.loads(answer.read_text(encoding="utf-8")), dtype=torch.float32)


def main(arguments: list[str]) -> int:
    question, answer = map(Path, arguments)
    request = Request(**json.loads(question.read_text(encoding="utf-8")))
    prepare_device(resolve("cpu"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        answer.write_text(json.dumps(_logprobs(request).tolist()), encoding="utf-8")
    finally:
        dist.destroy_process_group()
    return 0


@torch.no_grad()
def _logprobs(request: Request) -> Tensor:
    from da3po.learner.megatron import process_groups

    process_groups.split(ParallelConfig(), seed=0)
    spec = read_model_spec(request.model_dir)
    model = _empty_model(spec)
    read = _weights(spec, model, Path(request.checkpoint), request.rounded_to)
    layers = [f"decoder.layers.{number}" for number in range(spec.num_layers)]
    stream_weights(model, ["embedding.word_embeddings", *layers, "decoder.final_layernorm"], read)
    batch = _micro_batch(request)
    hidden = model(batch.input_ids[None], batch.position_ids[None], None, packed_seq_params=model.pack(batch))
    head = "embedding.word_embeddings" if spec.tied else "output_layer"
    with filled(model.get_submodule(head), head, read):
        rows = [model.logprobs(hidden, torch.tensor(labels), 1.0)[0] for labels in request.labels]
    return torch.stack(rows)


def _empty_model(spec: ModelSpec) -> PolicyModel:
    """The learner's model in fp32. Its parameters are not written to, so they take no memory."""
    from da3po.learner.megatron.backend import CpuBackend
    from da3po.learner.megatron.context import WholeSequences
    from da3po.learner.megatron.model import PolicyModel, transformer_config

    backend = CpuBackend(WholeSequences())
    learner = LearnerConfig(device="cpu", precision="fp32")
    return PolicyModel(spec, transformer_config(spec, ParallelConfig(), learner, backend), backend, None).eval()


def _weights(spec: ModelSpec, model: PolicyModel, checkpoint: Path, rounded_to: str | None) -> Callable[[str], Tensor]:
    """Parameter's name -> its value in the checkpoint, in fp32."""
    reader = DistributedReader(checkpoint)
    tables = {
        model.backend.parameter_name(weight.megatron): weight for weight in stage_weights(spec, whole_model(spec))
    }

    def read(name: str) -> Tensor:
        tensor = reader.read(place_in_checkpoint(tables[name].megatron))
        if rounded_to is not None:
            tensor = tensor.to(getattr(torch, rounded_to))
        return tensor.float()

    return read


def _micro_batch(request: Request) -> MicroBatch:
    """One sequence, without anything to learn from."""
    length = len(request.input_ids)
    nothing = torch.zeros(length)
    return MicroBatch(
        input_ids=torch.tensor(request.input_ids),
        labels=torch.tensor(request.labels[0]),
        position_ids=torch.tensor(request.position_ids),
        cu_seqlens=torch.tensor([0, length], dtype=torch.int32),
        max_seqlen=length,
        segment_ids=torch.zeros(length, dtype=torch.int64),
        loss_mask=torch.zeros(length, dtype=torch.bool),
        weights=nothing,
        advantages=nothing,
        behaviour_logprobs=nothing,
        fresh=torch.zeros(length, dtype=torch.bool),
        num_sequences=1,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
