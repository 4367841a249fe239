from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from da3po.runtime.jsonl import read_rows
from da3po.runtime.sinks import JsonlSink, TensorBoardSink


def scalars(folder: Path, name: str) -> dict[int, float]:
    """What TensorBoard shows for a metric."""
    board = EventAccumulator(str(folder))
    board.Reload()
    return {event.step: event.value for event in board.Scalars(name)}


def test_jsonl_sink(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl", after=0)
    sink.write(1, {"actor/lr": 1e-6})
    sink.close()
    assert read_rows(tmp_path / "metrics.jsonl") == [{"step": 1, "actor/lr": 1e-6}]


def test_jsonl_sink_replaces_a_step_that_is_recorded_again(tmp_path: Path) -> None:
    """A run evaluates its weights of step 4, saves, dies, and on its return evaluates the same weights again."""
    path = tmp_path / "evaluations.jsonl"
    first = JsonlSink(path, after=0)
    for step in (0, 4):
        first.write(step, {"eval/accuracy": 0.1})
    first.close()
    second = JsonlSink(path, after=4)
    second.write(4, {"eval/accuracy": 0.2})
    second.write(8, {"eval/accuracy": 0.3})
    second.close()
    assert [(row["step"], row["eval/accuracy"]) for row in read_rows(path)] == [(0, 0.1), (4, 0.2), (8, 0.3)]


def test_tensorboard_shows_what_was_written(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, after=0)
    sink.write(1, {"loss/policy": 0.5, "actor/lr": 0.25})
    sink.write(2, {"loss/policy": 0.75})
    sink.close()
    assert scalars(tmp_path, "loss/policy") == {1: 0.5, 2: 0.75}
    assert scalars(tmp_path, "actor/lr") == {1: 0.25}


def test_tensorboard_events_are_readable_before_the_sink_closes(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, after=0)
    sink.write(1, {"a": 1.0})
    assert scalars(tmp_path, "a") == {1: 1.0}
    sink.close()


def test_tensorboard_after_a_resume_shows_each_step_once(tmp_path: Path) -> None:
    """Steps 3 and 4 were run after the checkpoint of step 2, and are run again."""
    first = TensorBoardSink(tmp_path, after=0)
    for step in range(1, 5):
        first.write(step, {"a": 1.0})
    first.close()
    second = TensorBoardSink(tmp_path, after=2)
    second.write(3, {"a": 2.0})
    second.close()
    assert scalars(tmp_path, "a") == {1: 1.0, 2: 1.0, 3: 2.0}
