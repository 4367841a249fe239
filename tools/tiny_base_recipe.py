"""How the tiny base is trained: its learning rates, and how much it is taught to doubt."""

from __future__ import annotations

from dataclasses import dataclass

from make_quickstart_data import DEFAULT_SEED

# Share of each digit's target that is spread evenly over the ten digits, by kind of problem.
DOUBT = {
    "sum_to_50": 0.25,
    "sum_2_digits": 0.30,
    "sum_3_digits": 0.35,
    "difference_to_50": 0.25,
    "difference_2_digits": 0.30,
    "product_to_29": 0.30,
    "product_to_99": 0.35,
    "sum_then_difference": 0.30,
    "product_then_sum": 0.35,
    "product_then_difference": 0.35,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the base is trained.

    steps: of which the last `doubt_steps` teach doubt and those before them the plain right answers.
    lr: reached after linear warm-up; over the `decay_steps` before doubt begins it falls linearly to `final_lr_ratio`
        of it.
    """

    seed: int = DEFAULT_SEED
    steps: int = 1400
    doubt_steps: int = 400
    batch_size: int = 64
    lr: float = 4e-3
    warmup_steps: int = 50
    decay_steps: int = 100
    final_lr_ratio: float = 0.05
    weight_decay: float = 0.1
    clip_grad: float = 1.0

    @property
    def sure_steps(self) -> int:
        """Steps before doubt begins."""
        return self.steps - self.doubt_steps

    def lr_factor(self, step: int) -> float:
        """Multiplier of `lr` at `step` (from 0)."""
        warmup = min(1.0, (step + 1) / self.warmup_steps)
        decay = min(1.0, max(0.0, 1 - (self.sure_steps - step) / self.decay_steps))
        return warmup * (1 - (1 - self.final_lr_ratio) * decay)
