from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from da3po.report.plot import plot_run, series
from da3po.rollout.tally import BUCKETS


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def made_up_run(folder: Path, num_steps: int = 30) -> Path:
    chance = random.Random(0)
    rows = []
    for step in range(1, num_steps + 1):
        solved = step / (2 * num_steps)
        counts = [20 * (1 - solved), 14, 12, 10, 8, 4 + 30 * solved]
        rows.append(
            {
                "step": step,
                "rollout/accuracy": 0.3 + 0.2 * solved + chance.gauss(0, 0.01),
                "reward/mean": -0.4 + 0.5 * solved + chance.gauss(0, 0.02),
                "p_hat/mean": 0.3 + 0.2 * solved,
                **{f"p_hat/count_{name}": count for name, count in zip(BUCKETS, counts, strict=True)},
                "actor/entropy": 0.9 - 0.3 * solved,
                "actor/grad_norm": 0.4 + chance.gauss(0, 0.05) if step != 7 else "nan",
                "mismatch/mean_abs_logprob": 3e-6 * chance.uniform(0.5, 2),
                "mismatch/max_abs_logprob": 4e-5 * chance.uniform(0.5, 2),
            }
        )
    write_rows(folder / "metrics.jsonl", rows)
    values = [(0, 0.32), (num_steps // 2, 0.4), (num_steps, 0.47)]
    write_rows(
        folder / "evaluations.jsonl",
        [
            {"step": step, "eval/avg@8": value, "eval/avg_low": value - 0.02, "eval/avg_high": value + 0.03}
            for step, value in values
        ],
    )
    return folder


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved, for a look at what they hold."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **kwargs: Any) -> None:
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def labels(figure: Figure, index: int) -> list[str]:
    return figure.axes[index].get_legend_handles_labels()[1]


def test_one_picture_with_every_curve(tmp_path: Path, drawn: list[Figure]) -> None:
    path = plot_run(made_up_run(tmp_path))
    assert path == tmp_path / "curves.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    (figure,) = drawn
    assert labels(figure, 0) == ["training rollouts", "held-out avg@8, 95 % interval"]
    assert labels(figure, 2)[0] == "p_hat = 0"
    assert labels(figure, 2)[-1] == "mean p_hat"
    assert labels(figure, 4) == ["mean", "max"]
    assert all(axes.get_xlabel() == "training step" for axes in figure.axes)
    assert all(axes.get_ylabel() for axes in figure.axes)


def test_curve_holds_the_recorded_values(tmp_path: Path, drawn: list[Figure]) -> None:
    write_rows(tmp_path / "metrics.jsonl", [{"step": 1, "reward/mean": -0.5}, {"step": 2, "reward/mean": 0.25}])
    plot_run(tmp_path)
    (line,) = drawn[0].axes[1].get_lines()
    assert line.get_xydata().tolist() == [[1.0, -0.5], [2.0, 0.25]]  # type: ignore[union-attr]


def test_evaluation_interval_is_drawn_where_it_lies(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_run(made_up_run(tmp_path))
    container = drawn[0].axes[0].containers[0]
    first = container.lines[2][0].get_segments()[0].tolist()  # type: ignore[attr-defined]
    assert first == [[0.0, pytest.approx(0.30)], [0.0, pytest.approx(0.35)]]


def test_p_hat_shares_add_up_to_the_whole(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_run(made_up_run(tmp_path, num_steps=3))
    top = drawn[0].axes[2].collections[-1].get_paths()[0].vertices
    assert top[:, 1].max() == pytest.approx(1.0)  # type: ignore[index]


@pytest.mark.parametrize("num_steps", [1, 2])
def test_short_run(tmp_path: Path, num_steps: int) -> None:
    assert plot_run(made_up_run(tmp_path, num_steps)).exists()


def test_run_with_other_metrics_only(tmp_path: Path, drawn: list[Figure]) -> None:
    write_rows(tmp_path / "metrics.jsonl", [{"step": 1, "time/step": 3.0}])
    plot_run(tmp_path)
    assert [axes.texts[0].get_text() for axes in drawn[0].axes] == ["not recorded"] * 6


def test_no_metrics(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl"):
        plot_run(tmp_path)


def test_drawing_leaves_the_global_backend_alone(tmp_path: Path) -> None:
    before = mpl.get_backend(auto_select=False)
    plot_run(made_up_run(tmp_path, 2))
    assert mpl.get_backend(auto_select=False) == before


def test_series_skips_rows_without_the_metric_and_reads_nan() -> None:
    steps, values = series([{"step": 1}, {"step": 2, "a": "nan"}, {"step": 3, "a": 1}], "a")
    assert steps == [2, 3]
    assert values[0] != values[0]
    assert values[1] == 1.0
