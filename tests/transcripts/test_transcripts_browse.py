"""`da3po rollouts`, as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_transcripts_store import make_batch

from da3po.browse import main
from da3po.transcripts.rows import batch_rows
from da3po.transcripts.store import Transcripts


@pytest.fixture
def run(tmp_path: Path) -> str:
    for step in (1, 2):
        Transcripts(tmp_path).write(make_batch(step), keep=5)
    return str(tmp_path)


def test_prompts_grades_and_advantages_are_shown(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([run]) == 0
    shown = capsys.readouterr().out
    assert "step 2  prompt hard  p_hat 0.33  trained" in shown
    assert "step 2  prompt easy  p_hat 1.00  dropped: all correct" in shown
    (row,) = [line for line in shown.splitlines() if "+2.31" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "2", "correct", "", "+1.00", "+1.15", "+2.31", "2", "0", "response",
    ]  # fmt: skip


def test_one_step_as_json_lines(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([run, "--step", "1", "--jsonl"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == batch_rows(make_batch(1))


def test_one_prompt_by_the_beginning_of_its_uid(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([run, "--prompt", "ea", "--jsonl"]) == 0
    assert {json.loads(line)["prompt_uid"] for line in capsys.readouterr().out.splitlines()} == {"easy"}


def test_what_is_left_out_is_said(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([run, "--limit", "1"]) == 0
    assert "1 more prompts in this step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--step", "9"], "has no step 9; it has 1 to 2"), (["--prompt", "x"], "no prompt of this step has a uid")],
)
def test_what_is_not_there_is_an_error(
    run: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([run, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing")]) == 2
    assert "is no run directory" in capsys.readouterr().err
