"""The optimizer step: finite gradients only, clipped by their global norm, at a given learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from megatron.core.distributed import DistributedDataParallel

from da3po.config.schema import OptimConfig
from da3po.learner.megatron.field_values import megatron_values
from da3po.learner.megatron.layer_norms import LayerNorms
from da3po.learner.megatron.versions import OptimizerConfig, get_megatron_optimizer


class TooManySkipped(RuntimeError):
    """One update after another had gradients that are not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """grad_norm: global, before clipping; not finite if the update was skipped.

    layer_grad_norms: of the parts of the model, where they are measured.
    """

    grad_norm: float
    skipped: bool
    layer_grad_norms: Mapping[str, float] = field(default_factory=dict)


class Optimizer:
    """AdamW over Megatron's distributed optimizer.

    num_skipped_in_a_row: updates skipped since the last one that was not.
    """

    def __init__(
        self,
        ddps: Sequence[DistributedDataParallel],
        config: OptimConfig,
        bf16: bool,
        gloo_groups: bool,
        fields: Mapping[str, Any],
        layer_norms: LayerNorms,
    ) -> None:
        """ddps: of this rank's stages. fields: more of Megatron's OptimizerConfig."""
        self._ddps = list(ddps)
        self._layer_norms = layer_norms
        self._max_skipped = config.max_skipped
        self.inner = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=config.lr,
                min_lr=config.min_lr,
                weight_decay=config.weight_decay,
                adam_beta1=config.beta1,
                adam_beta2=config.beta2,
                adam_eps=config.eps,
                clip_grad=config.clip_grad,
                bf16=bf16,
                use_distributed_optimizer=True,
                **megatron_values("optimizer", fields),
            ),
            self._ddps,
            use_gloo_process_groups=gloo_groups,
        )
        self.num_skipped_in_a_row = 0

    def zero_grad(self) -> None:
        for ddp in self._ddps:
            ddp.zero_grad_buffer()
        self.inner.zero_grad()

    def step(self, lr: float, loss: float, num_tokens: float) -> UpdateResult:
        """Apply the gradients in the buffers, or skip the update if they, or the update's `loss`, are not finite.

        An update without a single response token has taught nothing, and leaves weights and moments alone: momentum and
        weight decay would move them.

        All ranks see the same norm and must give the same loss, so they decide alike.
        Errors: TooManySkipped after `optim.max_skipped` skipped updates in a row.
        """
        if num_tokens == 0:
            return UpdateResult(grad_norm=0.0, skipped=False)
        for group in self.inner.param_groups:
            group["lr"] = lr
        layer_norms = self._layer_norms.measure()
        self.inner.prepare_grads()
        grad_norm = float(self.inner.get_grad_norm())
        is_finite = math.isfinite(grad_norm) and math.isfinite(loss)
        # Megatron itself leaves out an update beyond `learner.megatron.optimizer.grad_norm_skip_threshold`.
        if not (is_finite and self.inner.step()[0]):
            self._skip(grad_norm, loss)
            return UpdateResult(grad_norm=grad_norm, skipped=True, layer_grad_norms=layer_norms)
        self.num_skipped_in_a_row = 0
        return UpdateResult(grad_norm=grad_norm, skipped=False, layer_grad_norms=layer_norms)

    def _skip(self, grad_norm: float, loss: float) -> None:
        self.num_skipped_in_a_row += 1
        if self.num_skipped_in_a_row >= self._max_skipped:
            raise TooManySkipped(
                f"{self.num_skipped_in_a_row} updates in a row were skipped (optim.max_skipped={self._max_skipped}): "
                f"the last had loss {loss} and gradient norm {grad_norm}. The weights are those of the last good one. "
                "Look at advantages and log-probs of this step, and try a lower optim.lr."
            )
