"""Time and quality of packing one step's sequences into micro-batches of every data-parallel rank.

    python tools/bench/packing.py

Prints one JSON object. `seconds_plan` is the choice of micro-batches alone, `seconds_pack` the whole step with its
tensors, medians of the rounds. `waste` is the share of padding among the tokens of all micro-batches, `imbalance` what
the slowest rank has above the mean, in tokens and, with `attention_imbalance`, in pairs of tokens that attend to each
other; `room` is the share of the budget of all micro-batches that is left empty.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence

from da3po.config.schema import LossConfig
from da3po.pack.packer import Packer
from da3po.pack.plan import Plan, plan
from da3po.types import StepBatch, StepStats, TrainSample


def log_normal_lengths(count: int, mean: float, cap: int, sigma: float, seed: int = 0) -> list[int]:
    """Token counts with this mean before they are cut at the cap."""
    draw = random.Random(seed)
    scale = mean / 2.718281828459045 ** (sigma**2 / 2)
    return [min(cap, max(1, round(scale * draw.lognormvariate(0.0, sigma)))) for _ in range(count)]


def step_of(lengths: Sequence[int]) -> StepBatch:
    """Samples of these lengths, an eighth of each the prompt."""
    samples = []
    for length in lengths:
        num_prompt = max(1, length // 8)
        response = tuple(range(length - num_prompt))
        samples.append(
            TrainSample(
                prompt_uid="bench",
                prompt_ids=tuple(range(num_prompt)),
                response_ids=response,
                behaviour_logprobs=(-1.0,) * len(response),
                reward=1.0,
                advantage=1.0,
                fresh=True,
            )
        )
    return StepBatch(step=1, samples=tuple(samples), group_sizes=(len(samples),), stats=StepStats())


def seconds(action: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def imbalance(result: Plan, cost: Callable[[int], float], lengths: Sequence[int]) -> float:
    ranks = [sum(cost(lengths[index]) for part in rank for index in part) for rank in result.micro_batches]
    return max(ranks) / (sum(ranks) / len(ranks)) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=8192)
    parser.add_argument("--mean", type=float, default=1500.0)
    parser.add_argument("--sigma", type=float, default=0.6, help="of the log-normal lengths")
    parser.add_argument("--cap", type=int, default=4096)
    parser.add_argument("--dp", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=16384, help="token budget of a micro-batch")
    parser.add_argument("--pad-to", type=int, default=8, help="multiple that a micro-batch is padded to")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()

    lengths = log_normal_lengths(args.sequences, args.mean, args.cap, args.sigma)
    result = plan(lengths, args.dp, args.max_tokens)
    batch = step_of(lengths)
    packer = Packer(loss=LossConfig(), dp=args.dp, max_tokens=args.max_tokens, pad_to_multiple=args.pad_to)
    stats = packer(batch).stats.values
    found = {
        "sequences": args.sequences,
        "dp": args.dp,
        "max_tokens": args.max_tokens,
        "mean_length": round(statistics.mean(lengths), 1),
        "seconds_plan": round(seconds(lambda: plan(lengths, args.dp, args.max_tokens), args.rounds), 4),
        "seconds_pack": round(seconds(lambda: packer(batch), min(3, args.rounds)), 4),
        "num_micro_batches": result.num_micro_batches,
        "waste": round(stats["pack/waste"], 5),
        "imbalance": round(stats["pack/imbalance"], 5),
        "attention_imbalance": round(imbalance(result, lambda length: length**2, lengths), 5),
        "room": round(1 - sum(lengths) / (args.dp * result.num_micro_batches * args.max_tokens), 5),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
