"""Inequalities in one plain variable, as the interval that they leave it."""

from __future__ import annotations

import re

from da3po.reward.brackets import split
from da3po.reward.nodes import Leaf, Ordered
from da3po.reward.numbers import parse_number

_AND = re.compile(r"(?<![A-Za-z\\{])and(?![a-z])|\\wedge(?![A-Za-z])")
_RELATION = (r"\le", r"\ge", "<", ">")
_VARIABLE = re.compile(r"\\?[A-Za-z]+(?:_\s*(?:\{[^{}]*\}|\w))?")
_FUNCTION_WORDS = re.compile(r"\\(?:pi|infty|sqrt|frac|sin|cos|tan|log|ln)(?![A-Za-z])|(?<![A-Za-z])e(?![A-Za-z])")


def interval(text: str) -> Ordered | None:
    """`a < x \\le b`, `x > a` and the like as the interval of one plain variable."""
    operators = re.findall(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>", text)
    sides = split(text, _RELATION)
    if len(sides) != len(operators) + 1 or len(sides) not in (2, 3):
        return None
    if len({operator in (r"\le", "<") for operator in operators}) != 1:
        return None
    if operators[0] in (r"\ge", ">"):
        sides, operators = sides[::-1], operators[::-1]
    strict = [operator in "<>" for operator in operators]
    low, high, left, right = r"-\infty", r"\infty", "(", ")"
    if len(sides) == 3:
        variable, low, high = sides[1], sides[0], sides[2]
        left, right = "[("[strict[0]], "])"[strict[1]]
    elif _VARIABLE.fullmatch(sides[0]):
        variable, high, right = sides[0], sides[1], "])"[strict[0]]
    else:
        variable, low, left = sides[1], sides[0], "[("[strict[0]]
    if not _VARIABLE.fullmatch(variable) or any(
        re.search("[A-Za-z]", _FUNCTION_WORDS.sub("", end)) for end in (low, high)
    ):
        return None
    return Ordered((Leaf(low), Leaf(high)), left + right, (variable,))


def joint_interval(text: str) -> Ordered | None:
    """`x \\ge 1 and x < 3` as the interval that both leave; None unless one is a lower and the other an upper bound."""
    parts = _AND.split(text)
    bounds = [bound for part in parts if (bound := interval(part.strip()))]
    if len(parts) != 2 or len(bounds) != 2:
        return None
    low, high = sorted(bounds, key=_is_upper_bound)
    if low.names != high.names or _is_upper_bound(low) or not _is_upper_bound(high):
        return None
    ends = low.parts[0], high.parts[1]
    values = [parse_number(end.text) if isinstance(end, Leaf) else None for end in ends]
    if values[0] and values[1] and values[0].value > values[1].value:
        return None  # "and" where "or" is meant
    return Ordered(ends, low.brackets[0] + high.brackets[1], low.names)


def _is_upper_bound(interval: Ordered) -> bool:
    return interval.parts[0] == Leaf(r"-\infty")
