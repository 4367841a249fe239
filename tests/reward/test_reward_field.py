"""Responses that made other graders fail, as whole texts that no table can hold."""

from __future__ import annotations

import pytest

from da3po.reward import worker

PROSE = "This follows from what was said above, and so we are done. " * 7


@pytest.fixture(scope="module", autouse=True)
def _grader() -> None:
    worker.load("math")


def outcome(gold: str, response: str) -> str:
    [grade] = worker.grade_chunk(gold, [response])
    return grade.outcome.value


def test_no_tags_around_a_box() -> None:
    """R21"""
    assert outcome("13", "The answer is \\boxed{13}") == "correct"


def test_a_long_remark_and_a_long_box() -> None:
    """R19: more than 400 characters follow; a box of more than 150."""
    assert outcome("42", "\\boxed{42}" + PROSE) == "correct"
    assert outcome("42", "\\boxed{" + "+".join(["1"] * 42) + " + 0" * 20 + "}") == "correct"


@pytest.mark.parametrize(("gold", "expected"), [("73", "correct"), ("234", "wrong")])
def test_a_bold_final_answer(gold: str, expected: str) -> None:
    """R13"""
    assert outcome(gold, "905 = 437 + 2*234 = 905\n\nFinal Answer: **73**") == expected


def test_several_responses_and_ends_of_thought() -> None:
    """R22"""
    assert outcome("42", "reasoning \\boxed{1}###Response\\boxed{2}###Response\\boxed{42}") == "correct"
    assert outcome("42", "\\boxed{1}</think>\\boxed{2}</think>\\boxed{42}") == "correct"
    assert outcome("2", "\\boxed{1}</think>\\boxed{2}</think>\\boxed{42}") == "wrong"


@pytest.mark.parametrize("response", ["use \\boxed ", "\\boxed{", "\\boxed{1", "\\boxed{}", "}\\boxed{{{"])
def test_broken_boxes(response: str) -> None:
    """R24"""
    assert outcome("1", response) == "no_answer"


def test_a_box_behind_a_chinese_announcement() -> None:
    """R31"""
    assert outcome("12", "我们来计算。答案：\\boxed{12}") == "correct"
