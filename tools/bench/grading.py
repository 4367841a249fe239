"""How fast the grader pool is.

    python tools/bench/grading.py [--answers 8192] [--workers 2]

Short answers of the kinds that training data have (integers, fractions, decimals), right and wrong, in groups of 16 for
a reference, through the pool as training uses it. Prints one JSON object: seconds until the pool graded its first
answer, seconds and answers a second of the whole, the same with one hostile answer in a thousand, and the cost of
rambling answers, strings of digits, signs and letters such as a small model gives that has learned little yet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence

from da3po.config.schema import RewardConfig
from da3po.reward.pool import GraderPool
from da3po.types import Outcome

GROUP = 16
HOSTILE = r"\boxed{(10^{9})!}"
SYMBOLS = 80 * "0123456789" + 140 * "+" + 55 * ":" + 10 * "e" + 6 * "A-" + 3 * "sn*r" + "</!^.()\n"


def groups(num_answers: int, hostile_every: int) -> list[tuple[str, list[str]]]:
    """(reference, responses); every `hostile_every`-th response is hostile, none if it is 0."""
    draw = random.Random(1)
    made = []
    for number in range(num_answers // GROUP):
        gold = draw.randrange(1000)
        right = (
            f"\\boxed{{{gold}}}",
            f"Answer: {gold}",
            f"so it is $\\frac{{{2 * gold}}}{{2}}$.",
            f"\\boxed{{{gold}.0}}",
        )
        responses = [
            draw.choice(right) if draw.random() < 0.5 else f"\\boxed{{{draw.randrange(1000)}}}" for _ in range(GROUP)
        ]
        if hostile_every:
            responses = [
                HOSTILE if (number * GROUP + i) % hostile_every == 0 else response
                for i, response in enumerate(responses)
            ]
        made.append((str(gold), responses))
    return made


def ramblings(seed: int, num_answers: int) -> list[tuple[str, list[str]]]:
    """(reference, responses) whose responses begin with a number and go on with 4 to 32 symbols."""
    draw = random.Random(seed)
    return [
        (
            str(draw.randrange(1000)),
            [f"{draw.randrange(1000)}{''.join(draw.choices(SYMBOLS, k=draw.randint(4, 32)))}" for _ in range(GROUP)],
        )
        for _ in range(num_answers // GROUP)
    ]


async def grade(pool: GraderPool, work: Sequence[tuple[str, list[str]]]) -> tuple[float, dict[str, int]]:
    """Seconds for all of it, and how many answers had each outcome."""
    start = time.perf_counter()
    grades = await asyncio.gather(*(pool.grade(gold, responses) for gold, responses in work))
    seconds = time.perf_counter() - start
    outcomes = [one.outcome for group in grades for one in group]
    return seconds, {outcome.value: outcomes.count(outcome) for outcome in Outcome if outcome in outcomes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=8192)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    start = time.perf_counter()
    pool = GraderPool(RewardConfig(num_workers=options.workers))
    try:
        asyncio.run(pool.grade("1", ["1"]))
        started = time.perf_counter() - start
        seconds, outcomes = asyncio.run(grade(pool, groups(options.answers, 0)))
        asyncio.run(grade(pool, ramblings(2, 512)))  # the first ones that need it import SymPy
        rambling_seconds, rambling_outcomes = asyncio.run(grade(pool, ramblings(3, options.answers)))
        hostile_seconds, hostile_outcomes = asyncio.run(grade(pool, groups(options.answers, 1000)))
    finally:
        pool.close()
    print(
        json.dumps(
            {
                "workers": options.workers,
                "pool_start_seconds": round(started, 3),
                "answers": options.answers,
                "seconds": round(seconds, 3),
                "answers_per_second": round(options.answers / seconds),
                "outcomes": outcomes,
                "rambling": {
                    "seconds": round(rambling_seconds, 3),
                    "milliseconds_per_answer": round(1000 * rambling_seconds * options.workers / options.answers, 3),
                    "outcomes": rambling_outcomes,
                },
                "with_hostile": {"seconds": round(hostile_seconds, 3), "outcomes": hostile_outcomes},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
