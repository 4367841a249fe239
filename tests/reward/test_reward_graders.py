from __future__ import annotations

import pytest

from da3po.reward.graders import GraderError, load_grader
from da3po.types import Grade, Outcome

RESULTS = {"yes": True, "none": None, "nan": float("nan"), "two": (True, True), "number": 1.0}


def custom(gold: str, response: str) -> object:
    return Grade(outcome=Outcome.NO_ANSWER) if response == "grade" else RESULTS[response]


def gold_first(gold: str, response: str) -> bool:
    return (gold, response) == ("gold", "response")


def test_known_graders_by_name() -> None:
    assert load_grader("math")("7", r"\boxed{7}").outcome is Outcome.CORRECT
    assert load_grader("dapo_v1")("7", "Answer: 7").outcome is Outcome.CORRECT


def test_a_custom_grader_returns_a_bool_or_a_grade() -> None:
    grader = load_grader(f"{__name__}.custom")
    assert grader("1", "yes").outcome is Outcome.CORRECT
    assert grader("1", "grade").outcome is Outcome.NO_ANSWER


@pytest.mark.parametrize("response", ["none", "nan", "two", "number"])
def test_a_custom_grader_that_breaks_its_contract_is_named(response: str) -> None:
    with pytest.raises(GraderError, match=r"custom must return one Grade or bool"):
        load_grader(f"{__name__}.custom")("1", response)


def test_the_reference_comes_first() -> None:
    """R11: the order of the arguments is part of the contract."""
    assert load_grader(f"{__name__}.gold_first")("gold", "response").outcome is Outcome.CORRECT
    interval, inequality = r"m \in [\sqrt{2}, +\infty)", r"m \geq \sqrt{2}"
    assert load_grader("math")(interval, rf"\boxed{{{inequality}}}").outcome is Outcome.CORRECT
    assert load_grader("math")(inequality, rf"\boxed{{{interval}}}").outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mth", r"no grader named 'mth'; there are \['dapo_v1', 'math'\]"),
        ("no.such.module", "No module named 'no'"),
        (f"{__name__}.nothing", "nothing"),
        (f"{__name__}.RESULTS", "not callable"),
    ],
)
def test_a_grader_that_cannot_be_used_is_named(name: str, message: str) -> None:
    with pytest.raises(GraderError, match=message):
        load_grader(name)
