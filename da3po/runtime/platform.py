"""What this machine is: the one place that decides device, number formats, backend and cores, and says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from da3po.config.schema import ConfigError
from da3po.runtime.cores import Cores, usable_cores

Device = Literal["cpu", "cuda"]
Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The hardware that a run uses.

    device: "cpu" or "cuda". backend: of torch.distributed and of the weight channel.
    precisions: values of learner.precision that it computes in.
    num_devices: GPUs of this machine; 0 on CPU. num_cores: cores that this process may use.
    reason: one line for people.
    """

    device: Device
    backend: Backend
    precisions: tuple[str, ...]
    num_devices: int
    num_cores: int
    reason: str


def resolve(device: Literal["auto", "cpu", "cuda"]) -> Platform:
    """The platform for `learner.device`. Raises ConfigError if CUDA is asked for and cannot be had."""
    cores = usable_cores()
    missing = _why_no_cuda()
    if device == "cuda" and missing:
        raise ConfigError(f"learner.device=cuda cannot be had: {missing}")
    if device == "cpu" or missing:
        why = "learner.device=cpu" if device == "cpu" else missing
        return Platform(
            device="cpu",
            backend="gloo",
            precisions=("fp32", "bf16"),
            num_devices=0,
            num_cores=cores.num_cores,
            reason=f"cpu with gloo ({why}), {cores.reason}",
        )
    return _cuda_platform(cores)


def _cuda_platform(cores: Cores) -> Platform:
    major, minor = torch.cuda.get_device_capability(0)
    num_devices = torch.cuda.device_count()
    return Platform(
        device="cuda",
        backend="nccl",
        precisions=("fp32", "bf16") if major >= 8 else ("fp32",),
        num_devices=num_devices,
        num_cores=cores.num_cores,
        reason=f"cuda with nccl ({num_devices} x {torch.cuda.get_device_name(0)}, sm_{major}{minor}), {cores.reason}",
    )


def _why_no_cuda() -> str:
    """Empty if CUDA can be used."""
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    return ""
