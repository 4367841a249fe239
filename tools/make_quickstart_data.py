"""Write the quickstart's problems: arithmetic of mixed difficulty, in DAPO-Math-17K's schema.

    python tools/make_quickstart_data.py [--out da3po/data/package] [--seed 1] [--num-train 6000] [--num-eval 512]

Every run with the same arguments writes the same rows. Both files hold the kinds of `KINDS` in the same shares, no
problem occurs twice, and none is in both files.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DEFAULT_SEED = 1
DEFAULT_NUM_TRAIN = 6000
DEFAULT_NUM_EVAL = 512
PACKAGE_DIR = Path(__file__).resolve().parent.parent / "da3po" / "data" / "package"

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
        ("extra_info", pa.struct([("index", pa.string())])),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One arithmetic problem: its bare text, its exact answer (never negative), and the name of its kind."""

    text: str
    answer: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A family of problems of like difficulty.

    share: of each file, in percent.
    draw: one random problem as (text, answer).
    """

    name: str
    share: int
    draw: Callable[[random.Random], tuple[str, int]]

    def sample(self, rng: random.Random) -> Problem:
        text, answer = self.draw(rng)
        return Problem(text=text, answer=answer, kind=self.name)


def _sum(low: int, high: int) -> Callable[[random.Random], tuple[str, int]]:
    def draw(rng: random.Random) -> tuple[str, int]:
        a, b = rng.randint(low, high), rng.randint(low, high)
        return f"{a} + {b}", a + b

    return draw


def _difference(low: int, high: int) -> Callable[[random.Random], tuple[str, int]]:
    def draw(rng: random.Random) -> tuple[str, int]:
        b, a = sorted((rng.randint(low, high), rng.randint(low, high)))
        return f"{a} - {b}", a - b

    return draw


def _product(low_a: int, high_a: int, low_b: int, high_b: int) -> Callable[[random.Random], tuple[str, int]]:
    def draw(rng: random.Random) -> tuple[str, int]:
        a, b = rng.randint(low_a, high_a), rng.randint(low_b, high_b)
        return f"{a} * {b}", a * b

    return draw


def _sum_then_difference(rng: random.Random) -> tuple[str, int]:
    a, b = rng.randint(2, 20), rng.randint(2, 20)
    c = rng.randint(2, min(20, a + b))
    return f"{a} + {b} - {c}", a + b - c


def _product_then_sum(rng: random.Random) -> tuple[str, int]:
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 20)
    return f"{a} * {b} + {c}", a * b + c


def _product_then_difference(rng: random.Random) -> tuple[str, int]:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    c = rng.randint(2, min(20, a * b))
    return f"{a} * {b} - {c}", a * b - c


KINDS = (
    Kind(name="sum_to_50", share=20, draw=_sum(2, 50)),
    Kind(name="sum_2_digits", share=15, draw=_sum(10, 99)),
    Kind(name="sum_3_digits", share=5, draw=_sum(100, 999)),
    Kind(name="difference_to_50", share=12, draw=_difference(2, 50)),
    Kind(name="difference_2_digits", share=13, draw=_difference(10, 99)),
    Kind(name="product_to_29", share=3, draw=_product(2, 29, 2, 9)),
    Kind(name="product_to_99", share=5, draw=_product(30, 99, 2, 9)),
    Kind(name="sum_then_difference", share=13, draw=_sum_then_difference),
    Kind(name="product_then_sum", share=8, draw=_product_then_sum),
    Kind(name="product_then_difference", share=6, draw=_product_then_difference),
)


def _counts(total: int) -> list[int]:
    """Split `total` over the kinds by their shares; rounding is made up for by the first kinds."""
    counts = [total * kind.share // 100 for kind in KINDS]
    for i in range(total - sum(counts)):
        counts[i] += 1
    return counts


def _distinct(kind: Kind, count: int, taken: set[str], rng: random.Random) -> list[Problem]:
    """`count` new problems of a kind; their texts join `taken`, since kinds overlap."""
    found: list[Problem] = []
    for _ in range(100 * count):
        if len(found) == count:
            return found
        problem = kind.sample(rng)
        if problem.text not in taken:
            taken.add(problem.text)
            found.append(problem)
    raise ValueError(f"kind {kind.name} has too few problems for {count} distinct ones")


def make_problems(seed: int, num_train: int, num_eval: int) -> tuple[list[Problem], list[Problem]]:
    """Training and evaluation problems, each shuffled. Raises ValueError if a kind cannot supply its share."""
    rng = random.Random(seed)
    train: list[Problem] = []
    held_out: list[Problem] = []
    taken: set[str] = set()
    for kind, for_train, for_eval in zip(KINDS, _counts(num_train), _counts(num_eval), strict=True):
        problems = _distinct(kind, for_train + for_eval, taken, rng)
        held_out += problems[:for_eval]
        train += problems[for_eval:]
    rng.shuffle(train)
    rng.shuffle(held_out)
    return train, held_out


def to_table(problems: list[Problem], split: str) -> pa.Table:
    rows = [
        {
            "data_source": "quickstart_arithmetic",
            "prompt": [{"content": problem.text, "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(problem.answer), "style": "rule"},
            "extra_info": {"index": f"{split}-{i}"},
        }
        for i, problem in enumerate(problems)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def write(out: Path, seed: int, num_train: int, num_eval: int) -> tuple[Path, Path]:
    """Write both files into `out` and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = out / "quickstart-train.parquet", out / "quickstart-eval.parquet"
    for path, split, problems in zip(paths, ("train", "eval"), make_problems(seed, num_train, num_eval), strict=True):
        pq.write_table(to_table(problems, split), path, compression="zstd")
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PACKAGE_DIR)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--num-train", type=int, default=DEFAULT_NUM_TRAIN)
    parser.add_argument("--num-eval", type=int, default=DEFAULT_NUM_EVAL)
    args = parser.parse_args()
    for path in write(args.out, args.seed, args.num_train, args.num_eval):
        print(f"{path}: {pq.read_metadata(path).num_rows} rows, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
