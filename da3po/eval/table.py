"""Scores as the paper's Tables 1 (avg@k) and 2 (pass@k): a row for each model, a column for each benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from da3po.eval.statistics import Estimate, average

COLUMNS = ("AIME24", "AIME25", "AIME26", "AMC", "Minerva", "Olympiad", "MATH")
AVERAGE = "AVG"
ABSENT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one model reached on one benchmark with n samples a problem."""

    model: str
    title: str
    n: int
    avg: Estimate
    pass_at_n: Estimate


def score_of(summary: Mapping[str, Any]) -> Score:
    """The score in an evaluation's summary."""
    n = summary["num_samples"]
    return Score(
        model=summary["model"],
        title=summary["title"],
        n=n,
        avg=Estimate(**summary["avg"]),
        pass_at_n=Estimate(**summary["pass_at"][str(n)]),
    )


def tables(scores: Sequence[Score]) -> str:
    """Both tables in Markdown, in percent, each with the 95 % intervals below it."""
    return "\n\n".join(
        f"{name}@k (%)\n\n{_table(scores, name, of, _percent)}\n\n{name}@k (%), 95 % intervals clustered by problem\n\n"
        f"{_table(scores, name, of, _interval)}"
        for name, of in (("avg", _avg), ("pass", _pass))
    )


def _avg(score: Score) -> Estimate:
    return score.avg


def _pass(score: Score) -> Estimate:
    return score.pass_at_n


def _table(scores: Sequence[Score], name: str, of: Callable[[Score], Estimate], cell: Callable[[Estimate], str]) -> str:
    """AVG is over the benchmarks of the table; a model that lacks one has none, for it would not compare."""
    titles = _titles(scores)
    numbers = {score.title: score.n for score in scores}
    lines = [
        ["Model", *titles, AVERAGE],
        ["---", *["--:"] * (len(titles) + 1)],
        ["", *(f"{name}@{numbers[title]}" for title in titles), ""],
    ]
    for model in dict.fromkeys(score.model for score in scores):
        own = {score.title: of(score) for score in scores if score.model == model}
        cells = [cell(own[title]) if title in own else ABSENT for title in titles]
        whole = cell(average(list(own.values()))) if len(own) == len(titles) else ABSENT
        lines.append([model, *cells, whole])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _titles(scores: Sequence[Score]) -> list[str]:
    """The paper's benchmarks in the paper's order, then others as they came."""
    present = dict.fromkeys(score.title for score in scores)
    return [title for title in COLUMNS if title in present] + [title for title in present if title not in COLUMNS]


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.2f}"


def _interval(estimate: Estimate) -> str:
    return f"{100 * estimate.low:.1f} - {100 * estimate.high:.1f}"
