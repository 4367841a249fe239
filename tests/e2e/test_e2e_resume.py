"""Whole runs, stopped and resumed: real Ray, Megatron-Core and vLLM. The systematic sweeps are in tests/checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import command_line
import pytest
from command_line import SMALL, Command, metrics

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

TRAIN = ["train", *SMALL, "train.steps=4", "eval.every=2", "checkpoint.every=2", "checkpoint.best=eval/avg@2"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("finished")
    command = command_line.run(*TRAIN, "run.dir=run", cwd=folder)
    assert command.process.returncode == 0, command.output()
    return folder / "run"


def steps(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").glob("step_*"))


def rollouts(run_dir: Path) -> list[Any]:
    rows = [json.loads(line) for line in (run_dir / "rollouts.jsonl").read_text().splitlines()]
    return [(row["step"], row["prompt"], row["response"]) for row in rows]


def assert_same(run_dir: Path, reference: Path) -> None:
    rows, expected = metrics(run_dir), metrics(reference)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row, other in zip(rows, expected, strict=True):
        assert row["actor/lr"] == other["actor/lr"]
        for key in ("loss/policy", "rollout/accuracy", "actor/grad_norm"):
            assert row[key] == pytest.approx(other[key], rel=1e-5, abs=1e-5), (row["step"], key)
    assert rollouts(run_dir) == rollouts(reference)
    found, wanted = ((d / "evaluations.jsonl").read_text().splitlines() for d in (run_dir, reference))
    assert [json.loads(row)["step"] for row in found] == [json.loads(row)["step"] for row in wanted] == [0, 2, 4]


@pytest.mark.parametrize("mode", ["checkpoint.asynchronous=true", "checkpoint.asynchronous=false"])
def test_a_signal_to_the_whole_group_ends_in_a_step_that_was_not_due(mode: str, finished: Path, tmp_path: Path) -> None:
    """C15: as Slurm, or a terminal that closes, sends it."""
    run_dir = tmp_path / "run"
    command = Command(*TRAIN, mode, "run.dir=run", cwd=tmp_path)
    command.wait_until(lambda: len(metrics(run_dir)) >= 1)
    os.killpg(command.process.pid, signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM, command.output()
    last = int(steps(run_dir)[-1].removeprefix("step_"))
    assert last == metrics(run_dir)[-1]["step"]
    assert f"goes on after step {last}" in command.output()
    assert command.survivors() == []
    resumed = command_line.run(*TRAIN, mode, "run.dir=run", cwd=tmp_path)
    assert resumed.process.returncode == 0, resumed.output()
    assert f"resuming after step {last}" in resumed.output()
    assert_same(run_dir, finished)


def test_a_signal_while_ray_starts(tmp_path: Path) -> None:
    command = Command(*TRAIN, "run.dir=run", cwd=tmp_path)
    command.wait_until(lambda: (tmp_path / "run" / "config.yaml").exists())
    command.process.send_signal(signal.SIGUSR1)
    assert command.wait() == 128 + signal.SIGUSR1
    assert "stopped by SIGUSR1" in command.output() and "Traceback" not in command.output()
    assert command.survivors() == []


@pytest.mark.parametrize("changes", [["parallel=dp2"], ["parallel=tp2", "engine.num_engines=2"]], ids=" ".join)
def test_a_run_goes_on_with_other_layouts_and_engines(changes: list[str], finished: Path, tmp_path: Path) -> None:
    """The run had saved step 2 before it died."""
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    shutil.rmtree(run_dir / "checkpoints" / "step_000004")
    resumed = command_line.run(*TRAIN, *changes, "run.dir=run", cwd=tmp_path)
    assert resumed.process.returncode == 0, resumed.output()
    assert "resuming after step 2" in resumed.output()
    rows, expected = metrics(run_dir), metrics(finished)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[2]["actor/lr"] == expected[2]["actor/lr"]
    assert rows[2]["loss/policy"] == pytest.approx(expected[2]["loss/policy"], rel=1e-4, abs=1e-5)
    assert rows[2]["mismatch/mean_abs_logprob"] < 1e-4


def test_a_new_run_begins_with_the_weights_of_another(finished: Path, tmp_path: Path) -> None:
    fresh = ["train", *SMALL, "train.steps=1", "optim.warmup_steps=2", f"run.init_from={finished}", "run.dir=run"]
    command = command_line.run(*fresh, cwd=tmp_path)
    assert command.process.returncode == 0, command.output()
    assert "beginning with the weights of" in command.output()
    (row,) = metrics(tmp_path / "run")
    assert row["actor/lr"] == pytest.approx(1e-4) and row["mismatch/mean_abs_logprob"] < 1e-4
    before = json.loads((tmp_path / "run" / "eval" / "step_000000.json").read_text())
    after = json.loads((finished / "eval" / "step_000004.json").read_text())
    assert before["avg"]["value"] == pytest.approx(after["avg"]["value"], abs=0.05)


@pytest.mark.soak
def test_three_kills_at_random_moments(tmp_path: Path) -> None:
    """The tool takes any number (docs/checkpoints.md)."""
    command = [sys.executable, str(ROOT / "tools" / "kill_sweep.py"), str(tmp_path / "kills"), "--kills", "3"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1100)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    assert len(found["kills"]) == 3 and all(run["same"] for run in found["runs"])
