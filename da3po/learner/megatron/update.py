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


class Passes:
    """Runs micro-batches through all pipeline stages. All ranks of a pipeline call the same method together."""

    def __init__(self, ddp: DistributedDataParallel, model: PolicyModel, temperature: float, dp: int) -> None:
        self._ddp = ddp
        self._model = model
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
            logprobs, entropy = self._model.logprobs(hidden, batch.labels, self._temperature)
            terms = loss(logprobs, old, entropy.detach(), batch)
            detached = LossTerms(loss=terms.loss.detach(), sums=terms.sums, maxima=terms.maxima)
            return undo_megatron_scaling(terms.loss, len(batches), self._dp), detached

        feed = (
            (batch, partial(weighted, batch=batch, old=old)) for batch, old in zip(batches, old_logprobs, strict=True)
        )
        return self._run(feed, len(batches), forward_only=False)

    def logprobs(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """[T] log-probs of each micro-batch's labels under the current weights; the last stage alone has them."""

        def measured(hidden: Tensor, *, batch: MicroBatch, non_loss_data: bool) -> Tensor:
            return self._model.logprobs(hidden, batch.labels, self._temperature)[0]

        feed = ((batch, partial(measured, batch=batch)) for batch in batches)
        with torch.no_grad():
            return self._run(feed, len(batches), forward_only=True)

    def _run(self, feed: Iterator[tuple[MicroBatch, Any]], num_micro_batches: int, forward_only: bool) -> list[Any]:
        return get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=feed,
            model=self._ddp,
            num_microbatches=num_micro_batches,
            # Lengths vary (`variable_seq_lengths`), so this one is not used.
            seq_length=1,
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def _forward_step(self, feed: Iterator[tuple[MicroBatch, Any]], ddp: DistributedDataParallel) -> tuple[Tensor, Any]:
        batch, finish = next(feed)
        hidden = ddp(
            input_ids=batch.input_ids[None],
            position_ids=batch.position_ids[None],
            attention_mask=None,
            packed_seq_params=self._model.pack(batch),
        )
        return hidden, finish
