"""A problem with its reference answer, and what holds for a whole list of them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)


class DataError(ValueError):
    """Data that cannot be used; the message names the file and the row or line. `row` is 0 if it is about no row."""

    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One row of a data set.

    uid: hash of source and text, blind to white space; equal problems of one source have equal uids.
    text: the bare problem, without instructions around it.
    gold: the reference answer as text.
    source: name of the data set.
    messages: the row's own prompt messages, where its schema has them.
    row: position in its file, counted from 1 (the line number of a jsonl file).
    """

    uid: str
    text: str
    gold: str
    source: str
    messages: tuple[Mapping[str, str], ...] | None
    row: int


def problem_uid(source: str, text: str) -> str:
    """Identity of a problem: BLAKE2b of its source and its text with runs of white space made one space."""
    key = f"{source}\x1f{' '.join(text.split())}"
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


def deduplicate(problems: Sequence[Problem], name: str) -> list[Problem]:
    """The first row of each problem, in order; logs what was found, contradictory answers included."""
    first: dict[str, Problem] = {}
    contradictory: set[str] = set()
    for problem in problems:
        kept = first.setdefault(problem.uid, problem)
        if kept.gold != problem.gold:
            contradictory.add(problem.uid)
    logger.info("%s: %d rows, %d unique", name, len(problems), len(first))
    if contradictory:
        logger.warning(
            "%s: %d problems have copies with different answers; the first copy is kept (row %d is one)",
            name,
            len(contradictory),
            first[min(contradictory, key=lambda uid: first[uid].row)].row,
        )
    return list(first.values())
