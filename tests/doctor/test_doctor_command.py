"""`da3po doctor` as a whole, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from da3po import doctor
from da3po.health.finding import Finding


@pytest.fixture(autouse=True)
def only_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The checks of a node have tests of their own, and take long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "check_node", lambda need, num_nodes: [Finding(topic="host", name="cores", value="2")])


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = doctor.main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_quickstart_is_healthy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, found = run(capsys, "experiment=quickstart")
    assert code == 0 and found["healthy"]
    of_run = {one["name"]: one for one in found["nodes"]["the run"]}
    assert of_run["grader math"]["value"] == "32 of 32 reference answers are right, 0 made-up ones are"
    assert of_run["tokenizer"]["value"].startswith("32 of 32 prompts come back")
    assert list(tmp_path.iterdir()) == []


def test_data_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, "experiment=quickstart", "data.train=nowhere.jsonl")
    assert code == 1 and not found["healthy"]
    assert "nowhere.jsonl" in found["nodes"]["the run"][0]["meaning"]


def test_golds_that_no_answer_can_meet_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [{"problem": "1 + 1", "answer": "2"}, {"problem": "how?", "answer": "987654321"}]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, found = run(capsys, "experiment=quickstart", f"data.train={path}")
    grader = next(one for one in found["nodes"]["the run"] if one["name"] == "grader math")
    assert code == 1 and grader["status"] == "problem" and "1 made-up ones are" in grader["value"]


def test_packages_that_are_missing_are_problems_and_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("transformers", "da3po.reward.pool", "da3po.cluster.everywhere"):
        monkeypatch.setitem(sys.modules, name, None)
    code, found = run(capsys, "experiment=quickstart")
    of_run = {one["name"]: one for one in found["nodes"]["the run"]}
    assert code == 1 and "transformers" in of_run["tokenizer"]["meaning"]
    assert of_run["grader"]["status"] == "problem" and "da3po.reward.pool" in of_run["grader"]["meaning"]
    assert doctor.main(["--cluster"]) == 1
    assert capsys.readouterr().err.startswith("da3po: import of da3po.cluster.everywhere")


def test_a_model_of_the_hub_is_not_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, "experiment=quickstart", "model.path=Qwen/Qwen3-4B-Base")
    model = next(one for one in found["nodes"]["the run"] if one["name"] == "model.path")
    assert code == 0 and model["status"] == "note" and "would be downloaded" in model["meaning"]


def test_the_readable_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["experiment=quickstart", "data.train=nowhere.jsonl"]) == 1
    said = capsys.readouterr().out
    assert "the run: data.train:" in said and "problems: 1" in said


def test_unknown_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--clutser"]) == 2
    assert "no option --clutser; usage: da3po doctor" in capsys.readouterr().err


def test_a_cluster_needs_an_address(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert doctor.main(["--cluster"]) == 1
    assert "RAY_ADDRESS" in capsys.readouterr().err


@pytest.mark.slow
def test_every_node_of_a_cluster(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with a_cluster() as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        code, found = run(capsys, "--cluster", "experiment=quickstart")
        assert code == 0, found
        assert list(found["nodes"])[1:] == ["the cluster", "the run"]
        node = next(iter(found["nodes"].values()))
        assert {one["topic"] for one in node} >= {"packages", "gpus", "host", "slurm", "network"}
        code, found = run(
            capsys, "--cluster", "experiment=quickstart", "cluster.num_nodes=2", "cluster.gpus_per_node=1"
        )
        problems = [
            one["name"] for findings in found["nodes"].values() for one in findings if one["status"] == "problem"
        ]
        assert code == 1 and {"nodes", "GPUs", "Transformer Engine"} <= set(problems)


@contextmanager
def a_cluster() -> Iterator[str]:
    """A Ray of one node on loopback; its address."""
    code = (
        "import ray, time; "
        "ray.init(address='local', num_cpus=2, include_dashboard=False, _node_ip_address='127.0.0.1'); "
        "print('ADDRESS', ray.get_runtime_context().gcs_address, flush=True); time.sleep(600)"
    )
    environment = os.environ | {
        "RAY_AUTH_MODE": "disabled"
    }  # Ray asks for a token of its user's where it starts itself
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield next(line.split()[1] for line in process.stdout if line.startswith("ADDRESS "))
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_nodes_are_compared() -> None:
    def node(version: str) -> list[Finding]:
        return [Finding(topic="packages", name="torch", value=version)]

    found = list(doctor._compare({"a": node("2.13.0"), "b": node("2.14.0")}, wanted=3))
    assert [one.status for one in found] == ["problem", "problem"]
    assert "cluster.num_nodes=3" in found[0].meaning and found[1].meaning == "a: 2.13.0, b: 2.14.0"
    assert [one.status for one in doctor._compare({"a": node("1"), "b": node("1")}, wanted=2)] == ["ok"]


def test_a_node_that_does_not_answer_is_a_problem() -> None:
    (found,) = doctor._findings(TimeoutError())
    assert found.status == "problem" and found.meaning == "TimeoutError"
