"""What a precision means to Megatron and to the machine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from da3po.config.schema import FP8_CAPABILITY, ConfigError, Precision

FP8_FIELDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "fp8_delayed": {"fp8": "hybrid", "fp8_recipe": "delayed"},
        "fp8_tensorwise": {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
        "fp8_blockwise": {"fp8": "e4m3", "fp8_recipe": "blockwise"},
        "mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8"},
    }
)
"""Precision -> fields of TransformerConfig. `hybrid` has gradients in e5m2, whose range is wider; recipes that scale
small blocks do without."""


def parameter_dtype(precision: Precision) -> torch.dtype:
    return torch.float32 if precision == "fp32" else torch.bfloat16


def transformer_fields(precision: Precision) -> dict[str, Any]:
    """Fields of Megatron's TransformerConfig."""
    dtype = parameter_dtype(precision)
    return {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        **FP8_FIELDS.get(precision, {}),
    }


def check_device(precision: Precision, device: str) -> None:
    """Raise ConfigError if no machine could train in `precision` on this kind of device."""
    if precision in FP8_CAPABILITY and device != "cuda":
        raise ConfigError(f"learner.precision={precision} needs a CUDA device; this learner runs on {device}")


def check_machine(precision: Precision, capability: tuple[int, int], has_te: bool) -> None:
    """Raise ConfigError, saying what is missing, if this CUDA machine cannot train in `precision`.

    capability: compute capability of the device. has_te: Transformer Engine is installed.
    """
    needed = FP8_CAPABILITY.get(precision)
    if needed is None:
        return
    if capability < needed:
        raise ConfigError(
            f"learner.precision={precision} needs a CUDA device of compute capability {_dotted(needed)} or more; "
            f"this one has {_dotted(capability)}"
        )
    if not has_te:
        raise ConfigError(f"learner.precision={precision} needs Transformer Engine, which is not installed here")


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
