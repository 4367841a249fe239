"""The files of a Hugging Face model directory beside its weights: config, tokenizer, chat template, generation config.

They go with the weights byte for byte, all but config.json, which is made to say the same to every reader: transformers
4 and 5 look for the rotary embedding and the number format under different names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from da3po.models.hf_config import parse_model_spec

CONFIG = "config.json"
WEIGHT_FILES = (
    "*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.gguf", "*.h5",
    "*.msgpack", "*.onnx",
)  # fmt: skip
OWN_FILES = ("conversion.json", "conversion.md")
"""The reports of a conversion, for programs and for people. Those of an earlier one say nothing of this one."""


def companions(model_dir: Path) -> list[Path]:
    """Every file of a model directory that holds no weights."""
    others = {path for pattern in (*WEIGHT_FILES, *OWN_FILES) for path in model_dir.glob(pattern)}
    return [path for path in sorted(model_dir.iterdir()) if path.is_file() and path not in others]


def read_companions(model_dir: Path) -> dict[str, bytes]:
    """File name -> content of each: some megabytes, of a tokenizer mostly."""
    return {path.name: path.read_bytes() for path in companions(model_dir)}


def write_companions(files: Mapping[str, bytes], target: Path) -> None:
    """`target` is made if it is not there."""
    target.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (target / name).write_bytes(content)


def export_companions(files: Mapping[str, bytes], target: Path, dtype: str) -> None:
    """Write them for weights of `dtype` ("bfloat16", ...), config.json in the dialects of transformers 4 and 5."""
    write_companions(files, target)
    config = json.loads(files[CONFIG])
    said = in_both_dialects(config, dtype)
    if said != config:
        (target / CONFIG).write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def in_both_dialects(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """`config` with the rotary embedding and the dtype as transformers 4 and as transformers 5 name them.

    A reader that finds no base where it looks takes its class's default without a word, and the model is another one.
    Whatever else the config says stays as it is.
    """
    spec = parse_model_spec(config)
    block = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    block.pop("type", None)
    block |= {"rope_type": "default" if spec.rope_scaling is None else "llama3", "rope_theta": spec.rope_theta}
    scaling = {key: value for key, value in block.items() if key != "rope_theta"}
    return {
        **config,
        "rope_parameters": block,
        "rope_theta": spec.rope_theta,
        "rope_scaling": None if spec.rope_scaling is None else scaling,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
