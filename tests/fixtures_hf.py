"""Tiny Hugging Face checkpoints with the traps that real ones have, made by transformers at test time, from a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE = 1003  # not divisible by 2, 4 or any size that a vocabulary might be padded to


def make_qwen3(directory: Path, **changes: Any) -> Path:
    """F-Q: heads x head_dim (256) is not hidden (128), q/k norms, tied, and no lm_head.weight in the file."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        **{
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "rope_theta": 1e6,
            "tie_word_embeddings": True,
            "max_position_embeddings": 2048,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }
        | changes
    )
    return _save(Qwen3ForCausalLM, config, directory)


def make_llama(directory: Path, **changes: Any) -> Path:
    """F-L: three layers, untied, Llama 3 rope scaling by 32, and a generation_config that would spoil sampling."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **{
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_theta": 5e5,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
            "tie_word_embeddings": False,
            "max_position_embeddings": 2048,
            "bos_token_id": 1,
            "eos_token_id": [2, 3],
            "pad_token_id": 0,
        }
        | changes
    )
    _save(LlamaForCausalLM, config, directory)
    generation = {"eos_token_id": [2, 3], "top_k": 1, "repetition_penalty": 1.3, "do_sample": True}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    return directory


def make_qwen2(directory: Path, **changes: Any) -> Path:
    """Biases on q, k and v, as Qwen2.5 has them."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        **{
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_theta": 1e6,
            "tie_word_embeddings": False,
            "max_position_embeddings": 2048,
        }
        | changes
    )
    return _save(Qwen2ForCausalLM, config, directory)


def _save(model_class: Any, config: Any, directory: Path, seed: int = 0) -> Path:
    """Random weights with a spread that makes logits differ, norms and biases included, so that nothing is 0 or 1."""
    torch.manual_seed(seed)
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.normal_(std=0.08)
    model.save_pretrained(directory)
    return directory
