"""Equality of expressions. math-verify's parser reads them; numbers at high precision decide.

Text reaches SymPy only through the LaTeX grammar of latex2sympy2_extended, which math-verify uses. `parse_expr` and
`sympify`, which evaluate Python, are never called on it.
"""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from math_verify import verify
from math_verify.grader import should_treat_as_complex

from da3po.reward.exact import exact_value
from da3po.reward.limits import TooComplexError

# It warns once a process that no alarm is set; the deadline is the pool's.
logging.getLogger("math_verify.grader").setLevel(logging.ERROR)

MAX_TERMS = 1000
MAX_LOG10 = 20_000.0  # of any value that is computed
PRECISION = 50
# Where identities are tested. Points at which a side is not real are skipped; at least MIN_POINTS must remain.
POINTS = (
    ("7/5", "0.37", "2.9"),
    ("-3/7", "1.73", "-0.61"),
    ("11/4", "-1.19", "0.83"),
    ("-0.29", "-2.3", "-1.7"),
    ("3", "5", "7"),
    ("0.58", "0.21", "0.44"),
)
MIN_POINTS = 2
IMAGINARY_UNIT = "i"
CASE_COUNTS = ConversionConfig(lowercase_symbols=False)  # R and r are two radii
TOLERANCE = sympy.Float(10) ** -30

_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_DEGREES = re.compile(r"(\d+)\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})")
# The grammar leaves transposes out; as a power, that of A is not A.
_TRANSPOSE = re.compile(r"\^\s*(?:T|\\top(?![A-Za-z])|\{\s*(?:T|\\top|\\intercal)\s*\})")
_DECIMAL = re.compile(r"(?<![\w.])(\d*)\.(\d+)(?![\d.])")


def equal(gold: str, answer: str) -> bool:
    """Whether two normalised expressions, equations, inequalities or sets are the same.

    Raises TooComplexError for what must not be evaluated. What cannot be parsed equals nothing.
    """
    left, right = parse(gold), parse(answer)
    if left is None or right is None:
        return False
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        verdict = _same_value(left, right)
        if verdict is not True and IMAGINARY_UNIT in _names(left, right):
            verdict = _same_complex_value(left, right)
        if verdict is not None:
            return verdict
    if _is_equation(left) and _is_equation(right):
        return _same_equation(left, right)
    return _verified(left, right)


def _verified(gold: sympy.Basic, answer: sympy.Basic) -> bool:
    """math-verify's word. What it cannot compare is not the same."""
    try:
        return bool(verify(gold, answer, timeout_seconds=None, allow_set_relation_comp=True))
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 - SymPy raises anything on objects that do not go together
        return False


def value_of(text: str) -> Fraction | None:
    """The real value of an expression without symbols, to PRECISION digits; None if it has none."""
    expression = parse(text)
    if not isinstance(expression, sympy.Expr) or expression.free_symbols:
        return None
    value = _evaluate(expression)
    return Fraction(str(value)) if value is not None and value.is_real and value.is_finite else None


@functools.lru_cache(maxsize=512)
def parse(text: str) -> Any:
    """The SymPy object of normalised LaTeX, decimals made exact; None if the grammar does not know it."""
    exact = _TRANSPOSE.sub("^{(T)}", _DECIMAL.sub(_exact_decimal, text))
    if _TRIGONOMETRY.search(exact):
        exact = _DEGREES.sub(r"(\\frac{\1 \\pi}{180})", exact)
    try:
        parsed = latex2sympy(
            exact,
            is_real=not should_treat_as_complex(exact),
            convert_degrees=False,
            normalization_config=None,
            conversion_config=CASE_COUNTS,
        )
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 - the generated parser raises anything; what it cannot read has no value
        return None
    if isinstance(parsed, sympy.Basic):
        _check_size(parsed)
    return parsed


def _exact_decimal(decimal: re.Match[str]) -> str:
    return rf"\frac{{{int(decimal[1] + decimal[2])}}}{{{10 ** len(decimal[2])}}}"


def _check_size(expression: sympy.Basic) -> float:
    """An upper bound of log10 |expression|, found before it is computed; symbols count as 10."""
    if isinstance(expression, sympy.Rational):
        return abs(math.log10(abs(expression.p) or 1) - math.log10(expression.q))
    if isinstance(expression, sympy.Sum | sympy.Product):
        _check_range(expression)
    sizes = [_check_size(argument) for argument in expression.args]
    if isinstance(expression, sympy.Pow):
        base = sizes[0] if isinstance(expression.args[0], sympy.Rational) else max(1.0, sizes[0])
        size = base * _magnitude(expression.args[1])
    elif isinstance(expression, sympy.exp):
        size = _magnitude(expression.args[0])
    elif isinstance(expression, sympy.factorial | sympy.gamma):
        argument = _magnitude(expression.args[0])
        size = argument * max(1.0, math.log10(max(1.0, argument)))
    elif isinstance(expression, sympy.Mul):
        size = sum(sizes)
    else:
        size = max([1.0, *sizes]) + math.log10(len(sizes) + 1)
    if not size <= MAX_LOG10:
        raise TooComplexError(f"a number of about {size:.0f} digits")
    return size


