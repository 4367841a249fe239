"""The shape of a model, read from a Hugging Face `config.json`. Standard library only, so that a layout can be checked
before anything heavy is imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3po.config.schema import ConfigError

FAMILIES: Mapping[str, str] = {
    "Qwen3ForCausalLM": "qwen3",
    "Qwen2ForCausalLM": "qwen2",
    "LlamaForCausalLM": "llama",
}
"""Architectures that can be trained, and the family whose table in `da3po.models.families` describes each."""

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Frequencies of rotary embeddings stretched as Llama 3.1 does.

    Wavelengths above original_max_positions / low_freq_factor are multiplied by `factor`, those below
    original_max_positions / high_freq_factor are kept, and those between are blended.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Everything that decides the shape and the arithmetic of a model.

    family: one of the values of FAMILIES.
    num_heads, num_kv_heads: query heads, and key/value heads that groups of them share.
    head_dim: width of one head; num_heads x head_dim need not be hidden_size.
    vocab_size: rows of the embedding in the file, without any padding.
    tied: the output layer is the embedding.
    rope_theta, rope_scaling: rotary base, and how frequencies are stretched (None: they are not).
    dtype: of the weights in the file.
    """

    family: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool
    norm_eps: float
    max_positions: int
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    dtype: str

    @property
    def qk_norm(self) -> bool:
        return self.family == "qwen3"

    @property
    def qkv_bias(self) -> bool:
        return self.family == "qwen2"


def read_model_spec(model_dir: Path | str) -> ModelSpec:
    """The spec of the model in `model_dir`. Errors: ConfigError if it has no config.json or is one we cannot train."""
    path = Path(model_dir) / "config.json"
    if not path.is_file():
        raise ConfigError(f"model.path: {path} does not exist; expected a Hugging Face model directory")
    return parse_model_spec(json.loads(path.read_text(encoding="utf-8")), where=str(path))


def parse_model_spec(config: Mapping[str, Any], where: str = "config.json") -> ModelSpec:
    """The spec that a parsed config.json describes, in the dialect of transformers 4 or 5."""
    family = _family(config, where)
    _refuse_variants(config, where)
    theta, scaling = _rope(config, where)
    num_heads = int(config["num_attention_heads"])
    hidden_size = int(config["hidden_size"])
    return ModelSpec(
        family=family,
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=hidden_size,
        ffn_hidden_size=int(config["intermediate_size"]),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or hidden_size // num_heads),
        vocab_size=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        norm_eps=float(config["rms_norm_eps"]),
        max_positions=int(config["max_position_embeddings"]),
        rope_theta=theta,
        rope_scaling=scaling,
        dtype=_dtype(config, where),
    )


def _family(config: Mapping[str, Any], where: str) -> str:
    architectures = config.get("architectures") or []
    for name in architectures:
        if name in FAMILIES:
            return FAMILIES[name]
    raise ConfigError(
        f"{where}: architecture {architectures or 'none'} is not supported; supported: {', '.join(FAMILIES)}"
    )


def _refuse_variants(config: Mapping[str, Any], where: str) -> None:
    """Raise on options of the supported families that would change the arithmetic and that we do not have."""
    if config.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{where}: hidden_act={config['hidden_act']!r} is not supported; only 'silu' is")
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if config.get(key):
            raise ConfigError(f"{where}: {key}=true is not supported")
    if config.get("quantization_config"):
        raise ConfigError(f"{where}: quantized weights are not supported; take the model's full-precision weights")


def _rope(config: Mapping[str, Any], where: str) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling of the rotary embedding.

    transformers 5 writes both into `rope_parameters`; transformers 4 writes `rope_theta` and `rope_scaling`. A base
    that is in neither is refused: the classes' defaults differ between versions, and a wrong one trains without a
    warning.
    """
    block = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    named = {float(theta) for theta in (block.get("rope_theta"), config.get("rope_theta")) if theta is not None}
    if len(named) != 1:
        what = f"gives two: {sorted(named)}" if named else "gives none"
        raise ConfigError(f"{where}: one rope_theta is needed (in rope_parameters or at the top), and it {what}")
    kind = block.get("rope_type", block.get("type", "default"))
    if kind == "default":
        return named.pop(), None
    if kind != "llama3":
        raise ConfigError(f"{where}: rope type {kind!r} is not supported; supported: default, llama3")
    return named.pop(), Llama3Scaling(
        factor=float(block["factor"]),
        low_freq_factor=float(block["low_freq_factor"]),
        high_freq_factor=float(block["high_freq_factor"]),
        original_max_positions=int(block["original_max_position_embeddings"]),
    )


def _dtype(config: Mapping[str, Any], where: str) -> str:
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    if dtype not in DTYPES:
        raise ConfigError(f"{where}: dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
    return str(dtype)
