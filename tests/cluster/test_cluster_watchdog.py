"""Deadlines of phases, with real workers that hang and are stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from da3po.cluster.session import Session
from da3po.cluster.stacks import Stacks, read_process
from da3po.cluster.watchdog import PhaseTimeoutError, Watchdog, late, watched
from da3po.cluster.workers import Worker, WorkerSpec
from da3po.config.schema import ClusterConfig, WatchdogConfig

ENV = {"PYTHONPATH": str(Path(__file__).parents[1])}


@pytest.fixture(scope="module")
def session():
    with Session(ClusterConfig()) as session:
        yield session


class Named:
    """As much of a worker as is asked who is late."""

    def __init__(self, name: str, *calls: str) -> None:
        self.name = name
        self.calls = calls


WAITING = Stacks(
    state="S", text='Process 7\nThread 7 (idle): "MainThread"\n    all_reduce (torch/distributed_c10d.py:2)'
)
WORKING = Stacks(
    state="R", text='Process 8\nThread 8 (active): "MainThread"\n    forward (model.py:1)\n    step (a.py:2)'
)
STOPPED = Stacks(state="T", text="Process 9")


@pytest.mark.parametrize(
    ("stacks", "words"),
    [
        ({Named("learner-0", "step"): WAITING, Named("learner-1", "step"): WORKING}, "learner-1 (running, in step)"),
        ({Named("learner-0", "step"): WORKING, Named("engine-1"): STOPPED}, "engine-1 (stopped, in no call)"),
        (
            {Named("learner-0", "step"): WAITING, Named("learner-1", "step"): WAITING, Named("engine-0"): WORKING},
            "learner-0 (running, in step), learner-1 (running, in step)",
        ),
        ({Named("learner-0"): WORKING}, "none of the processes, but the controller"),
    ],
)
def test_who_is_late(stacks: dict[Named, Stacks], words: str) -> None:
    assert late(stacks) == words


def test_a_process_that_is_gone() -> None:
    assert read_process(2**22 - 1) == Stacks(state="", text="the process is gone")


@pytest.mark.distributed
async def test_a_stopped_worker_is_named_and_everyones_stacks_are_written(session, tmp_path, caplog) -> None:
    workers = [
        Worker(
            WorkerSpec(name=f"learner-{i}", entry="cluster_target:Target", args=(i,), env=ENV),
            tmp_path,
            concurrent=False,
        )
        for i in range(2)
    ]
    for worker in workers:
        await worker.call("add", 1)
    os.kill(workers[1].place.pid, signal.SIGSTOP)
    watchdog = Watchdog(WatchdogConfig(learn=0.5, grace=0.5), lambda: workers, tmp_path)
    begun = time.monotonic()
    with pytest.raises(
        PhaseTimeoutError, match=r"learn has taken 1 s .*late: learner-1 \(stopped, in hang\)"
    ) as raised:
        async with watchdog.phase("learn"):
            await asyncio.gather(*(worker.call("hang") for worker in workers))
    assert time.monotonic() - begun < 40
    assert "learn has taken 0.5 s (watchdog.learn=0.5); late: learner-1" in caplog.text
    stacks = Path(str(raised.value).rpartition(" ")[2]).read_text()
    assert "learner-0 (running, in hang)" in stacks and "hang (" in stacks and "learner-1 (stopped, in hang)" in stacks
    for worker in workers:
        worker.kill()


class Part:
    name = "part"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def after(self, step: int) -> int:
        await asyncio.sleep(self.seconds)
        return step

    async def steps(self, *, until: int) -> AsyncIterator[int]:
        for step in range(until):
            await asyncio.sleep(self.seconds)
            yield step


def watch(part: Part, tmp_path: Path, **limits: float) -> Part:
    watchdog = Watchdog(WatchdogConfig(grace=0.0, **limits), list, tmp_path)
    return watched(part, {"after": "save", "steps": "generate"}, watchdog)


async def test_phases_in_time_pass_unchanged(tmp_path: Path) -> None:
    part = watch(Part(0.001), tmp_path, save=5, generate=5)
    assert await part.after(3) == 3
    assert [step async for step in part.steps(until=3)] == [0, 1, 2]
    assert part.name == "part"
    assert list(tmp_path.iterdir()) == []


async def test_late_phases_end(tmp_path: Path) -> None:
    part = watch(Part(20), tmp_path, save=0.05, generate=0.05)
    with pytest.raises(PhaseTimeoutError, match=r"save has taken 0.05 s .*stacks-2-save.txt"):
        await part.after(3)
    with pytest.raises(PhaseTimeoutError, match="generate has taken"):
        [step async for step in part.steps(until=3)]


async def test_a_late_phase_ends_where_no_stacks_can_be_written(tmp_path: Path) -> None:
    part = watch(Part(20), tmp_path / "is not there", save=0.05)
    with pytest.raises(PhaseTimeoutError, match=r"save has taken .* the stacks could not be written: "):
        await part.after(3)


async def test_zero_watches_nothing_and_other_timeouts_stay_what_they_are(tmp_path: Path) -> None:
    part = watch(Part(0.1), tmp_path, save=0, generate=5)
    assert await part.after(1) == 1
    watchdog = Watchdog(WatchdogConfig(), list, tmp_path)
    with pytest.raises(TimeoutError, match="mine"):
        async with watchdog.phase("learn"):
            raise TimeoutError("mine")
