"""Equality of expressions. math-verify's parser reads them; numbers at high precision decide.

Text reaches SymPy only through the LaTeX grammar of latex2sympy2_extended, which math-verify uses. `parse_expr` and
`sympify`, which evaluate Python, are never called on it.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from math_verify import verify
from math_verify.grader import should_treat_as_complex

from da3po.reward.estimates import FIRST_POINT
from da3po.reward.exact import exact_value
from da3po.reward.grammar import is_rejected
from da3po.reward.size import Values, check_size

# It warns once a process that no alarm is set; the deadline is the pool's.
logging.getLogger("math_verify.grader").setLevel(logging.ERROR)

PRECISION = 50
# Where identities are tested. Points at which a side is not real are skipped; at least MIN_POINTS must remain.
POINTS = (
    FIRST_POINT,
    ("-3/7", "1.73", "-0.61"),
    ("11/4", "-1.19", "0.83"),
    ("-0.29", "-2.3", "-1.7"),
    ("3", "5", "7"),
    ("0.58", "0.21", "0.44"),
)
WHOLE_POINTS = (("2", "5", "3"), ("3", "4", "7"), ("6", "2", "5"))  # where a sum or product ends at a symbol
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


class _Reader(_Latex2Sympy):
    """latex2sympy2's reader in one of ANTLR's prediction modes, "SLL" or "LL"; whole numbers need no parser of SymPy's.

    SLL, the cheap one, either gives the tree that LL gives or a syntax error, as the documentation of ANTLR says.
    """

    def __init__(self, text: str, mode: str) -> None:
        super().__init__(is_real=not should_treat_as_complex(text), config=CASE_COUNTS)
        self._mode = mode

    def create_parser(self, text: str) -> Any:
        parser = super().create_parser(text)
        modes = type(parser._interp.predictionMode)  # an enumeration of ANTLR's
        parser._interp.predictionMode = modes[self._mode]
        return parser

    def parse_number(self, text: str) -> sympy.Number:
        return sympy.Integer(int(text)) if text.isdecimal() else super().parse_number(text)


@functools.lru_cache(maxsize=512)
def parse(text: str) -> Any:
    """The SymPy object of normalised LaTeX, decimals made exact; None if the grammar does not know it."""
    if is_rejected(text):
        return None
    exact = _TRANSPOSE.sub("^{(T)}", _DECIMAL.sub(_exact_decimal, text))
    if _TRIGONOMETRY.search(exact):
        exact = _DEGREES.sub(r"(\\frac{\1 \\pi}{180})", exact)
    for mode in ("SLL", "LL"):
        try:
            parsed = _Reader(exact, mode).parse(exact)
        except (MemoryError, RecursionError):
            raise
        except Exception:  # noqa: BLE001 - the generated parser raises anything on what it cannot read
            continue
        if isinstance(parsed, sympy.Basic):
            check_size(parsed)
        return parsed
    return None


def _exact_decimal(decimal: re.Match[str]) -> str:
    return rf"\frac{{{int(decimal[1] + decimal[2])}}}{{{10 ** len(decimal[2])}}}"


def _same_value(left: sympy.Expr, right: sympy.Expr) -> bool | None:
    """Equality by value, at several points if there are symbols; None if values do not decide."""
    if not left.free_symbols | right.free_symbols:
        return _same_constant(left, right)
    verdicts = []
    for values in _points(left, right):
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


def _points(*expressions: sympy.Expr) -> Iterator[dict[sympy.Basic, sympy.Expr]]:
    """Values of the symbols; the parser makes several symbols of one name, and a name has one value."""
    symbols = {symbol for expression in expressions for symbol in expression.free_symbols}
    names = _names(*expressions)
    for point in WHOLE_POINTS if any(map(_ends_at_a_symbol, expressions)) else POINTS:
        by_name = {name: sympy.Rational(point[i % len(point)]) + i // len(point) for i, name in enumerate(names)}
        yield {symbol: by_name[symbol.name] for symbol in symbols}


def _ends_at_a_symbol(expression: sympy.Expr) -> bool:
    return any(
        end.free_symbols
        for series in expression.atoms(sympy.Sum, sympy.Product)
        for _, *ends in series.limits
        for end in ends
    )


def _same_complex_value(left: sympy.Expr, right: sympy.Expr) -> bool | None:
    """Equality by value where `i` is the imaginary unit and the other symbols are real."""
    for values in _points(left, right):
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


def _value_at(expression: sympy.Expr, values: Values) -> sympy.Expr | None:
    check_size(expression, values)
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
    if not a.free_symbols | b.free_symbols:
        return bool(_same_value(a, b))
    ratios = []
    for values in _points(a, b):
        x, y = _value_at(a, values), _value_at(b, values)
        if x is None or y is None:
            return _verified(left, right)
        if x.is_real and y.is_real and x.is_finite and y.is_finite and y != 0 and x != 0:
            ratios.append(x / y)
    return len(ratios) >= MIN_POINTS and all(_close(ratios[0], ratio) for ratio in ratios)
