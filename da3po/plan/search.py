"""The best way to share a cluster between learner and engines, by estimated time of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from da3po.config.schema import Config, ConfigError, ParallelConfig
from da3po.models.hf_config import ModelSpec
from da3po.plan.engine import engine_memory
from da3po.plan.overview import Plan, make_plan, planned_gpu

SIZES = (1, 2, 4, 8)
PIPELINES = (1, 2, 4, 8)
MAX_SHARES = 8
"""Ways to cut the cluster in two that are looked at; of a large one not every GPU more or less is worth a look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """overrides: what to add to the command. plan: what comes of it."""

    overrides: tuple[str, ...]
    plan: Plan

    @property
    def seconds(self) -> float:
        return self.plan.time.total if self.plan.time else float("inf")


def search(spec: ModelSpec, config: Config, longest: int, *, best: int = 5) -> list[Proposal]:
    """The `best` layouts that fit, the fastest first. Context parallelism, batch and precision stay as they are.

    Raises ConfigError if the cluster has no GPUs to share out.
    """
    num_gpus = config.cluster.num_gpus
    if planned_gpu(config) is None or num_gpus is None or num_gpus < 2:
        raise ConfigError("--search shares out GPUs: give cluster.gpus_per_node, and two GPUs or more in all")
    found = []
    for for_learner in _shares(num_gpus, config.cluster.gpus_per_node or num_gpus):
        engines = _best_engines(spec, config, num_gpus - for_learner, longest)
        for parallel in _layouts(config.parallel, for_learner, config.cluster.gpus_per_node or num_gpus):
            for tp, num_engines in engines:
                proposal = _proposal(spec, config, parallel, tp, num_engines, longest)
                if proposal.plan.fits:
                    found.append(proposal)
    return sorted(found, key=lambda one: one.seconds)[:best]


def _shares(num_gpus: int, node: int) -> list[int]:
    """GPUs for the learner: every number on one node, whole nodes on several, a selection of those on many."""
    unit = 1 if num_gpus <= node else node
    shares = list(range(unit, num_gpus, unit))
    step = max(1, len(shares) // MAX_SHARES)
    return shares[::step] if len(shares) > MAX_SHARES else shares


def _layouts(given: ParallelConfig, num_ranks: int, node: int) -> Iterator[ParallelConfig]:
    for tp in SIZES:
        for pp in PIPELINES:
            replica = tp * pp * given.cp
            if tp <= node and num_ranks % replica == 0:
                yield ParallelConfig(tp=tp, pp=pp, cp=given.cp, dp=num_ranks // replica, sequence_parallel=tp > 1)


def _best_engines(spec: ModelSpec, config: Config, num_gpus: int, longest: int) -> list[tuple[int, int]]:
    """Sizes and numbers of engines that fill `num_gpus`: the smallest size that has room, and twice that."""
    node = config.cluster.gpus_per_node or num_gpus
    fitting = [tp for tp in SIZES if tp <= node and num_gpus % tp == 0]
    return [(tp, num_gpus // tp) for tp in fitting if _has_room(spec, config, tp, longest)][:2]


def _has_room(spec: ModelSpec, config: Config, tp: int, longest: int) -> bool:
    return engine_memory(spec, replace(config.engine, tp=tp), planned_gpu(config)).kv_tokens >= longest


def _reset(given: ParallelConfig, parallel: ParallelConfig) -> Iterator[str]:
    """What the command that is added to may say of the layout and a proposal does not keep."""
    for name in ("vpp", "first_stage_layers", "last_stage_layers"):
        if getattr(given, name) != (value := getattr(parallel, name)):
            yield f"parallel.{name}={'null' if value is None else value}"


def _proposal(
    spec: ModelSpec, config: Config, parallel: ParallelConfig, tp: int, num_engines: int, longest: int
) -> Proposal:
    changed = replace(config, parallel=parallel, engine=replace(config.engine, tp=tp, num_engines=num_engines))
    overrides = (
        *(f"parallel.{name}={getattr(parallel, name)}" for name in ("tp", "pp", "dp")),
        f"parallel.sequence_parallel={str(parallel.sequence_parallel).lower()}",
        f"engine.tp={tp}",
        f"engine.num_engines={num_engines}",
        *_reset(config.parallel, parallel),
    )
    return Proposal(overrides=overrides, plan=make_plan(spec, changed, longest))
