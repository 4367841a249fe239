"""Tokens per second of one learner rank on packed sequences of varied length, against plain padded transformers.

    python tools/bench/learner.py --preset tiny --threads 2

Both take whole training steps (forward, backward, clipping, AdamW) on the same weights and the same batch, whose
lengths are log-normal with a mean of a third of the cap; they take turns in one process, and medians count. The
baseline pads each micro-batch of sequences, in the order of the batch, to its longest, has full logits, and no entropy.

Prints one JSON object: tokens_per_second counts prompt and response tokens, never padding; model_flops_per_second is
6 x parameters x tokens / second, and gemm_share that in units of a plain fp32 matrix product of the same width.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from da3po.cluster.network import free_port
from da3po.config.schema import LearnerConfig, LossConfig
from da3po.learner.client import updates_of
from da3po.learner.megatron.worker import LearnerRank
from da3po.learner.spec import LearnerSpec
from da3po.models.families import hf_shapes, whole_model
from da3po.models.hf_config import read_model_spec
from da3po.models.safetensors_io import plan_files, write_file
from da3po.pack.packer import Packer
from da3po.types import StepBatch, StepStats, TrainSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Shape of the model and of the batch. cap: tokens of the longest sequence, prompt and response."""

    hidden: int
    layers: int
    heads: int
    head_dim: int
    vocab: int
    num_samples: int
    cap: int


PRESETS = {
    "tiny": Preset(hidden=128, layers=4, heads=4, head_dim=32, vocab=259, num_samples=512, cap=96),
    "long": Preset(hidden=128, layers=4, heads=4, head_dim=32, vocab=259, num_samples=64, cap=1024),
    "small": Preset(hidden=512, layers=8, heads=8, head_dim=64, vocab=4096, num_samples=32, cap=512),
    "wide": Preset(hidden=1024, layers=4, heads=16, head_dim=64, vocab=4096, num_samples=16, cap=512),
}


def write_model(directory: Path, preset: Preset) -> None:
    """A Qwen3 checkpoint with random weights."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": preset.layers,
        "hidden_size": preset.hidden,
        "intermediate_size": 3 * preset.hidden,
        "num_attention_heads": preset.heads,
        "num_key_value_heads": preset.heads // 2,
        "head_dim": preset.head_dim,
        "vocab_size": preset.vocab,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope_theta": 1e6,
        "dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    spec = read_model_spec(directory)
    shapes = hf_shapes(spec, whole_model(spec))
    ((plan,),) = plan_files([shapes], torch.float32, max_bytes=1 << 40)
    generator = torch.Generator().manual_seed(0)
    tensors = (
        (name, torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02)
        for name, shape in shapes.items()
    )
    write_file(directory, plan, torch.float32, tensors)


def draw_samples(preset: Preset) -> list[TrainSample]:
    """Lengths are log-normal with a mean of a third of the cap; an eighth of each sequence is the prompt."""
    draw = random.Random(0)
    samples = []
    for _ in range(preset.num_samples):
        length = min(preset.cap, max(2, round(draw.lognormvariate(0.0, 0.6) * preset.cap / 3.6)))
        ids = [draw.randrange(preset.vocab) for _ in range(length)]
        num_prompt = max(1, length // 8)
        samples.append(
            TrainSample(
                prompt_uid="bench",
                prompt_ids=tuple(ids[:num_prompt]),
                response_ids=tuple(ids[num_prompt:]),
                behaviour_logprobs=(-5.0,) * (length - num_prompt),
                reward=1.0,
                advantage=draw.gauss(0.0, 1.0),
                fresh=True,
            )
        )
    return samples


class Packed:
    """Our learner."""

    def __init__(self, model_dir: Path, samples: Sequence[TrainSample], threads: int, max_tokens: int) -> None:
        self._rank = LearnerRank()
        self._rank.init(0, 1, "127.0.0.1", free_port())
        learner = LearnerConfig(device="cpu", num_threads=threads)
        self._rank.setup(LearnerSpec(model_path=str(model_dir), train_steps=100, learner=learner))
        packer = Packer(loss=LossConfig(), dp=1, max_tokens=max_tokens)
        batch = StepBatch(step=1, samples=tuple(samples), group_sizes=(len(samples),), stats=StepStats())
        self._updates = updates_of(packer(batch), 0)
        self.num_micro_batches = len(self._updates[0])
        self.metrics: list[dict[str, float]] = []

    def step(self) -> None:
        self.metrics.append(dict(self._rank.step(len(self.metrics) + 1, self._updates)))

    def median_of(self, name: str) -> float:
        """Of the steps after the first."""
        return round(statistics.median(metrics[name] for metrics in self.metrics[1:]), 4)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for model in self._rank.trainer.models for parameter in model.parameters())

    def close(self) -> None:
        self._rank.close()


class Padded:
    """The plain way with transformers: rows padded to the longest of the micro-batch, full logits, torch's AdamW."""

    def __init__(self, model_dir: Path, samples: Sequence[TrainSample], rows: int) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="sdpa")
        self._model.train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-6, weight_decay=0.1)
        self._num_tokens = sum(len(sample.response_ids) for sample in samples)
        self._batches = [pad(samples[begin : begin + rows]) for begin in range(0, len(samples), rows)]
        self.padded_tokens = sum(batch.ids.numel() for batch in self._batches)

    def step(self) -> None:
        self._optimizer.zero_grad()
        for batch in self._batches:
            logits = self._model(batch.ids, attention_mask=batch.mask, use_cache=False).logits[:, :-1]
            logprobs = logits.log_softmax(-1).gather(2, batch.ids[:, 1:, None]).squeeze(2)
            ratio = (logprobs - logprobs.detach()).exp()
            clipped = ratio.clamp(0.8, 1.28)
            loss = -torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
            ((loss * batch.loss_mask).sum() / self._num_tokens).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatch:
    """ids, mask: [B, L]. loss_mask, advantages: [B, L-1], of the token after each."""

    ids: Tensor
    mask: Tensor
    loss_mask: Tensor
    advantages: Tensor


