"""The uninterrupted run is the oracle: however a run was stopped on its way, it ends as if it had not been."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest
from resumable import PHASES, STEPS, Run

from da3po.runtime.interruption import Interrupted

MODES = ["checkpoint.asynchronous=false", "checkpoint.asynchronous=true"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run sees that nobody stops."""
    return Run(tmp_path_factory.mktemp("whole")).go().seen()


def interrupted_in(folder: Path, phase: str, step: int, *overrides: str) -> Run:
    """A run that is asked to end at the beginning of a phase of a step. Returns it when it has ended."""

    async def enters(now: str, at: int) -> None:
        if (now, at) == (phase, step):
            run.interruption.ask(signal.SIGTERM)

    run = Run(folder, *overrides, enters=enters)
    with pytest.raises(Interrupted) as ended:
        run.go()
    assert ended.value.exit_code == 128 + signal.SIGTERM
    return run


def test_the_run_that_the_others_are_held_against(whole: dict[str, Any]) -> None:
    assert [row["step"] for row in whole["metrics"]] == list(range(1, STEPS + 1))
    assert [row["step"] for row in whole["evaluations"]] == [0, 2, 4, 6]
    assert len({row["uid"] for row in whole["rollouts"]}) > 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phase", PHASES)
def test_stopped_in_any_phase_of_any_step(phase: str, mode: str, whole: dict[str, Any], tmp_path: Path) -> None:
    """C15, C06: the last finished step is saved, due or not, and nothing of the step that was given up is left."""
    steps = {"start": [0], "evaluation": [0, 2, 4, 6], "saving": [2, 4, 6], "sync": list(range(STEPS + 1))}
    for step in steps.get(phase, range(1, STEPS + 1)):
        folder = tmp_path / str(step)
        stopped = interrupted_in(folder, phase, step, mode)
        finished = step - 1 if phase in ("rollout", "grading") else step
        latest = stopped.checkpoints.latest()
        assert (latest.step if latest else 0) == finished
        assert not list((folder / "checkpoints").glob(".*"))
        assert Run(folder, mode).go().seen() == whole, (phase, step)


AHEAD = "rollout.max_lag=1"
CARRIED = "algo.dynamic_sampling.max_surplus_age=2"


@pytest.mark.parametrize("overrides", [(AHEAD,), (CARRIED,), (AHEAD, CARRIED, MODES[1])], ids=" ".join)
def test_batches_collected_ahead_and_groups_carried_over(overrides: tuple[str, ...], tmp_path: Path) -> None:
    """C06: what was drawn ahead of training is neither lost nor drawn twice; carried samples keep their log-probs."""
    whole = Run(tmp_path / "whole", *overrides).go().seen()
    if CARRIED in overrides:
        assert max(row["rollout/surplus_carried"] for row in whole["metrics"]) > 0
    for phase, step in itertools.product(("rollout", "learning", "sync", "evaluation", "saving"), (2, 4)):
        folder = tmp_path / f"{phase}{step}"
        interrupted_in(folder, phase, step, *overrides)
        assert Run(folder, *overrides).go().seen() == whole, (phase, step)


def test_stopped_at_every_step_one_after_another(whole: dict[str, Any], tmp_path: Path) -> None:
    """C01, C02, C05: every start takes one step further."""
    for step in range(1, STEPS + 1):
        assert interrupted_in(tmp_path, "learning", step).begin.step == step - 1
    assert Run(tmp_path).go().seen() == whole


def test_stopped_again_before_a_step_was_finished(whole: dict[str, Any], tmp_path: Path) -> None:
    """The checkpoint that the run came from stays as it is."""
    interrupted_in(tmp_path, "rollout", 4)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "checkpoints").rglob("*") if file.is_file()}
    for phase in ("start", "sync", "rollout", "grading"):
        interrupted_in(tmp_path, phase, 4 if phase in ("rollout", "grading") else 3)
    assert {f: f.stat().st_mtime_ns for f in (tmp_path / "checkpoints").rglob("*") if f.is_file()} == before
    assert Run(tmp_path).go().seen() == whole


def test_another_data_parallel_size_draws_the_same_prompts(whole: dict[str, Any], tmp_path: Path) -> None:
    """C14: the position in the data belongs to the run, not to ranks."""
    interrupted_in(tmp_path, "rollout", 4, "parallel=dp2")
    resumed = Run(tmp_path).go().seen()
    assert [row["uid"] for row in resumed["rollouts"]] == [row["uid"] for row in whole["rollouts"]]
    for row, expected in zip(resumed["metrics"], whole["metrics"], strict=True):
        assert row["loss/policy"] == pytest.approx(expected["loss/policy"], rel=1e-5)
