"""Fields of Megatron-Core's config classes that a run may set itself (`learner.megatron.<section>.<field>`).

The names and types are read from the source of the installed Megatron-Core without importing it, so that a wrong field
is refused before any process starts. Nothing here imports Megatron.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from da3po.config.schema import ConfigError, MegatronConfig

CLASSES: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "transformer": (
            ("transformer/transformer_config.py", "TransformerConfig"),
            ("model_parallel_config.py", "ModelParallelConfig"),
        ),
        "ddp": (("distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig"),),
        "optimizer": (("optimizer/optimizer_config.py", "OptimizerConfig"),),
    }
)
"""Section -> the file in megatron/core and the name of its class, then of its bases."""

_MODEL = "the model's config.json"
_LOSS = "the loss, which has its normaliser in the data"

OWNED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "transformer": {
            "num_layers": _MODEL,
            "hidden_size": _MODEL,
            "ffn_hidden_size": _MODEL,
            "num_attention_heads": _MODEL,
            "num_query_groups": _MODEL,
            "kv_channels": _MODEL,
            "normalization": _MODEL,
            "layernorm_epsilon": _MODEL,
            "qk_layernorm": _MODEL,
            "add_bias_linear": _MODEL,
            "add_qkv_bias": _MODEL,
            "gated_linear_unit": _MODEL,
            "activation_func": _MODEL,
            "perform_initialization": "the checkpoint, from which every parameter is read",
            "params_dtype": "learner.precision",
            "pipeline_dtype": "learner.precision",
            "bf16": "learner.precision",
            "fp16": "learner.precision",
            "fp8": "learner.precision",
            "fp8_recipe": "learner.precision",
            "tensor_model_parallel_size": "parallel.tp",
            "pipeline_model_parallel_size": "parallel.pp",
            "virtual_pipeline_model_parallel_size": "parallel.vpp",
            "context_parallel_size": "parallel.cp",
            "sequence_parallel": "parallel.sequence_parallel",
            "num_layers_in_first_pipeline_stage": "parallel.first_stage_layers",
            "num_layers_in_last_pipeline_stage": "parallel.last_stage_layers",
            "pipeline_model_parallel_layout": "parallel.first_stage_layers and parallel.last_stage_layers",
            "variable_seq_lengths": "packing: micro-batches differ in length",
            "overlap_p2p_comm": "parallel.vpp",
            "batch_p2p_comm": "parallel.vpp",
            "calculate_per_token_loss": _LOSS,
        },
        "ddp": {
            "use_distributed_optimizer": "the checkpoint's format",
            "use_megatron_fsdp": "the weight stream, which reads whole parameters",
            "overlap_param_gather": "weight publication, which comes right after an update",
        },
        "optimizer": {
            "optimizer": "optim, which is AdamW",
            "lr": "optim.lr",
            "min_lr": "optim.min_lr",
            "weight_decay": "optim.weight_decay",
            "adam_beta1": "optim.beta1",
            "adam_beta2": "optim.beta2",
            "adam_eps": "optim.eps",
            "clip_grad": "optim.clip_grad",
            "bf16": "learner.precision",
            "fp16": "learner.precision",
            "params_dtype": "learner.precision",
            "use_distributed_optimizer": "the checkpoint's format",
            "overlap_param_gather_with_optimizer_step": "weight publication, which comes right after an update",
        },
    }
)
"""Section -> field -> what decides it already."""

_SIMPLE: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,), "None": (type(None),)}
)


def check_fields(config: MegatronConfig) -> None:
    """Raise ConfigError for a field that Megatron does not have, that something else decides, or of a wrong type."""
    for section in CLASSES:
        for name, value in getattr(config, section).items():
            _check(section, name, value)


def _check(section: str, name: str, value: Any) -> None:
    key, known = f"learner.megatron.{section}.{name}", field_types(section)
    if name in OWNED[section]:
        raise ConfigError(f"{key} is decided by {OWNED[section][name]}")
    if name not in known:
        near = difflib.get_close_matches(name, [field for field in known if field not in OWNED[section]], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{key}: Megatron-Core's {CLASSES[section][0][1]} has no field {name!r}{hint}")
    if not _accepts(known[name], value):
        raise ConfigError(f"{key} must be of type {ast.unparse(known[name])}, got {value!r}")


@cache
def field_types(section: str) -> dict[str, ast.expr]:
    """Field -> annotation, of a section's class and its bases, as the installed Megatron-Core has them."""
    types: dict[str, ast.expr] = {}
    for file, class_name in CLASSES[section]:
        module = ast.parse((_megatron_core() / file).read_text(encoding="utf-8"))
        (found,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == class_name)
        for statement in found.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                types.setdefault(statement.target.id, statement.annotation)
    return types


def _megatron_core() -> Path:
    package = importlib.util.find_spec("megatron")
    for location in (package and package.submodule_search_locations) or ():
        if (Path(location) / "core").is_dir():
            return Path(location) / "core"
    raise ConfigError("learner.megatron: Megatron-Core is not installed here, so its fields cannot be checked")


def _accepts(annotation: ast.expr, value: Any) -> bool:
    """Whether a plain value fits; one of a type that has no plain values (a callable, a dtype) never does."""
    if isinstance(annotation, ast.BinOp):
        return _accepts(annotation.left, value) or _accepts(annotation.right, value)
    if isinstance(annotation, ast.Subscript):
        return _accepts_generic(ast.unparse(annotation.value).rpartition(".")[2], annotation.slice, value)
    allowed = _SIMPLE.get(ast.unparse(annotation), ())
    return isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))


def _accepts_generic(name: str, inside: ast.expr, value: Any) -> bool:
    arguments = inside.elts if isinstance(inside, ast.Tuple) else [inside]
    match name:
        case "Optional":
            return value is None or _accepts(inside, value)
        case "Union":
            return any(_accepts(argument, value) for argument in arguments)
        case "Literal":
            return value in [ast.literal_eval(argument) for argument in arguments]
        case "List" | "list":
            return isinstance(value, list) and all(_accepts(inside, one) for one in value)
    return False
