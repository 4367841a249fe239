"""The limits on how far engine and learner may disagree about the log-probs of the same tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from da3po.config.schema import MismatchConfig
from da3po.types import StepStats

METRIC = "mismatch/mean_abs_logprob"
TREND = "mismatch/trend"
TREND_STEPS = 5

WHERE_TO_LOOK = (
    "Under equal weights they are equal but for rounding: check that the engine got the learner's weights (sync), that "
    "both compute in the same precision (learner.precision, engine.dtype), and that no sampling option or quantisation "
    "changes the engine's distribution"
)


class MismatchError(RuntimeError):
    """Engine and learner disagree: the samples are not from the policy that is trained."""


class MismatchGate:
    """Stops a run whose engine and learner have drifted apart; without limits it lets everything pass.

    It looks at fresh tokens; a step without any, as with rollout.max_lag, passes.
    """

    def __init__(self, config: MismatchConfig) -> None:
        self._config = config
        self._means: deque[float] = deque(maxlen=2 * TREND_STEPS)

    def check(self, step: int, values: Mapping[str, float]) -> StepStats:
        """`mismatch/trend`: the mean difference over the last TREND_STEPS steps that had fresh tokens, divided by that
        over as many before; 1 until there are so many.

        Raises MismatchError, saying what to look at, if the step is beyond a limit.
        """
        if values["mismatch/num_tokens"] == 0:
            return StepStats({TREND: self._trend()})
        self._means.append(values[METRIC])
        trend = self._trend()
        if broken := list(self._broken(values, trend)):
            raise MismatchError(f"step {step}: {'; '.join(broken)}. {WHERE_TO_LOOK}")
        return StepStats({TREND: trend})

    def _broken(self, values: Mapping[str, float], trend: float) -> Iterator[str]:
        """Each broken limit in words. Written so that what is no number breaks it."""
        config = self._config
        mean, kl, ess = values[METRIC], values["mismatch/kl"], values["mismatch/ess"]
        if config.max_mean is not None and not mean <= config.max_mean:
            yield (
                f"log-probs of engine and learner differ by {mean:.2e} on average, "
                f"mismatch.max_mean is {config.max_mean:.2e}"
            )
        if config.max_kl is not None and not kl <= config.max_kl:
            yield f"the KL divergence of learner and engine is {kl:.2e}, mismatch.max_kl is {config.max_kl:.2e}"
        if config.min_ess is not None and not ess >= config.min_ess:
            yield f"the effective sample size is {ess:.4f} of the tokens, mismatch.min_ess is {config.min_ess}"
        if config.max_trend is not None and not trend <= config.max_trend:
            yield (
                f"the mean difference of log-probs of engine and learner has grown {trend:.2f}-fold over "
                f"{TREND_STEPS} steps, mismatch.max_trend is {config.max_trend}"
            )

    def _trend(self) -> float:
        if len(self._means) < 2 * TREND_STEPS:
            return 1.0
        means = list(self._means)
        before, now = sum(means[:TREND_STEPS]), sum(means[TREND_STEPS:])
        return now / before if before else (1.0 if now == 0 else float("inf"))
