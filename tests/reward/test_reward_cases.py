"""The shared reference cases, where they are present: what the grader must get right at least."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from da3po.reward import worker

PATH = Path(os.environ.get("DA3PO_SHARED", Path(__file__).parents[3] / "shared")) / "cases" / "grader_cases.jsonl"


@pytest.mark.skipif(not PATH.is_file(), reason="no reference cases here")
def test_reference_cases() -> None:
    worker.load("math")
    cases = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]
    cases = [case for case in cases if case["tier"] == "math" and not case["conflict"]]
    wrong = []
    for case in cases:
        [grade] = worker.grade_chunk(case["gold"], [case["prediction"] or ""])
        if (grade.outcome == "correct") != case["expected"]:
            wrong.append((case["id"], grade))
    assert len(cases) >= 300
    assert len(wrong) <= len(cases) // 100, wrong
