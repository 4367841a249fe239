"""From graded groups to the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from da3po.config.schema.validation import require


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig:
    """Group advantage (Eq. 3): (R - mean) / (std + eps), std unbiased (`sample`) or `population`."""

    std: Literal["sample", "population"] = "sample"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        require(self.eps > 0, f"algo.advantage.eps must be positive, got {self.eps}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaaConfig:
    """Direct Advantage Amplification (Eq. 14).

    kind: off | constant (lambda everywhere) | adaptive (lambda = clip(1/gamma(p, G), 1, lambda_max) from the prompt's
        own history).
    lambda_: amplification factor.
    tau: a group is hard if p_hat < tau (strict).
    only_positive: leave a correct sample alone if its advantage is negative (an overlong one's can be).
    lambda_max, prior: of `adaptive`: the cap, and the weight (in samples) of the Beta prior centred on 1/2.
    """

    kind: Literal["off", "constant", "adaptive"] = "off"
    lambda_: float = 2.0
    tau: float = 0.5
    only_positive: bool = False
    lambda_max: float = 4.0
    prior: float = 2.0

    def __post_init__(self) -> None:
        require(
            self.lambda_ >= 1 and math.isfinite(self.lambda_),
            f"algo.daa.lambda must be >= 1 (1 is DAPO), got {self.lambda_}",
        )
        require(0 < self.tau < 1, f"algo.daa.tau must lie between 0 and 1, got {self.tau}")
        require(self.lambda_max >= 1, f"algo.daa.lambda_max must be >= 1, got {self.lambda_max}")
        require(self.prior > 0, f"algo.daa.prior must be positive, got {self.prior}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSamplingConfig:
    """Keep groups with low < p_hat < high until the batch has its number of prompts.

    min_graded: a group with fewer graded samples is dropped.
    max_rounds: a step may use up so many times 3 x rollout.num_prompts prompts before `on_starvation` decides.
    on_starvation: raise | short_batch (train on what there is) | widen_band (take dropped groups whose rewards differ).
    max_empty_steps: attempts at a step, each without a single group, that end the run.
    max_surplus_age: versions of the weights that a group that was finished when a batch was full may lie behind when a
        later step uses it, more than rollout.max_lag; 0 generates all of them again, so that the run is the same
        whatever the timing.
    """

    enabled: bool = True
    low: float = 0.0
    high: float = 1.0
    min_graded: int = 2
    max_rounds: int = 10
    on_starvation: Literal["raise", "short_batch", "widen_band"] = "short_batch"
    max_empty_steps: int = 1
    max_surplus_age: int = 0

    def __post_init__(self) -> None:
        require(
            0 <= self.low < self.high <= 1,
            f"algo.dynamic_sampling.low and .high must satisfy 0 <= low < high <= 1, got {self.low} and {self.high}",
        )
        require(self.min_graded >= 2, f"algo.dynamic_sampling.min_graded must be >= 2, got {self.min_graded}")
        require(self.max_rounds >= 1, f"algo.dynamic_sampling.max_rounds must be >= 1, got {self.max_rounds}")
        require(self.max_empty_steps >= 1, "algo.dynamic_sampling.max_empty_steps must be >= 1")
        require(self.max_surplus_age >= 0, "algo.dynamic_sampling.max_surplus_age must be >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongConfig:
    """Soft overlong punishment (Eq. 8): L_m is rollout.max_tokens, L_c is `cache`; cache 0 switches the slope off."""

    enabled: bool = True
    cache: int = 1024

    def __post_init__(self) -> None:
        require(self.cache >= 0, f"algo.overlong.cache must be >= 0, got {self.cache}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Policy loss (Eq. 5, 11, 16).

    ratio: token | sequence (GSPO).
    clip_low, clip_high: eps_l and eps_h.
    dual_clip: c > 1 bounds the loss of tokens with negative advantage; null is off.
    aggregation: token_mean (Eq. 9) | sequence_mean (Eq. 4: mean over a sample's tokens, then over samples).
    correction: of samples that older weights made, by w = pi_old / mu of a token or of its sequence: none |
        token_tis, sequence_tis (multiply by min(w, high)) | token_mask, sequence_mask (by w within the bounds, else 0).
    correction_low, correction_high: the bounds on w; low is for the masks.
    normalizer: global = one denominator per optimizer update | reference = the 2025 recipe's (mean per micro-batch
        and rank, weighted by sequence count).
    """

    ratio: Literal["token", "sequence"] = "token"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    normalizer: Literal["global", "reference"] = "global"
    correction: Literal["none", "token_tis", "sequence_tis", "token_mask", "sequence_mask"] = "none"
    correction_low: float = 0.5
    correction_high: float = 2.0

    def __post_init__(self) -> None:
        require(0 < self.clip_low < 1, f"algo.loss.clip_low must lie between 0 and 1, got {self.clip_low}")
        require(self.clip_high > 0, f"algo.loss.clip_high must be positive, got {self.clip_high}")
        require(
            self.dual_clip is None or self.dual_clip > 1,
            f"algo.loss.dual_clip must be > 1 or null, got {self.dual_clip}",
        )
        require(
            0 <= self.correction_low < 1 <= self.correction_high,
            "algo.loss.correction_low and correction_high must have 1 between them, "
            f"got {self.correction_low} and {self.correction_high}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgoConfig:
    """An algorithm is these parts put together; conf/algo names the known ones."""

    name: str = "da3po"
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    daa: DaaConfig = field(default_factory=DaaConfig)
    dynamic_sampling: DynamicSamplingConfig = field(default_factory=DynamicSamplingConfig)
    overlong: OverlongConfig = field(default_factory=OverlongConfig)
    loss: LossConfig = field(default_factory=LossConfig)
