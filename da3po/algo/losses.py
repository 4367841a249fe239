"""The policy loss of one micro-batch (Eq. 4, 5, 10, 11, 16), and the sums its metrics are made of.

The normaliser is in `MicroBatch.weights`, so the loss of an optimizer update is the plain sum of `LossTerms.loss` over
all micro-batches of all data-parallel ranks. Metrics reduce as plainly: add `sums` and take the maximum of `maxima`
over micro-batches, ranks and the updates of a step, then call `finish_metrics` once.

Shape legend: T tokens of a packed micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from da3po.algo.clip import Clip, ClippedLoss, build_clip
from da3po.algo.correction import Correction, Weights, build_correction
from da3po.algo.ratio import LogRatio, SegmentReduce, build_log_ratio, limited
from da3po.config.schema import LossConfig
from da3po.types import MicroBatch

SUMS = (
    "weighted_loss",
    "weight",
    "tokens",
    "ratio",
    "clipped_low",
    "clipped_high",
    "clipped_dual",
    "kl",
    "entropy",
    "mismatch",
    "mismatch_tokens",
    "mismatch_kl",
    "mismatch_weight",
    "mismatch_weight_squared",
    "behaviour_kl",
    "behaviour_weight",
    "behaviour_weight_squared",
    "corrected",
)
"""What each entry of `LossTerms.sums` is a sum of."""

MAXIMA = ("ratio", "mismatch")
"""What each entry of `LossTerms.maxima` is the maximum of; all are >= 0, and 0 where there is no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """loss: scalar with a gradient. sums: [len(SUMS)] float64, maxima: [len(MAXIMA)] float64, both detached."""

    loss: Tensor
    sums: Tensor
    maxima: Tensor


class PolicyLoss:
    """A ratio, a clip and a correction, put together. Built by `build_loss`."""

    def __init__(self, log_ratio: LogRatio, clip: Clip, correction: Correction) -> None:
        self._log_ratio = log_ratio
        self._clip = clip
        self._correction = correction

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor | None, entropy: Tensor, batch: MicroBatch) -> LossTerms:
        """Loss of a micro-batch: sum over tokens of weight x token loss; 0, with zero gradient, if no token has weight.

        logprobs: [T], log pi(label); carries the gradient.
        old_logprobs: [T], the same under the weights that open the training step; None if those are the current ones.
        entropy: [T], of the policy's distribution; for metrics only.
        Values outside `batch.loss_mask` are never used. Non-finite values inside it reach the loss, for the learner to
        see.
        """
        if old_logprobs is None:
            old_logprobs = logprobs.detach()
        log_ratio = limited(self._log_ratio(logprobs, old_logprobs, batch))  # [T]
        ratio = log_ratio.exp()  # [T]
        clipped = self._clip(ratio, batch.advantages)
        with torch.no_grad():
            off_policy = torch.where(batch.loss_mask, old_logprobs - batch.behaviour_logprobs, 0.0)  # [T]
            weights = self._correction(off_policy, batch)
        loss = (batch.weights * weights.factor * clipped.loss).sum()
        with torch.no_grad():
            of_policy = _measure_policy(batch, loss, clipped, ratio, log_ratio, entropy)
            of_samples = _measure_samples(batch, off_policy, weights)
            sums, maxima = of_policy[0] | of_samples[0], of_policy[1] | of_samples[1]
            return LossTerms(
                loss=loss,
                sums=torch.stack([sums[name].double() for name in SUMS]),
                maxima=torch.stack([maxima[name].double() for name in MAXIMA]),
            )


