"""Arguments of vLLM that a run may set itself (`engine.vllm.ARGUMENT=VALUE`).

Names and types are read from the source of the installed vLLM without importing it, so that a wrong one is refused
before any process starts. What only vLLM can judge, such as a choice among its backends, it judges as an engine starts.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from da3po.config.schema import ConfigError

SOURCE = "engine/arg_utils.py"
CLASS = "EngineArgs"

_SAMPLES = "the pool, whose samples bring their own seeds, stops and log-probs"
_PLACES = "the run's layout: an engine is one process with engine.tp workers"
_CHANNEL = "the weight channel"

OWNED: Mapping[str, str] = MappingProxyType(
    {
        "model": "model.path",
        "model_weights": "model.path",
        "tokenizer": "model.path",
        "trust_remote_code": "model.trust_remote_code",
        "dtype": "engine.dtype",
        "seed": "run.seed",
        "max_model_len": "engine.max_model_len",
        "max_num_seqs": "engine.max_num_seqs",
        "max_num_batched_tokens": "engine.max_num_batched_tokens",
        "tensor_parallel_size": "engine.tp",
        "enforce_eager": "engine.enforce_eager",
        "enable_prefix_caching": "engine.prefix_caching",
        "gpu_memory_utilization": "engine.memory_fraction",
        "kv_cache_memory_bytes": "engine.kv_cache_gb",
        "generation_config": _SAMPLES,
        "override_generation_config": _SAMPLES,
        "logprobs_mode": _SAMPLES,
        "max_logprobs": _SAMPLES,
        "logits_processors": _SAMPLES,
        "skip_tokenizer_init": _SAMPLES,
        "disable_log_stats": "the pool, which measures for itself",
        "pipeline_parallel_size": _PLACES,
        "data_parallel_size": _PLACES,
        "distributed_executor_backend": _PLACES,
        "nnodes": _PLACES,
        "node_rank": _PLACES,
        "master_addr": _PLACES,
        "master_port": _PLACES,
        "worker_cls": _CHANNEL,
        "worker_extension_cls": _CHANNEL,
        "weight_transfer_config": _CHANNEL,
        "enable_sleep_mode": _CHANNEL,
        "enable_lora": "the weight channel, which carries whole weights",
    }
)
"""Argument -> what decides it already."""

OWNED_ON_CPU: Mapping[str, str] = MappingProxyType(
    {
        "enable_chunked_prefill": "the CPU, whose random generators cannot be set back where a prompt is cut",
        "async_scheduling": "the CPU, where nothing runs beside a step",
    }
)

_SIMPLE: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,), "None": (type(None),)}
)


def check_arguments(arguments: Mapping[str, Any], device: str) -> None:
    """Raise ConfigError for an argument that vLLM does not have, that something else decides, or of a wrong type."""
    owned = {**OWNED, **(OWNED_ON_CPU if device == "cpu" else {})}
    for name, value in arguments.items():
        key = f"engine.vllm.{name}"
        if name in owned:
            raise ConfigError(f"{key} is decided by {owned[name]}")
        if name not in argument_types():
            near = difflib.get_close_matches(name, [known for known in argument_types() if known not in owned], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{key}: vLLM's {CLASS} has no argument {name!r}{hint}")
        annotation = argument_types()[name]
        if not _may_be(annotation, parsed(value)):
            raise ConfigError(f"{key} must be of type {ast.unparse(annotation)}, got {value!r}")


def parsed(value: Any) -> Any:
    """A section, written as JSON, as the mapping that it is; any other value as it is. Raises ConfigError."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{value!r} is no JSON: {error}") from error


@cache
def argument_types() -> dict[str, ast.expr]:
    """Argument -> annotation, as the installed vLLM has them."""
    module = ast.parse(_source().read_text(encoding="utf-8"))
    (found,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == CLASS)
    return {
        statement.target.id: _unquoted(statement.annotation)
        for statement in found.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def _source() -> Path:
    package = importlib.util.find_spec("vllm")
    for location in (package and package.submodule_search_locations) or ():
        if (Path(location) / SOURCE).is_file():
            return Path(location) / SOURCE
    raise ConfigError("engine.vllm: vLLM is not installed here, so its arguments cannot be checked")


def _unquoted(annotation: ast.expr) -> ast.expr:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def _may_be(annotation: ast.expr, value: Any) -> bool:
    """Whether a value may be of a type; what is no plain type is vLLM's to judge."""
    if isinstance(annotation, ast.BinOp):
        return _may_be(annotation.left, value) or _may_be(annotation.right, value)
    if isinstance(annotation, ast.Subscript):
        return _may_be_generic(ast.unparse(annotation.value), annotation.slice, value)
    allowed = _SIMPLE.get(ast.unparse(annotation))
    if allowed is None:
        return True
    return isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))


def _may_be_generic(name: str, inside: ast.expr, value: Any) -> bool:
    match name:
        case "Literal":
            return value in [ast.literal_eval(one) for one in getattr(inside, "elts", [inside])]
        case "list":
            return isinstance(value, list) and all(_may_be(inside, one) for one in value)
        case "dict":
            return isinstance(value, dict)
    return True
