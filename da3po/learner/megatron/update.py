"""Forward and backward over the micro-batches of one optimizer update, under Megatron's schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from da3po.algo.losses import LossTerms, PolicyLoss
from da3po.learner.megatron.gradients import undo_megatron_scaling
from da3po.learner.megatron.model import PolicyModel
from da3po.types import MicroBatch

Work = tuple[MicroBatch, Any]
"""A micro-batch, and what the last stage does with its hidden states."""


class Passes:
    """Runs micro-batches through all pipeline stages. All ranks of a pipeline call the same method together."""

    def __init__(
        self, ddps: Sequence[DistributedDataParallel], models: Sequence[PolicyModel], temperature: float, dp: int
    ) -> None:
        """ddps, models: this rank's stages, one or, with virtual stages, several."""
        self._ddps = list(ddps)
        self._models = models
        self._temperature = temperature
        self._dp = dp

    def forward_backward(
        self, batches: Sequence[MicroBatch], old_logprobs: Sequence[Tensor | None], loss: PolicyLoss
    ) -> list[LossTerms]:
        """Leave the update's whole gradient, reduced over all ranks, in the gradient buffers.

        old_logprobs: [T] of each micro-batch under the weights that open the step, or None where those are the current
            ones; read on the last stage alone.
        Returns each micro-batch's loss terms, detached, on the last stage; nothing elsewhere.
        """

        def weighted(hidden: Tensor, *, batch: MicroBatch, old: Tensor | None) -> tuple[Tensor, LossTerms]:
            logprobs, entropy = self._models[-1].logprobs(hidden, batch.labels, self._temperature)
            terms = loss(logprobs, old, entropy.detach(), batch)
            detached = LossTerms(loss=terms.loss.detach(), sums=terms.sums, maxima=terms.maxima)
            return undo_megatron_scaling(terms.loss, len(batches), self._dp), detached

        work = [
            (batch, partial(weighted, batch=batch, old=old)) for batch, old in zip(batches, old_logprobs, strict=True)
        ]
        return self._run(work, forward_only=False)

    def measure(
        self, batches: Sequence[MicroBatch], old_logprobs: Sequence[Tensor | None], loss: PolicyLoss
    ) -> list[LossTerms]:
        """The loss terms that `forward_backward` would return, and no gradient."""

        def measured(hidden: Tensor, *, batch: MicroBatch, old: Tensor | None, non_loss_data: bool) -> LossTerms:
            logprobs, entropy = self._models[-1].logprobs(hidden, batch.labels, self._temperature)
            return loss(logprobs, old, entropy, batch)

        work = [
            (batch, partial(measured, batch=batch, old=old)) for batch, old in zip(batches, old_logprobs, strict=True)
        ]
        with torch.no_grad():
            return self._run(work, forward_only=True)

    def logprobs(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """[T] log-probs of each micro-batch's labels under the current weights; the last stage alone has them."""

        def measured(hidden: Tensor, *, batch: MicroBatch, non_loss_data: bool) -> Tensor:
            return self._models[-1].logprobs(hidden, batch.labels, self._temperature)[0]

        work = [(batch, partial(measured, batch=batch)) for batch in batches]
        with torch.no_grad():
            return self._run(work, forward_only=True)

    def _run(self, work: Sequence[Work], forward_only: bool) -> list[Any]:
        # Every virtual stage goes through all micro-batches, at its own pace.
        feeds = [iter(work) for _ in self._ddps]
        several = len(self._ddps) > 1
        return get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=feeds if several else feeds[0],
            model=self._ddps if several else self._ddps[0],
            num_microbatches=len(work),
            # Of use with virtual stages alone, whose micro-batches are of one length; elsewhere stages tell each other.
            seq_length=int(work[0][0].cu_seqlens[-1]),
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def _forward_step(self, feed: Iterator[Work], ddp: DistributedDataParallel) -> tuple[Tensor, Any]:
        batch, finish = next(feed)
        hidden = ddp(
            input_ids=batch.input_ids[None],
            position_ids=batch.position_ids[None],
            attention_mask=None,
            packed_seq_params=ddp.module.pack(batch),
        )
        return hidden, finish
