from __future__ import annotations

import pytest

from da3po.reward.dapo_v1 import grade, normalize


@pytest.mark.parametrize(
    ("answer", "normalized"),
    [
        ("x = 42", "42"),
        ("an answer", "answer"),
        ("100 dollars", "100"),
        (r"\text{hello}", "hello"),
        (r"\boxed{42}", "42"),
        ("1,234,567", "1234567"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\sqrt3", r"\sqrt{3}"),
        (r"the value is $\frac{3}{4}$ here", r"\frac{3}{4}"),
        (r"45^\circ", "45"),
        (r"5\text{m}", "5"),
        (r"\$10", "10"),
        ("10.$", "10"),
    ],
)
def test_minerva_normalisation(answer: str, normalized: str) -> None:
    assert normalize(answer) == normalized


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        ("Long solution.\nAnswer: 42", "correct"),
        ("Answer: 41\nAnswer : 42", "correct"),
        ("ANSWER: 42 ", "correct"),
        ("Answer: $42$", "correct"),
        ("Answer: 42.", "wrong"),  # a string comparison: the full stop counts
        ("Answer: 42.0", "wrong"),
        (r"\boxed{42}", "no_answer"),
        ("Answer: 42" + "x\n" * 200, "no_answer"),  # beyond the last 300 characters
    ],
)
def test_the_last_answer_line_decides(response: str, outcome: str) -> None:
    assert grade("42", response).outcome == outcome
