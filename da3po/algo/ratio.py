"""Log importance ratio of every token, per token or per sequence.

Both objects return [T] values that are 0 outside the loss mask and whose gradient with respect to `logprobs` is that of
the ratio the algorithm names. Shape legend: T tokens of a packed micro-batch, S sequences in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from da3po.config.schema import LossConfig
from da3po.types import MicroBatch

SegmentReduce = Callable[[Tensor], Tensor]
"""Adds per-sequence partial sums [S] over the ranks that share a sequence (context parallel); returns the totals."""


LOG_RATIO_LIMIT = 20.0
"""|log ratio| is cut here: e^20 is far outside every clip range, and exp in fp32 overflows at 88."""


def limited(log_ratio: Tensor) -> Tensor:
    """Cut to LOG_RATIO_LIMIT; with `where`, since the gradient of torch.clamp at NaN is 0, which would hide a broken
    forward pass."""
    return torch.where(log_ratio.abs() > LOG_RATIO_LIMIT, LOG_RATIO_LIMIT * log_ratio.sign(), log_ratio)


def sequence_sums(values: Tensor, batch: MicroBatch, segment_reduce: SegmentReduce) -> Tensor:
    """[T] -> [S], over whole sequences."""
    partial = values.new_zeros(batch.cu_seqlens.numel() - 1).index_add(0, batch.segment_ids, values)
    return segment_reduce(partial)


class LogRatio(Protocol):
    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, batch: MicroBatch) -> Tensor: ...


class TokenLogRatio:
    """log r_t = log pi(o_t) - log pi_old(o_t), the ratio of Eq. 5."""

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, batch: MicroBatch) -> Tensor:
        return torch.where(batch.loss_mask, logprobs - old_logprobs, 0.0)


class SequenceLogRatio:
    """GSPO: every token of a sequence has the ratio s = exp(mean_t log r_t), and the gradient s * d log pi(o_t).

    The stop-gradient form: log s_t = logp_t - sg(logp_t) + sg(mean_t log r_t). A per-token loss over it, averaged over
    the tokens of the sequence, has the gradient of the sequence loss when nothing is clipped.
    """

    def __init__(self, segment_reduce: SegmentReduce) -> None:
        self._segment_reduce = segment_reduce

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, batch: MicroBatch) -> Tensor:
        with torch.no_grad():
            log_ratio = torch.where(batch.loss_mask, logprobs - old_logprobs, 0.0)  # [T]
            total = sequence_sums(log_ratio, batch, self._segment_reduce)  # [S]
            count = sequence_sums(batch.loss_mask.to(log_ratio.dtype), batch, self._segment_reduce)  # [S]
            mean = total / count.clamp(min=1.0)  # [S]; a sequence without response tokens has mean 0
        return torch.where(batch.loss_mask, logprobs - logprobs.detach() + mean[batch.segment_ids], 0.0)


def build_log_ratio(config: LossConfig, segment_reduce: SegmentReduce) -> LogRatio:
    return TokenLogRatio() if config.ratio == "token" else SequenceLogRatio(segment_reduce)
