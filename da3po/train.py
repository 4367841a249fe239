"""`da3po train`: builds the objects of a run, hands them to the loop, and sums up what came of it.

This and the other command modules are the only ones that know concrete classes. Whatever can be refused is refused in
`prepare`, before a process is started.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3po import loop
from da3po.algo.mismatch import MismatchError, MismatchGate
from da3po.checkpoint.boundary import CutShortEvaluator, CutShortRollouts
from da3po.checkpoint.directory import CheckpointDirectory
from da3po.checkpoint.run_directory import RunDirectory
from da3po.checkpoint.saver import SaveError, Saver
from da3po.cluster.errors import ClusterError
from da3po.cluster.session import Session
from da3po.cluster.watchdog import Watchdog, watched
from da3po.cluster.workers import start_within
from da3po.command import STARVED, Interrupted, Interruption, run_command, run_main_task, wants_help
from da3po.config.load import dump, help_text, load
from da3po.config.rules import TRAINING, check
from da3po.config.schema import Config
from da3po.data.cursor import Cursor
from da3po.data.prompts import TrainingSet, load_prompts, load_training_set
from da3po.data.tokenizer import load_tokenizer
from da3po.engine.protocol import EngineError
from da3po.engine.vllm_arguments import check_arguments
from da3po.eval.during import DuringTraining, compare_ends
from da3po.forecast import dry_run
from da3po.launch import Engines, Ranks, check_length, reserve
from da3po.learner.client import RemoteLearner
from da3po.learner.megatron.fields import check_device_fields, check_fields
from da3po.learner.megatron.precision import check_device
from da3po.models.hf_config import read_model_spec
from da3po.models.locate import locate_model
from da3po.pack.packer import Packer
from da3po.plan.layout import check_layout, pack_multiples
from da3po.report.plot import plot_run
from da3po.resume import (
    Start,
    build_saver,
    decide_start,
    identify,
    open_checkpoints,
    take_up,
    train_to_the_end,
    where_it_goes_on,
)
from da3po.reward.golds import objection
from da3po.reward.graders import GraderError, check_grader
from da3po.reward.pool import GraderPool
from da3po.rollout.collector import Collector
from da3po.rollout.pipeline import PublishBetweenBatches, RolloutPipeline
from da3po.rollout.postprocess import PostProcessor, StarvationError
from da3po.runtime.logs import set_up_logging
from da3po.runtime.platform import Platform, resolve
from da3po.runtime.recorder import Recorder, build_recorder
from da3po.sync import SyncError
from da3po.sync.publish import PublishedLearner, WeightPublisher
from da3po.transcripts.store import StoringRecorder, Transcripts
from da3po.types import Prompt, StepStats

logger = logging.getLogger(__name__)

DRY_RUN = "--dry-run"
WATCHED_BATCHES = 2  # without one right answer in them, a run is warned of

# Errors of a run's parts whose own words are all that a user needs.
FAILURES = (ClusterError, EngineError, GraderError, MismatchError, SaveError, SyncError)


def main(arguments: Sequence[str]) -> int:
    """Train as the overrides say; the exit code is described in `da3po.command`."""
    if wants_help(arguments):
        print(help_text("da3po train [--dry-run] [GROUP=CHOICE ...] [KEY=VALUE ...]"))
        return 0
    if DRY_RUN in arguments:
        return dry_run([text for text in arguments if text != DRY_RUN])
    set_up_logging("main")
    return run_command(lambda: _train(load(arguments)), failures=FAILURES)


def _train(config: Config) -> int:
    run_dir = RunDirectory(config.run.dir)
    prepared = prepare(config)
    with run_dir.open():
        checkpoints = open_checkpoints(config, run_dir)
        identity = identify(config, prepared.model, prepared.train.prompts)
        start = decide_start(config, checkpoints, identity)
        if start.step >= config.train.steps and run_dir.export.is_dir():
            print(f"{run_dir.path} is finished: step {start.step} of {config.train.steps} is done")
            print(compare_ends(run_dir.evaluations))
            return 0
        run_dir.config.write_text(dump(config), encoding="utf-8")
        logger.info("%s; run directory %s", prepared.platform.reason, run_dir.path)
        with Session(config.cluster):
            interruption = Interruption(config.checkpoint.grace_seconds)
            try:
                run = _run(config, prepared, run_dir, checkpoints, identity, start, interruption)
                return run_main_task(run, interruption)
            except Interrupted:
                print(where_it_goes_on(checkpoints), flush=True)
                raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a run needs and can be checked without starting anything."""

    platform: Platform
    model: Path
    train: TrainingSet
    eval_prompts: Sequence[Prompt]


