"""What stays: the newest, every so many, and the best. Hand-made steps, and a saver around a fake learner."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from da3po.checkpoint.directory import CheckpointDirectory, CheckpointError, write_state
from da3po.checkpoint.retention import Best, BestRule, Retention
from da3po.checkpoint.saver import Contents, Due, SaveError, Saver


@pytest.mark.parametrize(
    ("retention", "best", "gone"),
    [
        (Retention(keep=2), None, [9, 10, 20, 25]),
        (Retention(keep=2, every=10), None, [9, 25]),
        (Retention(keep=1, every=0), 9, [10, 20, 25, 99]),
        (Retention(keep=1, every=25), 99, [9, 10, 20]),
        (Retention(keep=9), None, []),
    ],
)
def test_what_is_retired(retention: Retention, best: int | None, gone: list[int]) -> None:
    """C11: as numbers; 9 is older than 10."""
    assert retention.retired([100, 9, 99, 10, 25, 20], best) == gone


@pytest.mark.parametrize(
    ("mode", "value", "on", "improves"),
    [
        ("max", 0.1, None, True),
        ("max", float("nan"), None, False),
        ("max", 0.5, 0.4, True),
        ("max", 0.4, 0.4, False),
        ("max", float("nan"), 0.4, False),
        ("min", 0.3, 0.4, True),
        ("min", 0.5, 0.4, False),
    ],
)
def test_what_is_better(mode: Any, value: float, on: float | None, improves: bool) -> None:
    before = None if on is None else Best(step=1, metric="eval/x", value=on)
    assert BestRule(metric="eval/x", mode=mode).improves(value, before) is improves
    other = Best(step=1, metric="eval/other", value=9.0)
    assert BestRule(metric="eval/x", mode=mode).improves(0.0, other)


class Learner:
    """Writes one file; `hold` keeps the writing from ending."""

    def __init__(self) -> None:
        self.hold = asyncio.Event()
        self.hold.set()
        self.weight = 0
        self.num_writing = 0
        self.error: Exception | None = None
        self._path: Path | None = None

    async def save(self, path: Path) -> None:
        await self.start_saving(path)
        await self.finish_saving()

    async def start_saving(self, path: Path) -> None:
        self._path, self._copy = path, self.weight
        self.num_writing += 1
        assert self.num_writing == 1

    async def is_saving(self) -> bool:
        return not self.hold.is_set()

    async def finish_saving(self) -> None:
        self.num_writing -= 1
        assert self._path is not None
        if self.error:
            raise self.error
        (self._path / "weight").write_text(str(self._copy))


class Saving:
    """A saver of every second of ten steps."""

    def __init__(self, path: Path, *, asynchronous: bool = False, keep: int = 2, **options: Any) -> None:
        self.path = path
        self.learner = Learner()
        self.recorded: list[tuple[int, dict[str, float]]] = []
        self.directory = CheckpointDirectory(path, keep)
        self.saver = Saver(
            directory=self.directory,
            learner=self.learner,
            contents=Contents(rollouts=lambda step: {"after": step}, identity={"model": "m"}, config="a: 1\n"),
            due=Due(every=options.pop("every", 2), last_step=10, best=options.pop("rule", None)),
            start=0,
            best=options.pop("best", None),
            asynchronous=asynchronous,
            grace_seconds=1.0,
            record=lambda step, stats, message: self.recorded.append((step, dict(stats.values))),
        )

    async def train(self, first: int, last: int, scores: dict[int, float] | None = None) -> None:
        for step in range(first, last + 1):
            self.learner.weight = step
            if scores and step in scores:
                self.saver.evaluated(step, {"eval/x": scores[step]})
            await self.saver.after(step)
            await asyncio.sleep(0)

    async def train_and_fail(self, last: int, error: Exception) -> None:
        async with self.saver:
            await self.train(1, last)
            raise error

    def steps(self) -> list[int]:
        return [checkpoint.step for checkpoint in self.directory.complete()]


RULE = BestRule(metric="eval/x", mode="max")


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_the_best_step_is_saved_kept_and_named(asynchronous: bool, tmp_path: Path) -> None:
    saving = Saving(tmp_path, asynchronous=asynchronous, keep=1, rule=RULE)
    await saving.train(1, 9, {1: 0.2, 3: 0.6, 5: 0.4, 6: 0.6, 9: 0.1})
    await saving.saver.settle()
    assert saving.steps() == [3, 8]
    assert json.loads((tmp_path / "best.json").read_text()) == {"step": 3, "metric": "eval/x", "value": 0.6}
    assert saving.directory.latest().state()["best"] == {"step": 3, "metric": "eval/x", "value": 0.6}
    await saving.train(10, 10, {10: 0.7})
    await saving.saver.settle()
    assert saving.steps() == [10] and saving.directory.best() == Best(step=10, metric="eval/x", value=0.7)


async def test_an_evaluation_without_the_metric_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint.best=eval/x is not evaluated; there is: eval/avg@8, eval/y"):
        Saving(tmp_path, rule=RULE).saver.evaluated(2, {"eval/avg@8": 0.1, "eval/y": 0.2})


async def test_base_weights_are_no_checkpoint_and_never_the_best(tmp_path: Path) -> None:
    saving = Saving(tmp_path, rule=RULE)
    await saving.train(0, 2, {0: 0.9, 2: 0.3})
    assert saving.directory.best() == Best(step=2, metric="eval/x", value=0.3)


async def test_a_step_that_is_evaluated_after_its_save_becomes_the_best_without_another(tmp_path: Path) -> None:
    saving = Saving(tmp_path, rule=RULE)
    await saving.train(1, 2)
    saving.saver.evaluated(2, {"eval/x": 0.5})
    assert saving.directory.best() == Best(step=2, metric="eval/x", value=0.5)
    assert [step for step, _ in saving.recorded] == [2]


def test_a_pointer_to_a_step_that_is_gone_or_damaged_is_none(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path, keep=9)
    for step in (1, 2):
        writing = directory.begin(step)
        write_state(writing, {}, "")
        directory.commit(step, writing, best=Best(step=step, metric="m", value=step))
    (tmp_path / "step_000002" / "state.json").unlink()
    assert directory.best() is None
    assert directory.best(Best(step=1, metric="m", value=1.0)) == Best(step=1, metric="m", value=1.0)
    (tmp_path / "best.json").write_text("{half")
    assert directory.best() is None


async def test_training_goes_on_while_a_step_is_written_and_the_copy_is_of_that_step(tmp_path: Path) -> None:
    saving = Saving(tmp_path, asynchronous=True)
    saving.learner.hold.clear()
    await saving.train(1, 3)
    assert saving.steps() == [] and (tmp_path / ".writing-step_000002").is_dir()
    saving.learner.hold.set()
    await saving.saver.settle()
    assert saving.steps() == [2]
    assert (tmp_path / "step_000002" / "learner" / "weight").read_text() == "2"


async def test_at_most_one_save_is_under_way(tmp_path: Path) -> None:
    """The next one that is due waits, and counts its waiting."""
    saving = Saving(tmp_path, asynchronous=True)
    saving.learner.hold.clear()
    training = asyncio.ensure_future(saving.train(1, 4))
    await asyncio.sleep(0.05)
    assert not training.done() and saving.learner.num_writing == 1
    saving.learner.hold.set()
    await training
    await saving.saver.settle()
    assert saving.steps() == [2, 4]
    (_, first), (_, second) = saving.recorded
    assert first["checkpoint/blocked_seconds"] >= 0.04
    for values in (first, second):
        assert values["checkpoint/seconds"] > 0 and values["checkpoint/blocked_seconds"] >= 0


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_save_that_fails_ends_the_run_and_leaves_the_one_before(asynchronous: bool, tmp_path: Path) -> None:
    saving = Saving(tmp_path, asynchronous=asynchronous, keep=1)
    await saving.train(1, 3)
    saving.learner.error = OSError(28, "No space left on device")
    with pytest.raises(
        SaveError, match=r"step 4 could not be saved: .*No space left.*newest checkpoint is .*step_000002"
    ):
        await saving.train(4, 6)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000002"]


async def test_a_folder_that_cannot_be_made_is_a_save_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(step: int) -> Path:
        raise OSError(28, "No space left on device")

    saving = Saving(tmp_path)
    await saving.train(1, 3)
    monkeypatch.setattr(saving.directory, "begin", refuse)
    with pytest.raises(SaveError, match=r"step 4 could not be saved: .*No space left.*newest checkpoint is .*000002"):
        await saving.train(4, 4)
    assert saving.steps() == [2]


async def test_a_run_that_fails_completes_the_save_that_is_under_way(tmp_path: Path) -> None:
    saving = Saving(tmp_path, asynchronous=True)
    with pytest.raises(RuntimeError, match="engine"):
        await saving.train_and_fail(2, RuntimeError("an engine died"))
    assert saving.steps() == [2]


async def test_a_run_that_fails_does_not_wait_for_a_save_that_hangs(tmp_path: Path) -> None:
    saving = Saving(tmp_path, asynchronous=True)
    saving.saver._grace_seconds = 0.05
    saving.learner.hold.clear()
    with pytest.raises(RuntimeError, match="rank"):
        await saving.train_and_fail(2, RuntimeError("a rank died"))
    assert saving.steps() == []
