from __future__ import annotations

import builtins
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from da3po.config.schema import DataConfig, DifficultyConfig, SourceConfig
from da3po.data.cursor import Cursor
from da3po.data.difficulty import read_p_hat, select
from da3po.data.hub import read_hub
from da3po.data.problems import DataError, Problem, problem_uid
from da3po.data.prompts import load_training_set
from da3po.data.sources import load_problems


def problem(uid: str) -> Problem:
    return Problem(uid=uid, text=uid, gold="1", source="s", messages=None, row=1)


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_stated_p_hat_the_newest_of_a_problem_counts(tmp_path: Path) -> None:
    record = write(
        tmp_path / "p.jsonl", [{"uid": "a", "p_hat": 0.5}, {"uid": "b", "p_hat": 1}, {"uid": "a", "p_hat": 0}]
    )
    assert read_p_hat(record) == {"a": 0.0, "b": 1.0}


def test_p_hat_from_graded_samples_leaves_failures_aside(tmp_path: Path) -> None:
    outcomes = ["correct", "wrong", "no_answer", "correct", "timeout", "aborted", "error"]
    record = write(tmp_path / "e.jsonl", [{"uid": "a", "outcome": outcome} for outcome in outcomes])
    assert read_p_hat(record) == {"a": 0.5}


def test_a_run_directory_is_a_record(tmp_path: Path) -> None:
    write(tmp_path / "rollouts.jsonl", [{"step": 1, "uid": "a", "p_hat": 0.25, "outcome": "wrong"}])
    write(tmp_path / "eval" / "m-x.jsonl", [{"uid": "b", "outcome": "correct"}])
    assert read_p_hat(str(tmp_path)) == {"a": 0.25, "b": 1.0}


def test_selection_is_inclusive_ordered_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    p_hat = {"a": 0.0, "b": 0.25, "c": 0.75, "d": 1.0}
    record = write(tmp_path / "p.jsonl", [{"uid": uid, "p_hat": value} for uid, value in p_hat.items()])
    problems = [problem(uid) for uid in "dcbae"]
    config = DifficultyConfig(record=record, low=0.25, high=0.75)
    with caplog.at_level(logging.INFO):
        assert [one.uid for one in select(problems, config, "x")] == ["c", "b", "e"]
    assert "3 of 5 problems kept by difficulty" in caplog.text
    dropping = DifficultyConfig(record=record, low=0.25, high=0.75, unknown="drop")
    assert [one.uid for one in select(problems, dropping, "x")] == ["c", "b"]
    with pytest.raises(DataError, match=r"leaves no problem of 1 \(1 have a p_hat\)"):
        select([problem("a")], config, "x")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [([{"uid": "a"}], "no rows with uid and p_hat"), ([{"uid": "a", "p_hat": 2}], "line 1: p_hat must lie between")],
)
def test_a_useless_record_is_an_error(tmp_path: Path, rows: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_p_hat(write(tmp_path / "p.jsonl", rows))


class Letters:
    bos_token = bos_token_id = chat_template = None

    def __call__(self, text: list[str], *, add_special_tokens: bool) -> dict[str, Any]:
        return {"input_ids": [list(map(ord, one)) for one in text]}

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))


def test_several_sources_with_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = write(
        tmp_path / "a.jsonl", [{"problem": "p1", "answer": 1, "source": "s"}, {"problem": "p2", "answer": "\\frac{"}]
    )
    two = write(tmp_path / "b.jsonl", [{"problem": "p1", "answer": 1, "source": "s"}, {"problem": "p3", "answer": 3}])
    config = DataConfig(train=(SourceConfig(path=one, weight=2.0), SourceConfig(path=two)), template="problem")
    with caplog.at_level(logging.INFO):
        loaded = load_training_set(config, Letters(), lambda gold: "unreadable" if "frac" in gold else None)  # type: ignore[arg-type]
    assert [prompt.text for prompt in loaded.prompts] == ["p1", "p2", "p3"]
    assert loaded.weights == [2.0, 2.0, 1.0]
    assert "1 prompts left out, an earlier source has them" in caplog.text
    assert "1 reference answers that the grader cannot read: row 2: unreadable" in caplog.text


def test_hub_rows_come_through_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(path: str, split: str) -> list[dict[str, Any]]:
        asked.append((path, split))
        return [{"question": "Q?", "answer": ["3", "5"]}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset, exceptions=HUB_ERRORS))
    [found] = load_problems("hub:owner/name:test", DataConfig(problem_key="question"))
    assert (found.text, found.gold, found.source) == ("Q?", "3, 5", "name")
    assert found.uid == problem_uid("name", "Q?")
    assert list(read_hub("hub:owner/name")) and asked == [("owner/name", "test"), ("owner/name", "train")]


HUB_ERRORS = SimpleNamespace(DatasetsError=type("DatasetsError", (Exception,), {}))


def test_without_a_network_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(path: str, split: str) -> None:
        raise ConnectionError(f"Couldn't reach '{path}' on the Hub (OfflineModeIsEnabled)")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset, exceptions=HUB_ERRORS))
    with pytest.raises(DataError, match=r"hub:owner/name: Couldn't reach .* without a network, fetch it before"):
        list(read_hub("hub:owner/name"))


def test_without_the_library_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=r"pip install 'da3po\[hub\]'"):
        list(read_hub("hub:owner/name"))


@pytest.mark.parametrize("name", ["hub:name", "hub:a/b/c", "hub:a/b:c:d", "hub:"])
def test_a_malformed_hub_name_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="expected hub:OWNER/NAME"):
        list(read_hub(name))


def test_weights_and_difficulty_together_make_the_epochs(tmp_path: Path) -> None:
    """Two sources, one twice as often, of which an earlier run leaves the middling problems: what a cursor draws."""
    names = {"a": 2.0, "b": 1.0}
    paths = {
        name: write(
            tmp_path / f"{name}.jsonl", [{"problem": f"{name}{i}", "answer": i, "source": "s"} for i in range(3)]
        )
        for name in names
    }
    p_hat = [{"uid": problem_uid("s", f"{name}{i}"), "p_hat": i / 2} for name in names for i in range(3)]
    config = DataConfig(
        train=tuple(SourceConfig(path=paths[name], weight=weight) for name, weight in names.items()),
        difficulty=DifficultyConfig(record=write(tmp_path / "p.jsonl", p_hat), low=0.1, high=0.9),
        template="problem",
    )
    loaded = load_training_set(config, Letters(), lambda gold: None)  # type: ignore[arg-type]
    cursor = Cursor(loaded.prompts, seed=1, shuffle=True, weights=loaded.weights)
    assert sorted(prompt.text for prompt in cursor.draw(3)) == ["a1", "a1", "b1"]
    assert [prompt.epoch for prompt in cursor.draw(1)] == [1]
