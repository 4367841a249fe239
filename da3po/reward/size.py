"""How large the numbers are that an expression would come to, found without computing them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import sympy

from da3po.reward.limits import TooComplexError

MAX_TERMS = 1000  # of a sum or product
MAX_DIGITS = 20_000.0  # of any number that is computed
LARGEST_FLOAT = 10**300

Values = Mapping[sympy.Basic, sympy.Expr]
NO_VALUES: Values = {}


def check_size(expression: sympy.Basic, values: Values = NO_VALUES) -> float:
    """An upper bound of the digits of the numerator or denominator of `expression`, found before it is computed.

    Symbols have their `values`; one without counts as 10. Raises TooComplexError where that is too many.
    """
    expression = values.get(expression, expression)
    if isinstance(expression, sympy.Rational):
        return max(math.log10(abs(expression.p) or 1), math.log10(expression.q))
    if isinstance(expression, sympy.Sum | sympy.Product):
        values = {**values, **_last_indices(expression, values)}
    if isinstance(expression, sympy.Limit | sympy.Integral):
        values = {**values, **_bounds(expression, values)}
    sizes = [check_size(argument, values) for argument in expression.args]
    size = _size(expression, sizes, values)
    if not size <= MAX_DIGITS:
        raise TooComplexError(f"a number of about {size:.0f} digits")
    return size


def _size(expression: sympy.Basic, sizes: list[float], values: Values) -> float:
    """That bound, from those of the arguments, which are known to be small enough."""
    if isinstance(expression, sympy.Pow):
        base = values.get(expression.args[0], expression.args[0])
        return (sizes[0] if isinstance(base, sympy.Rational) else max(1.0, sizes[0])) * _magnitude(
            expression.args[1], values
        )
    if isinstance(expression, sympy.exp):
        return _magnitude(expression.args[0], values)
    if isinstance(expression, sympy.factorial | sympy.gamma | sympy.binomial):
        argument = _magnitude(expression.args[0], values)
        return argument * max(1.0, math.log10(max(1.0, argument)))
    if isinstance(expression, sympy.Mul | sympy.Add):
        return sum(sizes) + math.log10(len(sizes) + 1)
    return max([1.0, *sizes]) + math.log10(len(sizes) + 1)


def _last_indices(series: sympy.Sum | sympy.Product, values: Values) -> Values:
    """The largest value of each index that a term is computed at.

    Finite sums and products are added up term by term, so there must not be too many terms. Where the ends are no
    integers SymPy extrapolates from some terms, whatever their number.
    """
    last: dict[sympy.Basic, sympy.Expr] = {}
    for index, low, high in series.limits:
        ends = low.xreplace(values), high.xreplace(values)
        num_terms = (ends[1] - ends[0]).evalf(15)
        if num_terms.is_number and num_terms.is_finite and num_terms > MAX_TERMS:
            raise TooComplexError(f"a sum or product of about {float(num_terms):.0g} terms")
        finite = all(isinstance(end, sympy.Integer) for end in ends)
        last[index] = max(map(abs, ends)) if finite else sympy.Integer(MAX_TERMS)
    return last


def _bounds(expression: sympy.Limit | sympy.Integral, values: Values) -> Values:
    """What the variable of a limit or integral comes to, where that is a number."""
    limits = expression.limits if isinstance(expression, sympy.Integral) else (expression.args[1:3],)
    bounds: dict[sympy.Basic, sympy.Expr] = {}
    for variable, *ends in limits:
        numbers = [abs(end) for end in (one.xreplace(values) for one in ends) if isinstance(end, sympy.Rational)]
        bounds[variable] = max(numbers, default=sympy.Integer(10))
    return bounds


def _magnitude(exponent: sympy.Basic, values: Values) -> float:
    """|exponent|, whose own size has been checked; with symbols that have no value it counts as 10."""
    value = exponent.xreplace(values)
    if isinstance(value, sympy.Rational):  # nearly all are
        return abs(value.p / value.q) if abs(value.p) < LARGEST_FLOAT else math.inf
    value = value.evalf(15, maxn=100) if not value.free_symbols else None
    if value is None or not value.is_number or not value.is_finite:
        return 10.0
    size = sympy.log(sympy.Abs(value) + 1, 10).evalf(5)
    return float(10**size) if size < 300 else math.inf
