"""Every option of da3po, its default and the rules that it must meet on its own.

A file for each group of sections; this is the only place where a default lives. A room takes its own section, never the
whole tree. Nothing here imports anything heavy. Rules that need two sections are in `da3po.config.rules`.

A field whose name ends in an underscore (`lambda_`) is spelt without it in YAML and in overrides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from da3po.config.schema.algo import (
    AdvantageConfig,
    AlgoConfig,
    DaaConfig,
    DynamicSamplingConfig,
    LossConfig,
    OverlongConfig,
)
from da3po.config.schema.data import DataConfig, DifficultyConfig, SourceConfig
from da3po.config.schema.engine import EngineConfig, SyncConfig
from da3po.config.schema.evaluation import BenchmarkConfig, EvalConfig
from da3po.config.schema.learner import (
    FP8_CAPABILITY,
    LearnerConfig,
    MegatronConfig,
    OpenSection,
    OptimConfig,
    ParallelConfig,
    Precision,
)
from da3po.config.schema.model import ModelConfig
from da3po.config.schema.plan import PlanConfig
from da3po.config.schema.rollout import MismatchConfig, RewardConfig, RolloutConfig
from da3po.config.schema.run import CheckpointConfig, ClusterConfig, LoggingConfig, RunConfig, TrainConfig
from da3po.config.schema.validation import ConfigError
from da3po.config.schema.watchdog import WatchdogConfig

__all__ = [
    "FP8_CAPABILITY",
    "AdvantageConfig",
    "AlgoConfig",
    "BenchmarkConfig",
    "CheckpointConfig",
    "ClusterConfig",
    "Config",
    "ConfigError",
    "DaaConfig",
    "DataConfig",
    "DifficultyConfig",
    "DynamicSamplingConfig",
    "EngineConfig",
    "EvalConfig",
    "LearnerConfig",
    "LoggingConfig",
    "LossConfig",
    "MegatronConfig",
    "MismatchConfig",
    "ModelConfig",
    "OpenSection",
    "OptimConfig",
    "OverlongConfig",
    "ParallelConfig",
    "PlanConfig",
    "Precision",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "SourceConfig",
    "SyncConfig",
    "TrainConfig",
    "WatchdogConfig",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole of a run's options."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    mismatch: MismatchConfig = field(default_factory=MismatchConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    benchmarks: tuple[BenchmarkConfig, ...] = ()
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
