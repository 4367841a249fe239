"""The limit on how far engine and learner may disagree about the log-probs of the same tokens."""

from __future__ import annotations

from collections.abc import Mapping

from da3po.config.schema import MismatchConfig
from da3po.types import StepStats

METRIC = "mismatch/mean_abs_logprob"


class MismatchError(RuntimeError):
    """Engine and learner disagree: the samples are not from the policy that is trained."""


class MismatchGate:
    """Stops a run whose engine and learner have drifted apart; without a limit it lets everything pass."""

    def __init__(self, config: MismatchConfig) -> None:
        self._max_mean = config.max_mean

    def check(self, step: int, values: Mapping[str, float]) -> StepStats:
        """Raises MismatchError, saying what to look at, if the mean difference of the step is above the limit."""
        if self._max_mean is None or values[METRIC] <= self._max_mean:
            return StepStats()
        raise MismatchError(
            f"step {step}: log-probs of engine and learner differ by {values[METRIC]:.2e} on average, "
            f"mismatch.max_mean is {self._max_mean:.2e}. Under equal weights they are equal but for rounding: "
            "check that the engine got "
            "the learner's weights (sync), that both compute in the same precision (learner.precision, engine.dtype), "
            "and that no sampling option or quantisation changes the engine's distribution"
        )
