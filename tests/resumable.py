"""A run in a run directory with everything of the real one around a fake learner, fake engines and fake graders.

What it trains on decides its weights, so two runs that end alike have seen the same. It is put together as
`da3po train` puts its parts together, and can be asked to end, or made to die, in any phase.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakes
from rank_pipes import PipedRanks, RankProcesses

from da3po import loop, train
from da3po.algo.mismatch import MismatchGate
from da3po.checkpoint.boundary import CutShortEvaluator, CutShortRollouts
from da3po.checkpoint.run_directory import RunDirectory
from da3po.cluster.network import free_port
from da3po.config.load import load
from da3po.config.schema import Config
from da3po.data.cursor import fingerprint
from da3po.data.prompts import TrainingSet
from da3po.learner.client import RemoteLearner, start_learner
from da3po.learner.spec import LearnerSpec
from da3po.resume import build_saver, decide_start, open_checkpoints, take_up, train_to_the_end
from da3po.rollout.pipeline import PublishBetweenBatches, RolloutPipeline
from da3po.runtime.interruption import Interruption
from da3po.runtime.recorder import build_recorder
from da3po.types import GroupRequest, GroupResult, PackedStep, StepStats

STEPS = 6
NUM_PROMPTS = 4
OPTIONS = [
    f"train.steps={STEPS}", f"rollout.num_prompts={NUM_PROMPTS}", "rollout.num_samples=4", "rollout.max_tokens=8",
    "algo.overlong.cache=2", "algo/daa=adaptive", "eval.every=2", "eval.before=true", "eval.num_samples=2",
    "checkpoint.every=2", "checkpoint.keep=2", "logging.console=plain", "logging.tensorboard=false",
    f"logging.num_rollouts={NUM_PROMPTS}", "optim.warmup_steps=3", "cluster.start_timeout=20",
]  # fmt: skip
PHASES = ("start", "rollout", "grading", "learning", "sync", "evaluation", "saving")

# Called at the beginning of every phase of every step with both; a test ends the run from there, or holds it.
Enters = Callable[[str, int], Awaitable[None]]


class Learner(fakes.FakeLearner):
    """Its one weight is a running sum over everything that it was trained on, with momentum for an optimizer."""

    def __init__(self, channel: fakes.FakeChannel, enters: Enters) -> None:
        super().__init__(channel, skill=0.4)
        self.momentum = 0.0
        self.loaded_weights = False
        self._enters = enters
        self._copy: tuple[Path, str] | None = None

    async def step(self, batch: PackedStep) -> StepStats:
        await self._enters("learning", batch.step)
        seen = sum(
            float((micro.weights * micro.advantages * (1 + micro.labels)).sum())
            for update in batch.updates
            for rank in update.micro_batches
            for micro in rank
        )
        await asyncio.sleep(0)
        self.momentum = 0.5 * self.momentum + seen
        self.skill = min(0.95, max(0.05, self.skill + 1e-4 * self.momentum))
        values = {"loss/policy": self.skill, "actor/grad_norm": self.momentum, "actor/lr": min(1.0, batch.step / 3)}
        values["mismatch/num_tokens"] = 0.0
        return StepStats(values)

    async def save(self, path: Path) -> None:
        await self.start_saving(path)
        await self.finish_saving()

    async def start_saving(self, path: Path) -> None:
        await self._enters("saving", -1)
        self._copy = (path, json.dumps([self.skill, self.momentum]))

    async def is_saving(self) -> bool:
        return False

    async def finish_saving(self) -> None:
        assert self._copy is not None
        path, text = self._copy
        for rank in range(2):
            (path / f"rank{rank}.json").write_text(text)

    async def load(self, path: Path) -> None:
        self.skill, self.momentum = json.loads((path / "rank0.json").read_text())

    async def load_weights(self, path: Path) -> None:
        self.skill, _ = json.loads((path / "rank0.json").read_text())

    async def weights(self) -> Any:
        return self.skill, self.momentum

    async def close(self) -> None:
        pass


class RealLearner:
    """Megatron's, in processes behind pipes. Its weights go to no engine, so samples do not depend on them."""

    def __init__(self, inner: RemoteLearner, ranks: PipedRanks, channel: fakes.FakeChannel, enters: Enters) -> None:
        self._inner = inner
        self._ranks = ranks
        self._channel = channel
        self._enters = enters
        for name in ("is_saving", "finish_saving", "load", "load_weights", "close"):
            setattr(self, name, getattr(inner, name))

    async def step(self, batch: PackedStep) -> StepStats:
        await self._enters("learning", batch.step)
        return await self._inner.step(batch)

    async def publish(self, version: int) -> None:
        self._channel.version, self._channel.skill = version, 0.5

    async def save(self, path: Path) -> None:
        await self._enters("saving", -1)
        await self._inner.save(path)

    async def start_saving(self, path: Path) -> None:
        await self._enters("saving", -1)
        await self._inner.start_saving(path)

    async def weights(self) -> dict[str, Any]:
        return {name: tensor for own in await self._ranks.call_all("weights") for name, tensor in own.items()}


async def start_real(processes: RankProcesses, run: Run) -> RealLearner:
    config = run.config
    spec = LearnerSpec(
        model_path=config.model.path,
        train_steps=config.train.steps,
        seed=config.run.seed,
        parallel=config.parallel,
        learner=config.learner,
        optim=config.optim,
        loss=config.algo.loss,
    )
    ranks = processes.learner(config.parallel.num_ranks)
    return RealLearner(await start_learner(ranks, spec, "127.0.0.1", free_port()), ranks, run.channel, run.enters)


