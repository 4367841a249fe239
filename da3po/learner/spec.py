"""What a learner rank is built from."""

from __future__ import annotations

from dataclasses import dataclass, field

from da3po.config.schema import LearnerConfig, LossConfig, OptimConfig, ParallelConfig, SyncConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSpec:
    """The same for every rank.

    model_path: Hugging Face model directory that the weights come from.
    temperature: of the training rollouts; log-probs are those of logits / temperature.
    train_steps: training steps of the run, for the learning-rate schedule.
    """

    model_path: str
    train_steps: int
    temperature: float = 1.0
    seed: int = 1
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
