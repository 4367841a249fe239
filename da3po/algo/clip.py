"""The clipped surrogate of PPO with separate bounds (Eq. 11), and dual clip as an option."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from da3po.config.schema import LossConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedLoss:
    """Loss of each token and which bound, if any, took its gradient. All [T]."""

    loss: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_dual: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """loss = -min(r A, clip(r, low, high) A); with `dual` c, and for A < 0 only, at most -c A.

    low, high: 1 - eps_l and 1 + eps_h. dual: c > 1, or infinity for no dual clip.
    """

    low: float
    high: float
    dual: float

    def __call__(self, ratio: Tensor, advantages: Tensor) -> ClippedLoss:
        """ratio, advantages: [T] -> all fields [T]."""
        # min(r A, clip(r) A) is A min(r, high) for A > 0 and A max(r, low) for A < 0: one bound matters for each sign.
        clipped_high = (advantages > 0) & (ratio > self.high)
        clipped_low = (advantages < 0) & (ratio < self.low)
        clipped_dual = (advantages < 0) & (ratio > self.dual)
        # Selected with `where`, since the gradient of torch.clamp at NaN is 0, which would hide a broken forward pass.
        bounded = torch.where(clipped_high, self.high, ratio)
        bounded = torch.where(clipped_low, self.low, bounded)
        bounded = torch.where(clipped_dual, self.dual, bounded)
        return ClippedLoss(
            loss=-bounded * advantages,
            clipped_low=clipped_low,
            clipped_high=clipped_high,
            clipped_dual=clipped_dual,
        )


def build_clip(config: LossConfig) -> Clip:
    dual = float("inf") if config.dual_clip is None else config.dual_clip
    return Clip(low=1.0 - config.clip_low, high=1.0 + config.clip_high, dual=dual)