Measured = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Entries of SUMS and of MAXIMA; nothing that makes them waits for the device."""


def _total(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0).sum(dtype=torch.float64)


def _measure_policy(
    batch: MicroBatch, loss: Tensor, clipped: ClippedLoss, ratio: Tensor, log_ratio: Tensor, entropy: Tensor
) -> Measured:
    mask = batch.loss_mask
    sums = {
        "weighted_loss": loss.double(),
        "weight": _total(batch.weights, mask),
        "tokens": mask.sum(),
        "ratio": _total(ratio, mask),
        "clipped_low": (mask & clipped.clipped_low).sum(),
        "clipped_high": (mask & clipped.clipped_high).sum(),
        "clipped_dual": (mask & clipped.clipped_dual).sum(),
        "kl": _total(ratio - 1.0 - log_ratio, mask),
        "entropy": _total(entropy, mask),
    }
    return sums, {"ratio": torch.where(mask, ratio, 0.0).amax()}


def _measure_samples(batch: MicroBatch, off_policy: Tensor, weights: Weights) -> Measured:
    """How the weights that open the step see what the engine sampled.

    off_policy: [T], log pi_old - log mu. Engine and learner must agree on fresh tokens, hence the mismatch.
    """
    mask = batch.loss_mask
    fresh = mask & batch.fresh
    mismatch = torch.where(fresh, off_policy.abs(), 0.0)  # [T]
    log_weight = limited(off_policy)
    weight = log_weight.exp()
    kl = weight - 1.0 - log_weight
    sums = {
        "mismatch": _total(mismatch, mask),
        "mismatch_tokens": fresh.sum(),
        "mismatch_kl": _total(kl, fresh),
        "mismatch_weight": _total(weight, fresh),
        "mismatch_weight_squared": _total(weight.double().square(), fresh),
        "behaviour_kl": _total(kl, mask),
        "behaviour_weight": _total(weights.raw, mask),
        "behaviour_weight_squared": _total(weights.raw.double().square(), mask),
        "corrected": weights.corrected.sum(),
    }
    return sums, {"mismatch": mismatch.amax()}


def build_loss(config: LossConfig, segment_reduce: SegmentReduce = lambda partial: partial) -> PolicyLoss:
    """The loss that a config names. `segment_reduce` adds per-sequence sums over context-parallel ranks."""
    return PolicyLoss(
        build_log_ratio(config, segment_reduce), build_clip(config), build_correction(config, segment_reduce)
    )


def finish_metrics(sums: Tensor, maxima: Tensor) -> dict[str, float]:
    """Metrics of a step from its reduced sums and maxima.

    Means are over response tokens; of a step without any they are 0, as `loss/num_tokens` tells.
    `loss/policy` is the mean, over the optimizer updates, of the loss that each minimised: each one's weights sum to 1.
    `loss/approx_kl` is the mean of r - 1 - log r, an estimate of KL(old || current) from the old policy's samples.

    With w = pi_old / mu, mu being the engine that sampled: `mismatch/` is about fresh tokens, for which w is 1 but for
    rounding; in a step without any, `mismatch/num_tokens` is all there is of it. `offpolicy/` is about all tokens. `kl`
    is the mean of w - 1 - log w, an estimate of KL(mu || pi_old). `ess` is the effective sample size as a share,
    (sum w)^2 / (n sum w^2), 1 over no tokens; in `offpolicy/` w is that of the correction, of a token or of its
    sequence. `corrected_fraction` is the share of tokens that it bounded.
    """
    total = dict(zip(SUMS, sums.tolist(), strict=True))
    top = dict(zip(MAXIMA, maxima.tolist(), strict=True))

    def mean(name: str, count: str = "tokens") -> float:
        return total[name] / total[count] if total[count] else 0.0

    def effective(weight: str, count: str) -> float:
        squares = total[count] * total[f"{weight}_squared"]
        return total[weight] ** 2 / squares if squares else 1.0

    mismatch = {
        "mismatch/mean_abs_logprob": mean("mismatch", "mismatch_tokens"),
        "mismatch/max_abs_logprob": top["mismatch"],
        "mismatch/kl": mean("mismatch_kl", "mismatch_tokens"),
        "mismatch/ess": effective("mismatch_weight", "mismatch_tokens"),
    }
    return {
        "loss/policy": mean("weighted_loss", "weight"),
        "loss/num_tokens": total["tokens"],
        "loss/ratio_mean": mean("ratio"),
        "loss/ratio_max": top["ratio"],
        "loss/clip_fraction_low": mean("clipped_low"),
        "loss/clip_fraction_high": mean("clipped_high"),
        "loss/clip_fraction_dual": mean("clipped_dual"),
        "loss/approx_kl": mean("kl"),
        "actor/entropy": mean("entropy"),
        "mismatch/num_tokens": total["mismatch_tokens"],
        **(mismatch if total["mismatch_tokens"] else {}),
        "offpolicy/kl": mean("behaviour_kl"),
        "offpolicy/ess": effective("behaviour_weight", "tokens"),
        "offpolicy/corrected_fraction": mean("corrected"),
    }
