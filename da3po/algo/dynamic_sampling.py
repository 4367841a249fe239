"""Which groups are worth training on, judged on raw accuracy and never on a shaped reward."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from da3po.config.schema import DynamicSamplingConfig


class DropReason(enum.StrEnum):
    """Why a group was left out; `rollout/dropped_<reason>` counts it."""

    ALL_CORRECT = "all_correct"
    ALL_WRONG = "all_wrong"
    OUTSIDE_BAND = "outside_band"
    TOO_FEW_GRADED = "too_few_graded"


class GroupFilter(Protocol):
    def __call__(self, num_correct: int, num_graded: int, /) -> DropReason | None:
        """None keeps the group."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepGraded:
    """Dynamic sampling off: every group with enough graded samples is kept."""

    min_graded: int

    def __call__(self, _num_correct: int, num_graded: int, /) -> DropReason | None:
        return DropReason.TOO_FEW_GRADED if num_graded < self.min_graded else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBand:
    """Keep low < p_hat < high; with 0 and 1 this is the condition of Eq. 10."""

    low: float
    high: float
    min_graded: int

    def __call__(self, num_correct: int, num_graded: int, /) -> DropReason | None:
        if num_graded < self.min_graded:
            return DropReason.TOO_FEW_GRADED
        if num_correct == num_graded:
            return DropReason.ALL_CORRECT
        if num_correct == 0:
            return DropReason.ALL_WRONG
        return None if self.low < num_correct / num_graded < self.high else DropReason.OUTSIDE_BAND


def build_filter(config: DynamicSamplingConfig) -> GroupFilter:
    if not config.enabled:
        return KeepGraded(min_graded=config.min_graded)
    return KeepBand(low=config.low, high=config.high, min_graded=config.min_graded)
