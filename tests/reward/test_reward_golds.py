from __future__ import annotations

import pytest

from da3po.reward.golds import objection


@pytest.mark.parametrize(
    "gold",
    [
        "42", "-3", "1/2", r"\frac{3}{4}", "28\\%", "45^\\circ", r"5\text{ cm}", "1331 and 1728", "(1, 2)", "[2, 5)",
        r"\begin{pmatrix}1\\2\end{pmatrix}", "Even", r"\text{Even}", "(C)", "x = 3, y = 5", "x^2 + 2x + 1",
        "3x - y + 13 = 0", r"m \geq \sqrt{2}", r"1 \pm \sqrt{2}", "204_5", "7:32", r"\emptyset",
        r"The answer is $\boxed{12}$.", "答案：12",
    ],
)  # fmt: skip
def test_usable(gold: str) -> None:
    assert objection(gold) is None


@pytest.mark.parametrize("gold", [r"\frac{", r"\sqrt{3", r"2^{", "$", "(" * 200 + "1" + ")" * 200, r"\left( \foo_ ^"])
def test_unusable(gold: str) -> None:
    assert objection(gold) is not None
