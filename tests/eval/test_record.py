from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from da3po.config.schema import BenchmarkConfig, EvalConfig
from da3po.data.problems import DataError
from da3po.eval.record import SampleRecord, weights_fingerprint
from da3po.eval.result import make_sample
from da3po.eval.task import Evaluation, Task, contamination_line
from da3po.types import Completion, Grade, GroupRequest, GroupResult, Outcome, Prompt


def prompt(text: str) -> Prompt:
    return Prompt(uid=text, draw=0, epoch=0, text=text, token_ids=tuple(map(ord, text)), gold="1", source="s")


def completion(text: str, finish: str = "stop") -> Completion:
    return Completion(token_ids=(1, 2), logprobs=(0.0, 0.0), text=text, finish=finish, weight_version=0)  # type: ignore[arg-type]


def sample(of: Prompt, index: int, outcome: Outcome = Outcome.CORRECT, text: str = "1") -> Any:
    return make_sample(of, index, completion(text), Grade(outcome=outcome, answer=text))


PROMPTS = [prompt("a"), prompt("b"), prompt("c")]
SETTINGS = {"temperature": 1.0}


def test_what_was_written_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = SampleRecord(path, SETTINGS, PROMPTS, 2)
    odd = "\ud800 答案\u2028\n"
    first.add(PROMPTS[1], [sample(PROMPTS[1], 0, text=odd), sample(PROMPTS[1], 1)])
    second = SampleRecord(path, SETTINGS, PROMPTS, 2)
    assert second.num_pending == 2
    assert second.done == first.done
    assert [one.response for one in second.done["b"]] == [odd, "1"]
    path.read_text(encoding="utf-8")


def test_half_a_problem_a_cut_line_and_a_lost_sample_are_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    record = SampleRecord(path, SETTINGS, PROMPTS, 2)
    record.add(PROMPTS[0], [sample(PROMPTS[0], 0), sample(PROMPTS[0], 1, Outcome.ABORTED)])
    record.add(PROMPTS[1], [sample(PROMPTS[1], 0), sample(PROMPTS[1], 1)])
    record.add(PROMPTS[2], [sample(PROMPTS[2], 0), sample(PROMPTS[2], 1)])
    path.write_bytes(path.read_bytes()[:-20])
    again = SampleRecord(path, SETTINGS, PROMPTS, 2)
    assert set(again.done) == {"b"}
    assert {json.loads(line)["uid"] for line in path.read_text().splitlines()} == {"b"}


@pytest.mark.parametrize("change", [{"temperature": 0.6}, {"temperature": 1.0, "weights": "other"}])
def test_samples_of_another_evaluation_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "r.jsonl"
    SampleRecord(path, SETTINGS, PROMPTS, 1).add(PROMPTS[0], [sample(PROMPTS[0], 0)])
    with pytest.raises(DataError, match=r"r.jsonl, line 1: a sample of another evaluation .* choose another run.dir"):
        SampleRecord(path, change, PROMPTS, 1)


def test_weights_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"12")
    before = weights_fingerprint(tmp_path)
    assert before == weights_fingerprint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"123")
    assert weights_fingerprint(tmp_path) != before


class Engine:
    """Answers 1; stops after `dies_after` problems if asked to."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.asked: list[int] = []
        self._dies_after = dies_after

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        for number, request in enumerate(requests):
            if number == self._dies_after:
                await asyncio.sleep(0)  # let what was yielded be graded
                raise ConnectionError("the engine died")
            self.asked.append(request.key)
            yield GroupResult(key=request.key, completions=tuple(completion(str(s % 2)) for s in request.seeds))
            await asyncio.sleep(0)


async def grade(gold: str, responses: Sequence[str]) -> list[Grade]:
    return [Grade(outcome=Outcome.CORRECT if r == gold else Outcome.WRONG, answer=r) for r in responses]


def evaluation(folder: Path, leaked: frozenset[str] | None = frozenset({"b"}), expected: int = 3) -> Evaluation:
    benchmark = BenchmarkConfig(name="x", title="X", file="x.jsonl", num_problems=expected)
    task = Task(
        benchmark=benchmark,
        model="m",
        prompts=PROMPTS,
        config=EvalConfig(num_samples=4),
        seed=1,
        settings={"grader": "math"},
        leaked=leaked,
    )
    task.check_size()
    return Evaluation(task, folder)


async def test_an_interrupted_evaluation_goes_on_and_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = await evaluation(tmp_path / "whole").run(Engine().generate, grade)
    with pytest.raises(ConnectionError):
        await evaluation(tmp_path / "parts").run(Engine(dies_after=2).generate, grade)
    assert not (tmp_path / "parts" / "m-x.json").exists()
    second = evaluation(tmp_path / "parts")
    assert second.num_pending == 1
    engine = Engine()
    assert await second.run(engine.generate, grade) == whole
    assert engine.asked == [2]
    assert (tmp_path / "parts" / "m-x.jsonl").read_text() == (tmp_path / "whole" / "m-x.jsonl").read_text()
    assert json.loads((tmp_path / "parts" / "m-x.json").read_text()) == whole
    assert evaluation(tmp_path / "parts").num_pending == 0


async def test_contamination_stands_beside_the_score(tmp_path: Path) -> None:
    summary = await evaluation(tmp_path).run(Engine().generate, grade)
    clean = [summary["accuracy"][uid] for uid in ("a", "c")]
    assert summary["contamination"]["num_problems"] == 1
    assert summary["contamination"]["avg_without"]["value"] == pytest.approx(sum(clean) / 2)
    assert contamination_line(summary).startswith("X: 1 of 3 problems are in the training data; without them avg@4 0.")


async def test_contamination_that_was_not_looked_for_is_not_called_none(tmp_path: Path) -> None:
    summary = await evaluation(tmp_path, leaked=None).run(Engine().generate, grade)
    assert "not compared" in contamination_line(summary)


def test_another_number_of_problems_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    evaluation(tmp_path, expected=83)
    assert "X HAS 3 PROBLEMS AND SHOULD HAVE 83" in caplog.text
