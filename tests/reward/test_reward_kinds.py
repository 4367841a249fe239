"""Kinds of answers, a row each in kinds.jsonl: gold, response, and whether the two say the same."""

from __future__ import annotations

import json
from pathlib import Path

from da3po.reward import worker

ROWS = [json.loads(line) for line in Path(__file__).with_name("kinds.jsonl").read_text(encoding="utf-8").splitlines()]


def test_every_kind() -> None:
    worker.load("math")
    assert len(ROWS) > 1500
    wrong = []
    for row in ROWS:
        [grade] = worker.grade_chunk(row["gold"], [row["response"]])
        if (grade.outcome == "correct") != row["correct"]:
            wrong.append((row, grade))
    assert wrong == []
