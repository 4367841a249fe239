"""Evaluation of a run's own weights while it trains, on the same engines, never with training rewards."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from da3po.config.schema import EvalConfig
from da3po.eval.result import EvalResult
from da3po.eval.runner import Generate, GradeResponses, evaluate, rows
from da3po.types import Prompt, StepStats


class DuringTraining:
    """Evaluates the steps that are due, and writes each result down as step_XXXXXX.json and .jsonl."""

    def __init__(
        self,
        *,
        prompts: Sequence[Prompt],
        generate: Generate,
        grade: GradeResponses,
        config: EvalConfig,
        seed: int,
        last_step: int,
        folder: Path,
        record: Callable[[int, StepStats, str], None],
    ) -> None:
        """
        Args:
            record: takes step, metrics and a line for people.
        """
        self._prompts = prompts
        self._generate = generate
        self._grade = grade
        self._config = config
        self._seed = seed
        self._last_step = last_step
        self._folder = folder
        self._record = record

    async def opening(self, step: int) -> None:
        """The weights that a run starts with. A resumed run has done that before, unless it was stopped on the way."""
        due = self._config.before if step == 0 else self._is_due(step) and not summary_file(self._stem(step)).exists()
        if due:
            await self._evaluate(step)

    async def after(self, step: int) -> None:
        if self._is_due(step):
            await self._evaluate(step)

    def _is_due(self, step: int) -> bool:
        on_schedule = bool(self._config.every) and step % self._config.every == 0
        return on_schedule or (step == self._last_step and self._config.after)

    def _stem(self, step: int) -> Path:
        return self._folder / f"step_{step:06d}"

    async def _evaluate(self, step: int) -> None:
        result = await evaluate(self._generate, self._grade, self._prompts, self._config, self._seed)
        self._record(step, StepStats(result.metrics()), f"evaluation after step {step}: {result}")
        write_result(self._stem(step), result, self._prompts)  # last: a run that dies before it evaluates again


def summary_file(stem: Path) -> Path:
    return stem.with_name(stem.name + ".json")


def cut_back(folder: Path, step: int) -> None:
    """Remove the evaluations of later steps, left by a run that went on past its checkpoint."""
    for file in folder.glob("step_*.json*"):
        if _step(file) > step:
            file.unlink()


def write_result(stem: Path, result: EvalResult, prompts: Sequence[Prompt]) -> None:
    """`stem`.jsonl gets a row per sample, then `stem`.json the summary, so that a summary means that all is there."""
    with stem.with_name(stem.name + ".jsonl").open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows(result, prompts):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    partial = stem.with_name(stem.name + ".partial")
    partial.write_text(json.dumps(result.summary(), indent=1), encoding="utf-8")
    partial.replace(summary_file(stem))


def compare_ends(folder: Path) -> str:
    """The first and the last evaluation of a run side by side, for people; says so if there are not two."""
    files = sorted(folder.glob("step_*.json"))
    if len(files) < 2:
        return "the run was not evaluated both before and after training (eval.before, eval.after)"
    before, after = (json.loads(file.read_text()) for file in (files[0], files[-1]))
    lines = [
        _line(f"before (step {_step(files[0])})", before),
        _line(f"after (step {_step(files[-1])})", after),
    ]
    apart = after["avg"]["low"] > before["avg"]["high"]
    lines.append(
        f"gain {after['avg']['value'] - before['avg']['value']:+.3f}; the 95 % intervals "
        + ("do not overlap" if apart else "overlap")
    )
    return "\n".join(lines)


def _line(when: str, summary: dict[str, Any]) -> str:
    n = summary["num_samples"]
    return (
        f"accuracy on {summary['num_problems']} held-out problems x {n} samples, {when}: "
        f"{_estimate(f'avg@{n}', summary['avg'])}  {_estimate(f'pass@{n}', summary['pass_at'][str(n)])}"
    )


def _estimate(name: str, of: dict[str, Any]) -> str:
    return f"{name} {of['value']:.3f} [{of['low']:.3f}, {of['high']:.3f}]"


def _step(file: Path) -> int:
    return int(file.stem.removeprefix("step_"))
