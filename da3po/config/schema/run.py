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
    init_from: a checkpoint (.../checkpoints/step_000010), or a run directory for its newest one, whose weights the run
        begins with. Weights alone: optimizer, learning rate, data and step begin anew. null is model.path's weights.
    """

    dir: str = "runs/${run.name}"
    name: str = "da3po"
    seed: int = 1
    resume: Literal["auto", "never", "must"] = "auto"
    init_from: str | None = None

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
    """What is saved, when, and what stays.

    every: steps between checkpoints, 0 for the last step only.
    keep: newest ones kept. keep_every: multiples of it are kept for ever; 0 for none.
    best: metric of an evaluation (eval/avg@8, eval/pass@8, ...). The step where it was best is saved even if it is not
        due, is kept, and is named in checkpoints/best.json; null looks for none. best_mode: what is better.
    asynchronous: training waits for a copy in host memory only, and goes on while it is written.
    grace_seconds: after a first SIGINT, SIGTERM or SIGUSR1, what is left for finishing a step that is being learned
        from, and for saving it.
    """

    every: int = 10
    keep: int = 2
    keep_every: int = 0
    best: str | None = None
    best_mode: Literal["max", "min"] = "max"
    asynchronous: bool = False
    grace_seconds: float = 120.0

    def __post_init__(self) -> None:
        require(self.every >= 0, f"checkpoint.every must be >= 0, got {self.every}")
        require(self.keep >= 1, f"checkpoint.keep must be >= 1, got {self.keep}")
        require(self.keep_every >= 0, f"checkpoint.keep_every must be >= 0, got {self.keep_every}")
        require(
            self.best is None or self.best.startswith("eval/"),
            f"checkpoint.best must be a metric of evaluations (eval/...), got {self.best!r}",
        )
        require(self.grace_seconds >= 0, f"checkpoint.grace_seconds must be >= 0, got {self.grace_seconds}")


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
    """What a run leaves behind for people.

    console: auto = live display on a terminal, plain lines elsewhere.
    num_rollouts: samples shown each step.
    keep_rollouts: newest steps whose responses are stored whole, for `da3po rollouts`; 0 stores none.
    """

    console: Literal["auto", "rich", "plain"] = "auto"
    tensorboard: bool = True
    num_rollouts: int = 2
    keep_rollouts: int = 20

    def __post_init__(self) -> None:
        require(self.num_rollouts >= 0, f"logging.num_rollouts must be >= 0, got {self.num_rollouts}")
        require(self.keep_rollouts >= 0, f"logging.keep_rollouts must be >= 0, got {self.keep_rollouts}")
