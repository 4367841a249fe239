from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from da3po.config.schema import ConfigError
from da3po.models.hf_config import Llama3Scaling, ModelSpec, parse_model_spec, read_model_spec

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1003,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "rope_theta": 1e6,
    "rope_scaling": None,
    "torch_dtype": "bfloat16",
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def parse(**changes: Any) -> ModelSpec:
    return parse_model_spec({key: value for key, value in {**QWEN3, **changes}.items() if value != "absent"})


def test_reads_every_field() -> None:
    spec = parse()
    assert spec == ModelSpec(
        family="qwen3",
        num_layers=4,
        hidden_size=128,
        ffn_hidden_size=256,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        vocab_size=1003,
        tied=True,
        norm_eps=1e-6,
        max_positions=2048,
        rope_theta=1e6,
        rope_scaling=None,
        dtype="bfloat16",
    )
    assert spec.qk_norm
    assert not spec.qkv_bias


def test_head_dim_is_read_and_derived_only_where_it_is_not_given() -> None:
    """H05."""
    assert parse(head_dim=64).head_dim == 64
    assert parse(head_dim="absent").head_dim == 32


@pytest.mark.parametrize(
    "dialect",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE},
        {"rope_theta": "absent", "rope_scaling": "absent", "rope_parameters": {"rope_theta": 5e5, **LLAMA3_ROPE}},
        {"rope_theta": 5e5, "rope_scaling": None, "rope_parameters": {"rope_theta": 5e5, **LLAMA3_ROPE}},
    ],
    ids=["transformers4", "transformers5", "both"],
)
def test_both_dialects_of_rope_say_the_same(dialect: dict[str, Any]) -> None:
    """H07, H08."""
    spec = parse(**dialect)
    assert spec.rope_theta == 5e5
    assert spec.rope_scaling == Llama3Scaling(
        factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": "absent"}, "gives none"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, r"gives two: \[10000.0, 1000000.0\]"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'dynamic' is not supported"),
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": None}, "architecture none"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(**changes)


def test_a_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json does not exist"):
        read_model_spec(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    assert read_model_spec(tmp_path).num_layers == 4


def test_reading_a_config_and_checking_a_layout_import_no_torch() -> None:
    code = "import da3po.models.hf_config, da3po.plan.layout, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
