"""Starts the processes of a run: engines and learner ranks. Shared by the commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from da3po.cluster.bundles import Demand
from da3po.cluster.placement import Placement
from da3po.cluster.shared_files import check_shared
from da3po.cluster.workers import RankGroup, Worker, WorkerSpec
from da3po.config.rules import longest_sequence
from da3po.config.schema import Config, ConfigError
from da3po.engine.pool import EnginePool
from da3po.engine.recovery import Recovery
from da3po.engine.remote import RemoteEngine
from da3po.engine.spec import EngineSpec
from da3po.learner.client import RemoteLearner, start_learner
from da3po.learner.spec import LearnerSpec
from da3po.models.hf_config import ModelSpec
from da3po.runtime.platform import Platform

# Long enough for an engine or a rank to end by itself; its process is killed afterwards in any case.
CLOSE_SECONDS = 15.0


async def reserve(config: Config, platform: Platform, model: Path, logs: Path, *, training: bool) -> Placement:
    """Room for all processes of the run, on nodes that see its files. Raises ClusterError if there is none."""
    if config.cluster.kind == "existing":
        await check_shared(logs, [model / "config.json"])
    parallel, engine = config.parallel, config.engine
    demand = Demand(
        device=platform.device,
        num_ranks=parallel.num_ranks if training else 0,
        group_size=parallel.tp,
        num_engines=engine.num_engines,
        engine_size=engine.tp,
    )
    return await Placement.reserve(demand, config.cluster.start_timeout)


def check_length(config: Config, spec: ModelSpec, *, training: bool) -> None:
    """Raises ConfigError if the longest sequence has more positions than the model."""
    longest = longest_sequence(config, training=training)
    if longest > spec.max_positions:
        raise ConfigError(
            f"data.max_prompt_tokens={config.data.max_prompt_tokens} and the longest response make {longest} tokens, "
            f"the model has {spec.max_positions} positions (max_position_embeddings)"
        )


class Engines:
    """The engine processes of a run."""

    def __init__(
        self,
        config: Config,
        platform: Platform,
        model: Path,
        logs: Path,
        *,
        training: bool,
        placement: Placement,
    ) -> None:
        """
        Args:
            training: whether they sample rollouts too, which may be longer than evaluations.
            placement: their slots.
        """
        self._config = config
        self._platform = platform
        self._model = model
        self._logs = logs
        self._placement = placement
        self._max_model_len = config.engine.max_model_len or longest_sequence(config, training=training)
        self._in_flight_updates = training and config.rollout.in_flight_updates
        self._workers: dict[int, Worker] = {}
        self._engines = [self._engine(index) for index in range(config.engine.num_engines)]
        recovery = Recovery(self._start_again, config.engine, config.cluster.start_timeout)
        self.pool = EnginePool(
            self._engines, config.engine, recovery=recovery, in_flight_updates=self._in_flight_updates
        )

    @property
    def workers(self) -> list[Worker]:
        """The processes that there are now."""
        return list(self._workers.values())

    async def start(self) -> None:
        """Load the model in every engine."""
        await asyncio.gather(*(engine.start() for engine in self._engines))

    async def close(self) -> None:
        await close_within(CLOSE_SECONDS, [self.pool.close])

    def _engine(self, index: int) -> RemoteEngine:
        """A process for the engine of that index; its log goes on where that of the one before it ended."""
        config = self._config
        num_cores, num_engines = self._platform.num_cores, config.engine.num_engines
        threads = config.engine.num_threads or max(1, num_cores // (num_engines * config.engine.tp))
        spec = EngineSpec(
            model_path=str(self._model),
            config=config.engine,
            max_model_len=self._max_model_len,
            seed=config.run.seed,
            device=self._platform.device,
            engine_index=index,
            sync=config.sync,
            num_threads=threads,
            trust_remote_code=config.model.trust_remote_code,
            in_flight_updates=self._in_flight_updates,
        )
        worker = WorkerSpec(
            name=f"engine-{index}",
            entry="da3po.engine.vllm.engine:VllmEngine",
            args=(spec,),
            env=thread_limits(threads),
            slot=self._placement.engines[index],
        )
        self._workers[index] = Worker(worker, self._logs, concurrent=True)
        return RemoteEngine(self._workers[index])

    async def _start_again(self, index: int) -> RemoteEngine:
        engine = self._engine(index)
        try:
            await engine.start()
        except BaseException:
            engine.kill()
            raise
        return engine


class Ranks:
    """The learner processes of a run."""

    def __init__(self, config: Config, platform: Platform, model: Path, logs: Path, placement: Placement) -> None:
        num_ranks = config.parallel.num_ranks
        threads = config.learner.num_threads or max(1, platform.num_cores // num_ranks)
        workers = [
            WorkerSpec(
                name=f"learner-{rank}",
                entry="da3po.learner.megatron.worker:LearnerRank",
                env=thread_limits(threads),
                slot=placement.ranks[rank],
            )
            for rank in range(num_ranks)
        ]
        self.workers = [Worker(worker, logs, concurrent=False) for worker in workers]
        self._group = RankGroup(self.workers)
        self._spec = LearnerSpec(
            model_path=str(model),
            train_steps=config.train.steps,
            temperature=config.rollout.temperature,
            seed=config.run.seed,
            parallel=config.parallel,
            learner=config.learner,
            optim=config.optim,
            loss=config.algo.loss,
            sync=config.sync,
        )

    async def start(self) -> RemoteLearner:
        """Form the process group and load the model on every rank."""
        host, port = await self._group.free_address()
        return await start_learner(self._group, self._spec, host, port)

    async def close(self) -> None:
        try:
            await close_within(CLOSE_SECONDS, [partial(self._group.call_all, "close")])
        finally:
            self._group.kill()


def thread_limits(num_threads: int) -> dict[str, str]:
    """Environment that keeps a process to its share of the cores, and idle threads from spinning on them."""
    count = str(num_threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "PASSIVE",
    }


async def close_within(seconds: float, closers: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """Close all at the same time. What fails or is late is left to be killed: the run is ending, and why is known."""

    async def close(closer: Callable[[], Awaitable[Any]]) -> None:
        async with asyncio.timeout(seconds):
            await closer()

    await asyncio.gather(*(close(closer) for closer in closers), return_exceptions=True)
