"""Sampling, grading, and the agreement of engine and learner."""

from __future__ import annotations

from dataclasses import dataclass

from da3po.config.schema.validation import require

MAX_TEMPERATURE = 2.0
"""vLLM's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """How training responses are sampled.

    num_prompts: prompts (groups) of one training step, after dynamic sampling.
    num_samples: G, responses per prompt.
    max_in_flight: most groups that are generated at a time; null asks for as many as the batch is expected to need.
    max_lag: steps that generation may run ahead of training. 0 is on-policy; with 1 the batch of the next step is
        generated while the learner works on this one, by weights one step older.
    in_flight_updates: with max_lag above 0, exchange weights while responses are being generated, which go on under
        the new ones, each token with the log-prob and the version of the weights that drew it; otherwise new weights
        wait until a batch is complete.
    """

    num_prompts: int = 512
    num_samples: int = 16
    max_in_flight: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 4096
    max_lag: int = 0
    in_flight_updates: bool = False

    def __post_init__(self) -> None:
        require(self.num_prompts >= 1, f"rollout.num_prompts must be >= 1, got {self.num_prompts}")
        require(
            self.num_samples >= 2, f"rollout.num_samples must be >= 2 for a group advantage, got {self.num_samples}"
        )
        require(
            0 < self.temperature <= MAX_TEMPERATURE,
            f"rollout.temperature must lie in (0, {MAX_TEMPERATURE:g}], vLLM's limit, got {self.temperature}",
        )
        require(0 < self.top_p <= 1, f"rollout.top_p must lie in (0, 1], got {self.top_p}")
        require(self.top_k == -1 or self.top_k >= 1, f"rollout.top_k must be -1 (off) or >= 1, got {self.top_k}")
        require(self.max_tokens >= 1, f"rollout.max_tokens must be >= 1, got {self.max_tokens}")
        require(
            self.max_in_flight is None or self.max_in_flight >= 1,
            f"rollout.max_in_flight must be >= 1 or null, got {self.max_in_flight}",
        )
        require(self.max_lag >= 0, f"rollout.max_lag must be >= 0, got {self.max_lag}")
        require(
            self.max_lag > 0 or not self.in_flight_updates,
            "rollout.in_flight_updates needs rollout.max_lag > 0: on-policy, nothing is in flight when weights change",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """grader: math | dapo_v1 | a dotted path to a callable(gold, response) -> Grade | bool.

    timeout: seconds one answer may take before its worker is killed.
    num_workers: grader processes.
    max_failure_rate: share of timeouts and errors among 512 responses above which a warning is logged.
    """

    grader: str = "math"
    timeout: float = 5.0
    num_workers: int = 1
    memory_mb: int = 2048
    max_failure_rate: float = 0.05

    def __post_init__(self) -> None:
        require(self.timeout > 0, f"reward.timeout must be positive, got {self.timeout}")
        require(self.num_workers >= 1, f"reward.num_workers must be >= 1, got {self.num_workers}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchConfig:
    """Limits on how engine and learner disagree about the log-probs of fresh tokens; null logs only.

    max_mean: of |log-prob of the engine - log-prob of the learner|.
    max_kl: of the estimated KL(engine || learner), in nats a token.
    min_ess: least effective sample size, as a share of the tokens, of importance weights between the two.
    max_trend: the mean difference over five steps, divided by that over the five before.
    """

    max_mean: float | None = None
    max_kl: float | None = None
    min_ess: float | None = None
    max_trend: float | None = None

    def __post_init__(self) -> None:
        require(self.max_mean is None or self.max_mean > 0, f"mismatch.max_mean must be > 0, got {self.max_mean}")
        require(self.max_kl is None or self.max_kl > 0, f"mismatch.max_kl must be > 0, got {self.max_kl}")
        require(
            self.min_ess is None or 0 < self.min_ess <= 1, f"mismatch.min_ess must lie in (0, 1], got {self.min_ess}"
        )
        require(self.max_trend is None or self.max_trend > 1, f"mismatch.max_trend must be > 1, got {self.max_trend}")