def _check_range(series: sympy.Sum | sympy.Product) -> None:
    """Finite sums and products are added up term by term, so there must not be too many terms."""
    for _, low, high in series.limits:
        num_terms = (high - low).evalf(15)
        if num_terms.is_number and num_terms.is_finite and num_terms > MAX_TERMS:
            raise TooComplexError(f"a sum or product of about {float(num_terms):.0g} terms")


def _magnitude(exponent: sympy.Basic) -> float:
    """|exponent|, whose own size has been checked; symbols count as 10."""
    value = exponent.evalf(15, maxn=100) if not exponent.free_symbols else None
    if value is None or not value.is_number or not value.is_finite:
        return 10.0
    size = sympy.log(sympy.Abs(value) + 1, 10).evalf(5)
    return float(10**size) if size < 300 else math.inf


def _same_value(left: sympy.Expr, right: sympy.Expr) -> bool | None:
    """Equality by value, at several points if there are symbols; None if values do not decide."""
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    if not symbols:
        return _same_constant(left, right)
    verdicts = []
    for values in _points(symbols):
        a, b = _value_at(left, values), _value_at(right, values)
        if a is None or b is None:
            return None
        if a.is_real and b.is_real and a.is_finite and b.is_finite:
            verdicts.append(_close(a, b))
        elif bool(a.is_finite) != bool(b.is_finite):
            return None
    if False in verdicts:
        return False
    return True if len(verdicts) >= MIN_POINTS else None


def _names(*expressions: sympy.Expr) -> list[str]:
    return sorted({symbol.name for expression in expressions for symbol in expression.free_symbols})


def _points(symbols: Iterable[sympy.Symbol]) -> Iterator[dict[sympy.Symbol, sympy.Rational]]:
    """Values of the symbols; the parser makes several symbols of one name, and a name has one value."""
    symbols = list(symbols)
    names = sorted({symbol.name for symbol in symbols})
    for point in POINTS:
        by_name = {name: sympy.Rational(point[i % len(point)]) + i // len(point) for i, name in enumerate(names)}
        yield {symbol: by_name[symbol.name] for symbol in symbols}


def _same_complex_value(left: sympy.Expr, right: sympy.Expr) -> bool | None:
    """Equality by value where `i` is the imaginary unit and the other symbols are real."""
    for values in _points(left.free_symbols | right.free_symbols):
        values = {symbol: sympy.I if symbol.name == IMAGINARY_UNIT else value for symbol, value in values.items()}
        verdict = _close(_value_at(left, values), _value_at(right, values))
        if not verdict:
            return verdict
    return True


def _same_constant(left: sympy.Expr, right: sympy.Expr) -> bool | None:
    """Exactly if both are rational; else to 30 digits after the decimal point."""
    exact = exact_value(left), exact_value(right)
    if exact[0] is not None and exact[1] is not None:
        return exact[0] == exact[1]
    a, b = _evaluate(left), _evaluate(right)
    if a is None or b is None or not (a.is_finite and b.is_finite) or not _close(a, b):
        return _close(a, b)
    num_digits = PRECISION + int(sympy.log(sympy.Abs(a) + 1, 10).evalf(5))
    a, b = _evaluate(left, num_digits), _evaluate(right, num_digits)
    return None if a is None or b is None else bool(sympy.Abs(a - b) <= TOLERANCE)


def _evaluate(expression: sympy.Expr, num_digits: int = PRECISION) -> sympy.Expr | None:
    value = expression.evalf(num_digits, maxn=max(400, 2 * num_digits))
    return value if value.is_number and not value.has(sympy.nan, sympy.Function) else None


def _value_at(expression: sympy.Expr, values: dict[Any, Any]) -> sympy.Expr | None:
    try:
        return _evaluate(expression.xreplace(values))
    except (ValueError, TypeError, AttributeError):
        return None  # a derivative by a symbol, for one, has no value where the symbol has one


def _close(a: sympy.Expr | None, b: sympy.Expr | None) -> bool | None:
    if a is None or b is None:
        return None
    if not (a.is_finite and b.is_finite):
        return bool(a == b)
    return bool(sympy.Abs(a - b) <= TOLERANCE * max(sympy.Abs(a), sympy.Abs(b)))


def _is_equation(expression: Any) -> bool:
    return isinstance(expression, sympy.Eq) and all(isinstance(side, sympy.Expr) for side in expression.args)


def _same_equation(left: sympy.Eq, right: sympy.Eq) -> bool:
    """Whether one equation is the other times a number other than zero: lhs - rhs differ by a constant factor."""
    a, b = left.lhs - left.rhs, right.lhs - right.rhs
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    if not symbols:
        return bool(_same_value(a, b))
    ratios = []
    for values in _points(symbols):
        x, y = _value_at(a, values), _value_at(b, values)
        if x is None or y is None:
            return _verified(left, right)
        if x.is_real and y.is_real and x.is_finite and y.is_finite and y != 0 and x != 0:
            ratios.append(x / y)
    return len(ratios) >= MIN_POINTS and all(_close(ratios[0], ratio) for ratio in ratios)
