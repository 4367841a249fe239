"""Milliseconds that the controller needs to make a batch of graded groups, as JSON.

    python tools/bench/postprocess.py [--num-prompts 512] [--num-samples 16] [--max-tokens 4096] [--repeat 20]

Timed: every group of a batch through dynamic sampling, shaping, group advantage and DAA, to the batch with its metrics.
`after_the_last_group` is what the learner waits for; all before runs beside generation. Times are those that the thread
spent on its core, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from functools import cache

from da3po.config.load import load
from da3po.rollout.postprocess import PostProcessor
from da3po.types import Completion, Grade, Group, Outcome, Prompt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-prompts", type=int, default=512)
    parser.add_argument("--num-samples", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("overrides", nargs="*", help="of the options of a run, such as algo=dapo")
    args = parser.parse_args()
    algo = load([f"rollout.max_tokens={args.max_tokens}", *args.overrides]).algo
    rounds = [one_batch(args, PostProcessor(algo, args.num_prompts, args.max_tokens)) for _ in range(args.repeat)]
    whole = [1e3 * (end - start) for start, _, end in rounds]
    last = [1e3 * (end - before) for _, before, end in rounds]
    print(
        json.dumps(
            {
                "num_prompts": args.num_prompts,
                "num_samples": args.num_samples,
                "max_tokens": args.max_tokens,
                "milliseconds": {"median": statistics.median(whole), "min": min(whole), "max": max(whole)},
                "milliseconds_after_the_last_group": statistics.median(last),
            },
            indent=1,
        )
    )


def one_batch(args: argparse.Namespace, post: PostProcessor) -> tuple[float, float, float]:
    """When the first group came, when the last one did, and when the batch was there."""
    groups = make_groups(args)
    post.begin(1, weight_version=0)
    gc.collect()
    start = time.thread_time()
    for group in groups[:-1]:
        assert post.add(group) is None
    before = time.thread_time()
    batch = post.add(groups[-1])
    end = time.thread_time()
    assert batch is not None and len(batch.samples) == args.num_prompts * args.num_samples
    return start, before, end


def make_groups(args: argparse.Namespace) -> list[Group]:
    chance = random.Random(0)
    groups = []
    for draw in range(args.num_prompts):
        num_correct = chance.randint(1, args.num_samples - 1)
        completions = tuple(response(chance.randint(1, args.max_tokens)) for _ in range(args.num_samples))
        right, wrong = Grade(outcome=Outcome.CORRECT), Grade(outcome=Outcome.WRONG)
        grades = [right] * num_correct + [wrong] * (args.num_samples - num_correct)
        chance.shuffle(grades)
        groups.append(Group(prompt=prompt(draw), completions=completions, grades=tuple(grades)))
    return groups


@cache
def response(num_tokens: int) -> Completion:
    return Completion(
        token_ids=(5,) * num_tokens, logprobs=(-0.5,) * num_tokens, text="", finish="stop", weight_version=0
    )


def prompt(draw: int) -> Prompt:
    return Prompt(uid=f"uid-{draw}", draw=draw, epoch=0, text="", token_ids=(1, 2, 3), gold="1", source="bench")


if __name__ == "__main__":
    main()