def prepare(config: Config) -> Prepared:
    """Check the options, the model's shape and the data, the cheapest first."""
    check(config, TRAINING)
    check_fields(config.learner.megatron)
    check_grader(config.reward)
    model = locate_model(config.model.path)
    spec = read_model_spec(model)
    check_layout(spec, config.parallel)
    check_length(config, spec, training=True)
    platform = resolve(config.learner.device)
    check_arguments(config.engine.vllm, platform.device)
    check_device(config.learner.precision, platform.device)
    check_device_fields(config.learner.megatron, platform.device)
    tokenizer = load_tokenizer(str(model), config.model.trust_remote_code)
    return Prepared(
        platform=platform,
        model=model,
        train=load_training_set(config.data, tokenizer, objection),
        eval_prompts=load_prompts(config.data.eval, config.data, tokenizer, objection)[: config.eval.limit],
    )


async def _run(
    config: Config,
    prepared: Prepared,
    run_dir: RunDirectory,
    checkpoints: CheckpointDirectory,
    identity: dict[str, Any],
    start: Start,
    interruption: Interruption,
) -> int:
    async with AsyncExitStack() as stack:
        recorder = build_recorder(config.logging, run_dir.path, after=start.step, last_step=config.train.steps)
        stack.callback(recorder.close)
        batch = config.rollout.num_prompts * config.rollout.num_samples
        graders = GraderPool(config.reward, watch_first=WATCHED_BATCHES * batch)
        stack.callback(graders.close)
        placement = await reserve(config, prepared.platform, prepared.model, run_dir.logs, training=True)
        stack.callback(placement.release)
        engines = Engines(config, prepared.platform, prepared.model, run_dir.logs, training=True, placement=placement)
        stack.push_async_callback(engines.close)
        ranks = Ranks(config, prepared.platform, prepared.model, run_dir.logs, placement)
        stack.push_async_callback(ranks.close)

        recorder.event(f"starting learner and engines: {placement} ...")
        learner = await interruption.cut_short(_started(config, ranks, engines))

        rollouts = RolloutPipeline(build_collector(config, prepared.train, engines, graders), config.rollout.max_lag)
        if news := await interruption.cut_short(take_up(start, learner, rollouts, run_dir)):
            recorder.event(news)
        saver = build_saver(config, checkpoints, identity, start, learner, rollouts.state_of, recorder.checkpoint)
        await stack.enter_async_context(saver)
        evaluator = build_evaluator(config, prepared.eval_prompts, engines, graders, run_dir, recorder, saver)
        weights = WeightPublisher(learner, engines.pool)
        watchdog = Watchdog(config.watchdog, lambda: [*ranks.workers, *engines.workers], run_dir.logs)
        run = loop.Run(
            step=start.step,
            last_step=config.train.steps,
            rollouts=watched(CutShortRollouts(rollouts, interruption), {"steps": "generate"}, watchdog),
            packer=build_packer(config),
            learner=watched(PublishedLearner(learner, weights), {"step": "learn"}, watchdog),
            gate=MismatchGate(config.mismatch),
            weights=watched(
                weights if config.rollout.in_flight_updates else PublishBetweenBatches(weights, rollouts),
                {"publish": "sync"},
                watchdog,
            ),
            evaluator=watched(
                CutShortEvaluator(evaluator, interruption), {"opening": "evaluate", "after": "evaluate"}, watchdog
            ),
            checkpoints=watched(saver, {"after": "save"}, watchdog),
            recorder=build_store(config, recorder, run_dir, start.step, stack),
        )
        try:
            await train_to_the_end(run, saver)
        except StarvationError as error:
            await saver.save(run.step, rollouts.state_after_failure())
            await saver.settle()
            recorder.event(f"the run ends after step {run.step}, saved: {error}")
            return STARVED
        await interruption.cut_short(_export(learner, run_dir))
        _sum_up(recorder, run_dir)
    return 0


