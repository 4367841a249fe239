"""What a run says of itself at its end."""

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from da3po.config.schema import EvalConfig, LoggingConfig
from da3po.eval.during import DuringTraining, compare_ends, write_result
from da3po.runtime.jsonl import read_rows
from da3po.runtime.recorder import build_recorder
from da3po.types import Completion, Grade, GroupResult, Outcome, Prompt


def summary(value, low, high, n):
    estimate = {"value": value, "low": low, "high": high}
    return {"num_problems": 10, "num_samples": n, "avg": estimate, "pass_at": {str(n): estimate}}


def write(folder, step, *args):
    (folder / f"step_{step:06d}.json").write_text(json.dumps(summary(*args)))


def test_before_and_after_stand_side_by_side(tmp_path):
    write(tmp_path, 0, 0.2, 0.15, 0.25, 8)
    write(tmp_path, 10, 0.3, 0.28, 0.32, 8)
    write(tmp_path, 30, 0.5, 0.45, 0.55, 8)
    text = compare_ends(tmp_path)
    assert "before (step 0): avg@8 0.200 [0.150, 0.250]" in text
    assert "after (step 30): avg@8 0.500 [0.450, 0.550]" in text
    assert "gain +0.300; the 95 % intervals do not overlap" in text


def test_overlapping_intervals_are_called_so(tmp_path):
    write(tmp_path, 0, 0.2, 0.15, 0.25, 8)
    write(tmp_path, 1, 0.26, 0.22, 0.3, 8)
    assert compare_ends(tmp_path).endswith("overlap")


def test_evaluations_of_different_size_are_each_named_by_their_own(tmp_path):
    write(tmp_path, 0, 0.2, 0.15, 0.25, 2)
    write(tmp_path, 1, 0.5, 0.45, 0.55, 1)
    assert "avg@2" in compare_ends(tmp_path) and "avg@1" in compare_ends(tmp_path)


def test_one_evaluation_is_no_comparison(tmp_path):
    write(tmp_path, 1, 0.5, 0.45, 0.55, 1)
    assert "not evaluated both before and after" in compare_ends(tmp_path)


class Result:
    samples = ()

    def summary(self):
        return {"num_problems": 0}


def test_a_name_with_dots_is_kept_whole(tmp_path):
    write_result(tmp_path / "Qwen2.5-0.5B-aime24", Result(), [])
    write_result(tmp_path / "Qwen2.5-0.5B-math500", Result(), [])
    names = sorted(path.name for path in tmp_path.glob("*.json"))
    assert names == ["Qwen2.5-0.5B-aime24.json", "Qwen2.5-0.5B-math500.json"]


async def generate(requests):
    for request in requests:
        answer = Completion(token_ids=(1,), logprobs=(0.0,), text="1", finish="stop", weight_version=2)
        yield GroupResult(key=request.key, completions=(answer, answer))


async def grade(gold, responses):
    return [Grade(outcome=Outcome.CORRECT, answer=response) for response in responses]


def evaluator(folder, recorder):
    problem = Prompt(uid="a", draw=0, epoch=0, text="?", token_ids=(1,), gold="1", source="s")
    return DuringTraining(
        prompts=[problem],
        generate=generate,
        grade=grade,
        config=EvalConfig(every=1, num_samples=2, max_tokens=4),
        seed=1,
        last_step=4,
        folder=folder,
        record=recorder.evaluation,
    )


async def test_killed_between_record_and_summary_an_evaluation_is_recorded_once(tmp_path, monkeypatch):
    def killed(stem, result, prompts):
        raise KeyboardInterrupt

    config = LoggingConfig(tensorboard=True)
    recorder = build_recorder(config, tmp_path, after=0, last_step=4)
    with monkeypatch.context() as dying:
        dying.setattr("da3po.eval.during.write_result", killed)
        with pytest.raises(KeyboardInterrupt):
            await evaluator(tmp_path, recorder).after(2)
    assert not list(tmp_path.glob("step_*.json"))
    for _ in range(2):  # the second resumed run finds the summary of the first
        resumed = build_recorder(config, tmp_path, after=2, last_step=4)
        await evaluator(tmp_path, resumed).opening(2)
        resumed.close()
        assert [row["step"] for row in read_rows(tmp_path / "evaluations.jsonl")] == [2]
        assert json.loads((tmp_path / "step_000002.json").read_text())["avg"]["value"] == 1.0
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    names = board.Tags()["scalars"]
    assert "eval/avg@2" in names
    assert {name: [event.step for event in board.Scalars(name)] for name in names} == {name: [2] for name in names}
