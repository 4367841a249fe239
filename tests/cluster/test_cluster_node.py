"""One node's part in a batch job, with the variables that Slurm would set."""

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from da3po.cluster.meeting import Meeting, MeetingError
from da3po.cluster.network import choose_ports
from da3po.cluster.node import Node

USUAL = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "DA3PO_NODES": "node1 node2 "}


def node(**environ):
    return Node.from_environment({**USUAL, **environ})


@pytest.mark.parametrize(
    ("environ", "num_cpus"),
    [
        ({"SLURM_CPUS_PER_TASK": "2", "SLURM_CPUS_ON_NODE": "128"}, 2),
        ({"SLURM_CPUS_ON_NODE": "16"}, 16),
        ({}, len(os.sched_getaffinity(0))),
    ],
)
def test_ray_gets_the_jobs_cores_and_not_the_nodes(environ, num_cpus, tmp_path, monkeypatch):
    monkeypatch.setattr("da3po.cluster.node.own_address", lambda name: "10.0.0.5")
    assert f"--num-cpus={num_cpus}" in node(**environ).ray(None, tmp_path).command


@pytest.mark.parametrize(
    ("environ", "option"),
    [
        ({"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1"}, "--num-gpus=4"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "--num-gpus=2"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "--num-gpus=0"),
        ({}, None),
    ],
)
def test_ray_gets_the_jobs_gpus(environ, option, tmp_path, monkeypatch):
    monkeypatch.setattr("da3po.cluster.node.own_address", lambda name: "10.0.0.5")
    command = node(**environ).ray(None, tmp_path).command
    assert [word for word in command if word.startswith("--num-gpus")] == ([option] if option else [])


def test_a_node_joins_the_head_on_ports_and_in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("da3po.cluster.node.own_address", lambda name: "10.0.0.6")
    head = node().ray(None, tmp_path)
    other = node(SLURM_PROCID="1").ray("10.0.0.5:21000", tmp_path)
    assert "--head" in head.command and "--head" not in other.command
    assert "--address=10.0.0.5:21000" in other.command and "--node-ip-address=10.0.0.6" in other.command
    assert not set(head.ports.values()) & set(other.ports.values())
    assert (head.folder, other.folder) == (Path("/tmp/da3po-4711-0-0"), Path("/tmp/da3po-4711-0-1"))
    assert (head.log.name, other.log.name) == ("node1.log", "node2.log")


def test_nodes_that_do_not_come_are_named(tmp_path):
    meeting = Meeting(tmp_path, timeout=0.1)
    meeting.arrive(1, "node2")
    with pytest.raises(MeetingError, match=r"did not join the cluster: node3 \(their logs lie in .*within 0\.1 s"):
        meeting.wait_for_nodes(range(1, 3), ["node1", "node2", "node3"], lambda: None)
    meeting.arrive(2, "node3")
    meeting.wait_for_nodes(range(1, 3), ["node1", "node2", "node3"], lambda: None)


def test_a_folder_that_nodes_do_not_share_is_named(tmp_path):
    with pytest.raises(
        MeetingError, match="elsewhere is not visible here: it must lie on a file system that all nodes"
    ):
        Meeting(tmp_path / "elsewhere", timeout=0.1).head(lambda: None)


def run_node(tmp_path, *command, starter=("-m", "da3po.cluster.node"), **environ):
    slurm = {"DA3PO_NODES": "node1", "SLURM_JOB_ID": str(os.getpid()), "SLURM_PROCID": "0"}
    environ = {**os.environ, **slurm, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 32, **environ}
    return subprocess.run(
        [sys.executable, *starter, tmp_path, *command], env=environ, capture_output=True, text=True, timeout=120
    )


@pytest.mark.distributed
def test_a_command_runs_on_its_own_ray_while_the_usual_ports_are_taken(tmp_path):
    """Ray's defaults are 6379, 8265, 10001 and, for workers, from 10002 on."""
    program = "import ray, sys; ray.init(logging_level=40); sys.exit(int(ray.cluster_resources()['CPU']) + 40)"
    with ExitStack() as stack:
        for port in (6379, 8265, 10001, 10002):
            try:
                stack.enter_context(socket.create_server(("", port)))
            except OSError:
                continue  # taken already
        ran = run_node(tmp_path, sys.executable, "-c", program, SLURM_CPUS_PER_TASK="2")
    assert ran.returncode == 42, ran.stderr
    assert not list(Path("/tmp").glob(f"da3po-{os.getpid()}-*"))


@pytest.mark.distributed
@pytest.mark.slow
def test_ray_that_dies_behind_its_success_ends_the_node_with_the_reason(tmp_path):
    """The port is taken after it was found free, so `ray start` prints success, and its raylet dies."""
    blind = (
        "import sys; from da3po.cluster import network, node; network.is_free = lambda port: True; "
        "sys.exit(node.main(sys.argv[1:]))"
    )
    taken = choose_ports(os.getpid(), 0, {})["node-manager-port"]
    begun = time.monotonic()
    with socket.create_server(("", taken)):
        ran = run_node(tmp_path, sys.executable, "-c", "import time; time.sleep(100)", starter=("-c", blind))
    assert time.monotonic() - begun < 60
    assert ran.returncode == 1
    assert "da3po: node1: Ray ended with exit code" in ran.stderr
    assert "in use" in ran.stderr
