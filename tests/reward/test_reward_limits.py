"""What would take unbounded time is refused before it is computed, whatever stands for its exponent."""

from __future__ import annotations

import pytest

from da3po.reward.limits import TooComplexError
from da3po.reward.symbolic import equal

HUGE = r"7^{7^{7x}}"


@pytest.mark.parametrize(
    "answer",
    [
        "x^{99999999}",
        "56^{2999997x}",
        "x^{x^{x^{x}}}",
        "x^{y^{z^{w}}}",
        r"\frac{101}{100}^{3000000}",  # near 1, of millions of digits
        "0.9999999^{9999999}",
        "(2+i)^{7777777x}",
        r"\binom{1000000x}{50000x}",
        "(10000000x)!",
        r"\sum_{k=1}^{300} 7^{k^k}",
        r"\sum_{k=1}^{1000000x} k",
        r"\prod_{i=1}^{x} i^{i^{i}}",
        r"\lim_{x\to 3} 7^{7^{7x}}",
        r"\int_0^{x} 7^{7^{7t}} dt",
        *(
            text.replace("HUGE", HUGE)
            for text in ("HUGE", r"\sin(HUGE)", r"\log(HUGE)", r"|HUGE|", r"\frac{1}{HUGE}", "HUGE + 1")
        ),
    ],
)
def test_a_number_of_too_many_digits_is_not_computed(answer: str) -> None:
    with pytest.raises(TooComplexError, match=r"a number of about|a sum or product of about"):
        equal("x + y", answer)


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("2^{x^4}", r"4^{\frac{x^4}{2}}", True),
        ("3^{2^{n+1}}", "9^{2^n}", True),
        ("3^{2^{n+1}}", "9^{2^{n+1}}", False),
        ("e^{x^5}", r"e^{x^4 \cdot x}", True),
        ("(x+y)^{300}", "(y+x)^{300}", True),
        ("2^{1000}", "4^{500}", True),
        ("1.01^{1000}", "1.01^{999}", False),
        ("e", r"\lim_{n\to\infty} (1+\frac{1}{n})^n", True),
        ("e", r"\sum_{k=0}^{\infty} \frac{1}{k!}", True),
        ("2^n", r"\sum_{k=0}^{n} \binom{n}{k}", True),
        ("3^n", r"\sum_{k=0}^{n} \binom{n}{k}", False),
        ("n!", r"\prod_{k=1}^{n} k", True),
        (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k", True),
        (r"\sqrt{\pi}", r"\int_{-\infty}^{\infty} e^{-x^2} dx", True),
    ],
)
def test_what_is_small_enough_is_compared(gold: str, answer: str, same: bool) -> None:
    assert equal(gold, answer) is same
