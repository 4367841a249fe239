"""Bounds of what plainly written expressions come to: most wrong answers are far from the reference.

`apart` tells without a parser what symbolic.equal would find by values, and is sound for these reasons. It reads sums,
products, quotients, whole powers and brackets of numbers and letters, with the precedence of the LaTeX grammar, and
leaves alone what may mean something else there: mixed numbers, function calls, `i`, `d`, `5E3`. It computes with
intervals that are rounded outward, so they hold the exact value. Letters have their values of FIRST_POINT, where
symbolic.equal compares first, and one difference is enough; letters are never 0 there and stand in no sum that is a
divisor, so both sides are finite at its other points as well. Sizes are below those that make an answer an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from da3po.reward.grammar import is_shallow

Interval = tuple[float, float]

FIRST_POINT = ("7/5", "0.37", "2.9")
MARGIN = 1e-3  # of the larger one; a value may be given rounded to five digits, one in 20,000
MAX_TOKENS = 200
MAX_SIZE = 5000  # characters times all exponents: numbers of some 20,000 digits
LARGEST = 1e300

_SPLIT = re.compile(
    r"(?P<number>(?<![\w.])[0-9]*\.[0-9]+(?![\d.])|(?<![.\d])[0-9]+(?![.\d]))|(?P<letter>[A-HJ-Za-ce-hj-z])"
    r"|\^\s*(?:(?P<digit>[1-9])|\{\s*(?P<exponent>[1-9][0-9]?)\s*\})|(?P<times>\\(?:cdot|times)(?![A-Za-z]))"
    r"|(?P<sign>[-+*/:()])|(?P<space>\s+)"
)
_E_NOTATION = re.compile(r"[0-9]E[-+]?[0-9]")
_E = (2.718281828459045, 2.7182818284590455)


class _NoBoundsError(ValueError):
    """Only the parser can tell what this comes to."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The tokens of a text, (kind, text) each, and the letters among them that are symbols."""

    tokens: tuple[tuple[str, str], ...]
    names: frozenset[str]


def read(text: str) -> Reading | None:
    """None if `text` is not as plain as this module asks for."""
    if _E_NOTATION.search(text) or not is_shallow(text):
        return None
    tokens, position, power = [], 0, 1
    for match in _SPLIT.finditer(text):
        kind = match.lastgroup
        if match.start() != position or kind is None:
            return None
        position = match.end()
        if kind in ("digit", "exponent"):
            power *= int(match[kind])
            tokens.append(("power", match[kind]))
        elif kind != "space":
            tokens.append(("sign", "*") if kind == "times" else (kind, match[kind]))
    if position != len(text) or len(tokens) > MAX_TOKENS or power * len(text) > MAX_SIZE:
        return None
    return Reading(tuple(tokens), frozenset(word for kind, word in tokens if kind == "letter" and word != "e"))


def around(value: Fraction) -> Interval | None:
    """Bounds of a value that is known; None if it is too large for a float."""
    return _outward(float(value), float(value)) if abs(value) < LARGEST else None


def apart(gold: Reading | Interval, answer: Reading) -> bool:
    """Whether the two differ for sure, if the grammar can read both."""
    names = answer.names | (gold.names if isinstance(gold, Reading) else frozenset())
    left, right = gold if isinstance(gold, tuple) else bounds(gold, names), bounds(answer, names)
    if left is None or right is None:
        return False
    gap = max(left[0] - right[1], right[0] - left[1])
    return gap > MARGIN * max(map(abs, (*left, *right)))


def bounds(reading: Reading, names: frozenset[str]) -> Interval | None:
    """Bounds of its value where the letters `names`, in their order, have the values of FIRST_POINT."""
    values = {"e": _E}
    for i, name in enumerate(sorted(names)):
        exact = Fraction(FIRST_POINT[i % len(FIRST_POINT)]) + i // len(FIRST_POINT)
        values[name] = _outward(float(exact), float(exact))
    try:
        return _Calculation(reading.tokens, values).result()
    except _NoBoundsError:
        return None


class _Calculation:
    """One pass over the tokens, a method a level of precedence. Raises _NoBoundsError."""

    def __init__(self, tokens: Sequence[tuple[str, str]], values: Mapping[str, Interval]) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._values = values
        self._next = 0
        self._num_symbols = self._num_symbolic_groups = 0

    def result(self) -> Interval:
        value = self._sum()
        if self._tokens[self._next][0] != "end":
            raise _NoBoundsError
        return value

    def _take(self, signs: str) -> str:
        """The next token if it is one of `signs`, else ""."""
        kind, word = self._tokens[self._next]
        if kind != "sign" or word not in signs:
            return ""
        self._next += 1
        return word

    def _sum(self) -> Interval:
        low, high = self._product()
        while sign := self._take("+-"):
            other = self._product()
            other = (-other[1], -other[0]) if sign == "-" else other
            low, high = _outward(low + other[0], high + other[1])
        return low, high

    def _product(self) -> Interval:
        value = self._signed()
        while sign := self._take("*/:"):
            groups_before = self._num_symbolic_groups
            other = self._signed()
            if sign != "*":
                if other[0] <= 0 <= other[1] or self._num_symbolic_groups > groups_before:
                    raise _NoBoundsError
                other = _outward(1 / other[1], 1 / other[0])
            value = _times(value, other)
        return value

    def _signed(self) -> Interval:
        negative = False
        while sign := self._take("+-"):
            negative ^= sign == "-"
        low, high = self._factors()
        return (-high, -low) if negative else (low, high)

    def _factors(self) -> Interval:
        """`3xy`. `3 1/2` is a mixed number; `3(x+1)` and `x(3)` are left over, and so no result."""
        kind, value = self._power()
        while (following := self._tokens[self._next][0]) in ("number", "letter"):
            if kind != "letter" and following == "number":
                raise _NoBoundsError
            kind, other = self._power()
            value = _times(value, other)
        return value

    def _power(self) -> tuple[str, Interval]:
        kind, word = self._tokens[self._next]
        self._next += 1
        if kind == "number":
            value = _outward(float(word), float(word))
        elif kind == "letter":
            value = self._values[word]
            self._num_symbols += word != "e"
        elif word == "(":
            symbols_before = self._num_symbols
            value = self._sum()
            if not self._take(")"):
                raise _NoBoundsError
            self._num_symbolic_groups += self._num_symbols > symbols_before
        else:
            raise _NoBoundsError
        while self._tokens[self._next][0] == "power":
            value = _to_the(value, int(self._tokens[self._next][1]))
            self._next += 1
        return kind, value


def _to_the(value: Interval, exponent: int) -> Interval:
    if exponent == 1:
        return value
    half = _to_the(value, exponent // 2)
    square = _times(half, half)
    return _times(square, value) if exponent % 2 else square


def _times(left: Interval, right: Interval) -> Interval:
    ends = [a * b for a in left for b in right]
    return _outward(min(ends), max(ends))


def _outward(low: float, high: float) -> Interval:
    """The interval with its ends moved by a rounding error."""
    if not (low > -LARGEST and high < LARGEST):
        raise _NoBoundsError
    return math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
