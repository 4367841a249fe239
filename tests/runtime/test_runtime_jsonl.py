from __future__ import annotations

import json
from pathlib import Path

import pytest

from da3po.runtime.jsonl import JsonlFile, read_rows, rewind


def write_steps(path: Path, first: int, last: int, *, after: int, value: float = 0.0) -> None:
    file = JsonlFile(path, after=after)
    for step in range(first, last + 1):
        file.write(step, {"value": value})
    file.close()


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 1, 3, after=0, value=0.5)
    assert read_rows(path) == [{"step": step, "value": 0.5} for step in (1, 2, 3)]


def test_each_line_is_on_disk_at_once(tmp_path: Path) -> None:
    file = JsonlFile(tmp_path / "m.jsonl", after=0)
    file.write(1, {"a": 1.0})
    assert (tmp_path / "m.jsonl").read_text() == '{"step": 1, "a": 1.0}\n'
    file.close()


def test_resume_leaves_one_final_value_a_step(tmp_path: Path) -> None:
    """A run died at step 7, its checkpoint was of step 5: steps 6 and 7 are run, and recorded, again."""
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 1, 7, after=0, value=1.0)
    write_steps(path, 6, 8, after=5, value=2.0)
    assert [(row["step"], row["value"]) for row in read_rows(path)] == [
        *((step, 1.0) for step in range(1, 6)),
        *((step, 2.0) for step in range(6, 9)),
    ]


def test_line_cut_off_by_a_kill_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "val')
    assert read_rows(path) == [{"step": 1}]
    rewind(path, 5)
    assert path.read_text() == '{"step": 1}\n'


def test_fresh_run_empties_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n')
    write_steps(path, 1, 1, after=0, value=3.0)
    assert read_rows(path) == [{"step": 1, "value": 3.0}]


def test_row_of_step_0_survives_a_resume_at_0(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}\n')
    rewind(path, 0)
    assert read_rows(path) == [{"step": 0}]


def test_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"m\.jsonl, line 2 is not JSON"):
        read_rows(path)


def test_rewind_without_a_file(tmp_path: Path) -> None:
    rewind(tmp_path / "m.jsonl", 3)
    assert not (tmp_path / "m.jsonl").exists()


def test_numbers_beyond_json_stay_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    file = JsonlFile(path, after=0)
    file.write(1, {"nan": float("nan"), "up": float("inf"), "down": float("-inf")})
    file.close()
    row = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (row["nan"], float(row["up"]), float(row["down"])) == ("nan", float("inf"), float("-inf"))


@pytest.mark.parametrize("text", ["答案：\\boxed{12}", "a\u2028b\u0085c", "π ≤ 2√3", "tab\tnew\nline"])
def test_text_survives_on_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.jsonl"
    file = JsonlFile(path, after=0)
    file.write(1, {"response": text})
    file.close()
    assert len(path.read_text(encoding="utf-8").splitlines()) == 1
    assert read_rows(path) == [{"step": 1, "response": text}]


def test_lone_surrogate_does_not_stop_the_run(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    file = JsonlFile(path, after=0)
    file.write(1, {"response": "a\ud800b"})
    file.close()
    assert read_rows(path) == [{"step": 1, "response": "a\ud800b"}]
