"""Responses that made other graders fail, as whole texts that no table can hold."""

from __future__ import annotations

import pytest

from da3po.reward import worker

PROSE = "This follows from what was said above, and so we are done. " * 7


@pytest.fixture(scope="module", autouse=True)
def _grader() -> None:
    worker.load("math")


@pytest.mark.parametrize(
    ("gold", "response", "outcome"),
    [
        ("13", "The answer is \\boxed{13}", "correct"),  # R21: no tags around it
        ("42", "\\boxed{42}" + PROSE, "correct"),  # R19: more than 400 characters follow
        ("42", "\\boxed{" + "+".join(["1"] * 42) + " + 0" * 20 + "}", "correct"),  # R19: a box of more than 150
        ("73", "905 = 437 + 2*234 = 905\n\nFinal Answer: **73**", "correct"),  # R13
        ("234", "... = 437 + 2*234 = 905\n\nFinal Answer: **73**", "wrong"),
        ("42", "reasoning \\boxed{1}###Response\\boxed{2}###Response\\boxed{42}", "correct"),  # R22
        ("42", "\\boxed{1}</think>\\boxed{2}</think>\\boxed{42}", "correct"),
        ("2", "\\boxed{1}</think>\\boxed{2}</think>\\boxed{42}", "wrong"),
        ("1", "use \\boxed ", "no_answer"),  # R24
        ("1", "\\boxed{", "no_answer"),
        ("1", "\\boxed{1", "no_answer"),
        ("1", "\\boxed{}", "no_answer"),
        ("1", "}\\boxed{{{", "no_answer"),
        ("12", "我们来计算。答案：\\boxed{12}", "correct"),  # R31
    ],
)
def test_the_final_answer_is_found(gold: str, response: str, outcome: str) -> None:
    [grade] = worker.grade_chunk(gold, [response])
    assert grade.outcome.value == outcome, grade
