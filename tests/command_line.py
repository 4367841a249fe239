"""Runs the `da3po` command as a user does, in a process of its own, and sees whether it leaves anything behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

# A run small enough for a test: everything real, a few prompts.
SMALL = [
    "experiment=quickstart",
    "rollout.num_prompts=8",
    "rollout.num_samples=8",
    "eval.limit=16",
    "eval.num_samples=2",
    "eval.every=0",
    "engine.max_num_seqs=64",
    "data.max_prompt_tokens=64",
    "optim.warmup_steps=0",
]


class Command:
    """One `da3po` process and all it started, known by a mark in their environment."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self._mark = uuid.uuid4().hex
        self._output = (cwd / f"output-{self._mark[:8]}.txt").open("w+")
        environment = {**os.environ, "DA3PO_TEST_MARK": self._mark}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "da3po.cli", *arguments],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self, timeout: float = 280) -> int:
        return self.process.wait(timeout)

    def wait_until(self, condition: Callable[[], bool], timeout: float = 240) -> None:
        """Returns once `condition` holds; fails if the process ends or the time is up first."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode} first:\n{self.output()}"
            assert time.monotonic() < deadline, f"not within {timeout} s:\n{self.output()}"
            time.sleep(0.05)

    def output(self) -> str:
        self._output.flush()
        return Path(self._output.name).read_text()

    def survivors(self, within: float = 30) -> list[str]:
        """Processes of this command that are still there after `within` seconds at most."""
        deadline = time.monotonic() + within
        while (alive := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return alive

    def workers(self, kind: str) -> list[psutil.Process]:
        """The processes that host an engine or a learner rank: those that write the logs of that name."""
        return [process for process in self._processes() if any(kind in Path(f.path).name for f in _open_logs(process))]

    def _alive(self) -> list[str]:
        return [str(process) for process in self._processes()]

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("DA3PO_TEST_MARK") == self._mark:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


def _open_logs(process: psutil.Process) -> list[Any]:
    try:
        return [file for file in process.open_files() if file.path.endswith(".log")]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def run(*arguments: str, cwd: Path, timeout: float = 280) -> Command:
    """Run a command to its end."""
    command = Command(*arguments, cwd=cwd)
    command.wait(timeout)
    return command


def metrics(run_dir: Path) -> list[dict]:
    file = run_dir / "metrics.jsonl"
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
