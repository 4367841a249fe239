"""Trains some steps with TRL's GRPOTrainer and writes tokens per second.

tools/bench/against_trl.py starts it in TRL's environment. It takes a JSON file that says what to train, and writes
`result.json` into the folder that it names. Started by torch.distributed.run, its processes share the batch.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import operator
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from da3po.config.schema import RewardConfig
from da3po.reward.pool import GraderPool
from da3po.types import Outcome


class Reward:
    """da3po's own grader, with its deadlines, and the rewards of DAPO."""

    __name__ = "reward"  # TRL reports it under that

    def __init__(self) -> None:
        self._pool = GraderPool(RewardConfig())

    def __call__(self, completions: list[str], gold: list[str], **_: Any) -> list[float]:
        return asyncio.run(self._grade(completions, gold))

    async def _grade(self, completions: list[str], golds: list[str]) -> list[float]:
        """The samples of a prompt follow one another."""
        groups = [
            (gold, [response for _, response in group])
            for gold, group in itertools.groupby(zip(golds, completions, strict=True), key=operator.itemgetter(0))
        ]
        graded = await asyncio.gather(*(self._pool.grade(gold, responses) for gold, responses in groups))
        return [1.0 if grade.outcome is Outcome.CORRECT else -1.0 for grades in graded for grade in grades]

    def close(self) -> None:
        self._pool.close()


class Clock(TrainerCallback):
    """Seconds of every step, and the mean length of its responses."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.lengths: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._begin = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._begin)

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        if "completions/mean_length" in logs:
            self.lengths.append(logs["completions/mean_length"])


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(2 // processes)
    batch = task["num_prompts"] * task["num_samples"]
    config = GRPOConfig(
        output_dir=task["folder"],
        loss_type="dapo",
        epsilon_high=0.28,
        beta=0.0,
        num_generations=task["num_samples"],
        max_completion_length=task["max_tokens"],
        per_device_train_batch_size=task["micro_batch"],
        gradient_accumulation_steps=batch // (processes * task["micro_batch"]),
        max_steps=task["steps"],
        learning_rate=2e-4,
        warmup_steps=2,
        temperature=task["temperature"],
        bf16=task["numbers"] == "mixed",
        model_init_kwargs={"dtype": "bfloat16" if task["numbers"] == "bfloat16" else "float32"},
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo" if processes > 1 else None,
        seed=1,
    )
    clock = Clock()
    reward = Reward()
    trainer = GRPOTrainer(
        model=task["model"],
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(task["prompts"]),
        processing_class=AutoTokenizer.from_pretrained(task["model"]),
        callbacks=[clock],
    )
    trainer.train()
    reward.close()
    if os.environ.get("RANK", "0") != "0":
        return
    seconds = clock.seconds[1:-1]
    rates = [batch * length / taken for length, taken in zip(clock.lengths[1:], seconds, strict=False)]
    result = {
        "mean_length": statistics.mean(clock.lengths[1:]),
        "tokens_per_second": statistics.median(rates),
        "seconds": statistics.median(seconds),
    }
    (Path(task["folder"]) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
