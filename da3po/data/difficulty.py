"""How hard problems were for an earlier run, and the choice of problems by it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from da3po.config.schema import DifficultyConfig
from da3po.data.files import read_rows
from da3po.data.problems import DataError, Problem

logger = logging.getLogger(__name__)

_FAILURES = frozenset(["timeout", "error", "aborted"])


def read_p_hat(record: str) -> dict[str, float]:
    """uid -> p_hat, from a .jsonl file or from those of a run directory.

    A row is (uid, p_hat), the newest of a uid counts; or one graded sample (uid, outcome), all samples of a uid are
    put together and failures to grade left aside.

    Raises:
        DataError: there is nothing of the kind.
    """
    path = Path(record)
    files = [path] if path.is_file() else [path / "rollouts.jsonl", *sorted((path / "eval").glob("*.jsonl"))]
    stated: dict[str, float] = {}
    samples: dict[str, list[bool]] = defaultdict(list)
    for file in files:
        for number, row in read_rows(file) if file.is_file() else ():
            if "uid" in row and "p_hat" in row:
                stated[row["uid"]] = _share(file, number, row["p_hat"])
            elif "uid" in row and row.get("outcome") not in (None, *_FAILURES):
                samples[row["uid"]].append(row["outcome"] == "correct")
    measured = {uid: sum(correct) / len(correct) for uid, correct in samples.items()}
    if not (stated or measured):
        raise DataError(f"data.difficulty.record={record}: no rows with uid and p_hat, or uid and outcome")
    return measured | stated


def _share(file: Path, number: int, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise DataError(f"{file}, line {number}: p_hat must lie between 0 and 1, got {value!r}")
    return float(value)


def select(problems: Sequence[Problem], config: DifficultyConfig, name: str) -> list[Problem]:
    """The problems that `config` lets through, in order; how many went and why is logged."""
    if config.record is None:
        return list(problems)
    p_hat = read_p_hat(config.record)
    known = sum(problem.uid in p_hat for problem in problems)
    kept = list(_selected(problems, config, p_hat))
    logger.info(
        "%s: %d of %d problems kept by difficulty (%g <= p_hat <= %g; %d have no p_hat: %s)",
        name,
        len(kept),
        len(problems),
        config.low,
        config.high,
        len(problems) - known,
        "kept" if config.unknown == "keep" else "left out",
    )
    if not kept:
        raise DataError(f"{name}: data.difficulty leaves no problem of {len(problems)} ({known} have a p_hat)")
    return kept


def _selected(problems: Sequence[Problem], config: DifficultyConfig, p_hat: Mapping[str, float]) -> Iterator[Problem]:
    for problem in problems:
        if problem.uid not in p_hat:
            if config.unknown == "keep":
                yield problem
        elif config.low <= p_hat[problem.uid] <= config.high:
            yield problem
