"""Student's t distribution, from the incomplete beta function (Numerical Recipes' continued fraction, section 6.4)."""

from __future__ import annotations

import functools
import math

_TINY = 1e-300
_TOLERANCE = 1e-14


def t_two_sided_p(t: float, dof: int) -> float:
    """P(|T| >= |t|) for Student's t with `dof` degrees of freedom."""
    if math.isinf(t):
        return 0.0
    return _incomplete_beta(dof / 2, 0.5, dof / (dof + t * t))


@functools.lru_cache(maxsize=256)
def t_quantile(confidence: float, dof: int) -> float:
    """The t with P(|T| <= t) = confidence: 1.960 for 0.95 and many degrees of freedom, 2.262 for 9."""
    low, high = 0.0, 1.0
    while t_two_sided_p(high, dof) > 1 - confidence:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if t_two_sided_p(middle, dof) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    front = math.exp(log_front)
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(a, b, x) / a
    return 1 - front * _continued_fraction(b, a, 1 - x) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Lentz's method for the continued fraction of the incomplete beta function."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            result *= c * d
        if abs(c * d - 1) < _TOLERANCE:
            return result
    raise ArithmeticError(f"the incomplete beta function did not converge at a={a}, b={b}, x={x}")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
