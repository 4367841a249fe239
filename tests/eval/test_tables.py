from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from da3po.data.problems import DataError
from da3po.eval.statistics import Estimate, average
from da3po.eval.summaries import compare, describe
from da3po.eval.table import Score, score_of, tables
from da3po.evaluate import main


def score(model: str, title: str, value: float, n: int = 32) -> Score:
    estimate = Estimate(value=value, low=value - 0.03, high=value + 0.04)
    return Score(model=model, title=title, n=n, avg=estimate, pass_at_n=estimate)


def test_columns_are_the_papers_whatever_the_order() -> None:
    titles = ["MATH", "Olympiad", "Minerva", "AMC", "AIME26", "AIME25", "AIME24"]
    lines = tables([score("m", title, 0.2396, 8 if title in titles[:3] else 32) for title in titles]).splitlines()
    assert lines[2] == "| Model | AIME24 | AIME25 | AIME26 | AMC | Minerva | Olympiad | MATH | AVG |"
    assert lines[4] == "|  | avg@32 | avg@32 | avg@32 | avg@32 | avg@8 | avg@8 | avg@8 |  |"
    assert lines[5] == "| m |" + " 23.96 |" * 8
    assert "pass@k (%)" in lines


def test_a_model_that_lacks_a_benchmark_has_no_average() -> None:
    rows = tables([score("a", "AIME24", 0.5), score("a", "AMC", 0.25), score("b", "AMC", 0.5)]).splitlines()
    assert rows[5:7] == ["| a | 50.00 | 25.00 | 37.50 |", "| b | - | 50.00 | - |"]


def test_the_interval_of_an_average_by_hand() -> None:
    """Half-widths 0.03 and 0.04 of two benchmarks: sqrt(0.03^2 + 0.04^2) / 2 = 0.025."""
    mean = average([Estimate(value=0.5, low=0.47, high=0.53), Estimate(value=0.3, low=0.26, high=0.34)])
    assert (mean.value, mean.low, mean.high) == (pytest.approx(0.4), pytest.approx(0.375), pytest.approx(0.425))


def write(folder: Path, model: str, benchmark: str, accuracy: dict[str, float], **settings: Any) -> Path:
    estimate = {"value": sum(accuracy.values()) / len(accuracy), "low": 0.1, "high": 0.9}
    summary = {
        "benchmark": benchmark, "title": benchmark.upper(), "model": model, "num_samples": 8, "avg": estimate,
        "pass_at": {"8": estimate}, "accuracy": accuracy, "settings": {"temperature": 1.0, **settings},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{model}-{benchmark}.json"
    path.write_text(json.dumps(summary))
    return path


def test_runs_are_compared_problem_by_problem(tmp_path: Path) -> None:
    """Differences 0.5, 0.25, 0, 0.25: mean 0.25, s = 0.2041, t = 2.449 with 3 degrees of freedom, p = 0.0917."""
    write(tmp_path / "a" / "eval", "base", "amc", {"p": 0.0, "q": 0.5, "r": 1.0, "s": 0.25})
    write(tmp_path / "b" / "eval", "mine", "amc", {"p": 0.5, "q": 0.75, "r": 1.0, "s": 0.5, "t": 1.0}, seed=2)
    (tmp_path / "b" / "eval" / "step_000004.json").write_text('{"accuracy": {"p": 1.0}}')
    [(title, result, notes)] = compare(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (title, result.num_problems, result.difference) == ("AMC", 4, 0.25)
    assert result.p_value == pytest.approx(0.0917, abs=1e-4)
    assert result.low == pytest.approx(-0.0748, abs=1e-3)
    assert notes == ["seed differs: None and 2", "1 problems are in one of the two only"]
    assert "| AMC | 4 | +25.00 | -7.4" in describe([(title, result, notes)])


def test_several_models_in_one_run_need_a_file(tmp_path: Path) -> None:
    one = write(tmp_path / "a" / "eval", "m1", "amc", {"p": 0.0, "q": 0.0})
    two = write(tmp_path / "a" / "eval", "m2", "amc", {"p": 1.0, "q": 0.5})
    with pytest.raises(DataError, match=r"several evaluations of amc \(m1, m2\)"):
        compare(str(tmp_path / "a"), str(one))
    [(_, result, _)] = compare(str(one), str(two))
    assert result.difference == 0.75


def test_nothing_in_common_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a" / "eval", "m", "amc", {"p": 0.0})
    write(tmp_path / "a" / "eval", "m", "aime24", {"p": 0.0})
    write(tmp_path / "b" / "eval", "m", "minerva", {"p": 0.0})
    with pytest.raises(DataError, match="no benchmark in common"):
        compare(str(tmp_path / "a"), str(tmp_path / "b"))


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "a" / "eval", "m1", "amc", {"p": 0.0, "q": 0.0})
    write(tmp_path / "b" / "eval", "m2", "amc", {"p": 1.0, "q": 0.5})
    assert score_of(json.loads(one.read_text())).n == 8
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "| AMC | 2 | +75.00 |" in capsys.readouterr().out
    assert main(["table", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "| m2 | 75.00 | 75.00 |" in capsys.readouterr().out
    assert main(["table", str(tmp_path / "c")]) == 2
    assert "no finished evaluation here" in capsys.readouterr().err
