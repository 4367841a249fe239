from __future__ import annotations

import pytest

from da3po.config.schema import OptimConfig
from da3po.learner.schedule import learning_rate


def rates(optim: OptimConfig, train_steps: int) -> list[float]:
    return [learning_rate(step, optim, train_steps) for step in range(1, train_steps + 1)]


def test_warm_up_is_linear_and_reaches_the_rate_at_its_last_step() -> None:
    assert rates(OptimConfig(lr=1.0, warmup_steps=4), 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates(OptimConfig(lr=1.0, warmup_steps=0), 2) == [1.0, 1.0]


def test_cosine_starts_after_the_warm_up_and_ends_at_min_lr() -> None:
    optim = OptimConfig(lr=1.0, min_lr=0.2, schedule="cosine", warmup_steps=1)
    assert rates(optim, 5) == pytest.approx([1.0, 0.88284, 0.6, 0.31716, 0.2], abs=1e-5)
    assert learning_rate(9, optim, 5) == pytest.approx(0.2)


def test_the_rate_depends_on_the_step_alone() -> None:
    """C01, C02: resuming at any step gives the rates of a run that never stopped."""
    optim = OptimConfig(lr=1.0, schedule="cosine", warmup_steps=10)
    assert [learning_rate(step, optim, 20) for step in range(6, 11)] == rates(optim, 20)[5:10]


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        learning_rate(0, OptimConfig(), 10)


def test_a_warm_up_longer_than_the_run_never_ends() -> None:
    assert rates(OptimConfig(lr=1.0, schedule="cosine", warmup_steps=10), 3) == pytest.approx([0.1, 0.2, 0.3])
