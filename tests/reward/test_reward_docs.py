"""Every row of docs/grading.md is a promise; here each is kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from da3po.reward import worker

ROW = re.compile(r"\| `(?P<gold>.+?)` \| `(?P<response>.+?)` \| (?P<outcome>\w+) \|")
TEXT = (Path(__file__).parents[2] / "docs" / "grading.md").read_text(encoding="utf-8")
PROMISES = [
    (match["gold"], match["response"], match["outcome"]) for match in map(ROW.fullmatch, TEXT.splitlines()) if match
]


def test_the_page_has_its_tables() -> None:
    assert len(PROMISES) >= 90


@pytest.fixture(scope="module", autouse=True)
def _grader() -> None:
    worker.load("math")


@pytest.mark.parametrize(("gold", "response", "outcome"), PROMISES)
def test_conventions(gold: str, response: str, outcome: str) -> None:
    [grade] = worker.grade_chunk(gold, [response])
    assert grade.outcome.value == outcome, grade
