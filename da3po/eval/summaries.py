"""Evaluations that are on disk: read, put side by side, and compared problem by problem."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from da3po.data.problems import DataError
from da3po.eval.statistics import Comparison, compare_paired

Summary = Mapping[str, Any]


def read_summaries(place: str) -> list[Summary]:
    """The evaluations of a run directory (those made by `da3po eval`), or the one in a .json file.

    Raises DataError if there is none.
    """
    path = Path(place)
    if path.is_file():
        return [_read(path)]
    folder = path / "eval" if (path / "eval").is_dir() else path
    found = [summary for file in sorted(folder.glob("*.json")) if "benchmark" in (summary := _read(file))]
    if not found:
        raise DataError(f"{place}: no finished evaluation here; expected a run directory or a summary (.json)")
    return found


def _read(path: Path) -> Summary:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not a summary ({error})") from None
    if not isinstance(summary, dict) or "accuracy" not in summary:
        raise DataError(f"{path}: not the summary of an evaluation")
    return {"model": path.stem, "title": path.stem, **summary}


def compare(first: str, second: str) -> list[tuple[str, Comparison, list[str]]]:
    """Benchmark by benchmark: its title, second minus first, and what makes the two hard to compare.

    Raises DataError if the two have no benchmark in common, or several evaluations of one.
    """
    left, right = _by_benchmark(first), _by_benchmark(second)
    shared = [key for key in left if key in right]
    if len(left) == len(right) == 1 and not shared:  # two files that the user has paired
        pairs = [(*left.values(), *right.values())]
    else:
        pairs = [(left[key], right[key]) for key in shared]
    if not pairs:
        raise DataError(f"{first} has {sorted(left)}, {second} has {sorted(right)}: no benchmark in common")
    return [(a["title"], _compare(first, second, a, b), _caveats(a, b)) for a, b in pairs]


def _by_benchmark(place: str) -> dict[str, Summary]:
    found: dict[str, Summary] = {}
    for summary in read_summaries(place):
        key = summary.get("benchmark", "")
        if key in found:
            models = sorted({found[key]["model"], summary["model"]})
            raise DataError(f"{place} has several evaluations of {key} ({', '.join(models)}); name a .json file")
        found[key] = summary
    return found


def _compare(first: str, second: str, a: Summary, b: Summary) -> Comparison:
    try:
        return compare_paired(a["accuracy"], b["accuracy"])
    except ValueError as error:
        raise DataError(f"{first} and {second}: {error}") from None


def _caveats(a: Summary, b: Summary) -> list[str]:
    """Settings in which the two differ, and problems that only one of them has."""
    settings = (a["settings"], b["settings"])
    notes = [
        f"{key} differs: {settings[0].get(key)} and {settings[1].get(key)}"
        for key in sorted(settings[0].keys() | settings[1].keys())
        if settings[0].get(key) != settings[1].get(key)
    ]
    alone = len(a["accuracy"].keys() ^ b["accuracy"].keys())
    return notes + ([f"{alone} problems are in one of the two only"] if alone else [])


def describe(comparisons: Sequence[tuple[str, Comparison, list[str]]]) -> str:
    """A Markdown table of the comparisons, in percentage points, and the caveats below it."""
    lines = ["| Benchmark | problems | difference | 95 % interval | p |", "| --- | --: | --: | --: | --: |"]
    for title, result, _ in comparisons:
        interval = f"{100 * result.low:+.2f} to {100 * result.high:+.2f}"
        cells = (title, str(result.num_problems), f"{100 * result.difference:+.2f}", interval, f"{result.p_value:.4f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines + [f"{title}: {note}" for title, _, notes in comparisons for note in notes])
