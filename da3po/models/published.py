"""The config.json of published models that the experiments train, so that a run can be planned without their files.

Only what decides shape and arithmetic. Source: the config.json of each repository on the Hugging Face Hub,
https://huggingface.co/<name>/blob/main/config.json. The model's own files go before this wherever they are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from da3po.config.schema import ConfigError
from da3po.models.hf_config import ModelSpec, parse_model_spec, read_model_spec
from da3po.models.locate import is_hub_name, locate_model

_QWEN3: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 128,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "torch_dtype": "bfloat16",
}


def _qwen3(hidden: int, ffn: int, layers: int, heads: int, *, tied: bool, positions: int = 32768) -> Mapping[str, Any]:
    return {
        **_QWEN3,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
        "max_position_embeddings": positions,
    }


PUBLISHED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "Qwen/Qwen3-0.6B-Base": _qwen3(1024, 3072, 28, 16, tied=True),
        "Qwen/Qwen3-1.7B-Base": _qwen3(2048, 6144, 28, 16, tied=True),
        "Qwen/Qwen3-4B-Base": _qwen3(2560, 9728, 36, 32, tied=True),
        "Qwen/Qwen3-8B-Base": _qwen3(4096, 12288, 36, 32, tied=False),
        "Qwen/Qwen3-14B-Base": _qwen3(5120, 17408, 40, 40, tied=False),
        "Qwen/Qwen3-32B": _qwen3(5120, 25600, 64, 64, tied=False, positions=40960),
    }
)


def find_model_spec(path: str) -> ModelSpec:
    """The spec of `model.path`, without a download: from its directory, or from the table if it is a name on the Hub.

    A path that ends like such a name, as /models/Qwen3-4B-Base does, is taken for that model if there is no such
    directory here: a plan is often made on another machine than the run.
    Raises ConfigError if the directory cannot be read and the name is not in the table.
    """
    if not path.startswith("package:") and not Path(path).is_dir():
        name = next((name for name in PUBLISHED if Path(name).name == Path(path).name), None)
        if name is not None:
            return parse_model_spec(PUBLISHED[name], where=f"the published config of {name}")
        if is_hub_name(path):
            raise ConfigError(
                f"model.path={path}: not a directory here; without its config.json a plan can be made for "
                f"{', '.join(PUBLISHED)}"
            )
    return read_model_spec(locate_model(path))
