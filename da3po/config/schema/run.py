"""Where a run lives, how long it trains, what it saves and logs, and on which cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from da3po.config.schema.validation import require


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Where a run lives and how it starts.

    dir: run directory; the same command finds the same directory again, so a second start resumes.
    name: shown in logs.
    seed: everything random derives from it.
    resume: auto = from the newest complete checkpoint if there is one; never = refuse a directory that has one;
        must = refuse one that has none.
    """

    dir: str = "runs/${run.name}"
    name: str = "da3po"
    seed: int = 1
    resume: Literal["auto", "never", "must"] = "auto"

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**32, f"run.seed must lie between 0 and {2**32 - 1}, got {self.seed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """steps: training steps. prompts_per_update: prompts of one optimizer update; null is one update a step."""

    steps: int = 200
    prompts_per_update: int | None = None

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"train.steps must be >= 1, got {self.steps}")
        require(
            self.prompts_per_update is None or self.prompts_per_update >= 1,
            f"train.prompts_per_update must be >= 1 or null, got {self.prompts_per_update}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """every: steps between checkpoints, 0 for the last step only. keep: newest ones kept."""

    every: int = 10
    keep: int = 2

    def __post_init__(self) -> None:
        require(self.every >= 0, f"checkpoint.every must be >= 0, got {self.every}")
        require(self.keep >= 1, f"checkpoint.keep must be >= 1, got {self.keep}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """kind: local = a Ray of our own on this machine | existing = the cluster that RAY_ADDRESS names.

    start_timeout: seconds within which all learner ranks and engines must be up.
    num_nodes, gpus_per_node: size of the cluster; learner and engines must fill it. gpus_per_node=null leaves the size
        open: it is what the machine has, and a plan is one of CPUs.
    gpu: kind of the GPUs, for a plan's memory and rates.
    """

    kind: Literal["local", "existing"] = "local"
    start_timeout: float = 600.0
    num_nodes: int = 1
    gpus_per_node: int | None = None
    gpu: Literal["h100_sxm_80gb", "h200_sxm_141gb", "a100_sxm_80gb"] = "h100_sxm_80gb"

    def __post_init__(self) -> None:
        require(self.start_timeout > 0, f"cluster.start_timeout must be positive, got {self.start_timeout}")
        require(self.num_nodes >= 1, f"cluster.num_nodes must be >= 1, got {self.num_nodes}")
        require(
            self.gpus_per_node is None or self.gpus_per_node >= 1,
            f"cluster.gpus_per_node must be >= 1 or null, got {self.gpus_per_node}",
        )
        require(
            self.num_nodes == 1 or self.gpus_per_node is not None,
            f"cluster.num_nodes={self.num_nodes} needs cluster.gpus_per_node",
        )

    @property
    def num_gpus(self) -> int | None:
        """GPUs of the cluster, or None if its size is left open."""
        return None if self.gpus_per_node is None else self.num_nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig:
    """console: auto = live display on a terminal, plain lines elsewhere. num_rollouts: samples shown each step."""

    console: Literal["auto", "rich", "plain"] = "auto"
    tensorboard: bool = True
    num_rollouts: int = 2

    def __post_init__(self) -> None:
        require(self.num_rollouts >= 0, f"logging.num_rollouts must be >= 0, got {self.num_rollouts}")