def pad(samples: Sequence[TrainSample]) -> PaddedBatch:
    lengths = torch.tensor([len(sample.prompt_ids) + len(sample.response_ids) for sample in samples])
    prompts = torch.tensor([len(sample.prompt_ids) for sample in samples])
    ids = torch.zeros(len(samples), int(lengths.max()), dtype=torch.int64)
    for row, sample in enumerate(samples):
        ids[row, : lengths[row]] = torch.tensor(sample.prompt_ids + sample.response_ids)
    places = torch.arange(ids.shape[1])
    inside = places < lengths[:, None]
    advantages = torch.tensor([sample.advantage for sample in samples])[:, None].expand(ids.shape[0], ids.shape[1] - 1)
    loss_mask = (inside & (places >= prompts[:, None]))[:, 1:]
    return PaddedBatch(ids=ids, mask=inside.long(), loss_mask=loss_mask, advantages=advantages)


class Product:
    """[rows, width] x [width, 3 width] in fp32, which a layer is mostly made of."""

    def __init__(self, width: int, rows: int = 4096) -> None:
        self._left, self._right = torch.randn(rows, width), torch.randn(width, 3 * width)
        self.flops = 2.0 * rows * width * 3 * width

    def step(self) -> None:
        self._left @ self._right


def seconds(action: Callable[[], object]) -> tuple[float, float]:
    """Wall time and processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - processor


def measure(args: argparse.Namespace, model_dir: Path) -> dict[str, float | str]:
    preset = PRESETS[args.preset]
    write_model(model_dir, preset)
    samples = draw_samples(preset)
    num_tokens = sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in samples)
    packed = Packed(model_dir, samples, args.threads, args.max_tokens)
    padded = Padded(model_dir, samples, args.baseline_rows or max(1, args.max_tokens // preset.cap))
    product = Product(preset.hidden)
    taken: dict[str, list[tuple[float, float]]] = {"packed": [], "padded": [], "product": []}
    for number in range(args.steps + 1):  # the first round warms up
        for name, action in (("packed", packed.step), ("padded", padded.step), ("product", product.step)):
            spent = seconds(action)
            if number:
                taken[name].append(spent)
    wall, processor = (
        {name: statistics.median(spent[kind] for spent in values) for name, values in taken.items()} for kind in (0, 1)
    )
    num_parameters = packed.num_parameters
    packed.close()
    flops = 6 * num_parameters * num_tokens
    return {
        "preset": args.preset,
        "threads": args.threads,
        "num_parameters": num_parameters,
        "num_tokens": num_tokens,
        "num_micro_batches": packed.num_micro_batches,
        "padded_tokens": padded.padded_tokens,
        "seconds_per_step": round(wall["packed"], 4),
        "seconds_forward_backward": packed.median_of("time/forward_backward"),
        "seconds_optimizer": packed.median_of("time/optimizer"),
        "tokens_per_second": round(num_tokens / wall["packed"], 1),
        "tokens_per_second_transformers": round(num_tokens / wall["padded"], 1),
        "ratio": round(wall["padded"] / wall["packed"], 3),
        "ratio_processor": round(processor["padded"] / processor["packed"], 3),
        "model_flops_per_second": round(flops / wall["packed"]),
        "gemm_flops_per_second": round(product.flops / wall["product"]),
        "gemm_share": round(flops / wall["packed"] / (product.flops / wall["product"]), 3),
        "gemm_share_processor": round(flops / processor["packed"] / (product.flops / processor["product"]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="measured training steps, after one of warm-up")
    parser.add_argument("--max-tokens", type=int, default=16384, help="token budget of a micro-batch")
    parser.add_argument(
        "--baseline-rows", type=int, default=0, help="sequences of a padded micro-batch; 0: what the budget holds"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(measure(args, Path(directory))))


if __name__ == "__main__":
    main()
