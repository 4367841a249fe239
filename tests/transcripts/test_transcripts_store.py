from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import group

from da3po.config.schema import AlgoConfig, ConfigError, DaaConfig, OverlongConfig
from da3po.rollout.postprocess import PostProcessor
from da3po.runtime.interruption import Interrupted
from da3po.transcripts.rows import batch_rows
from da3po.transcripts.store import StoringRecorder, Transcripts
from da3po.types import StepBatch, StepStats


def make_batch(step: int = 1) -> StepBatch:
    """A dropped group of two, and a hard one with one of three correct and a sample that could not be graded."""
    algo = AlgoConfig(overlong=OverlongConfig(enabled=False), daa=DaaConfig(kind="constant"))
    post = PostProcessor(algo, 1, 100)
    post.begin(step, weight_version=step - 1)
    post.add(group("CC", draw=0, uid="easy"))
    batch = post.add(group("WTCW", draw=1, uid="hard", finishes=["length", "stop", "stop", "stop"]))
    assert batch is not None
    return batch


def test_every_response_has_a_row_and_only_trained_ones_a_signal() -> None:
    rows = batch_rows(make_batch())
    assert [(row["prompt_uid"], row["sample"], row["outcome"], row["dropped"]) for row in rows] == [
        ("hard", 0, "wrong", None),
        ("hard", 1, "timeout", None),
        ("hard", 2, "correct", None),
        ("hard", 3, "wrong", None),
        ("easy", 0, "correct", "all_correct"),
        ("easy", 1, "correct", "all_correct"),
    ]
    # 1 of 3: mean -1/3, sample std 2/sqrt(3); DAA doubles the correct one.
    before = [-(3**-0.5), None, 2 * 3**-0.5, -(3**-0.5), None, None]
    for row, expected in zip(rows, before, strict=True):
        assert row["advantage_before_daa"] == (None if expected is None else pytest.approx(expected, rel=1e-4))
    assert rows[2]["advantage"] == pytest.approx(4 * 3**-0.5, rel=1e-4)
    assert [row["reward"] for row in rows] == [-1.0, None, 1.0, -1.0, None, None]
    assert {row["p_hat"] for row in rows[:4]} == {1 / 3}
    assert rows[0]["finish"] == "length"
    assert rows[0]["mean_logprob"] == -0.625


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    batch = make_batch(4)
    store = Transcripts(tmp_path)
    store.write(batch, keep=3)
    assert list(store.read(4)) == list(store.read(None)) == batch_rows(batch)


def test_versions_of_a_response_that_saw_an_exchange(tmp_path: Path) -> None:
    batch = make_batch()
    (trained,) = batch.groups
    first, *others = trained.completions
    mixed = replace(trained, completions=(replace(first, versions=((0, 1), (1, 1))), *others))
    store = Transcripts(tmp_path)
    store.write(replace(batch, groups=(mixed,)), keep=1)
    assert [row["versions"] for row in store.read(1)][:2] == [[[0, 1], [1, 1]], [[0, 2]]]


def test_text_that_is_no_utf_8_is_stored_as_an_escape(tmp_path: Path) -> None:
    batch = make_batch()
    (trained,) = batch.groups
    first, *others = trained.completions
    broken = replace(trained, completions=(replace(first, text="half \ud83d pair"), *others))
    store = Transcripts(tmp_path)
    store.write(replace(batch, groups=(broken,)), keep=1)
    assert next(store.read(1))["response"] == "half \\ud83d pair"


def test_the_newest_steps_are_kept(tmp_path: Path) -> None:
    store = Transcripts(tmp_path)
    for step in (8, 9, 10, 11):
        store.write(make_batch(step), keep=2)
    assert store.steps() == [10, 11]


@pytest.mark.parametrize(("step", "message"), [(3, r"has no step 3; it has 5 and 7 to 8"), (None, None)])
def test_a_step_that_is_not_there_is_said(tmp_path: Path, step: int | None, message: str | None) -> None:
    store = Transcripts(tmp_path)
    with pytest.raises(ConfigError, match="there are no rollouts in"):
        list(store.read(step))
    for stored in (5, 7, 8):
        store.write(make_batch(stored), keep=10)
    if message:
        with pytest.raises(ConfigError, match=message):
            list(store.read(step))
    else:
        assert next(store.read(step))["step"] == 8


class Kept:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def step(self, samples: StepBatch, _stats: StepStats) -> None:
        self.steps.append(samples.step)


def recorder(tmp_path: Path, after: int, write: Callable[..., Any] | None = None) -> tuple[Kept, StoringRecorder]:
    kept, store = Kept(), Transcripts(tmp_path)
    if write:
        store.write = write  # type: ignore[method-assign]
    return kept, StoringRecorder(kept, store, keep=5, after=after)


def take_steps(storing: StoringRecorder, *steps: int) -> None:
    for step in steps:
        storing.step(make_batch(step), StepStats())


def test_a_resumed_run_writes_later_steps_anew(tmp_path: Path) -> None:
    kept, first = recorder(tmp_path, after=0)
    with first:
        take_steps(first, 1, 2, 3)
    assert kept.steps == Transcripts(tmp_path).steps() == [1, 2, 3]
    with recorder(tmp_path, after=1)[1]:
        pass
    assert Transcripts(tmp_path).steps() == [1]


def test_a_step_waits_for_no_write_but_that_of_the_step_before_the_last(tmp_path: Path) -> None:
    may_write, written = [threading.Event() for _ in range(3)], []

    def write(batch: StepBatch, keep: int) -> None:
        assert may_write[batch.step - 1].wait(20)
        written.append(batch.step)

    _, storing = recorder(tmp_path, 0, write)
    storing.step(make_batch(1), StepStats())
    storing.step(make_batch(2), StepStats())
    assert written == []
    may_write[0].set()
    storing.step(make_batch(3), StepStats())
    assert written == [1]
    may_write[1].set()
    may_write[2].set()
    with storing:
        pass
    assert written == [1, 2, 3]


def test_a_write_that_fails_is_raised_at_a_later_step_and_at_the_end(tmp_path: Path) -> None:
    def full(batch: StepBatch, keep: int) -> None:
        raise OSError("no space left")

    _, storing = recorder(tmp_path, 0, full)
    storing.step(make_batch(1), StepStats())
    with pytest.raises(OSError, match="no space left"):
        take_steps(storing, 2, 3)
    with pytest.raises(OSError, match="no space left"), storing:
        pass


def test_a_write_that_fails_does_not_hide_what_ended_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def full(batch: StepBatch, keep: int) -> None:
        raise OSError("no space left")

    _, storing = recorder(tmp_path, 0, full)
    storing.step(make_batch(1), StepStats())
    with pytest.raises(Interrupted), storing:
        raise Interrupted(signal.SIGTERM)
    assert "rollouts could not be stored: no space left" in caplog.text
