"""The learning rate, a function of the training step alone: resuming, skipping an update or having many in a step
cannot move it."""

from __future__ import annotations

import math

from da3po.config.schema import OptimConfig


def learning_rate(step: int, optim: OptimConfig, train_steps: int) -> float:
    """The rate of all updates of training step `step`, counted from 1.

    Warm-up is linear: step k of w has k/w of the rate, so that step 1 learns and step w has all of it. The cosine then
    runs from `lr` after step w to `min_lr` at step `train_steps`:
        min_lr + (lr - min_lr) (1 + cos(pi (step - w) / (train_steps - w))) / 2.
    """
    if step < 1:
        raise ValueError(f"training steps count from 1, got {step}")
    if step <= optim.warmup_steps:
        return optim.lr * step / optim.warmup_steps
    if optim.schedule == "constant":
        return optim.lr
    progress = min(1.0, (step - optim.warmup_steps) / max(1, train_steps - optim.warmup_steps))
    return optim.min_lr + (optim.lr - optim.min_lr) * 0.5 * (1.0 + math.cos(math.pi * progress))
