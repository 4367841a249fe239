"""`da3po grade FILE.jsonl [--grader NAME]`: grade answers that are already there."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from da3po.command import FAILURE, run_command
from da3po.config.schema import RewardConfig
from da3po.data.files import CutOff, read_rows, resolve_path
from da3po.data.problems import DataError
from da3po.data.sources import gold_text
from da3po.reward.graders import GRADERS, GraderError
from da3po.reward.pool import GraderPool
from da3po.types import Grade, Outcome

logger = logging.getLogger(__name__)

# Rows graded at a time: enough to keep every worker busy, few enough that output begins at once and memory is bounded.
_WINDOW = 512
# In the counts: lines of the file that are no row, so that nothing was graded for them.
UNREADABLE = "unreadable"


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")

    def grade() -> int:
        config = RewardConfig(grader=options.grader, timeout=options.timeout, num_workers=options.workers)
        counts = grade_file(options.file, sys.stdout, config)
        print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), file=sys.stderr)
        return FAILURE if UNREADABLE in counts else 0

    return run_command(grade, failures=(GraderError,))


def _parser() -> argparse.ArgumentParser:
    default = RewardConfig()
    parser = argparse.ArgumentParser(prog="da3po grade", description="Grade the predictions in a jsonl file.")
    parser.add_argument("file", help="rows with gold, prediction and, if you like, id")
    parser.add_argument(
        "--grader", default=default.grader, help=f"{', '.join(GRADERS)} or a dotted path (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, default=default.timeout, help="seconds for one answer (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: cores)")
    return parser


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    fields: Mapping[str, Any]
    gold: str
    prediction: str | None


def grade_file(path: str, out: TextIO, config: RewardConfig) -> dict[str, int]:
    """Write every row of a jsonl file to `out` with its outcome, in order; return how many had each outcome.

    A row has `gold`, `prediction` (a whole response or a bare answer; null is no answer) and whatever else, which is
    kept. `outcome` is one of correct, wrong, no_answer, timeout, error; `answer` is what was taken for the final
    answer, `detail` says what went wrong. A last line that is cut off is counted as UNREADABLE, and named.

    Raises DataError, naming the line, before anything is graded, for any other line that cannot be used.
    """
    cut_off: list[DataError] = []
    rows = list(_read(resolve_path(path), cut_off.append))
    for error in cut_off:
        logger.error("%s; it is the last line, and is not graded", error)
    pool = GraderPool(config)
    try:
        counts = asyncio.run(_grade_rows(rows, pool, out))
    finally:
        pool.close()
    return counts | ({UNREADABLE: len(cut_off)} if cut_off else {})


def _read(path: Path, on_cut_off: CutOff) -> Iterator[_Row]:
    for number, fields in read_rows(path, on_cut_off):
        missing = [key for key in ("gold", "prediction") if key not in fields]
        if missing:
            raise DataError(f"{path}, line {number}: no field {missing[0]!r}; the row has {sorted(fields)}")
        try:
            gold = gold_text(fields["gold"])
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
        prediction = fields["prediction"]
        if prediction is not None and not isinstance(prediction, str | int | float):
            raise DataError(
                f"{path}, line {number}: `prediction` must be text or null, got {type(prediction).__name__}"
            )
        yield _Row(fields=fields, gold=gold, prediction=None if prediction is None else str(prediction))


async def _grade_rows(rows: Sequence[_Row], pool: GraderPool, out: TextIO) -> dict[str, int]:
    counts = {outcome.value: 0 for outcome in Outcome if outcome is not Outcome.ABORTED}
    for begin in range(0, len(rows), _WINDOW):
        window = rows[begin : begin + _WINDOW]
        for row, grade in zip(window, await asyncio.gather(*(_grade_row(row, pool) for row in window)), strict=True):
            counts[grade.outcome.value] += 1
            out.write(_line(row, grade) + "\n")
        out.flush()
    return counts


async def _grade_row(row: _Row, pool: GraderPool) -> Grade:
    if row.prediction is None:
        return Grade(outcome=Outcome.NO_ANSWER)
    [grade] = await pool.grade(row.gold, [row.prediction])
    return grade


def _line(row: _Row, grade: Grade) -> str:
    """JSON in valid UTF-8: a lone surrogate, which UTF-8 cannot hold, stays the escape that JSON has for it."""
    verdict = {"outcome": grade.outcome.value, "answer": grade.answer}
    if grade.detail:
        verdict["detail"] = grade.detail
    text = json.dumps({**row.fields, **verdict}, ensure_ascii=False)
    return text if _is_utf8(text) else json.dumps({**row.fields, **verdict})


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
