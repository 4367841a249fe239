"""The exact value of an expression that is rational, however it is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import sympy


def exact_value(expression: sympy.Expr) -> Fraction | None:
    """The value of sums, products, whole powers, factorials and binomials of rational numbers; None for all else.

    The size of the result must have been checked before (see da3po.reward.symbolic).
    """
    if isinstance(expression, sympy.Rational):
        return Fraction(int(expression.p), int(expression.q)) if expression.q else None
    rule = next((rule for kind, rule in _RULES.items() if isinstance(expression, kind)), None)
    if rule is None:
        return None
    values = [exact_value(argument) for argument in expression.args]
    known = [value for value in values if value is not None]
    return rule(known) if len(known) == len(values) else None


def _power(values: list[Fraction]) -> Fraction | None:
    base, exponent = values
    if exponent.denominator != 1 or (base == 0 and exponent < 0):
        return None
    return base**exponent.numerator


def _factorial(values: list[Fraction]) -> Fraction | None:
    [n] = values
    return Fraction(math.factorial(n.numerator)) if n.denominator == 1 and n >= 0 else None


def _binomial(values: list[Fraction]) -> Fraction | None:
    n, k = values
    whole = n.denominator == k.denominator == 1 and n >= 0 and k >= 0
    return Fraction(math.comb(n.numerator, k.numerator)) if whole else None


_RULES: dict[type, Callable[[list[Fraction]], Fraction | None]] = {
    sympy.Add: lambda values: sum(values, Fraction(0)),
    sympy.Mul: lambda values: math.prod(values, start=Fraction(1)),
    sympy.Pow: _power,
    sympy.factorial: _factorial,
    sympy.binomial: _binomial,
}
