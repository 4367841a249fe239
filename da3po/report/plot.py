"""The curves of a run on one page, from the files that its recorder wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from da3po.runtime.jsonl import read_rows
from da3po.runtime.recorder import EVALUATIONS_FILE, METRICS_FILE

CURVES_FILE = "curves.png"
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One metric of a panel."""

    label: str
    metric: str
    style: str = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves over training steps. log: logarithmic y axis, for what spans magnitudes."""

    title: str
    unit: str
    curves: tuple[Curve, ...]
    log: bool = False


ACCURACY = Panel(
    title="Accuracy",
    unit="share of correct responses",
    curves=(Curve(label="training rollouts", metric="rollout/accuracy"),),
)
REWARD = Panel(
    title="Reward of the trained batch",
    unit="mean of R_acc + R_len",
    curves=(Curve(label="mean reward", metric="reward/mean"),),
)
ENTROPY = Panel(
    title="Entropy of the policy",
    unit="nats per token",
    curves=(Curve(label="mean entropy", metric="actor/entropy"),),
)
MISMATCH = Panel(
    title="Log-prob mismatch, engine against learner",
    unit="absolute difference, nats",
    curves=(
        Curve(label="mean", metric="mismatch/mean_abs_logprob"),
        Curve(label="max", metric="mismatch/max_abs_logprob", style="--"),
    ),
    log=True,
)
GRADIENT = Panel(
    title="Gradient norm before clipping",
    unit="L2 norm",
    curves=(Curve(label="gradient norm", metric="actor/grad_norm"),),
)
# From the groups that no sample solved to those that every sample did.
P_HAT_SHARES = (
    ("p_hat = 0", "p_hat/count_0"),
    ("0 to 0.25", "p_hat/count_0_25"),
    ("0.25 to 0.5", "p_hat/count_25_50"),
    ("0.5 to 0.75", "p_hat/count_50_75"),
    ("0.75 to 1", "p_hat/count_75_100"),
    ("p_hat = 1", "p_hat/count_100"),
)


def plot_run(run_dir: Path) -> Path:
    """Draw accuracy, reward, p_hat, entropy, mismatch and gradient norm over steps; return the picture's path.

    Raises FileNotFoundError if the run has no metrics.jsonl. A metric that no step has is an empty panel that says so.
    """
    rows = read_rows(run_dir / METRICS_FILE)
    evaluations_file = run_dir / EVALUATIONS_FILE
    evaluations = read_rows(evaluations_file) if evaluations_file.exists() else []
    figure = Figure(figsize=(16, 8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{run_dir.name}: {len(rows)} steps", fontsize="large")
    accuracy, reward, p_hat, entropy, mismatch, gradient = figure.subplots(2, 3).flat
    _draw(accuracy, ACCURACY, rows, lambda axes: _draw_evaluations(axes, evaluations))
    _draw(reward, REWARD, rows)
    _draw_p_hat(p_hat, rows)
    _draw(entropy, ENTROPY, rows)
    _draw(mismatch, MISMATCH, rows)
    _draw(gradient, GRADIENT, rows)
    path = run_dir / CURVES_FILE
    figure.savefig(path, dpi=100)
    return path


def series(rows: Sequence[Row], metric: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric, over the rows that have it."""
    having = [row for row in rows if metric in row]
    return [row["step"] for row in having], [float(row[metric]) for row in having]


def _draw(axes: Axes, panel: Panel, rows: Sequence[Row], more: Callable[[Axes], None] | None = None) -> None:
    for curve in panel.curves:
        steps, values = series(rows, curve.metric)
        if steps:
            axes.plot(steps, values, curve.style, marker=".", label=curve.label)
    if more:
        more(axes)
    if panel.log:
        axes.set_yscale("log", nonpositive="mask")
    _finish(axes, panel.title, panel.unit)


def _draw_evaluations(axes: Axes, evaluations: Sequence[Row]) -> None:
    """avg@n on the held-out problems with its 95 % interval."""
    names = sorted({name for row in evaluations for name in row if name.startswith("eval/avg@")})
    for name in names:
        having = [row for row in evaluations if name in row]
        steps, values = series(having, name)
        below = [float(row[name]) - float(row["eval/avg_low"]) for row in having]
        above = [float(row["eval/avg_high"]) - float(row[name]) for row in having]
        label = f"held-out {name.removeprefix('eval/')}, 95 % interval"
        axes.errorbar(steps, values, yerr=[below, above], fmt="s-", capsize=4, label=label)


def _draw_p_hat(axes: Axes, rows: Sequence[Row]) -> None:
    """How difficult the generated groups were: shares by p_hat, and its mean."""
    having = [row for row in rows if all(metric in row for _, metric in P_HAT_SHARES)]
    counts = [[float(row[metric]) for row in having] for _, metric in P_HAT_SHARES]
    totals = [max(sum(column), 1.0) for column in zip(*counts, strict=True)]
    if having:
        shares = [[count / total for count, total in zip(line, totals, strict=True)] for line in counts]
        steps = [row["step"] for row in having]
        colours = colormaps["RdYlGn"]([index / (len(shares) - 1) for index in range(len(shares))])
        axes.stackplot(steps, shares, labels=[label for label, _ in P_HAT_SHARES], colors=colours, alpha=0.6)
        axes.set_ylim(0, 1)
    steps, values = series(rows, "p_hat/mean")
    if steps:
        axes.plot(steps, values, "k.-", label="mean p_hat")
    _finish(axes, "All generated groups by p_hat", "share of groups; mean p_hat")
    if axes.get_legend():  # beside the stack, which fills the panel, and in its order
        axes.legend(reverse=True, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))


def _finish(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("training step")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize="small", loc="best")
    else:
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color="grey")
