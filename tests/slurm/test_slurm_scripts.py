"""What the batch scripts ask of Slurm, with commands of Slurm that write down how they were called."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from slurm_cluster import ROOT

SCRIPTS = sorted((ROOT / "slurm").iterdir())


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck on PATH")
def test_scripts_pass_shellcheck():
    checked = [*SCRIPTS, ROOT / "tools" / "local_slurm.sh"]
    done = subprocess.run(["shellcheck", "-x", *checked], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def submit(tmp_path):
    """Runs a script as the first node of job 77 would; srun ends with a given code, at once."""

    def run(script: str, *arguments: str, exit_code: int = 0, **environ: str) -> tuple[int, str]:
        commands = tmp_path / "bin"
        commands.mkdir(exist_ok=True)
        for name, body in {
            "srun": f'printf "%s\\n" "$@" >"$CALLS/srun"; env >"$CALLS/environment"; exit {exit_code}',
            "scontrol": '[ "$1" = show ] && printf "node1\\nnode2\\n" || echo "$@" >>"$CALLS/scontrol"',
        }.items():
            (commands / name).write_text(f"#!/bin/sh\n{body}\n")
            (commands / name).chmod(0o755)
        environment = {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "CALLS": str(tmp_path),
            "SLURM_JOB_ID": "77",
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_CPUS_ON_NODE": "16",
            "DA3PO_HOME": str(ROOT),
            "DA3PO_PYTHON": "/bin/sh",
            **environ,
        }
        ended = subprocess.run(
            [shutil.which("bash") or "bash", ROOT / "slurm" / script, *arguments],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        called = tmp_path / "srun"
        return ended.returncode, called.read_text() if called.exists() else ended.stderr

    return run


def test_one_process_on_every_node_with_the_jobs_cores(submit, tmp_path):
    code, called = submit("train.sbatch", "experiment=quickstart", "data.train=a file.jsonl", SLURM_CPUS_PER_TASK="2")
    assert code == 0
    words = called.splitlines()
    assert {"--nodes=2", "--ntasks=2", "--cpus-per-task=2", "--kill-on-bad-exit=1"} <= set(words)
    assert words[-4:] == ["train", "experiment=quickstart", "data.train=a file.jsonl", "cluster.kind=existing"]
    assert str(tmp_path / "runs" / "slurm" / "77" / "0") in words


def test_what_a_site_sets_reaches_the_nodes(submit, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(ROOT / "slurm", home / "slurm")
    site = home / "slurm" / "environment.sh"
    lines = [line.removeprefix("# ") for line in site.read_text().splitlines()]
    settings = [line for line in lines if line.startswith(("DA3PO_INTERFACE=", "DA3PO_PORT_BASE=", "NCCL_IB_HCA="))]
    assert len(settings) == 3
    site.write_text(site.read_text() + "\n".join(settings) + "\n")
    code, _ = submit("train.sbatch", "experiment=quickstart", DA3PO_HOME=str(home))
    assert code == 0
    found = (tmp_path / "environment").read_text().splitlines()
    assert {*settings, "NCCL_DEBUG=WARN", "DA3PO_START_TIMEOUT=180"} <= set(found)


def test_a_container_has_the_directories_of_the_run(submit, tmp_path):
    image = {"CONTAINER_IMAGE": "example#da3po:1", "CONTAINER_MOUNTS": "/lustre:/lustre", "DA3PO_PYTHON": ""}
    _, called = submit("train.sbatch", "experiment=quickstart", **image)
    words = called.splitlines()
    assert "--container-image=example#da3po:1" in words
    (mounts,) = [word for word in words if word.startswith("--container-mounts=")]
    assert mounts.endswith(",/lustre:/lustre") and f"{tmp_path}:{tmp_path}" in mounts and f"{ROOT}:{ROOT}" in mounts
    assert words[words.index("-m") - 1] == "python"


@pytest.mark.parametrize(
    ("code", "environ", "requeued"),
    [
        (138, {}, True),
        (138, {"SLURM_RESTART_COUNT": "3", "DA3PO_MAX_REQUEUES": "3"}, False),
        (138, {"DA3PO_MAX_REQUEUES": "0"}, False),
        (143, {}, False),
        (1, {}, False),
        (0, {}, False),
    ],
)
def test_only_a_run_that_saved_when_asked_goes_back_into_the_queue(code, environ, requeued, submit, tmp_path):
    assert submit("train.sbatch", exit_code=code, **environ)[0] == code
    calls = tmp_path / "scontrol"
    assert (calls.read_text() if calls.exists() else "") == ("requeue 77\n" if requeued else "")


def test_the_runs_own_exit_code_counts(submit, tmp_path):
    """srun has that of the worst node, and a node may be ended while the run is closing."""
    folder = tmp_path / "runs" / "slurm" / "77" / "0"
    folder.mkdir(parents=True)
    (folder / "ended").write_text("0")
    assert submit("train.sbatch", exit_code=143)[0] == 0


def test_a_missing_python_is_named(submit):
    code, said = submit("train.sbatch", DA3PO_PYTHON="/nowhere/python")
    assert code == 1 and "there is no /nowhere/python" in said


def test_the_index_of_an_array_is_filled_in(submit):
    _, called = submit("eval.sbatch", "run.seed=%a", "run.name=seed-%a", SLURM_ARRAY_TASK_ID="4")
    assert {"run.seed=4", "run.name=seed-4"} <= set(called.splitlines())


def test_conversions_take_one_node_and_no_ray(submit):
    _, called = submit("convert.sbatch", "export", "runs/first", "exported")
    words = called.splitlines()
    assert "--nodes=1" in words and words[-4:] == ["convert", "export", "runs/first", "exported"]
    assert not any("cluster" in word for word in words)


def test_what_docs_say_of_variables_is_true():
    text = (ROOT / "docs" / "cluster.md").read_text()
    read = "".join(path.read_text() for path in [*SCRIPTS, *Path(ROOT / "da3po" / "cluster").glob("*.py")])
    for name in ("DA3PO_JOB_DIR", "DA3PO_INTERFACE", "DA3PO_PORT_BASE", "DA3PO_START_TIMEOUT", "DA3PO_MAX_REQUEUES"):
        assert name in text and name in read
