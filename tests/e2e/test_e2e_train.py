"""Whole runs by the command line: real Ray, Megatron-Core and vLLM. Kept few, for each start costs half a minute."""

import json
import re
import signal

import command_line
import pytest
import torch
from command_line import SMALL, Command, metrics
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from da3po.transcripts.store import Transcripts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TRAIN = ["train", *SMALL, "train.steps=4", "checkpoint.every=2"]
MAX_MEAN_MISMATCH, MAX_MISMATCH = 1e-4, 1e-2


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of four steps that nobody disturbed."""
    folder = tmp_path_factory.mktemp("finished")
    command = command_line.run(*TRAIN, "run.dir=run", cwd=folder)
    assert command.process.returncode == 0, command.output()
    return command, folder / "run"


def test_every_step_has_its_metrics(finished):
    _, run_dir = finished
    rows = metrics(run_dir)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    wanted = {
        "rollout/accuracy", "rollout/num_prompts_generated", "rollout/dropped_all_correct", "rollout/dropped_all_wrong",
        "daa/amplified_groups", "loss/policy", "actor/grad_norm", "actor/lr", "actor/entropy",
        "mismatch/mean_abs_logprob", "rollout/truncated_fraction", "time/step", "time/generate", "time/learn",
        "time/sync", "tokens/per_second",
    }  # fmt: skip
    for row in rows:
        assert wanted <= row.keys()
        assert row["actor/grad_norm"] > 0 and row["actor/lr"] == pytest.approx(2e-4)


def test_engine_and_learner_agree_before_and_after_every_update(finished):
    _, run_dir = finished
    for row in metrics(run_dir):
        assert row["mismatch/mean_abs_logprob"] < MAX_MEAN_MISMATCH
        assert row["mismatch/max_abs_logprob"] < MAX_MISMATCH


def test_records_of_a_finished_run(finished):
    command, run_dir = finished
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss/policy")] == [1, 2, 3, 4]
    evaluations = [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]
    assert [row["step"] for row in evaluations] == [0, 4]
    assert (run_dir / "config.yaml").exists() and (run_dir / "rollouts.jsonl").exists()
    assert list(run_dir.glob("*.png"))
    assert Transcripts(run_dir).steps() == [1, 2, 3, 4]
    trained = [row for row in Transcripts(run_dir).read(4) if not row["dropped"]]
    assert len(trained) == 8 * metrics(run_dir)[-1]["rollout/num_prompts_trained"]
    assert "before" in command.output() and "after" in command.output()


def test_nothing_is_left_running(finished):
    command, _ = finished
    assert command.survivors() == []


def test_the_export_loads_in_transformers(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, run_dir = finished
    model = AutoModelForCausalLM.from_pretrained(run_dir / "export", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(run_dir / "export")
    ids = tokenizer("12 + 7\nAnswer: ", return_tensors="pt").input_ids
    assert torch.isfinite(model(ids).logits).all()


def test_a_finished_run_started_again_says_so(finished):
    _, run_dir = finished
    again = command_line.run(*TRAIN, "run.dir=run", cwd=run_dir.parent)
    assert again.process.returncode == 0
    assert "is finished: step 4 of 4" in again.output() and "before" in again.output()


def test_another_algorithm_is_refused_in_the_directory_of_a_run(finished):
    _, run_dir = finished
    config = (run_dir / "config.yaml").read_text()
    other = command_line.run(*TRAIN, "run.dir=run", "algo=grpo", cwd=run_dir.parent)
    assert other.process.returncode == 2
    assert "was made with algo.name='da3po', this run has 'grpo'" in other.output()
    assert (run_dir / "config.yaml").read_text() == config


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_started_again_goes_on_as_if_nothing_had_been(finished, how, tmp_path):
    _, reference = finished
    run_dir = tmp_path / "run"
    killed = Command(*TRAIN, "run.dir=run", cwd=tmp_path)
    killed.wait_until(lambda: len(metrics(run_dir)) >= 3)
    killed.process.send_signal(how)
    assert killed.wait() == (-signal.SIGKILL if how == signal.SIGKILL else 128 + signal.SIGTERM)
    assert killed.survivors() == []

    resumed = command_line.run(*TRAIN, "run.dir=run", cwd=tmp_path)
    assert resumed.process.returncode == 0, resumed.output()
    # A signal has the last finished step saved; a kill leaves what was due (every second step).
    where = "resuming after step 2" if how == signal.SIGKILL else "resuming after step [34]"
    assert re.search(where, resumed.output())
    expected, rows = metrics(reference), metrics(run_dir)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row, other in zip(rows, expected, strict=True):
        assert row["actor/lr"] == other["actor/lr"]
        for key in ("loss/policy", "rollout/accuracy", "rollout/num_prompts_generated", "actor/grad_norm"):
            assert row[key] == pytest.approx(other[key], rel=1e-5, abs=1e-5), (row["step"], key)
    assert _rollouts(run_dir) == _rollouts(reference)


def _rollouts(run_dir):
    rows = [json.loads(line) for line in (run_dir / "rollouts.jsonl").read_text().splitlines()]
    return [(row["step"], row["prompt"], row["response"]) for row in rows]


def test_an_interrupted_start_leaves_nothing(tmp_path):
    command = Command(*TRAIN, "run.dir=run", cwd=tmp_path)
    command.wait_until(lambda: "starting learner and engines" in command.output())
    command.process.send_signal(signal.SIGINT)
    assert command.wait() == 128 + signal.SIGINT
    assert command.survivors() == []
