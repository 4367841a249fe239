"""How far the weights that made the samples lie behind those that are trained on them."""

from __future__ import annotations

from collections.abc import Sequence

from da3po.rollout.learning_signal import GroupSignal


def staleness_metrics(signals: Sequence[GroupSignal], weight_version: int) -> dict[str, float]:
    """Over the samples of a batch, in versions: 0 is on-policy. A sample is as old as its oldest token.

    weight_version: of the weights that the learner opens the step with.
    """
    ages = [weight_version - completion.weight_version for signal in signals for completion in signal.completions]
    return {"rollout/staleness_mean": sum(ages) / len(ages), "rollout/staleness_max": max(ages)}
