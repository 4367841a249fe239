"""Everything that a change of Megatron-Core's version could touch, in one place: 0.16 (Python 3.11) and 0.19 (3.12).

Imports here may move, take other arguments or fall away between versions; the other files of this folder import from
here, or use classes that have kept their names and arguments over both versions.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from megatron.core import dist_checkpointing
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

__all__ = ["OptimizerConfig", "get_megatron_optimizer"]

SHARDING = {"distrib_optim_sharding_type": "fully_reshardable"}
"""Has the distributed optimizer save tensors shaped like the model's, so that any other layout can load them."""


def known_fields(config_class: type, fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` that `config_class` has in this version; for switches whose absence means the same as False."""
    names = {field.name for field in dataclasses.fields(config_class)}
    return {name: value for name, value in fields.items() if name in names}


def local_block_spec(
    config: TransformerConfig, norm: type, core_attention: type, qk_norm: bool, vp_stage: int | None
) -> TransformerBlockSubmodules:
    """The layers of this (virtual) pipeline stage from Megatron's own modules, with the given norm and attention."""
    layer = get_gpt_layer_local_spec(qk_layernorm=qk_norm, normalization="RMSNorm")
    layer.submodules.input_layernorm = norm
    layer.submodules.pre_mlp_layernorm = norm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = core_attention
    if qk_norm:
        attention.q_layernorm = norm
        attention.k_layernorm = norm
    num_layers = get_num_layers_to_build(config, vp_stage=vp_stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=norm)


def transformer_engine_spec(qk_norm: bool) -> ModuleSpec:
    return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=qk_norm)


def finalize_gradients() -> Callable[..., None]:
    """Megatron's reduction over data-parallel ranks, and of what tensor and pipeline ranks share."""
    from megatron.core.distributed import finalize_model_grads

    return finalize_model_grads


def async_save_options() -> dict[str, Any]:
    """More arguments of `dist_checkpointing.save` for an asynchronous one.

    0.19's default writer is that of nvidia-resiliency-ext; Megatron's own, the only one of 0.16, is still there.
    """
    has_choice = "async_strategy" in inspect.signature(dist_checkpointing.save).parameters
    return {"async_strategy": "mcore"} if has_choice else {}
