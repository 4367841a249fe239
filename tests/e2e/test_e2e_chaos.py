"""A run whose engines are killed, stopped and made to talk nonsense: it ends, and no sample is lost, doubled or stale.

CHAOS_KILLS, CHAOS_STEPS and CHAOS_STOP_SECONDS in the environment make it longer than the slow suite has time for.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from command_line import SMALL, Command, metrics

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(3600)]

NUM_STEPS = int(os.environ.get("CHAOS_STEPS", "4"))
NUM_KILLS = int(os.environ.get("CHAOS_KILLS", "3"))
STOP_SECONDS = float(os.environ.get("CHAOS_STOP_SECONDS", "20"))
NUM_SAMPLES = 8
TRAIN = [
    "train",
    *SMALL,
    f"train.steps={NUM_STEPS}",
    f"rollout.num_samples={NUM_SAMPLES}",
    "checkpoint.every=0",
    "engine.num_engines=2",
    "engine.num_threads=1",
    "engine.probe_seconds=1",
    "engine.stall_seconds=8",
    "engine.max_restarts=100",
    "logging.keep_rollouts=1000",
    "run.dir=run",
]
MAX_MEAN_MISMATCH = 1e-4

# Imported by every Python process of the run. Engines take their time, so that there are moments to be struck in, and
# the next group that one completes after the file named in CHAOS_GARBAGE has appeared comes back without a sample.
SITE = """
import importlib, os, pathlib, time
real = importlib.import_module

def import_module(name, package=None):
    module = real(name, package)
    if name == "da3po.engine.vllm.engine":
        talk_nonsense(module.VllmEngine)
        module._make_engine = slowly(module._make_engine)
    return module

def slowly(make):
    def made(*args):
        engine = make(*args)
        step = engine.step
        def stepped():
            time.sleep(0.3)
            step()
        engine.step = stepped
        return engine
    return made

def talk_nonsense(engine):
    result = engine._result
    def garbled(self, group):
        whole = result(self, group)
        try:
            pathlib.Path(os.environ["CHAOS_GARBAGE"]).unlink()
        except FileNotFoundError:
            return whole
        return type(whole)(key=whole.key, completions=whole.completions[:-1])
    engine._result = garbled

importlib.import_module = import_module
"""


class Monkey(threading.Thread):
    """Strikes at random moments, so many times a step on average, at engines that are up or on their way there."""

    def __init__(self, command: Command, run_dir: Path, garbage: Path) -> None:
        super().__init__(daemon=True)
        self._command = command
        self._run_dir = run_dir
        self._garbage = garbage
        self._random = random.Random(7)
        self.deeds: list[str] = []

    def run(self) -> None:
        for number in range(NUM_KILLS):
            self._wait(NUM_STEPS * number / NUM_KILLS)
            time.sleep(self._random.random() * 2)
            self._kill()
            if number == NUM_KILLS // 3:
                threading.Thread(target=self._stop, daemon=True).start()
            if number == NUM_KILLS // 2:
                self._garbage.touch()

    def _wait(self, steps: float) -> None:
        while len(metrics(self._run_dir)) < int(steps) and self._command.process.poll() is None:
            time.sleep(0.2)

    def _engine(self) -> psutil.Process | None:
        while self._command.process.poll() is None:
            engines = self._command.workers("engine-")
            if engines:
                return self._random.choice(engines)
            time.sleep(0.2)
        return None

    def _kill(self) -> None:
        if engine := self._engine():
            engine.send_signal(signal.SIGKILL)
            self.deeds.append("killed")

    def _stop(self) -> None:
        if engine := self._engine():
            engine.send_signal(signal.SIGSTOP)
            self.deeds.append("stopped")
            time.sleep(STOP_SECONDS)
            if engine.is_running():
                engine.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def struck(tmp_path_factory):
    """A run of which engines were struck down all the while."""
    folder = tmp_path_factory.mktemp("chaos")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITE)
    garbage = folder / "garbage"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "site"), prepend=os.pathsep)
        patch.setenv("CHAOS_GARBAGE", str(garbage))
        command = Command(*TRAIN, cwd=folder)
    command.wait_until(lambda: "evaluation after step 0" in command.output())
    monkey = Monkey(command, folder / "run", garbage)
    monkey.start()
    command.wait(timeout=3000)
    return command, monkey, folder / "run"


def test_the_run_ends_well_and_leaves_nothing(struck):
    command, monkey, run_dir = struck
    assert command.process.returncode == 0, command.output()
    assert command.survivors() == []
    assert [row["step"] for row in metrics(run_dir)] == list(range(1, NUM_STEPS + 1))
    assert monkey.deeds.count("killed") == NUM_KILLS
    assert monkey.deeds.count("stopped") == 1
    assert metrics(run_dir)[-1]["engine/num_lost"] >= NUM_KILLS / 3  # one that dies as it starts was not in the pool
    assert "with 7 of 8 samples" in command.output()


def test_every_trained_prompt_has_all_its_samples_once_and_of_the_right_weights(struck):
    _, _, run_dir = struck
    trained = set()
    for step in range(1, NUM_STEPS + 1):
        groups = defaultdict(list)
        for row in pq.read_table(run_dir / "rollouts" / f"step_{step:06d}.parquet").to_pylist():
            groups[row["draw"], row["dropped"]].append(row["sample"])
            assert [version for version, _ in row["versions"]] in ([step - 1], [step - 2])  # or carried over
            assert row["finish"] != "abort"
        assert all(sorted(samples) == list(range(NUM_SAMPLES)) for samples in groups.values())
        draws = {draw for draw, dropped in groups if dropped is None}
        assert len(draws) == 8
        assert not draws & trained
        trained |= draws


def test_engine_and_learner_agree_after_every_restart(struck):
    _, _, run_dir = struck
    for row in metrics(run_dir):
        assert row["mismatch/mean_abs_logprob"] < MAX_MEAN_MISMATCH
