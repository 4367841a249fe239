"""What a plan assumes about a run that has not happened."""

from __future__ import annotations

from dataclasses import dataclass

from da3po.config.schema.validation import require


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """Assumptions of `da3po plan`; training reads none of them.

    mean_prompt_tokens, mean_response_tokens: null takes a tenth of data.max_prompt_tokens and a third of
        rollout.max_tokens.
    spread: of response lengths: standard deviation of their logarithm; what is longer than rollout.max_tokens is cut.
    keep_rate: share of groups that dynamic sampling keeps.
    learner_efficiency, engine_efficiency: share of the data sheet's FLOP/s, and for engines of its memory bandwidth,
        that are reached.
    rates: a JSON file of measured rates, as `tools/bench/plan.py` writes it, in place of the data sheet's.
    headroom: share of a GPU's memory that the learner must leave free.
    """

    mean_prompt_tokens: float | None = None
    mean_response_tokens: float | None = None
    spread: float = 0.8
    keep_rate: float = 0.6
    learner_efficiency: float = 0.35
    engine_efficiency: float = 0.6
    rates: str | None = None
    headroom: float = 0.1

    def __post_init__(self) -> None:
        for name in ("mean_prompt_tokens", "mean_response_tokens"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"plan.{name} must be >= 1 or null, got {value}")
        require(self.spread >= 0, f"plan.spread must be >= 0, got {self.spread}")
        require(0 <= self.headroom < 1, f"plan.headroom must lie in [0, 1), got {self.headroom}")
        for name in ("keep_rate", "learner_efficiency", "engine_efficiency"):
            require(0 < getattr(self, name) <= 1, f"plan.{name} must lie in (0, 1], got {getattr(self, name)}")
