"""The files beside the weights, and config.json for both majors of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from da3po.config.schema import ConfigError
from da3po.models.companions import export_companions, in_both_dialects, read_companions
from da3po.models.hf_config import parse_model_spec

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def four(scaling: dict[str, Any] | None) -> dict[str, Any]:
    return {**BASE, "rope_theta": 5e5, "rope_scaling": scaling, "torch_dtype": "bfloat16"}


def five(scaling: dict[str, Any] | None) -> dict[str, Any]:
    block = {"rope_theta": 5e5, **(scaling or {"rope_type": "default"})}
    return {**BASE, "rope_parameters": block, "dtype": "bfloat16"}


@pytest.mark.parametrize("scaling", [None, LLAMA3])
@pytest.mark.parametrize("dialect", [four, five])
def test_either_dialect_becomes_both(dialect: Any, scaling: dict[str, Any] | None) -> None:
    """H07, H08: transformers 4 reads rope_theta and rope_scaling, transformers 5 rope_parameters."""
    said = in_both_dialects(dialect(scaling), "bfloat16")
    assert said["rope_theta"] == 5e5 and said["rope_scaling"] == scaling
    assert said["rope_parameters"] == five(scaling)["rope_parameters"]
    assert said["dtype"] == said["torch_dtype"] == "bfloat16"
    assert parse_model_spec(said) == parse_model_spec(dialect(scaling))
    assert in_both_dialects(said, "bfloat16") == said


@pytest.mark.parametrize("scaling", [None, LLAMA3])
def test_transformers_reads_both_dialects_at_once(scaling: dict[str, Any] | None) -> None:
    from transformers import LlamaConfig

    config = LlamaConfig.from_dict(in_both_dialects(four(scaling), "bfloat16"))
    assert config.rope_parameters["rope_theta"] == 5e5
    assert config.rope_parameters["rope_type"] == ("llama3" if scaling else "default")
    assert config.rope_parameters.get("factor") == (32.0 if scaling else None)


def test_the_older_name_of_a_rope_type_is_replaced() -> None:
    said = in_both_dialects(
        four({"type": "llama3", **{k: v for k, v in LLAMA3.items() if k != "rope_type"}}), "float32"
    )
    assert said["rope_scaling"] == LLAMA3


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "linear", "longrope"])
def test_other_rope_types_are_refused_by_name(kind: str) -> None:
    """H08."""
    with pytest.raises(ConfigError, match=f"rope type '{kind}' is not supported"):
        in_both_dialects(four({"rope_type": kind, "factor": 2.0}), "float32")


def test_other_architectures_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="MistralForCausalLM"):
        in_both_dialects(four(None) | {"architectures": ["MistralForCausalLM"]}, "float32")


FILES = {
    "generation_config.json": b'{"eos_token_id": [2, 3]}\n',
    "tokenizer.json": b'{"version":"1.0"}  ',
    "tokenizer_config.json": b"{}\r\n",
    "special_tokens_map.json": b'{"eos_token": "</s>"}',
    "chat_template.jinja": "{{ messages }} 设\n".encode(),
    "merges.txt": b"a b\n",
}


def test_every_file_but_weights_and_reports_is_kept_byte_for_byte(tmp_path: Path) -> None:
    """H09; the config alone says more."""
    source = tmp_path / "source"
    source.mkdir()
    for name, content in FILES.items():
        (source / name).write_bytes(content)
    for name in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "conversion.json", "x.gguf"):
        (source / name).write_bytes(b"weights")
    (source / "config.json").write_text(json.dumps(four(None)))
    (source / "original").mkdir()
    export_companions(read_companions(source), tmp_path / "target", "float32")
    kept = {path.name: path.read_bytes() for path in (tmp_path / "target").iterdir()}
    config = json.loads(kept.pop("config.json"))
    assert kept == FILES
    assert four(None).items() <= (config | {"torch_dtype": "bfloat16"}).items()
    assert config["dtype"] == "float32"


def test_a_config_that_says_it_all_stays_as_it_is(tmp_path: Path) -> None:
    text = json.dumps(in_both_dialects(four(LLAMA3), "bfloat16"), indent=7)
    export_companions({"config.json": text.encode()}, tmp_path / "target", "bfloat16")
    assert read_companions(tmp_path / "target") == {"config.json": text.encode()}
