"""One node's part in a batch job: `srun` runs it once on every node.

    python -m da3po.cluster.node FOLDER COMMAND [ARGUMENT ...]

Each node starts Ray on its own address and ports, with the cores and GPUs that the job was given. The first is the head
and, once all have joined, runs COMMAND; its exit code is the node's. The others leave when it has ended. Whatever goes
wrong on a node ends that node's part with a non-zero exit code and a line that names the node; srun then ends the rest.

FOLDER is where the nodes meet and log; it lies on a file system that they share.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from da3po.cluster.meeting import Meeting, MeetingError
from da3po.cluster.network import NetworkError, choose_ports, own_address
from da3po.cluster.ray_node import RayNode, RayNodeError, RayNodeSpec, end_with_parent

POLL_SECONDS = 0.5
SIGNAL_OFFSET = 128
FAILURE = 1
# For the head to say that the run has ended, where its Ray went first or the whole job is being ended.
GRACE_SECONDS = 10.0
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Ended(Exception):
    """The node is told to end before there is a run that could be told."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = SIGNAL_OFFSET + number


class Signals:
    """Signals that came, kept until somebody asks."""

    def __init__(self) -> None:
        self._received: list[int] = []
        for number in FORWARDED:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)

    def take(self) -> list[int]:
        received, self._received = self._received, []
        return received

    def check(self, numbers: Sequence[int] = FORWARDED) -> None:
        """Raises Ended if one of `numbers` came."""
        for number in self.take():
            if number in numbers:
                raise Ended(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node's place in its job, as Slurm tells it.

    job: number of the job. attempt: times it was requeued. index: 0 is the head. names: of all nodes, by index.
    timeout: seconds within which all nodes must be up.
    """

    job: int
    attempt: int
    index: int
    names: tuple[str, ...]
    num_cpus: int
    num_gpus: int | None
    timeout: float
    tmp: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Node:
        return cls(
            job=int(environ["SLURM_JOB_ID"]),
            attempt=int(environ.get("SLURM_RESTART_COUNT", "0")),
            index=int(environ["SLURM_PROCID"]),
            names=tuple(environ["DA3PO_NODES"].split()),
            num_cpus=_num_cpus(environ),
            num_gpus=_num_gpus(environ),
            timeout=float(environ.get("DA3PO_START_TIMEOUT", "180")),
            tmp=Path(environ.get("DA3PO_TMP", "/tmp")),
        )

    @property
    def name(self) -> str:
        return self.names[self.index]

    def ray(self, head: str | None, folder: Path) -> RayNodeSpec:
        """What this node's Ray starts with. Raises NetworkError."""
        mark = f"{self.job}-{self.attempt}-{self.index}"
        return RayNodeSpec(
            name=self.name,
            mark=mark,
            head=head,
            address=own_address(self.name),
            ports=choose_ports(self.job, self.index),
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus,
            folder=self.tmp / f"da3po-{mark}",  # short: sockets in it have names of at most 107 characters
            log=folder / f"{self.name}.log",
        )


def _num_cpus(environ: Mapping[str, str]) -> int:
    """The job's share of this node's cores, not the node's own count."""
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return len(os.sched_getaffinity(0))


def _num_gpus(environ: Mapping[str, str]) -> int | None:
    if environ.get("SLURM_GPUS_ON_NODE", "").isdigit():
        return int(environ["SLURM_GPUS_ON_NODE"])
    if "CUDA_VISIBLE_DEVICES" in environ:
        return len([device for device in environ["CUDA_VISIBLE_DEVICES"].split(",") if device])
    return None


def run_head(node: Node, folder: Path, command: Sequence[str], signals: Signals) -> int:
    """Bring the cluster up, run the command on it, and return its exit code."""
    meeting = Meeting(folder, node.timeout)
    code = FAILURE
    try:
        spec = node.ray(None, folder)
        with RayNode(spec) as ray:
            ray.wait_until_up(node.timeout)
            head = f"{spec.address}:{spec.ports['port']}"
            meeting.announce(head)
            meeting.wait_for_nodes(range(1, len(node.names)), list(node.names), _checks(ray.check, signals.check))
            _say(node, f"Ray at {head}, {len(node.names)} nodes of {node.num_cpus} cores, logs in {folder}")
            code = _run(command, {**os.environ, "RAY_ADDRESS": head}, ray, signals)
            meeting.end(code)
    except Ended as error:
        code = error.exit_code
        raise
    finally:
        meeting.end(code)
    return code


def run_worker(node: Node, folder: Path, signals: Signals) -> int:
    """Give this node's share to the head until the run has ended."""
    meeting = Meeting(folder, node.timeout)

    def told_to_end() -> None:
        signals.check((signal.SIGTERM, signal.SIGINT))

    with RayNode(node.ray(meeting.head(told_to_end), folder)) as ray:
        ray.wait_until_up(node.timeout)
        meeting.arrive(node.index, node.name)
        while not meeting.has_ended():
            try:
                _checks(ray.check, told_to_end)()
            except (RayNodeError, Ended):
                if not _comes_within(GRACE_SECONDS, meeting.has_ended):
                    raise
            time.sleep(POLL_SECONDS)
    return 0


def _run(command: Sequence[str], environment: Mapping[str, str], ray: RayNode, signals: Signals) -> int:
    """The command's exit code. Signals are passed on to it alone: its own processes are its own to end."""
    process = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=end_with_parent)
    passed_on: set[int] = set()  # once each: Slurm may send the same one twice, and a second ends a run at once
    try:
        while process.poll() is None:
            for number in set(signals.take()) - passed_on:
                process.send_signal(number)
                passed_on.add(number)
            ray.check()
            time.sleep(POLL_SECONDS)
    except RayNodeError:
        _end(process)
        raise
    return process.returncode if process.returncode >= 0 else SIGNAL_OFFSET - process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _checks(*checks: Callable[[], None]) -> Callable[[], None]:
    def all_of_them() -> None:
        for check in checks:
            check()

    return all_of_them


def _comes_within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return condition()


def _say(node: Node, what: object) -> None:
    sys.stderr.write(f"da3po: {node.name}: {what}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str]) -> int:
    folder, *command = arguments
    node = Node.from_environment(os.environ)
    signals = Signals()
    try:
        if node.index == 0:
            return run_head(node, Path(folder), command, signals)
        return run_worker(node, Path(folder), signals)
    except Ended as error:
        _say(node, error)
        return error.exit_code
    except (MeetingError, NetworkError, RayNodeError) as error:
        _say(node, error)
        return FAILURE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
