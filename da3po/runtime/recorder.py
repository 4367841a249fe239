"""The record of a run: metrics to every sink, one line a step to the console, and a few rollouts to read.

In the run directory: metrics.jsonl (training, an object a step), evaluations.jsonl (an object for each evaluated step),
checkpoints.jsonl (how long each save took), rollouts.jsonl (sampled responses with their grades) and tensorboard/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from da3po.config.schema import LoggingConfig
from da3po.runtime.console import Console, build_console
from da3po.runtime.jsonl import JsonlFile
from da3po.runtime.sinks import JsonlSink, MetricsSink, TensorBoardSink
from da3po.types import Group, StepBatch, StepStats

METRICS_FILE = "metrics.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
CHECKPOINTS_FILE = "checkpoints.jsonl"
ROLLOUTS_FILE = "rollouts.jsonl"
TENSORBOARD_FOLDER = "tensorboard"

# Longest prompt and response on the console; rollouts.jsonl has them whole.
SHOWN_CHARACTERS = 60


class Recorder:
    """Fans a step out to sinks and console. It is the loop's `Recorder`."""

    def __init__(
        self,
        *,
        metrics: Sequence[MetricsSink],
        evaluations: Sequence[MetricsSink],
        checkpoints: Sequence[MetricsSink],
        rollouts: JsonlFile,
        console: Console,
        num_rollouts: int,
    ) -> None:
        self._metrics = metrics
        self._evaluations = evaluations
        self._checkpoints = checkpoints
        self._rollouts = rollouts
        self._console = console
        self._num_rollouts = num_rollouts

    def step(self, samples: StepBatch, stats: StepStats) -> None:
        """Record one finished training step."""
        for sink in self._metrics:
            sink.write(samples.step, stats.values)
        self._console.step(samples.step, stats.values)
        for rollout in choose_rollouts(samples, self._num_rollouts):
            self._rollouts.write(samples.step, rollout)
            self._console.event(rollout_line(rollout))

    def evaluation(self, step: int, stats: StepStats, message: str) -> None:
        """Record an evaluation of the weights of `step`; `message` is what it came to, for people."""
        for sink in self._evaluations:
            sink.write(step, stats.values)
        self._console.event(message)

    def checkpoint(self, step: int, stats: StepStats, message: str) -> None:
        """Record that `step` was saved, and what that took."""
        for sink in self._checkpoints:
            sink.write(step, stats.values)
        self._console.event(message)

    def event(self, message: str) -> None:
        self._console.event(message)

    def close(self) -> None:
        self._console.close()
        self._rollouts.close()
        for sink in {id(sink): sink for sink in (*self._metrics, *self._evaluations, *self._checkpoints)}.values():
            sink.close()


def build_recorder(config: LoggingConfig, run_dir: Path, *, after: int, last_step: int) -> Recorder:
    """A recorder that continues after step `after` (0: a fresh run). `run_dir` exists."""
    boards = [TensorBoardSink(run_dir / TENSORBOARD_FOLDER, after=after)] if config.tensorboard else []
    return Recorder(
        metrics=[JsonlSink(run_dir / METRICS_FILE, after=after), *boards],
        evaluations=[JsonlSink(run_dir / EVALUATIONS_FILE, after=after), *boards],
        checkpoints=[JsonlSink(run_dir / CHECKPOINTS_FILE, after=after), *boards],
        rollouts=JsonlFile(run_dir / ROLLOUTS_FILE, after=after),
        console=build_console(config.console, first_step=after + 1, last_step=last_step),
        num_rollouts=config.num_rollouts,
    )


def choose_rollouts(batch: StepBatch, count: int) -> list[dict[str, Any]]:
    """One response from each of `count` groups, others from step to step, the same in a repeated run."""
    chosen = []
    for index in range(min(count, len(batch.groups))):
        position = (batch.step * count + index) % len(batch.groups)
        chosen.append(_rollout(batch, position))
    return chosen


def _rollout(batch: StepBatch, position: int) -> dict[str, Any]:
    group = batch.groups[position]
    which = batch.step % len(group.completions)
    completion, grade = group.completions[which], group.grades[which]
    row: dict[str, Any] = {
        "uid": group.prompt.uid,
        "prompt": group.prompt.text,
        "response": completion.text,
        "gold": group.prompt.gold,
        "answer": grade.answer,
        "outcome": str(grade.outcome),
        "finish": completion.finish,
        "num_tokens": len(completion.token_ids),
        "p_hat": group.p_hat,
    }
    return row | _learning_signal(batch, position, group, which)


def _learning_signal(batch: StepBatch, position: int, group: Group, which: int) -> dict[str, float]:
    """Reward and advantage of a response. One that could not be graded has none: it is not among the samples."""
    start = sum(batch.group_sizes[:position])
    graded = [index for index, grade in enumerate(group.grades) if grade.outcome.graded]
    if which not in graded:
        return {}
    sample = batch.samples[start + graded.index(which)]
    return {"reward": sample.reward, "advantage": sample.advantage}


def rollout_line(rollout: Mapping[str, Any]) -> str:
    """`  "12+7=" -> "19" correct (gold 19, p_hat 0.25, advantage +1.32)`; long texts are cut in the middle."""
    notes = [f"gold {_shown(rollout['gold'])[1:-1]}", f"p_hat {rollout['p_hat']:.2f}"]
    if "advantage" in rollout:
        notes.append(f"advantage {rollout['advantage']:+.2f}")
    prompt, response = _shown(rollout["prompt"]), _shown(rollout["response"])
    return f"  {prompt} -> {response} {rollout['outcome']} ({', '.join(notes)})"


def _shown(text: str) -> str:
    if len(text) > SHOWN_CHARACTERS:
        half = SHOWN_CHARACTERS // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return repr(text)
