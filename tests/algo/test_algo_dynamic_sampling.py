from __future__ import annotations

import pytest

from da3po.algo.dynamic_sampling import DropReason, build_filter
from da3po.config.schema import DynamicSamplingConfig


@pytest.mark.parametrize(
    ("num_correct", "num_graded", "reason"),
    [
        (0, 8, DropReason.ALL_WRONG),
        (1, 8, None),
        (7, 8, None),
        (8, 8, DropReason.ALL_CORRECT),
        (1, 1, DropReason.TOO_FEW_GRADED),
        (0, 0, DropReason.TOO_FEW_GRADED),
        (1, 2, None),
    ],
)
def test_the_paper_keeps_groups_that_are_neither_all_right_nor_all_wrong(
    num_correct: int, num_graded: int, reason: DropReason | None
) -> None:
    assert build_filter(DynamicSamplingConfig())(num_correct, num_graded) is reason


@pytest.mark.parametrize(
    ("num_correct", "reason"),
    [(0, "all_wrong"), (2, "outside_band"), (3, None), (11, None), (12, "outside_band"), (16, "all_correct")],
)
def test_a_narrower_band_is_open_at_both_ends(num_correct: int, reason: str | None) -> None:
    keep = build_filter(DynamicSamplingConfig(low=0.125, high=0.75))
    assert keep(num_correct, 16) == reason


def test_switched_off_only_ungraded_groups_are_dropped() -> None:
    keep = build_filter(DynamicSamplingConfig(enabled=False, min_graded=4))
    assert [keep(0, 8), keep(8, 8), keep(2, 4)] == [None, None, None]
    assert keep(1, 3) is DropReason.TOO_FEW_GRADED
