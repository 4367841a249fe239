"""A two-node Slurm of the tests' own, and jobs on it as a user submits them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
LOCAL_SLURM = ROOT / "tools" / "local_slurm.sh"
TOOLS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "scontrol")
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


def why_not_here() -> str:
    """Why no Slurm can be brought up on this machine; empty if it can."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    if missing:
        return f"no {', '.join(missing)} on PATH (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "a local Slurm needs root"


class Job:
    """One submitted job."""

    def __init__(self, cluster: Cluster, number: int, output: Path) -> None:
        self._cluster = cluster
        self.number = number
        self._output = output

    def info(self) -> dict[str, str]:
        """What `scontrol show job` says."""
        said = self._cluster.run("scontrol", "--oneliner", "show", "job", str(self.number))
        return dict(re.findall(r"(\S+?)=(\S*)", said))

    def state(self) -> str:
        return self.info()["JobState"]

    def output(self) -> str:
        return self._output.read_text() if self._output.exists() else ""

    def signal(self, name: str, *options: str) -> None:
        self._cluster.run("scancel", f"--signal={name}", *options, str(self.number))

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.state() not in ENDED, f"ended first:\n{self.output()}"
            assert time.monotonic() < deadline, f"not within {timeout} s, {self.state()}:\n{self.output()}"
            time.sleep(0.2)

    def wait(self, timeout: float) -> tuple[str, str]:
        """Its last state and exit code (as Slurm writes it, CODE:SIGNAL)."""
        deadline = time.monotonic() + timeout
        while (info := self.info())["JobState"] not in ENDED:
            assert time.monotonic() < deadline, f"not within {timeout} s, {info['JobState']}:\n{self.output()}"
            time.sleep(0.2)
        return info["JobState"], info["ExitCode"]

    def survivors(self, within: float = 60) -> list[psutil.Process]:
        """Processes of its Ray that are still there after `within` seconds at most."""
        deadline = time.monotonic() + within
        while (alive := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return alive

    def processes(self, node: int | None = None) -> list[psutil.Process]:
        """Processes of its Ray (on one node), known by the mark in their environment."""
        mark = f"{self.number}-" + (r"\d+-" + str(node) if node is not None else "")
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and re.match(mark, process.environ().get("DA3PO_NODE", "")):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


class Cluster:
    def __init__(self, folder: Path) -> None:
        self._environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "DA3PO_HOME": str(ROOT),
            "PYTHONPATH": str(ROOT),
        }

    def run(self, *command: str, cwd: Path = ROOT, **environment: str) -> str:
        environment = {**self._environment, **environment}
        return subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def submit(self, script: str, *arguments: str, cwd: Path, options: tuple[str, ...] = (), **environment: str) -> Job:
        """`sbatch slurm/SCRIPT` from `cwd` on both nodes, a core of each; `options` are sbatch's."""
        usual = ("--parsable", "--nodes=2", "--cpus-per-task=1", "--time=15", "--signal=B:USR1@30")
        said = self.run("sbatch", *usual, *options, str(ROOT / "slurm" / script), *arguments, cwd=cwd, **environment)
        number = int(said.split(";")[0])
        return Job(self, number, cwd / f"slurm-{number}.out")


@contextmanager
def local_slurm(folder: Path) -> Iterator[Cluster]:
    subprocess.run([LOCAL_SLURM, "up", folder], check=True, timeout=120)
    try:
        yield Cluster(folder)
    finally:
        subprocess.run([LOCAL_SLURM, "down", folder], check=True, timeout=120)
