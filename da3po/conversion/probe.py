"""The text whose log-probs tell whether two forms of a model are the same, and what transformers makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from da3po.models.families import EMBEDDING, hf_shapes, whole_model
from da3po.models.hf_config import ModelSpec, read_model_spec
from da3po.models.safetensors_io import CheckpointReader
from da3po.models.streamed import stream_weights

TEXT = (
    "A train leaves at 9:15 and runs 84 km at 56 km/h. When does it arrive? It needs 84/56 = 1.5 hours, so the answer "
    "is 10:45. \\boxed{10:45} 设 $f(x) = x^2 - 3x + 2$，求 $f(x) = 0$ 的所有实根。 "
    "def area(r): return 3.14159 * r ** 2\n"
)
MAX_TOKENS = 96
MAX_POSITION = 2048
"""Positions are spread up to here, for rotary frequencies that are a little wrong show far from the start."""
NUM_RANDOM_ROWS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """T tokens, and rows of labels to ask the log-probs of: the next tokens, then random ones from all the vocabulary.

    input_ids, position_ids: [T]. labels: [rows, T].
    """

    input_ids: list[int]
    position_ids: list[int]
    labels: list[list[int]]


def build_probe(model_dir: Path, spec: ModelSpec) -> Probe:
    """TEXT in the model's own tokens, or random tokens for a model without a tokenizer."""
    random_ids = random.Random(0)
    ids = _text_ids(model_dir, spec.vocab_size)
    ids = ids or [random_ids.randrange(spec.vocab_size) for _ in range(MAX_TOKENS)]
    ids = ids[: min(MAX_TOKENS, spec.max_positions)]
    step = max(1, min(spec.max_positions, MAX_POSITION) // len(ids))
    rows = [[random_ids.randrange(spec.vocab_size) for _ in ids] for _ in range(NUM_RANDOM_ROWS)]
    return Probe(
        input_ids=ids, position_ids=[step * index for index in range(len(ids))], labels=[[*ids[1:], ids[0]], *rows]
    )


def _text_ids(model_dir: Path, vocab_size: int) -> list[int]:
    """TEXT's tokens, those of another vocabulary than the model's aside; none without a tokenizer.json."""
    file = model_dir / "tokenizer.json"
    if not file.is_file():
        return []
    ids = Tokenizer.from_file(str(file)).encode(TEXT, add_special_tokens=False).ids
    return [token for token in ids if token < vocab_size]


@torch.no_grad()
def transformers_logprobs(model_dir: Path, probe: Probe) -> Tensor:
    """[rows, T] fp32: log p(label), by transformers from the files of `model_dir`, a layer's weights at a time."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model_dir, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.to_empty(device="cpu").eval()
    # Its frequencies are in no file: made anew, as loading a model does.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    spec = read_model_spec(model_dir)
    layers = [f"model.layers.{number}" for number in range(spec.num_layers)]
    read = _weights(CheckpointReader(model_dir), spec)
    stream_weights(model, ["model.embed_tokens", *layers, "model.norm", "lm_head"], read)
    ids = torch.tensor([probe.input_ids])
    positions = torch.tensor([probe.position_ids])
    # A mask, since transformers takes positions that jump for the seams of packed sequences.
    logits = model(ids, position_ids=positions, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
    return logits.float().log_softmax(-1).gather(1, torch.tensor(probe.labels).T).T


def _weights(reader: CheckpointReader, spec: ModelSpec) -> Callable[[str], Tensor]:
    """Parameter's name -> its value in the files, in fp32. A tied output layer's is the embedding's."""
    shapes = hf_shapes(spec, whole_model(spec))

    def read(name: str) -> Tensor:
        stored = EMBEDDING if spec.tied and name == "lm_head.weight" else name
        return reader.read(stored, shapes[stored]).float()

    return read
