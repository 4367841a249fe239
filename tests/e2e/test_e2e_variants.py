"""Every algorithm and every layout by one override, and the ways a run ends early; real parts, a step each."""

import json
import signal

import command_line
import pytest
from command_line import SMALL, Command, metrics

from da3po.transcripts.store import Transcripts

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

ONE_STEP = ["train", *SMALL, "train.steps=1", "eval.before=false", "eval.after=false", "run.dir=run"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["algo=grpo", "parallel=tp2"],
        ["algo=dapo", "parallel=pp2", "rollout.temperature=0.6"],
        ["algo=gspo", "parallel=dp2", "train.prompts_per_update=4"],
        ["algo=gspo", "algo/daa=constant", "parallel=tp2pp2"],
        ["engine.num_engines=2", "algo/daa=adaptive"],
        ["engine.tp=2"],
    ],
    ids=" ".join,
)
def test_a_step_of_every_kind(overrides, tmp_path):
    command = command_line.run(*ONE_STEP, *overrides, cwd=tmp_path)
    assert command.process.returncode == 0, command.output()
    (row,) = metrics(tmp_path / "run")
    assert row["mismatch/mean_abs_logprob"] < 1e-4
    assert row["mismatch/max_abs_logprob"] < 1e-2
    assert row["actor/grad_norm"] > 0
    assert command.survivors() == []


AHEAD = ["rollout.max_lag=1", "algo.loss.correction=token_tis"]
IN_FLIGHT = ["rollout.max_lag=2", "rollout.in_flight_updates=true", "algo.loss.correction=sequence_mask"]
CARRIED = ["algo.dynamic_sampling.max_surplus_age=1"]


@pytest.mark.parametrize(("overrides", "oldest"), [(AHEAD, 1), (IN_FLIGHT, 2), (CARRIED, 1)], ids=str)
def test_samples_of_older_weights(overrides, oldest, tmp_path):
    command = command_line.run(*ONE_STEP, "train.steps=4", *overrides, cwd=tmp_path)
    assert command.process.returncode == 0, command.output()
    rows = metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["rollout/staleness_max"] <= oldest for row in rows)
    assert all(row["offpolicy/kl"] < 0.5 and row["actor/grad_norm"] > 0 for row in rows)
    if overrides == AHEAD:
        assert [row["rollout/staleness_mean"] for row in rows] == [0, 1, 1, 1]
    transcripts = Transcripts(tmp_path / "run")
    for step in transcripts.steps():
        responses = list(transcripts.read(step))
        assert all(sum(count for _, count in row["versions"]) == row["num_tokens"] for row in responses)
        assert {version for row in responses for version, _ in row["versions"]} <= set(range(step))
    assert command.survivors() == []


def test_data_that_is_too_hard_ends_the_run_with_a_checkpoint_and_says_why(tmp_path):
    rows = [
        {"problem": f"What is the {i}th letter of the alphabet of {i} letters?", "answer": f"zz{i}"} for i in range(40)
    ]
    (tmp_path / "hard.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    options = ["data.train=hard.jsonl", "data.max_prompt_tokens=256", "algo.dynamic_sampling.max_rounds=2"]
    command = command_line.run(*ONE_STEP, *options, cwd=tmp_path)
    assert command.process.returncode == 3, command.output()
    assert "step 1 wants 8 prompts and has 0" in command.output()
    assert "Traceback" not in command.output()
    assert (tmp_path / "run" / "checkpoints" / "step_000000" / "manifest.json").exists()
    assert command.survivors() == []


@pytest.mark.parametrize(("victim", "overrides"), [("engine", ["engine.max_restarts=0"]), ("learner", [])])
def test_a_worker_that_is_killed_for_good_ends_the_run_and_is_named(victim, overrides, tmp_path):
    command = Command(*ONE_STEP[:-1], "train.steps=50", "run.dir=run", *overrides, cwd=tmp_path)
    command.wait_until(lambda: len(metrics(tmp_path / "run")) >= 1)
    for process in command.workers(victim):
        process.send_signal(signal.SIGKILL)
    assert command.wait(120) == 1
    assert f"{victim}-0" in command.output() or f"{victim} 0" in command.output()
    assert command.survivors() == []
