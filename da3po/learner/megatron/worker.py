"""One rank of the learner, in a process of its own. Importing this module imports no Megatron."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from da3po.config.schema import Precision
from da3po.learner.megatron.determinism import fix_kernels
from da3po.learner.megatron.fields import check_device_fields
from da3po.learner.megatron.precision import check_device, check_machine
from da3po.learner.spec import LearnerSpec
from da3po.runtime.platform import Platform, resolve
from da3po.types import BucketSum, MicroBatch

if TYPE_CHECKING:
    from da3po.learner.megatron.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """This rank's number, and where rank 0 waits for the others."""

    rank: int
    world_size: int
    address: str
    port: int


class LearnerRank:
    """What the controller calls, by name, on every rank at the same time: `init`, `setup`, then anything, then `close`.

    An exception on one rank leaves the others waiting in a collective; whoever started the ranks ends them all.
    """

    def __init__(self) -> None:
        self._rendezvous: Rendezvous | None = None
        self._trainer: Trainer | None = None

    def init(self, rank: int, world_size: int, master_address: str, master_port: int) -> None:
        """Learn where to meet the other ranks; `setup` goes there."""
        self._rendezvous = Rendezvous(rank=rank, world_size=world_size, address=master_address, port=master_port)

    def setup(self, spec: LearnerSpec) -> None:
        """Join the other ranks and build model and optimizer. Errors: ConfigError for a device that cannot be had."""
        if self._rendezvous is None:
            raise RuntimeError("setup before init")
        if spec.learner.deterministic:
            fix_kernels()  # before anything looks at a device: cuBLAS reads its setting once
        platform = resolve(spec.learner.device)
        _check_precision(spec.learner.precision, platform)
        check_device_fields(spec.learner.megatron, platform.device)
        torch.set_num_threads(spec.learner.num_threads or max(1, platform.num_cores // self._rendezvous.world_size))
        prepare_device(platform)
        from da3po.learner.megatron.trainer import Trainer

        self._trainer = Trainer(spec, platform, self._rendezvous)

    @property
    def trainer(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError("this rank is not set up, or was closed")
        return self._trainer

    def step(self, step_number: int, updates: Sequence[Sequence[MicroBatch]]) -> Mapping[str, float]:
        """One training step; `updates` are the micro-batches of this rank's data-parallel index."""
        return self.trainer.step(step_number, updates)

    def logprobs(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """[T] log-prob of each micro-batch's labels, on ranks of the last pipeline stage; nothing on others.

        Under context parallelism those of this rank's tokens, as `da3po.pack.context` gives them out.
        """
        return self.trainer.logprobs(batches)

    def open_channel(self, num_receivers: int, host: str) -> str:
        """Open the weight channel; the store is on rank 0, at `host`. Returns its address, on every rank."""
        return self.trainer.open_channel(num_receivers, host)

    def publish(self, version: int) -> tuple[BucketSum, ...]:
        """Send the weights. Returns what this rank sent: its stage's weights, or nothing if another rank sends them."""
        return self.trainer.publish(version)

    def save(self, path: Path) -> None:
        self.trainer.save(path)

    def start_saving(self, path: Path) -> None:
        self.trainer.start_saving(path)

    def is_saving(self) -> bool:
        return self.trainer.is_saving()

    def finish_saving(self) -> None:
        self.trainer.finish_saving()

    def load(self, path: Path) -> None:
        self.trainer.load(path)

    def load_weights(self, path: Path) -> None:
        self.trainer.load_weights(path)

    def export(self, path: Path) -> None:
        self.trainer.export(path)

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None


def _check_precision(precision: Precision, platform: Platform) -> None:
    check_device(precision, platform.device)
    if platform.device == "cuda":
        has_te = importlib.util.find_spec("transformer_engine") is not None
        check_machine(precision, torch.cuda.get_device_capability(), has_te)


def prepare_device(platform: Platform) -> None:
    """Make this process fit to import Megatron: on CPU it has to be patched first."""
    from megatron_patches import bucket_padding, checkpoint_writer, cpu_device, torch_adam

    if platform.device == "cpu":
        cpu_device.apply()
    torch_adam.apply()
    checkpoint_writer.apply()
    bucket_padding.apply()
