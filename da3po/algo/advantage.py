"""Group advantage (Eq. 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from da3po.config.schema import AdvantageConfig


def group_advantages(rewards: Sequence[float], config: AdvantageConfig) -> list[float]:
    """(R - mean) / (std + eps) within one group, in float64.

    rewards: R_acc + R_len of the graded samples of one prompt, at least two.
    Equal rewards give exactly 0, which rounding in the mean would not.
    """
    num = len(rewards)
    if num < 2:
        raise ValueError(f"a group advantage needs at least 2 rewards, got {num}")
    if min(rewards) == max(rewards):
        return [0.0] * num
    mean = math.fsum(rewards) / num
    deviations = [reward - mean for reward in rewards]
    degrees = num - 1 if config.std == "sample" else num
    std = math.sqrt(math.fsum([deviation * deviation for deviation in deviations]) / degrees)
    return [deviation / (std + config.eps) for deviation in deviations]