@functools.cache
def _config(overrides: tuple[str, ...]) -> Config:
    return load([*OPTIONS, *overrides])


async def nothing_happens(phase: str, step: int) -> None:
    pass


class Run:
    """One start of the command on a run directory."""

    def __init__(
        self,
        folder: Path,
        *overrides: str,
        enters: Enters = nothing_happens,
        count: int = 13,
        processes: RankProcesses | None = None,
    ) -> None:
        """
        Args:
            count: prompts of the data set; some 30 are drawn, so that epochs end within a run.
            processes: for a real learner.
        """
        self.config = _config(overrides)
        self.run_dir = RunDirectory(folder)
        self.interruption = Interruption(self.config.checkpoint.grace_seconds)
        self.data = TrainingSet(prompts=fakes.prompts(count), weights=[1.0] * count)
        self.channel = fakes.FakeChannel()
        self.engine = fakes.FakeEngine(self.channel)
        self._test_enters = enters
        self.learner: Any = Learner(self.channel, self.enters)
        self._processes = processes
        self.step = 0
        self._evaluating = False

    async def enters(self, phase: str, step: int) -> None:
        """Saving is of the last finished step, which the learner does not know."""
        await self._test_enters(phase, self.step if phase == "saving" else step)

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        phase = "evaluation" if self._evaluating else "rollout"
        await self.enters(phase, self.step + (phase == "rollout"))
        async for result in self.engine.generate(requests):
            await asyncio.sleep(0)
            yield result

    async def grade(self, gold: str, responses: Sequence[str]) -> Any:
        if not self._evaluating:
            await self.enters("grading", self.step + 1)
        return await fakes.grade_text(gold, responses)

    async def publish(self, version: int) -> StepStats:
        await self.enters("sync", version)
        await asyncio.sleep(0)
        await self.learner.publish(version)
        await self.engine.receive(version)
        return StepStats()

    @property
    def identity(self) -> dict[str, Any]:
        return {"data (its prompts)": fingerprint(self.data.prompts), "run.init_from": self.config.run.init_from}

    def go(self, main_task: Callable[[Coroutine[Any, Any, int]], int] = asyncio.run) -> Run:
        """To the end, or to where it is asked to end: Interrupted is raised as the command sees it."""
        with self.run_dir.open(), contextlib.redirect_stdout(io.StringIO()):
            self.checkpoints = open_checkpoints(self.config, self.run_dir)
            self.begin = decide_start(self.config, self.checkpoints, self.identity)
            main_task(self._go())
        return self

    async def _go(self) -> int:
        config, start, interruption = self.config, self.begin, self.interruption
        await self.enters("start", start.step)
        if self._processes is not None:
            self.learner = await start_real(self._processes, self)
        interruption.check()
        recorder = build_recorder(config.logging, self.run_dir.path, after=start.step, last_step=config.train.steps)
        pool: Any = SimpleNamespace(pool=SimpleNamespace(generate=self.generate, num_aborted_tokens=0))
        graders: Any = SimpleNamespace(grade=self.grade)
        collector = train.build_collector(config, self.data, pool, graders)
        rollouts = RolloutPipeline(collector, config.rollout.max_lag)
        await take_up(start, self.learner, rollouts, self.run_dir)
        saver = build_saver(
            config, self.checkpoints, self.identity, start, self.learner, rollouts.state_of, recorder.checkpoint
        )
        evaluator = train.build_evaluator(config, fakes.prompts(5), pool, graders, self.run_dir, recorder, saver)
        run = loop.Run(
            step=start.step,
            last_step=config.train.steps,
            rollouts=CutShortRollouts(rollouts, interruption),
            packer=train.build_packer(config),
            learner=self.learner,
            gate=MismatchGate(config.mismatch),
            weights=PublishBetweenBatches(SimpleNamespace(publish=self.publish), rollouts),
            evaluator=CutShortEvaluator(_Telling(evaluator, self), interruption),
            checkpoints=saver,
            recorder=_Counting(recorder, self),
        )
        self.step = start.step
        try:
            async with saver:
                await train_to_the_end(run, saver)
            self.weights = await self.learner.weights()
        finally:
            recorder.close()
            await self.learner.close()
        return 0

    def seen(self) -> dict[str, Any]:
        """All that must be the same, however often the run was stopped on its way."""
        files = {name: _rows(self.run_dir.path / f"{name}.jsonl") for name in ("metrics", "rollouts", "evaluations")}
        return {
            **files,
            "weights": self.weights,
            "best": self.checkpoints.best(),
            "state": self.checkpoints.latest().state()["rollouts"],
        }


class _Telling:
    """Says while an evaluation runs that it does: engines and graders are the same ones."""

    def __init__(self, evaluator: Any, run: Run) -> None:
        self._evaluator = evaluator
        self._run = run

    async def opening(self, step: int) -> None:
        await self._tell(self._evaluator.opening(step))

    async def after(self, step: int) -> None:
        await self._tell(self._evaluator.after(step))

    async def _tell(self, work: Any) -> None:
        self._run._evaluating = True
        try:
            await work
        finally:
            self._run._evaluating = False


class _Counting:
    """Counts the steps that are finished."""

    def __init__(self, recorder: Any, run: Run) -> None:
        self._recorder = recorder
        self._run = run

    def step(self, samples: Any, stats: StepStats) -> None:
        self._recorder.step(samples, stats)
        self._run.step = samples.step


def _rows(file: Path) -> list[dict[str, Any]]:
    """Without what a clock has measured."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "tokens/"))} for row in rows]
