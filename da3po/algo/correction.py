"""Correction of samples that other weights made than those that open the step: importance weights, bounded.

With mu the policy that sampled and pi_old the one that opens the step, w = pi_old / mu, of a token or of its sequence
(the product over its tokens). The loss of a token is multiplied by w where w is within bounds; beyond them a truncated
weight is the bound itself (Espeholt et al. 2018, arXiv 1802.01561), and a masked one is 0. No gradient goes through w,
and the step's normaliser stays what it is.

Shape legend: T tokens of a packed micro-batch, S sequences in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from da3po.algo.ratio import SegmentReduce, limited, sequence_sums
from da3po.config.schema import LossConfig
from da3po.types import MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """raw: w. factor: what the loss is multiplied by. corrected: where a bound took effect. All [T], detached."""

    raw: Tensor
    factor: Tensor
    corrected: Tensor


class Bound(Protocol):
    def __call__(self, raw: Tensor, /) -> tuple[Tensor, Tensor]:
        """w -> the factor of the loss, and where it is not w itself."""
        ...


Level = Callable[[Tensor, MicroBatch], Tensor]
"""log w of every token [T], 0 outside the loss mask -> log of the weight that it is given [T]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A level and a bound."""

    level: Level
    bound: Bound

    def __call__(self, log_weights: Tensor, batch: MicroBatch) -> Weights:
        """log_weights: [T], log pi_old - log mu of each token, 0 outside the loss mask."""
        raw = limited(self.level(log_weights, batch)).exp()
        factor, corrected = self.bound(raw)
        return Weights(raw=raw, factor=factor, corrected=corrected & batch.loss_mask)


class Unchanged:
    """All samples count alike, whatever weights made them."""

    def __call__(self, raw: Tensor, /) -> tuple[Tensor, Tensor]:
        return torch.ones_like(raw), torch.zeros_like(raw, dtype=torch.bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """min(w, high)."""

    high: float

    def __call__(self, raw: Tensor, /) -> tuple[Tensor, Tensor]:
        over = raw > self.high
        return torch.where(over, self.high, raw), over


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """w if low <= w <= high, else 0."""

    low: float
    high: float

    def __call__(self, raw: Tensor, /) -> tuple[Tensor, Tensor]:
        outside = (raw < self.low) | (raw > self.high)
        return torch.where(outside, 0.0, raw), outside


def of_token(log_weights: Tensor, _batch: MicroBatch) -> Tensor:
    return log_weights


class OfSequence:
    """Every token is given the weight of its sequence."""

    def __init__(self, segment_reduce: SegmentReduce) -> None:
        self._segment_reduce = segment_reduce

    def __call__(self, log_weights: Tensor, batch: MicroBatch) -> Tensor:
        return sequence_sums(log_weights, batch, self._segment_reduce)[batch.segment_ids]


def build_correction(config: LossConfig, segment_reduce: SegmentReduce) -> Correction:
    truncated = Truncated(high=config.correction_high)
    masked = Masked(low=config.correction_low, high=config.correction_high)
    match config.correction:
        case "none":
            return Correction(level=of_token, bound=Unchanged())
        case "token_tis":
            return Correction(level=of_token, bound=truncated)
        case "sequence_tis":
            return Correction(level=OfSequence(segment_reduce), bound=truncated)
        case "token_mask":
            return Correction(level=of_token, bound=masked)
        case "sequence_mask":
            return Correction(level=OfSequence(segment_reduce), bound=masked)
