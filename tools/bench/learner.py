"""Tokens per second of one learner rank: forward, backward and optimizer step on packed sequences of varied length.

    python tools/bench/learner.py --preset tiny --threads 2

Prints one JSON object: tokens_per_second counts prompt and response tokens of whole steps, model_flops_per_second
is 6 x parameters x tokens / second.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from da3po.config.schema import LearnerConfig, LossConfig
from da3po.learner.client import updates_of
from da3po.learner.megatron.worker import LearnerRank
from da3po.learner.spec import LearnerSpec
from da3po.models.families import hf_shapes, whole_model
from da3po.models.hf_config import read_model_spec
from da3po.models.safetensors_io import plan_files, write_file
from da3po.pack.packer import Packer
from da3po.types import PackedStep, StepBatch, StepStats, TrainSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Shape of the model and of the batch. max_response: longest response; lengths are spread log-normally below it."""

    hidden: int
    layers: int
    heads: int
    head_dim: int
    vocab: int
    num_samples: int
    max_response: int


PRESETS = {
    "tiny": Preset(hidden=128, layers=4, heads=4, head_dim=32, vocab=259, num_samples=1024, max_response=24),
    "long": Preset(hidden=128, layers=4, heads=4, head_dim=32, vocab=259, num_samples=64, max_response=1024),
    "small": Preset(hidden=512, layers=8, heads=8, head_dim=64, vocab=4096, num_samples=32, max_response=512),
    "wide": Preset(hidden=1024, layers=4, heads=16, head_dim=64, vocab=4096, num_samples=16, max_response=512),
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


def pack(preset: Preset, max_tokens: int) -> PackedStep:
    """Responses with a mean of a third of the cap."""
    draw = random.Random(0)
    samples = []
    for _ in range(preset.num_samples):
        length = min(preset.max_response, max(1, round(draw.lognormvariate(0.0, 0.6) * preset.max_response / 3.6)))
        ids = [draw.randrange(preset.vocab) for _ in range(16 + length)]
        samples.append(
            TrainSample(
                prompt_uid="bench",
                prompt_ids=tuple(ids[:16]),
                response_ids=tuple(ids[16:]),
                behaviour_logprobs=(-5.0,) * length,
                reward=1.0,
                advantage=draw.gauss(0.0, 1.0),
                fresh=True,
            )
        )
    packer = Packer(loss=LossConfig(), dp=1, max_tokens=max_tokens)
    return packer(StepBatch(step=1, samples=tuple(samples), group_sizes=(len(samples),), stats=StepStats()))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def measure(args: argparse.Namespace, model_dir: Path) -> dict[str, float | str]:
    preset = PRESETS[args.preset]
    write_model(model_dir, preset)
    rank = LearnerRank()
    rank.init(0, 1, "127.0.0.1", free_port())
    config = LearnerConfig(device="cpu", num_threads=args.threads)
    rank.setup(LearnerSpec(model_path=str(model_dir), train_steps=args.steps, learner=config))
    step = pack(preset, args.max_tokens)
    updates = updates_of(step, 0)
    rank.step(1, updates)
    start = time.perf_counter()
    metrics = [rank.step(number + 1, updates) for number in range(args.steps)]
    seconds = (time.perf_counter() - start) / args.steps
    num_parameters = sum(parameter.numel() for model in rank.trainer.models for parameter in model.parameters())
    rank.close()
    num_tokens = step.stats.values["pack/num_tokens"]
    return {
        "preset": args.preset,
        "threads": args.threads,
        "num_parameters": num_parameters,
        "num_tokens": num_tokens,
        "num_micro_batches": step.stats.values["pack/num_micro_batches"],
        "seconds_per_step": round(seconds, 4),
        "seconds_forward_backward": round(sum(m["time/forward_backward"] for m in metrics) / args.steps, 4),
        "seconds_optimizer": round(sum(m["time/optimizer"] for m in metrics) / args.steps, 4),
        "tokens_per_second": round(num_tokens / seconds, 1),
        "model_flops_per_second": round(6 * num_parameters * num_tokens / seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="measured training steps, after one of warm-up")
    parser.add_argument("--max-tokens", type=int, default=16384, help="token budget of a micro-batch")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(measure(args, Path(directory))))


if __name__ == "__main__":
    main()
