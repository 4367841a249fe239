"""Where a run begins, what of it may change when it goes on, and what is saved of it on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from da3po import loop
from da3po.checkpoint.directory import Checkpoint, CheckpointDirectory
from da3po.checkpoint.retention import Best, BestRule
from da3po.checkpoint.run_directory import RunDirectory, find_checkpoint, find_start
from da3po.checkpoint.saver import Contents, Due, Saver, check_identity
from da3po.config.build import flatten, to_tree
from da3po.config.load import dump
from da3po.config.schema import Config
from da3po.data.cursor import fingerprint
from da3po.eval.during import cut_back
from da3po.eval.record import weights_fingerprint
from da3po.learner.client import RemoteLearner
from da3po.runtime.interruption import Interrupted
from da3po.types import Prompt, StepStats

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a run begins: at step 0, or after the step of a checkpoint, with its state.

    weights: of another run's checkpoint, for a run that begins with them.
    best: the step that evaluated best so far.
    """

    step: int = 0
    checkpoint: Checkpoint | None = None
    weights: Checkpoint | None = None
    rollouts: dict[str, Any] = field(default_factory=dict)
    best: Best | None = None


class Stateful(Protocol):
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def open_checkpoints(config: Config, run_dir: RunDirectory) -> CheckpointDirectory:
    """The run's checkpoints, cleared of what was cut off. The caller holds the run directory."""
    checkpoints = CheckpointDirectory(run_dir.checkpoints, config.checkpoint.keep, config.checkpoint.keep_every)
    for name in checkpoints.clear():
        logger.warning("cleared %s in %s, which was cut off", name, run_dir.checkpoints)
    return checkpoints


def decide_start(config: Config, checkpoints: CheckpointDirectory, identity: dict[str, Any]) -> Start:
    """Raises CheckpointError if the run directory holds a run of something else, or a checkpoint that is damaged."""
    checkpoint = find_start(checkpoints, config.run.resume)
    if checkpoint is None:
        source = config.run.init_from
        return Start(weights=find_checkpoint(Path(source)) if source else None)
    state = checkpoint.state()
    check_identity(checkpoint, state["identity"], identity)
    best = checkpoints.best(Best(**state["best"]) if state.get("best") else None)
    if best is not None:
        checkpoints.mark_best(best)
    return Start(step=checkpoint.step, checkpoint=checkpoint, rollouts=state["rollouts"], best=best)


def identify(config: Config, model: Path, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """What makes a run this run and no other. Steps, layout, engines, evaluation, optimizer may change on resuming."""
    return {
        "model (its weights)": weights_fingerprint(model),
        "data (its prompts)": fingerprint(prompts),
        "run.seed": config.run.seed,
        "run.init_from": config.run.init_from,
        "rollout.num_samples": config.rollout.num_samples,
        "rollout.temperature": config.rollout.temperature,
        **dict(flatten(to_tree(config.algo), "algo.")),
    }


async def take_up(start: Start, learner: RemoteLearner, rollouts: Stateful, run_dir: RunDirectory) -> str | None:
    """Give the parts the state that the run goes on from. Returns what was done, for people."""
    cut_back(run_dir.evaluations, start.step)
    if start.checkpoint is not None:
        await learner.load(start.checkpoint.learner)
        rollouts.load_state_dict(start.rollouts)
        return f"resuming after step {start.step} from {start.checkpoint.path}"
    if start.weights is not None:
        await learner.load_weights(start.weights.learner)
        return f"beginning with the weights of {start.weights.path}"
    return None


def build_saver(
    config: Config,
    checkpoints: CheckpointDirectory,
    identity: dict[str, Any],
    start: Start,
    learner: RemoteLearner,
    state_of: Callable[[int], dict[str, Any]],
    record: Callable[[int, StepStats, str], None],
) -> Saver:
    """state_of: gives the rollouts' state as it was at the end of a step."""
    options = config.checkpoint
    best = BestRule(metric=options.best, mode=options.best_mode) if options.best else None
    return Saver(
        directory=checkpoints,
        learner=learner,
        contents=Contents(rollouts=state_of, identity=identity, config=dump(config)),
        due=Due(every=options.every, last_step=config.train.steps, best=best),
        start=start.step,
        best=start.best,
        asynchronous=options.asynchronous,
        grace_seconds=options.grace_seconds,
        record=record,
    )


async def train_to_the_end(run: loop.Run, saver: Saver) -> None:
    """The training loop; a run that is asked to end on the way has its last finished step on disk when this raises."""
    try:
        await loop.train(run)
        await saver.settle()
    except Interrupted:
        await saver.save_last(run.step)
        raise


def where_it_goes_on(checkpoints: CheckpointDirectory) -> str:
    latest = checkpoints.latest()
    where = f"goes on after step {latest.step}" if latest else "starts from the beginning: no step was finished yet"
    return f"the same command {where}"
