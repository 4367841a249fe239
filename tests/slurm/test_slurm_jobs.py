"""The batch scripts on a real Slurm of two nodes."""

import json
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import SMALL, metrics
from slurm_cluster import ROOT, Job

from da3po.cluster.network import choose_ports

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

TRAIN = [*SMALL, "train.steps=4", "checkpoint.every=0", "run.dir=run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A job that has ended. met: whether it and the other one were seen running at the same time."""

    job: Job
    state: str
    exit_code: str
    folder: Path
    met: bool

    @property
    def run(self) -> Path:
        return self.folder / "run"


@pytest.fixture(scope="module")
def both(cluster, tmp_path_factory):
    """Two jobs on the same nodes at the same time: one is left alone, one is told to save and requeue in its middle."""
    folders = [tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("told")]
    alone, told = (cluster.submit("train.sbatch", *TRAIN, cwd=folder) for folder in folders)
    told.wait_until(lambda: len(metrics(folders[1] / "run")) >= 1, 240)
    met = alone.state() == told.state() == "RUNNING"
    told.signal("USR1")
    ends = [job.wait(400) for job in (alone, told)]
    return [
        Ran(job=job, state=state, exit_code=code, folder=folder, met=met)
        for job, (state, code), folder in zip((alone, told), ends, folders, strict=True)
    ]


@pytest.fixture(scope="module")
def alone(both):
    return both[0]


@pytest.fixture(scope="module")
def told(both):
    return both[1]


def test_a_run_on_two_nodes_ends_well_and_has_everything(alone):
    assert (alone.state, alone.exit_code) == ("COMPLETED", "0:0"), alone.job.output()
    assert [row["step"] for row in metrics(alone.run)] == [1, 2, 3, 4]
    assert [json.loads(line)["step"] for line in (alone.run / "evaluations.jsonl").open()] == [0, 4]
    for name in ("config.yaml", "rollouts.jsonl", "curves.png", "export/model.safetensors", "tensorboard"):
        assert (alone.run / name).exists(), name
    assert list((alone.run / "checkpoints").iterdir()) and list((alone.run / "eval").iterdir())
    assert {path.name for path in (alone.run / "logs").iterdir()} >= {"learner-0.log", "engine-0.log"}


def test_learner_and_engine_are_on_nodes_of_their_own(alone):
    (line,) = [line for line in alone.job.output().splitlines() if line.startswith("starting learner and engines")]
    assert "node1" in line and "node2" in line


def test_each_node_has_its_log(alone):
    logs = alone.folder / "runs" / "slurm" / str(alone.job.number) / "0"
    assert all("Ray runtime started" in (logs / f"node{i}.log").read_text() for i in (1, 2))


def test_two_jobs_at_once_on_the_same_nodes_both_end(alone, told):
    assert alone.met and alone.job.info()["NodeList"] == told.job.info()["NodeList"] == "node[1-2]"
    assert (alone.state, told.state) == ("COMPLETED", "COMPLETED")


def test_usr1_saves_requeues_and_the_run_ends_as_an_undisturbed_one(alone, told):
    assert (told.state, told.exit_code) == ("COMPLETED", "0:0"), told.job.output()
    assert told.job.info()["Restarts"] == "1"
    output = told.job.output()
    assert f"job {told.job.number} goes back into the queue" in output and "resuming after step" in output
    expected, rows = metrics(alone.run), metrics(told.run)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row, other in zip(rows, expected, strict=True):
        for key in ("loss/policy", "rollout/accuracy", "rollout/num_prompts_generated", "actor/grad_norm", "actor/lr"):
            assert row[key] == pytest.approx(other[key], rel=1e-5, abs=1e-5), (row["step"], key)


def test_nothing_of_a_job_is_left_on_its_nodes(both):
    assert [ran.job.processes() for ran in both] == [[], []]
    assert not [path for ran in both for path in Path("/tmp").glob(f"da3po-{ran.job.number}-*")]


def test_a_warning_that_comes_to_the_batch_script_alone_is_passed_on(cluster, tmp_path):
    """As Slurm sends it before the time is up; here before there is anything to save."""
    job = cluster.submit("train.sbatch", *TRAIN, cwd=tmp_path)
    job.wait_until((tmp_path / "runs" / "slurm" / str(job.number) / "0" / "node1.log").exists, 60)
    job.signal("USR1", "--batch")
    job.wait_until(lambda: job.info()["Restarts"] == "1", 60)
    assert f"job {job.number} goes back into the queue" in job.output()
    cluster.run("scancel", str(job.number))
    assert job.wait(60)[0] == "CANCELLED"
    assert job.survivors() == []


@pytest.mark.parametrize("victim", ["raylet", "python"])
def test_a_node_that_fails_ends_the_job_within_a_minute_and_is_named(victim, cluster, tmp_path):
    """The node's Ray dies, or the node's whole part of the job is killed."""
    job = cluster.submit("train.sbatch", *TRAIN, cwd=tmp_path)
    job.wait_until(lambda: "2 nodes of 1 cores" in job.output(), 120)
    (raylet,) = [process for process in job.processes(node=1) if process.name() == "raylet"]
    doomed = raylet if victim == "raylet" else raylet.parents()[1]
    assert doomed.name().startswith(victim)
    begun = time.monotonic()
    doomed.send_signal(signal.SIGKILL)
    state, code = job.wait(90)
    assert time.monotonic() - begun < 60
    assert state == "FAILED" and code != "0:0"
    assert "srun: error: node2: task 1: " in job.output()
    if victim == "raylet":
        assert "da3po: node2: Ray ended" in job.output()
    assert job.survivors() == []


def test_a_port_that_is_taken_ends_the_job_with_that_reason(cluster, tmp_path):
    base = choose_ports(123_456, 0, {})["port"]
    with socket.create_server(("", base + 1)):
        begun = time.monotonic()
        job = cluster.submit("train.sbatch", *TRAIN, cwd=tmp_path, DA3PO_PORT_BASE=str(base))
        assert job.wait(60)[0] == "FAILED"
    assert time.monotonic() - begun < 60
    assert f"da3po: node1: Address already in use: port {base + 1} (Ray's node-manager-port" in job.output()


def test_the_jobs_exit_code_is_the_runs(cluster, tmp_path):
    """A failure of learner rank 1, on another node than rank 0; tests/e2e/test_e2e_failures.py has the other parts."""
    fault = {
        "PYTHONPATH": f"{ROOT / 'tests' / 'faults'}:{ROOT}",
        "DA3PO_TEST_FAULT": "da3po.learner.megatron.worker:LearnerRank.step",
        "DA3PO_TEST_FAULT_RANK": "1",
    }
    job = cluster.submit("train.sbatch", *TRAIN, "parallel=dp2", "eval.before=false", cwd=tmp_path, **fault)
    assert job.wait(240) == ("FAILED", "1:0"), job.output()
    assert "learner 0 on node1; learner 1 on node2" in job.output()
    assert "learner-1: step failed: RuntimeError: fault in LearnerRank.step" in job.output()


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("4:00:00", "04:00:00"), ("04:00:00", "04:00:00"), ("1-00:00:00", "1-00:00:00"), ("90", "01:30:00")],
)
def test_time_limits_mean_what_slurm_means_by_them(asked, meant, cluster, tmp_path):
    job = cluster.submit("train.sbatch", *TRAIN, cwd=tmp_path, options=(f"--time={asked}", "--hold"))
    assert job.info()["TimeLimit"] == meant
    cluster.run("scancel", str(job.number))


def test_array_jobs_fill_in_their_index(cluster, tmp_path):
    job = cluster.submit(
        "eval.sbatch", "data.eval=problems-%a.jsonl", cwd=tmp_path, options=("--array=7", "--output=array.out")
    )
    assert job.wait(120) == ("FAILED", "2:0")
    assert "problems-7.jsonl" in (tmp_path / "array.out").read_text()