async def _started(config: Config, ranks: Ranks, engines: Engines) -> RemoteLearner:
    """Learner and engines, up."""
    starts = [ranks.start(), engines.start()]
    learner, _ = await start_within(config.cluster.start_timeout, "learner and engines", starts)
    return learner


async def _export(learner: RemoteLearner, run_dir: RunDirectory) -> None:
    """Write the Hugging Face directory under another name first: one called `export` is whole."""
    writing = run_dir.path / ".writing-export"
    for old in (writing, run_dir.export):
        shutil.rmtree(old, ignore_errors=True)
    await learner.export(writing)
    writing.rename(run_dir.export)


def build_collector(config: Config, data: TrainingSet, engines: Engines, graders: GraderPool) -> Collector:
    """The rollout side of a run: cursor, engines, graders and the post-processing stage."""
    sampling = config.algo.dynamic_sampling
    return Collector(
        cursor=Cursor(data.prompts, config.run.seed, config.data.shuffle, data.weights),
        generate=engines.pool.generate,
        grade=graders.grade,
        post=PostProcessor(config.algo, config.rollout.num_prompts, config.rollout.max_tokens),
        config=config.rollout,
        max_rounds=sampling.max_rounds,
        filters=sampling.enabled,
        seed=config.run.seed,
        max_surplus_age=sampling.max_surplus_age,
        aborted_tokens=lambda: engines.pool.num_aborted_tokens,
    )


def build_packer(config: Config) -> Packer:
    """Packs for the learner's layout."""
    multiples = pack_multiples(config.parallel, config.learner.precision)
    return Packer(
        loss=config.algo.loss,
        dp=config.parallel.dp,
        max_tokens=config.learner.max_tokens_per_micro_batch,
        pad_to_multiple=multiples.tokens,
        sequence_multiple=multiples.sequence,
        micro_batch_multiple=multiples.micro_batches,
        equal_lengths=multiples.equal_lengths,
        prompts_per_update=config.train.prompts_per_update,
        zero_advantage=config.learner.zero_advantage,
    )


def build_evaluator(
    config: Config,
    prompts: Sequence[Prompt],
    engines: Engines,
    graders: GraderPool,
    run_dir: RunDirectory,
    recorder: Recorder,
    saver: Saver,
) -> DuringTraining:
    """Evaluates on the run's own engines."""

    def record(step: int, stats: StepStats, message: str) -> None:
        recorder.evaluation(step, stats, message)
        saver.evaluated(step, stats.values)

    return DuringTraining(
        prompts=prompts,
        generate=engines.pool.generate,
        grade=graders.grade,
        config=config.eval,
        seed=config.run.seed,
        last_step=config.train.steps,
        folder=run_dir.evaluations,
        record=record,
    )


def build_store(
    config: Config, recorder: Recorder, run_dir: RunDirectory, after: int, stack: AsyncExitStack
) -> loop.Recorder:
    """The recorder, with a store of every response behind it unless that is switched off."""
    if config.logging.keep_rollouts == 0:
        return recorder
    storing = StoringRecorder(recorder, Transcripts(run_dir.path), keep=config.logging.keep_rollouts, after=after)
    stack.enter_context(storing)
    return storing


def _sum_up(recorder: Recorder, run_dir: RunDirectory) -> None:
    recorder.event(f"exported {run_dir.export}")
    recorder.event(f"plotted {plot_run(run_dir.path)}")
    recorder.event(compare_ends(run_dir.evaluations))
