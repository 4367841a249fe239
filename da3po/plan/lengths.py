"""Lengths of responses: log-normal, cut at the longest that is allowed. Most are short, a few run to the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseLengths:
    """mean: of tokens, after the cut. spread: standard deviation of the logarithm, before it. longest: the limit."""

    mean: float
    spread: float
    longest: int

    def quantiles(self, count: int) -> list[int]:
        """`count` lengths, evenly through the distribution and ascending, with the given mean."""
        if self.mean >= self.longest:
            return [self.longest] * count
        normal = NormalDist()
        shape = [math.exp(self.spread * normal.inv_cdf((index + 0.5) / count)) for index in range(count)]
        scale = _scale(shape, self.mean, self.longest)
        return [min(self.longest, max(1, round(scale * value))) for value in shape]


def _scale(shape: Sequence[float], mean: float, longest: int) -> float:
    """The factor with which the cut values have the mean: a bisection, since they only grow with it."""
    low, high = 0.0, 1.0
    while _mean(shape, high, longest) < mean and high < 1e12:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _mean(shape, middle, longest) < mean else (low, middle)
    return high


def _mean(shape: Sequence[float], scale: float, longest: int) -> float:
    return math.fsum(min(longest, scale * value) for value in shape) / len(shape)
