"""Run Megatron-Core on a machine without CUDA.

Targets: megatron-core 0.16.x and 0.19.x on a machine without CUDA (torch 2.6 and later, of any build).
Symptom: `AssertionError: Torch not compiled with CUDA enabled` from `torch.cuda.current_device()`, from
    `device="cuda"` in tensor factories and from `Tensor.cuda()`; in the distributed optimizer
    `TypeError: Wrapped parameters must be one of ...`, as it compares `Tensor.type()` with `torch.cuda.FloatTensor`;
    random-number forks that silently do nothing, as `torch.cuda` queues them until CUDA is initialised; and a C++
    compiler at work in the first step, as Megatron's small fused functions go through `torch.compile`.
Cause: Megatron-Core names CUDA as its only device, in calls that are spread over the schedules, the optimizer, the
    pipeline communication and the random-number tracker. No option changes that.
Cure: `torch.cuda`'s device and random-number calls act on the CPU, and factories read "cuda" as "cpu". This holds for
    the whole process, so it is for processes that run a learner on CPU and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

_FACTORIES = ("tensor", "empty", "zeros", "ones", "full", "arange", "rand", "randn", "randint", "as_tensor")
_LIKE_FACTORIES = ("empty_like", "zeros_like", "ones_like", "full_like")
_MARK = "_da3po_cpu_device"


def apply() -> None:
    """Make this process's CPU stand in for its CUDA device. A second call does nothing.

    Errors: RuntimeError if there is a real CUDA device, which this would hide.
    """
    if getattr(torch.cuda, _MARK, False):
        return
    if torch.cuda.is_available():
        raise RuntimeError("megatron_patches.cpu_device is for machines without CUDA, and this one has it")
    _patch_device()
    _patch_random()
    _patch_tensors()
    _import_megatron()
    setattr(torch.cuda, _MARK, True)


def is_applied() -> bool:
    return getattr(torch.cuda, _MARK, False)


class _Stream:
    """A CUDA stream on a device that runs everything in order: there is nothing to wait for."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def wait_stream(self, _: object) -> None:
        pass

    def wait_event(self, _: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record_event(self, event: object = None) -> object:
        return event


def _patch_device() -> None:
    cpu = torch.device("cpu")
    # One function for each name: Dynamo refuses a torch function that it finds under two.
    torch.cuda.current_device = lambda: cpu  # type: ignore[assignment,return-value]
    torch.cuda.set_device = lambda *_: None
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.empty_cache = lambda: None
    torch.cuda.Stream = _Stream  # type: ignore[assignment,misc]
    torch.cuda.current_stream = lambda *_: _Stream()  # type: ignore[assignment,return-value]
    torch.cuda.default_stream = lambda *_: _Stream()  # type: ignore[assignment,return-value]
    torch.cuda.stream = lambda *_: contextlib.nullcontext()  # type: ignore[assignment,return-value]


def _patch_random() -> None:
    def get_rng_state(*_: object, **__: object) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(state: torch.Tensor, *_: object, **__: object) -> None:
        torch.set_rng_state(state)

    def manual_seed(seed: int) -> None:
        torch.manual_seed(seed)

    for module in (torch.cuda, torch.cuda.random):
        module.get_rng_state = get_rng_state
        module.set_rng_state = set_rng_state
        module.manual_seed = manual_seed


def _import_megatron() -> None:
    """Import Megatron with `torch.compile` switched off, and take its own way past torch's random-number calls."""
    compile_function = torch.compile
    torch.compile = lambda function=None, **_: function if function is not None else lambda f: f  # type: ignore[assignment]
    try:
        import megatron.core.jit
        import megatron.core.tensor_parallel.random as megatron_random
    finally:
        torch.compile = compile_function
    megatron.core.jit.disable_jit_fuser()
    megatron_random._get_cuda_rng_state = torch.cuda.get_rng_state
    megatron_random._set_cuda_rng_state = torch.cuda.set_rng_state


def _patch_tensors() -> None:
    # `with torch.device(...)` knows factories by a set that it makes at first use, and must know the real ones.
    torch.utils._device._device_constructors()
    for name in (*_FACTORIES, *_LIKE_FACTORIES):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[assignment,method-assign]
    plain_type = torch.Tensor.type

    @functools.wraps(plain_type)
    def type_as_cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = plain_type(self, *args, **kwargs)
        return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) else found

    torch.Tensor.type = type_as_cuda  # type: ignore[method-assign]


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def wrapped(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is not None and str(device).startswith("cuda"):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return wrapped
