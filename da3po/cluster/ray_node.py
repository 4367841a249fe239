"""The Ray of one node, started for a job and watched: `ray start` says that it succeeded also when it did not."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from da3po.cluster.network import answers

# Every process of a node's Ray has it in its environment, by which the last ones are found at the end.
MARK = "DA3PO_NODE"
GIB = 1 << 30
MAX_OBJECT_STORE_BYTES = 8 * GIB
STOP_SECONDS = 20.0
# A listener that is alive answers at once, however busy its node is. `ray start` itself may notice much later.
KNOCK_SECONDS, MAX_SILENT_KNOCKS = 3.0, 4
STARTED = "Ray runtime started"
PR_SET_PDEATHSIG = 1
# Lines of Ray's logs that say why it ended; E and F are errors and fatal ones, before numbers of process and thread.
TELLING = re.compile(r" [EF] \d+ \d+\]|Check failed|in use|Error:|unexpectedly|exit code")
RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Workers run under the interpreter and packages of this environment, whatever tool launched it.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Clusters set proxies for the way out; Ray's calls between nodes must not take it.
    "RAY_grpc_enable_http_proxy": "0",
    # Ray Serve wants half a minute between SIGTERM and the end; nothing here does.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}


class RayNodeError(RuntimeError):
    """Ray did not come up or ended; the message has its own last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNodeSpec:
    """head: address (host:port) of the head to join, or None to be it.

    name: the node's, for people. mark: unique among all nodes of all jobs. num_cpus: the node's cores that the job was
    given. num_gpus: likewise; None leaves it to Ray to look.
    """

    name: str
    mark: str
    head: str | None
    address: str
    ports: Mapping[str, int]
    num_cpus: int
    num_gpus: int | None
    folder: Path
    log: Path

    @property
    def command(self) -> list[str]:
        """The `ray start` command line. Ports of workers are left to the system, which finds free ones."""
        head_only = ("port", "ray-client-server-port", "dashboard-port")
        ports = {option: port for option, port in self.ports.items() if self.head is None or option not in head_only}
        return [
            *(sys.executable, "-m", "ray.scripts.scripts", "start"),
            "--block",
            *(["--head", "--include-dashboard=false"] if self.head is None else [f"--address={self.head}"]),
            f"--node-name={self.name}",
            f"--node-ip-address={self.address}",
            *(f"--{option}={port}" for option, port in ports.items()),
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--num-cpus={self.num_cpus}",
            *([] if self.num_gpus is None else [f"--num-gpus={self.num_gpus}"]),
            f"--object-store-memory={object_store_bytes()}",
            f"--temp-dir={self.folder}",
            "--disable-usage-stats",
        ]


def object_store_bytes(shared_memory: Path = Path("/dev/shm")) -> int:
    """Steps of long responses are gigabytes; several nodes of a job, or jobs, may share the host's memory."""
    return min(MAX_OBJECT_STORE_BYTES, shutil.disk_usage(shared_memory).total // 8)


class RayNode:
    """Runs `ray start` while the block lasts and leaves nothing behind."""

    def __init__(self, spec: RayNodeSpec) -> None:
        self._spec = spec
        self._last_knock = 0.0
        self._num_silent = 0

    def __enter__(self) -> RayNode:
        spec = self._spec
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        with spec.log.open("ab") as log:
            self._process = subprocess.Popen(
                spec.command,
                env={**environment, **RAY_ENVIRONMENT, MARK: spec.mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        return self

    def wait_until_up(self, seconds: float) -> None:
        """Return once `ray start` has said so and the raylet, and on the head Ray's global store, answer."""
        deadline = time.monotonic() + seconds
        while not (STARTED in self._spec.log.read_text(errors="replace") and self._answers()):
            self._check_process()
            if time.monotonic() > deadline:
                raise RayNodeError(self._with_last_words(f"Ray did not come up within {seconds:g} s"))
            time.sleep(0.2)

    def check(self) -> None:
        """Raises RayNodeError if Ray has ended, or does not answer any more."""
        self._check_process()
        if time.monotonic() - self._last_knock < KNOCK_SECONDS:
            return
        self._last_knock = time.monotonic()
        self._num_silent = 0 if self._answers() else self._num_silent + 1
        if self._num_silent == MAX_SILENT_KNOCKS:
            raise RayNodeError(self._with_last_words(f"Ray ended: nothing answers at {self._spec.address} any more"))

    def _check_process(self) -> None:
        if self._process.poll() is not None:
            raise RayNodeError(self._with_last_words(f"Ray ended with exit code {self._process.returncode}"))

    def _answers(self) -> bool:
        wanted = ["node-manager-port"] + (["port"] if self._spec.head is None else [])
        return all(answers(self._spec.address, self._spec.ports[option]) for option in wanted)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)  # it ends what it started
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        end_marked(self._spec.mark)
        if kind is not None and issubclass(kind, RayNodeError) and self._logs.is_dir():
            shutil.copytree(self._logs, self._spec.log.with_suffix(".ray"), dirs_exist_ok=True, ignore=_no_sockets)
        shutil.rmtree(self._spec.folder, ignore_errors=True)

    @property
    def _logs(self) -> Path:
        return self._spec.folder / "session_latest" / "logs"

    def _with_last_words(self, what: str) -> str:
        said = [line for file in self._complaints() for line in _lines(file) if TELLING.search(line)]
        return "\n".join([what, *said[-8:], f"(more in {self._spec.log})"])

    def _complaints(self) -> list[Path]:
        names = ("gcs_server.out", "gcs_server.err", "raylet.out", "raylet.err")
        return [self._spec.log, *(file for name in names if (file := self._logs / name).is_file())]


def end_with_parent() -> None:
    """In a child before it becomes the program: SIGTERM when the parent is gone, however it went."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end_marked(mark: str) -> None:
    """Kill every process of this node's Ray that is still there."""
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:  # gone, or another user's
            continue


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


def _no_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (Path(folder) / name).is_file() and not (Path(folder) / name).is_dir()]
