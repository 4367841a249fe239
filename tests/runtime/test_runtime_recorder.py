from __future__ import annotations

import io
from pathlib import Path

import pytest

from da3po.config.schema import LoggingConfig
from da3po.runtime.jsonl import read_rows
from da3po.runtime.recorder import Recorder, build_recorder, choose_rollouts, rollout_line
from da3po.types import Completion, Grade, Group, Outcome, Prompt, StepBatch, StepStats, TrainSample


def make_group(draw: int, outcomes: tuple[Outcome, ...]) -> Group:
    prompt = Prompt(
        uid=f"p{draw}", draw=draw, epoch=0, text=f"{draw}+1=", token_ids=(1,), gold=str(draw + 1), source="made-up"
    )
    completion = Completion(token_ids=(2, 3), logprobs=(-0.1, -0.2), text="7", finish="stop", weight_version=0)
    return Group(
        prompt=prompt,
        completions=(completion,) * len(outcomes),
        grades=tuple(Grade(outcome=outcome, answer="7") for outcome in outcomes),
    )


def make_batch(step: int, groups: tuple[Group, ...]) -> StepBatch:
    """Advantages number the samples, so that a test sees which one was taken."""
    samples = []
    for group in groups:
        samples += [
            TrainSample(
                prompt_uid=group.prompt.uid,
                prompt_ids=(1,),
                response_ids=completion.token_ids,
                behaviour_logprobs=completion.logprobs,
                reward=1.0,
                advantage=float(len(samples) + offset),
                fresh=True,
            )
            for offset, completion in enumerate(
                completion
                for completion, grade in zip(group.completions, group.grades, strict=True)
                if grade.outcome.graded
            )
        ]
    return StepBatch(
        step=step,
        samples=tuple(samples),
        group_sizes=tuple(group.num_graded for group in groups),
        stats=StepStats(),
        groups=groups,
    )


RIGHT, WRONG, TIMEOUT = Outcome.CORRECT, Outcome.WRONG, Outcome.TIMEOUT


def test_run_directory_after_two_steps_and_an_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = build_recorder(LoggingConfig(console="plain", num_rollouts=1), tmp_path, after=0, last_step=2)
    recorder.evaluation(0, StepStats({"eval/accuracy": 0.25}), "before training: accuracy 0.25")
    for step in (1, 2):
        batch = make_batch(step, (make_group(0, (RIGHT, WRONG)),))
        recorder.step(batch, StepStats({"rollout/accuracy": 0.5 * step}))
    recorder.close()
    assert read_rows(tmp_path / "metrics.jsonl") == [
        {"step": 1, "rollout/accuracy": 0.5},
        {"step": 2, "rollout/accuracy": 1.0},
    ]
    assert read_rows(tmp_path / "evaluations.jsonl") == [{"step": 0, "eval/accuracy": 0.25}]
    assert [row["advantage"] for row in read_rows(tmp_path / "rollouts.jsonl")] == [1.0, 0.0]
    assert list((tmp_path / "tensorboard").iterdir())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "before training: accuracy 0.25"
    assert [line.split("  ")[0] for line in lines[1::2]] == ["step 1/2", "step 2/2"]


def test_no_tensorboard_when_it_is_switched_off(tmp_path: Path) -> None:
    build_recorder(LoggingConfig(console="plain", tensorboard=False), tmp_path, after=0, last_step=1).close()
    assert not (tmp_path / "tensorboard").exists()


def test_resumed_recorder_continues_every_file(tmp_path: Path) -> None:
    config = LoggingConfig(console="plain", num_rollouts=1)
    batches = [make_batch(step, (make_group(0, (RIGHT, WRONG)),)) for step in (1, 2, 3)]
    first = build_recorder(config, tmp_path, after=0, last_step=3)
    for batch in batches:
        first.step(batch, StepStats({"a": 1.0}))
        first.evaluation(batch.step, StepStats({"b": 1.0}), "")
    first.close()
    second = build_recorder(config, tmp_path, after=1, last_step=3)
    second.step(batches[1], StepStats({"a": 2.0}))
    second.close()
    assert read_rows(tmp_path / "metrics.jsonl") == [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}]
    assert [row["step"] for row in read_rows(tmp_path / "evaluations.jsonl")] == [1]
    assert [row["step"] for row in read_rows(tmp_path / "rollouts.jsonl")] == [1, 2]


class SinkThatCounts:
    closed = 0

    def write(self, step: int, values: object) -> None: ...

    def close(self) -> None:
        self.closed += 1


class Silence:
    def step(self, step: int, values: object) -> None: ...
    def event(self, message: str) -> None: ...
    def close(self) -> None: ...


def test_a_sink_of_both_kinds_is_closed_once() -> None:
    sink = SinkThatCounts()
    recorder = Recorder(
        metrics=[sink],
        evaluations=[sink],
        checkpoints=[sink],
        rollouts=io.StringIO(),  # type: ignore[arg-type]
        console=Silence(),
        num_rollouts=0,
    )
    recorder.close()
    assert sink.closed == 1


def test_chosen_rollouts_change_with_the_step_and_repeat_in_a_repeated_run() -> None:
    groups = tuple(make_group(draw, (RIGHT, WRONG)) for draw in range(5))
    prompts = [[row["prompt"] for row in choose_rollouts(make_batch(step, groups), 2)] for step in (1, 2, 1)]
    assert prompts == [["2+1=", "3+1="], ["4+1=", "0+1="], ["2+1=", "3+1="]]


def test_no_more_rollouts_than_groups() -> None:
    assert len(choose_rollouts(make_batch(1, (make_group(0, (RIGHT, WRONG)),)), 3)) == 1
    assert choose_rollouts(make_batch(1, ()), 3) == []


def test_advantage_is_that_of_the_same_response() -> None:
    """Step 2 of groups of 3 shows response 2; the ungraded response 1 is not among the samples."""
    groups = (make_group(0, (RIGHT, WRONG, WRONG)), make_group(1, (RIGHT, TIMEOUT, WRONG)))
    first, second = choose_rollouts(make_batch(2, groups), 2)
    assert (first["prompt"], first["advantage"]) == ("0+1=", 2.0)
    assert (second["prompt"], second["outcome"], second["advantage"]) == ("1+1=", "wrong", 4.0)


def test_ungraded_response_has_no_advantage() -> None:
    (row,) = choose_rollouts(make_batch(1, (make_group(0, (RIGHT, TIMEOUT, WRONG)),)), 1)
    assert row["outcome"] == "timeout"
    assert "advantage" not in row


def test_rollout_line() -> None:
    row = {"prompt": "2+1=", "response": "3\n", "gold": "3", "outcome": "correct", "p_hat": 0.25, "advantage": 1.3}
    assert rollout_line(row) == "  '2+1=' -> '3\\n' correct (gold 3, p_hat 0.25, advantage +1.30)"


def test_long_texts_are_cut_in_the_middle() -> None:
    row = {"prompt": "x", "response": "a" * 50 + "b" * 50, "gold": "3", "outcome": "wrong", "p_hat": 0.0}
    assert f"'{'a' * 30} ... {'b' * 30}'" in rollout_line(row)
