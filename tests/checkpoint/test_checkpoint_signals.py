"""Signals from outside, and deaths: real processes around a run of fakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from resumable import Run

TESTS = Path(__file__).resolve().parents[1]


class Started:
    """A run that stays in one phase of a step for a while, and has just come there."""

    def __init__(self, folder: Path, phase: str, step: int, seconds: float, *overrides: str) -> None:
        command = [sys.executable, str(TESTS / "signalled.py"), str(folder), phase, str(step), str(seconds), *overrides]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        lines = iter(self.process.stderr.readline, "")
        seen = list(_until("here\n", lines))
        assert seen[-1] == "here\n", seen

    def end(self, *signals: int) -> tuple[int, str]:
        for number in signals:
            self.process.send_signal(number)
            time.sleep(0.1)
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, output + errors


def _until(last: str, lines: Any) -> Any:
    for line in lines:
        yield line
        if line == last:
            return


def steps(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("step_*"))


@pytest.mark.parametrize(
    ("phase", "number", "step"),
    [("rollout", signal.SIGTERM, 2), ("learning", signal.SIGUSR1, 3), ("saving", signal.SIGINT, 4)],
)
def test_a_signal_ends_in_the_last_finished_step(phase: str, number: int, step: int, tmp_path: Path) -> None:
    run = Started(tmp_path, phase, 4 if phase == "saving" else 3, 0.5)
    code, output = run.end(number)
    assert code == 128 + number
    assert f"goes on after step {step}" in output and f"stopped by {signal.Signals(number).name}" in output
    assert steps(tmp_path)[-1] == f"step_{step:06d}"
    assert "Traceback" not in output


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    run = Started(tmp_path, "learning", 3, 60)
    code, _ = run.end(signal.SIGTERM, signal.SIGUSR1)
    assert code == 128 + signal.SIGUSR1
    assert steps(tmp_path) == ["step_000002"]


def test_when_the_grace_time_is_over_the_step_is_given_up_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    run = Started(tmp_path, "learning", 3, 60, "checkpoint.grace_seconds=0.2")
    code, output = run.end(signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert "goes on after step 2" in output
    assert steps(tmp_path) == ["step_000002"]


def test_a_save_that_takes_longer_than_the_grace_time_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    run = Started(tmp_path, "saving", 4, 60, "checkpoint.grace_seconds=0.2")
    code, output = run.end(signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert "goes on after step 2" in output
    assert Run(tmp_path).go().begin.step == 2


def signalled_once_here(body: str, number: signal.Signals) -> tuple[str, str, int]:
    """What a command of that body prints after `here`, its errors and exit code, when a signal comes then.

    It starts with SIGINT ignored, as what a script starts in the background does.
    """
    script = (
        f"import sys, time\nfrom da3po.command import run_command, run_main_task\n{body}\nsys.exit(run_command(body))"
    )
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    process.send_signal(number)
    return *process.communicate(timeout=30), process.returncode


SIGNALS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_anything_runs_is_told_and_has_its_code(number: signal.Signals) -> None:
    body = "def body():\n    print('here', flush=True)\n    time.sleep(60)"
    assert signalled_once_here(body, number) == ("", f"da3po: stopped by {number.name}\n", 128 + number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_after_the_main_task_unwinds_what_is_left(number: signal.Signals) -> None:
    body = (
        "async def work():\n    return 0\n"
        "def body():\n    try:\n        run_main_task(work())\n"
        "        print('here', flush=True)\n        time.sleep(60)\n"
        "    finally:\n        print('unwound', flush=True)"
    )
    output, _, code = signalled_once_here(body, number)
    assert (output, code) == ("unwound\n", 128 + number)


def sweep(folder: Path, first: int, stride: int, *overrides: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(TESTS / "crash_sweep.py"), str(folder), str(first), str(stride), *overrides]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": _path()})
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def _path() -> str:
    return os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.parametrize(("first", "overrides"), [(3, ()), (5, ("checkpoint.asynchronous=true",))])
def test_a_run_that_is_killed_at_any_write_ends_as_if_it_had_not_been(
    first: int, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    """C08, C10."""
    deaths = sweep(tmp_path, first, 17, *overrides, "checkpoint.best=eval/avg@2")
    assert len(deaths) > 4
    assert [death for death in deaths if not death["same"]] == []


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_every_single_write(tmp_path: Path) -> None:
    deaths = sweep(tmp_path, 1, 1, "checkpoint.best=eval/avg@2", "checkpoint.keep=1")
    assert {"os.rename", "os.mkdir", "open"} <= {death["what"].split()[0] for death in deaths}
    assert any(".removing-" in death["what"] for death in deaths)
    assert [death for death in deaths if not death["same"]] == []
