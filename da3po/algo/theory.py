"""What dynamic sampling does to expected advantages (section 3 and appendix B of the paper).

p: probability that one response to the prompt is correct, 0 < p < 1. num_samples: G >= 2.
"""

from __future__ import annotations

import math


def alpha_plus(p: float, num_samples: int) -> float:
    """1 / (1 - p^(G-1)): how much the filter amplifies the expected advantage of a correct response (Eq. 12)."""
    _check(p, num_samples)
    return _one_over_one_minus_exp((num_samples - 1) * math.log(p))


def alpha_minus(p: float, num_samples: int) -> float:
    """1 / (1 - (1-p)^(G-1)): the same for an incorrect response (Eq. 13)."""
    _check(p, num_samples)
    return _one_over_one_minus_exp((num_samples - 1) * math.log1p(-p))


def gamma(p: float, num_samples: int) -> float:
    """alpha_plus / alpha_minus (Corollary 3.2): below 1 exactly if p < 1/2, on hard prompts."""
    return alpha_plus(p, num_samples) / alpha_minus(p, num_samples)


def _one_over_one_minus_exp(exponent: float) -> float:
    """1 / (1 - e^x) without the cancellation near x = 0."""
    return -1.0 / math.expm1(exponent)


def _check(p: float, num_samples: int) -> None:
    if not 0 < p < 1:
        raise ValueError(f"p must lie between 0 and 1, both excluded, got {p}")
    if num_samples < 2:
        raise ValueError(f"num_samples must be >= 2, got {num_samples}")
