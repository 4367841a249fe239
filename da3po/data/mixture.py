"""Which prompts an epoch is made of, when some come more often than others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction


class Mixture:
    """Prompts (by place) with weights: a prompt of weight w comes w times an epoch.

    Prompts of one weight form a pool that is gone through pass after pass; epoch e takes what lies between e * w and
    (e + 1) * w passes. So weight 2 gives each of them twice in every epoch, and weight 1/2 each of them once in two
    epochs. Everything is a function of weights, seed and epoch.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        pools: dict[float, list[int]] = {}
        for place, weight in enumerate(weights):
            pools.setdefault(weight, []).append(place)
        self._pools = [(Fraction(str(weight)), pool) for weight, pool in sorted(pools.items())]
        self._seed = seed
        self._per_epoch = sum(weight * len(pool) for weight, pool in self._pools)

    def start(self, epoch: int) -> int:
        """The number of the first draw of an epoch."""
        return sum(int(epoch * weight * len(pool)) for weight, pool in self._pools)

    def epoch_of(self, draw: int) -> int:
        epoch = int(draw / self._per_epoch)
        while self.start(epoch + 1) <= draw:
            epoch += 1
        return epoch

    def members(self, epoch: int) -> list[int]:
        """The places that an epoch draws, in order, each as often as it comes."""
        chosen: list[int] = []
        for weight, pool in self._pools:
            first, last = (int(number * weight * len(pool)) for number in (epoch, epoch + 1))
            for number in range(first // len(pool), -(-last // len(pool))):
                begin, end = (min(max(bound - number * len(pool), 0), len(pool)) for bound in (first, last))
                chosen += pool if end - begin == len(pool) else self._pass(weight, pool, number)[begin:end]
        return sorted(chosen)

    def describe(self) -> list[list[float | int]]:
        """Weight and size of every pool, JSON-able."""
        return [[float(weight), len(pool)] for weight, pool in self._pools]

    def _pass(self, weight: Fraction, pool: Sequence[int], number: int) -> list[int]:
        order = list(pool)
        random.Random(f"{self._seed}/{weight}/{number}").shuffle(order)
        return order
