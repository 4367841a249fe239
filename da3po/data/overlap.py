"""Problems of a benchmark that stand in the training data.

Two comparisons, for neither finds all that the other does: the first NUM_COMPARED characters of the text, blind to its
spelling alone (white space, case, `$`, braces, `\\left`), which is how overlaps are usually counted; and the first
NUM_COMPARED letters and digits, blind to every notation.
"""

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
_SPELLING = re.compile(r"\\(?:left|right)(?![a-z])|[\s${}]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What of a benchmark stands in the training data.

    benchmark: its title. num_problems: how many it has.
    rows: (row of the benchmark, row of the training file) for every problem that either comparison finds.
    verbatim: rows of the benchmark whose text begins a problem of the file. alike: those that do by letters and digits.
    """

    benchmark: str
    num_problems: int
    rows: tuple[tuple[int, int], ...]
    verbatim: tuple[int, ...]
    alike: tuple[int, ...]


def normalized(text: str) -> str:
    """Lower-case letters and digits of any script, and nothing else: `\\(x\\)`, `$x$` and `x` are the same."""
    return _INSIGNIFICANT.sub("", text.casefold())


def respelled(text: str) -> str:
    """The text in lower case without white space, dollar signs, braces, `\\left` and `\\right`."""
    return _SPELLING.sub("", text.casefold())


class TrainingTexts:
    """How the problems of the training data begin, to look up those of any number of benchmarks."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self._respelled = sorted((respelled(problem.text), problem.row) for problem in problems)
        self._normalized = sorted((normalized(problem.text), problem.row) for problem in problems)

    def overlap(self, benchmark: str, problems: Sequence[Problem]) -> Overlap:
        """Problems of a benchmark that begin as one of the training data does, by either comparison."""
        verbatim = {p.row: row for p in problems if (row := _find(respelled(p.text), self._respelled, NUM_COMPARED))}
        alike = {p.row: row for p in problems if (row := _find(normalized(p.text), self._normalized, MIN_PREFIX))}
        rows = {**alike, **verbatim}
        return Overlap(
            benchmark=benchmark,
            num_problems=len(problems),
            rows=tuple((p.row, rows[p.row]) for p in problems if p.row in rows),
            verbatim=tuple(verbatim),
            alike=tuple(alike),
        )


def _find(text: str, known: Sequence[tuple[str, int]], min_prefix: int) -> int | None:
    """The row of `known` (sorted) whose first NUM_COMPARED characters are those of `text`.

    A text of fewer than `min_prefix` characters must be the whole of the other one.
    """
    head = text[:NUM_COMPARED]
    place = bisect.bisect_left(known, (head, 0))
    if not head or place == len(known):
        return None
    candidate, row = known[place]
    same = candidate.startswith(head) if len(head) >= min_prefix else candidate == head
    return row if same else None
