from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from da3po.config.schema import RewardConfig
from da3po.data.problems import DataError
from da3po.grade import grade_file, main

CONFIG = RewardConfig(grader="dapo_v1", num_workers=1)


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_rows_keep_their_order_and_fields(tmp_path: Path) -> None:
    rows = [{"id": i, "gold": i % 2, "prediction": "Answer: 1"} for i in range(600)]
    rows += [{"id": 600, "gold": "1", "prediction": None}, {"id": 601, "gold": "1", "prediction": "答案 \ud800"}]
    out = io.StringIO()
    counts = grade_file(write(tmp_path / "d.jsonl", rows), out, CONFIG)
    graded = [json.loads(line) for line in out.getvalue().splitlines()]
    out.getvalue().encode("utf-8")
    assert [row["id"] for row in graded] == list(range(602))
    assert [row["outcome"] for row in graded[:2]] == ["wrong", "correct"]
    assert [row["outcome"] for row in graded[600:]] == ["no_answer", "no_answer"]
    assert counts == {"correct": 300, "wrong": 300, "no_answer": 2, "timeout": 0, "error": 0}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"gold": "1"}, "line 2: no field 'prediction'"),
        ({"prediction": "1"}, "line 2: no field 'gold'"),
        ({"gold": None, "prediction": "1"}, "line 2: no usable reference answer"),
        ({"gold": "1", "prediction": ["1"]}, "line 2: `prediction` must be text or null"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    path = write(tmp_path / "d.jsonl", [{"gold": "1", "prediction": "1"}, row])
    with pytest.raises(DataError, match=reason):
        grade_file(path, io.StringIO(), CONFIG)


def test_a_last_line_that_is_cut_off_is_counted_and_the_command_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "d.jsonl"
    write(path, [{"gold": "1", "prediction": "Answer: 1"}])
    path.write_text(path.read_text() + '{"gold": "1", "predic')
    assert main([str(path), "--grader", "dapo_v1", "--workers", "1"]) == 1
    shown = capsys.readouterr()
    assert [json.loads(line)["outcome"] for line in shown.out.splitlines()] == ["correct"]
    assert shown.err.splitlines()[-1] == "1 correct, 0 wrong, 0 no_answer, 0 timeout, 0 error, 1 unreadable"


@pytest.mark.timeout(120)
def test_hostile_rows_among_many_lose_nothing(tmp_path: Path) -> None:
    """Power towers, junk and code between ordinary rows: every row comes out, in order, with its verdict."""
    hostile = [
        r"\boxed{(10^{9})!}",
        r"\boxed{2^{16^{8^{4}}}}",
        r"\boxed{" + "9" * 50_000 + "}",
        r"\boxed{" + "(" * 3_000 + "1" + ")" * 3_000 + "}",
        "\x00\x01\u2028 junk \x7f",
        r"\boxed{__import__('os').system('touch pwned')}",
    ]
    rows: list[dict[str, Any]] = [{"id": i, "gold": str(i), "prediction": rf"\boxed{{{i}}}"} for i in range(600)]
    for place, text in enumerate(hostile):
        rows[50 + 100 * place]["prediction"] = text
    out = io.StringIO()
    counts = grade_file(write(tmp_path / "d.jsonl", rows), out, RewardConfig(timeout=2, num_workers=1))
    graded = [json.loads(line) for line in out.getvalue().strip().split("\n")]
    assert [row["id"] for row in graded] == list(range(600))
    assert [row["id"] for row in graded if row["outcome"] != "correct"] == [50, 150, 250, 350, 450, 550]
    assert sum(counts.values()) == 600
