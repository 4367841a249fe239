"""Scores of an evaluation and how sure they are.

The problems are the sample: an interval answers "what if other problems of this kind had been asked". Samples of one
problem are alike, so they are averaged first and problems, not samples, are counted (clustering by problem).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from da3po.eval.distributions import t_quantile, t_two_sided_p

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over problems with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def as_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs on the same problems: mean difference (second minus first), its 95 % interval, two-sided p-value.

    num_problems: problems that both runs have; the others do not take part.
    """

    difference: float
    low: float
    high: float
    p_value: float
    num_problems: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k of n samples, c of them correct, drawn without replacement, hold a correct one.

    1 - C(n - c, k) / C(n, k), the unbiased estimator of Chen et al. 2021 (arXiv:2107.03374), Eq. 1.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs 1 <= k <= n samples, and there are n={n}")
    if not 0 <= c <= n:
        raise ValueError(f"{c} correct of {n} samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority_at_n(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """1 if the most frequent answer is correct, 0 if not, and the share of correct ones among tied answers.

    All correct answers are one answer, however they are written; a sample without an answer does not vote.
    """
    votes: Counter[tuple[bool, str]] = Counter(
        (is_correct, "" if is_correct else str(answer))
        for answer, is_correct in zip(answers, correct, strict=True)
        if answer is not None
    )
    if not votes:
        return 0.0
    most = max(votes.values())
    winners = [is_correct for (is_correct, _), count in votes.items() if count == most]
    return sum(winners) / len(winners)


def estimate_mean(values: Sequence[float]) -> Estimate:
    """Mean over problems of a score in [0, 1] with a 95 % interval clustered by problem.

    A Wilson score interval with the effective sample size m(1 - m) / (s^2 / P) that the variance s^2 between the P
    problems gives and Student's t for P - 1 degrees of freedom (Dean and Pagano 2015). Near the middle it is the
    t interval of the mean; near 0 and 1 it stays inside and keeps its coverage. One problem says nothing: [0, 1].
    """
    num_problems = len(values)
    if not num_problems:
        raise ValueError("no problems to average over")
    mean = fmean(values)
    if num_problems == 1:
        return Estimate(value=mean, low=0.0, high=1.0)
    t = t_quantile(CONFIDENCE, num_problems - 1)
    squared_error = variance(values) / num_problems
    n = mean * (1 - mean) / squared_error if squared_error > 0 and 0 < mean < 1 else float(num_problems)
    centre = (mean + t * t / (2 * n)) / (1 + t * t / n)
    half = t / (1 + t * t / n) * math.sqrt(mean * (1 - mean) / n + t * t / (4 * n * n))
    return Estimate(value=mean, low=max(0.0, min(mean, centre - half)), high=min(1.0, max(mean, centre + half)))


def average(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates, as over benchmarks, with its 95 % interval.

    The intervals are combined by the squares of their half-widths, side by side, since they need not be symmetric
    (Zou and Donner 2008, the method of variance estimates recovery).
    """
    num = len(estimates)
    value = fmean(estimate.value for estimate in estimates)
    below = math.sqrt(sum((estimate.value - estimate.low) ** 2 for estimate in estimates)) / num
    above = math.sqrt(sum((estimate.high - estimate.value) ** 2 for estimate in estimates)) / num
    return Estimate(value=value, low=max(0.0, value - below), high=min(1.0, value + above))


def compare_paired(first: Mapping[str, float], second: Mapping[str, float]) -> Comparison:
    """Compare two runs problem by problem (paired t test on the differences; keys are problem uids)."""
    shared = sorted(first.keys() & second.keys())
    if len(shared) < 2:
        raise ValueError(f"a comparison needs at least 2 problems that both runs have, and there are {len(shared)}")
    differences = [second[uid] - first[uid] for uid in shared]
    mean = fmean(differences)
    error = math.sqrt(variance(differences) / len(shared))
    t = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
    p_value = t_two_sided_p(t, len(shared) - 1)
    half = t_quantile(CONFIDENCE, len(shared) - 1) * error
    return Comparison(difference=mean, low=mean - half, high=mean + half, p_value=p_value, num_problems=len(shared))
