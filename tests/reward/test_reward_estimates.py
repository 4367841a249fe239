"""What spares the parser against the parser: rejections, bounds and verdicts are the same without it."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import reward_expressions
import sympy
from latex2sympy2_extended.latex2sympy2 import latex2sympy

from da3po.reward import estimates, symbolic, values
from da3po.reward.grammar import is_rejected
from da3po.reward.math import grade

RAMBLINGS = (
    ("816+++975A1109++99020+-30e:+2849", "8"),
    ("289s888580+54931:35644:44568A404", "69"),
    ("10:1+4317n:56108++++++177099+:76", "8"),
    ("10135ss27Mg96700921893:+8980n900", "101"),
    ("7470:16349", "68"),
    ("26+703001098880:+++e5++42208e544", "26"),
    ("12+7*3", "-5/3"),
    ("3::", "4"),
    ("::", "3"),
    ("4\ufffd+1", "5"),
    ("(5+2", "8"),
    ("7.+1", "9"),
    ("2x+1", "2x+7"),
    ("1.5+2", "8.25"),
)


def upstream(text: str) -> Any:
    """What latex2sympy2 reads, by itself; None if it rejects the text."""
    try:
        return latex2sympy(text, is_real=True, normalization_config=None, conversion_config=symbolic.CASE_COUNTS)
    except Exception:  # noqa: BLE001 - it raises anything
        return None


def texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [text for _ in range(count) if (text := reward_expressions.text(draw)).count("(") < 4]


def test_the_parser_rejects_what_is_rejected() -> None:
    rejected = [text for text in texts(1, 1500) if is_rejected(text)]
    assert len(rejected) > 200
    assert [text for text in rejected if upstream(text) is not None] == []


@pytest.mark.parametrize("character", ['"', "#", "$", "?", "@", "`", "\x07", "\x7f", "Ж", "⌀", "数", "\ufffd", "😀"])
def test_characters_of_no_token(character: str) -> None:
    text = f"1+{character}2"
    assert is_rejected(text)
    assert upstream(text) is None


def test_the_parser_reads_what_is_known_to_be_read() -> None:
    for text in ("12", "-3+4", "2^{5}", "+-2", "5!", "{1,2}", "[0,1)", "(1)", "x=5", "5E+3", r"\frac{:}{2}", "{}"):
        assert not is_rejected(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2+3*4", 14),
        ("-2^{2}", -4),
        ("2^3^2", 64),
        ("8:2:2", 2),
        ("2*-3+--1", -5),
        (r"1.5 \cdot 4/3", 2),
        ("(1+2)*(3-5)", -6),
        ("3xy", Fraction(3 * 14, 10) * Fraction("0.37")),
        ("1/x", Fraction(5, 7)),
        ("d3", None),
        ("2 3", None),
        ("2(3)", None),
        ("x(3)", None),
        ("5E3", None),
        ("1.2.3", None),
        ("i", None),
        ("3!", None),
        ("x^0", None),
        ("1/(x-1)", None),
        ("1/(3-3)", None),
        ("9^{99}*9^{99}*9^{99}*9^{99}", None),
        ("(1", None),
        ("1)", None),
        ("", None),
    ],
)
def test_bounds(text: str, value: Fraction | int | None) -> None:
    reading = estimates.read(text)
    bounds = None if reading is None else estimates.bounds(reading, reading.names)
    if value is None:
        assert bounds is None
    else:
        assert bounds is not None
        low, high = map(Fraction, bounds)
        assert low <= value <= high
        assert high - low < Fraction(1, 10**12)


def test_values_lie_within_their_bounds() -> None:
    """And where letters have other values, they have one too."""
    num_bounds = 0
    for text in texts(2, 300):
        reading = estimates.read(text)
        bounds = None if reading is None else estimates.bounds(reading, reading.names)
        read = None if bounds is None else upstream(text)
        if reading is None or bounds is None or read is None:
            continue
        num_bounds += 1
        assert isinstance(read, sympy.Expr), text
        assert {symbol.name for symbol in read.free_symbols} == reading.names, text
        exact = [symbolic._value_at(read, values) for values in symbolic._points(read)]
        assert all(value is not None and value.is_real and value.is_finite for value in exact), text
        low, high = map(Fraction, bounds)
        value = Fraction(str(exact[0]))
        assert low - abs(value) / 10**14 <= value <= high + abs(value) / 10**14, text
    assert num_bounds > 75


def test_the_same_verdicts_as_without_estimates() -> None:
    draw = random.Random(3)
    num_equal = num_settled = 0
    for text in texts(3, 80):
        for gold in (str(draw.randrange(20)), reward_expressions.text(draw), f"{text}+0", f"({text})*1", r"\sqrt{2}"):
            verdict = symbolic.equal(gold, text)
            num_equal += verdict
            num_settled += values._differ(gold, text)
            assert values.equal(gold, text) == verdict, (gold, text)
    assert num_equal > 60
    assert num_settled > 100


@pytest.mark.parametrize(("answer", "gold"), RAMBLINGS)
def test_an_answer_that_cannot_be_equal_never_costs_the_parser(
    answer: str, gold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(text: str) -> None:
        raise AssertionError(f"parsed {text}")

    monkeypatch.setattr(symbolic, "parse", parse)
    assert grade(gold, rf"\boxed{{{answer}}}").outcome == "wrong"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("5", "2+3"), ("12", "36:3"), ("7/2", "3+1/2"), ("2x", "x+x"), ("3.1416", "2+1.1416"), (r"\sqrt{5}", "2.2361 m")],
)
def test_close_values_are_left_to_the_parser(gold: str, answer: str) -> None:
    assert grade(gold, rf"\boxed{{{answer}}}").outcome == "correct"


def test_both_prediction_modes_give_the_same_tree() -> None:
    rows = Path(__file__).with_name("kinds.jsonl").read_text(encoding="utf-8").splitlines()
    golds = sorted({gold for row in rows if "\\" in (gold := json.loads(row)["gold"]) and len(gold) < 40})
    num_trees = 0
    for gold in random.Random(4).sample(golds, 60):
        try:
            fast = symbolic._Reader(gold, "SLL").parse(gold)
        except Exception:  # noqa: BLE001 - then the other mode has the word
            continue
        num_trees += 1
        assert sympy.srepr(fast) == sympy.srepr(upstream(gold)), gold
    assert num_trees > 30
