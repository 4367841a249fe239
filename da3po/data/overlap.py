"""Problems of a benchmark that stand in the training data."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass

from da3po.data.problems import Problem

NUM_COMPARED = 80
# A shorter text ("Compute 2 + 3.") must be the whole of the other one, for many problems may begin with it.
MIN_PREFIX = 30

_INSIGNIFICANT = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """benchmark: its title. num_problems: how many it has. rows: (row of the benchmark, row of the training file)."""

    benchmark: str
    num_problems: int
    rows: tuple[tuple[int, int], ...]


def normalized(text: str) -> str:
    """Lower-case letters and digits of any script, and nothing else: `\\(x\\)`, `$x$` and `x` are the same."""
    return _INSIGNIFICANT.sub("", text.casefold())


def find_overlap(benchmark: str, asked: Sequence[Problem], trained: Sequence[Problem]) -> Overlap:
    """Problems whose first NUM_COMPARED normalised characters begin a problem of the training data."""
    known = sorted((normalized(problem.text), problem.row) for problem in trained)
    rows = []
    for problem in asked:
        match = _find(normalized(problem.text), known)
        if match is not None:
            rows.append((problem.row, match))
    return Overlap(benchmark=benchmark, num_problems=len(asked), rows=tuple(rows))


def _find(text: str, known: Sequence[tuple[str, int]]) -> int | None:
    head = text[:NUM_COMPARED]
    place = bisect.bisect_left(known, (head, 0))
    if not head or place == len(known):
        return None
    candidate, row = known[place]
    same = candidate.startswith(head) if len(head) >= MIN_PREFIX else candidate == head
    return row if same else None
