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
from da3po.algo.ratio import LogRatio, SegmentReduce, build_log_ratio
from da3po.config.schema import LossConfig
from da3po.types import MicroBatch

LOG_RATIO_LIMIT = 20.0
"""|log ratio| is cut here: e^20 is far outside every clip range, and exp in fp32 overflows at 88."""

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
    """A ratio and a clip, put together. Built by `build_loss`."""

    def __init__(self, log_ratio: LogRatio, clip: Clip) -> None:
        self._log_ratio = log_ratio
        self._clip = clip

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
        log_ratio = _limit(self._log_ratio(logprobs, old_logprobs, batch))  # [T]
        ratio = log_ratio.exp()  # [T]
        clipped = self._clip(ratio, batch.advantages)
        loss = (batch.weights * clipped.loss).sum()
        with torch.no_grad():
            sums, maxima = _measure(batch, loss, clipped, ratio, log_ratio, old_logprobs, entropy)
        return LossTerms(loss=loss, sums=sums, maxima=maxima)


def _limit(log_ratio: Tensor) -> Tensor:
    """Cut to LOG_RATIO_LIMIT; with `where`, for the reason given in `Clip`."""
    return torch.where(log_ratio.abs() > LOG_RATIO_LIMIT, LOG_RATIO_LIMIT * log_ratio.sign(), log_ratio)


def _measure(
    batch: MicroBatch,
    loss: Tensor,
    clipped: ClippedLoss,
    ratio: Tensor,
    log_ratio: Tensor,
    old_logprobs: Tensor,
    entropy: Tensor,
) -> tuple[Tensor, Tensor]:
    """The entries of SUMS and MAXIMA; nothing here waits for the device."""
    mask = batch.loss_mask
    # The engine must agree with the weights that open the step, hence `old_logprobs` and `fresh`.
    fresh = mask & batch.fresh
    mismatch = torch.where(fresh, (batch.behaviour_logprobs - old_logprobs).abs(), 0.0)  # [T]

    def total(values: Tensor) -> Tensor:
        return torch.where(mask, values, 0.0).sum(dtype=torch.float64)

    sums = {
        "weighted_loss": loss.double(),
        "weight": total(batch.weights),
        "tokens": mask.sum(),
        "ratio": total(ratio),
        "clipped_low": (mask & clipped.clipped_low).sum(),
        "clipped_high": (mask & clipped.clipped_high).sum(),
        "clipped_dual": (mask & clipped.clipped_dual).sum(),
        "kl": total(ratio - 1.0 - log_ratio),
        "entropy": total(entropy),
        "mismatch": total(mismatch),
        "mismatch_tokens": fresh.sum(),
    }
    maxima = {"ratio": torch.where(mask, ratio, 0.0).amax(), "mismatch": mismatch.amax()}
    return (
        torch.stack([sums[name].double() for name in SUMS]),
        torch.stack([maxima[name].double() for name in MAXIMA]),
    )


def build_loss(config: LossConfig, segment_reduce: SegmentReduce = lambda partial: partial) -> PolicyLoss:
    """The loss that a config names. `segment_reduce` adds per-sequence sums over context-parallel ranks."""
    return PolicyLoss(build_log_ratio(config, segment_reduce), build_clip(config))


def finish_metrics(sums: Tensor, maxima: Tensor) -> dict[str, float]:
    """Metrics of a step from its reduced sums and maxima.

    Means are over response tokens. A mean over no tokens is 0; `loss/num_tokens` and `mismatch/num_tokens` tell.
    `loss/policy` is the mean, over the optimizer updates, of the loss that each minimised: each one's weights sum to 1.
    `loss/approx_kl` is the mean of r - 1 - log r, an estimate of KL(old || current) from the old policy's samples.
    """
    total = dict(zip(SUMS, sums.tolist(), strict=True))
    top = dict(zip(MAXIMA, maxima.tolist(), strict=True))

    def mean(name: str, count: str = "tokens") -> float:
        return total[name] / total[count] if total[count] else 0.0

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
        "mismatch/mean_abs_logprob": mean("mismatch", "mismatch_tokens"),
        "mismatch/max_abs_logprob": top["mismatch"],
        "mismatch/num_tokens": total["mismatch_tokens"],
    }
