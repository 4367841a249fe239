"""One benchmark for one model: what is asked, how, where the samples go, and how the result is put."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3po.config.schema import BenchmarkConfig, EvalConfig
from da3po.eval.record import SampleRecord
from da3po.eval.result import EvalResult
from da3po.eval.runner import Generate, GradeResponses, choose, evaluate
from da3po.eval.statistics import estimate_mean
from da3po.types import Prompt

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """
    prompts: the benchmark's problems.
    config: how they are sampled, this benchmark's n included.
    settings: what else a score depends on and must be said with it (template, grader, seed, weights).
    leaked: uids of problems that the training data have; None if no training data were looked at.
    """

    benchmark: BenchmarkConfig
    model: str
    prompts: Sequence[Prompt]
    config: EvalConfig
    seed: int
    settings: Mapping[str, Any]
    leaked: frozenset[str] | None

    def check_size(self) -> None:
        """Warn if the benchmark is not what its name says."""
        expected, found = self.benchmark.num_problems, len({prompt.uid for prompt in self.prompts})
        if expected is not None and found != expected:
            logger.warning(
                "%s HAS %d PROBLEMS AND SHOULD HAVE %d: its score does not compare with published ones",
                self.benchmark.title,
                found,
                expected,
            )


class Evaluation:
    """A task and its record on disk; what an interrupted one has left is taken up."""

    def __init__(self, task: Task, folder: Path) -> None:
        """Raises DataError if the record holds samples of another evaluation."""
        self.task = task
        self._stem = folder / f"{task.model}-{task.benchmark.name}"
        self._chosen, _ = choose(task.prompts, task.config.limit)
        settings = {
            "temperature": task.config.temperature,
            "top_p": task.config.top_p,
            "top_k": task.config.top_k,
            "max_tokens": task.config.max_tokens,
            "num_samples": task.config.num_samples,
            **task.settings,
        }
        path = self._stem.with_name(self._stem.name + ".jsonl")
        self._record = SampleRecord(path, settings, self._chosen, task.config.num_samples)
        self.summary_path = self._stem.with_name(self._stem.name + ".json")

    @property
    def num_pending(self) -> int:
        """Problems that have not been sampled yet."""
        return self._record.num_pending

    async def run(self, generate: Generate, grade: GradeResponses) -> dict[str, Any]:
        """Sample and grade what is pending, write the summary down, and return it."""
        task = self.task
        result = await evaluate(
            generate,
            grade,
            task.prompts,
            task.config,
            task.seed,
            done=self._record.done,
            on_problem=self._record.add,
        )
        self._record.write(self._chosen)
        summary = self._summary(result)
        self.summary_path.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        logger.info("%s: %s%s", task.benchmark.title, result, _leak_note(summary["contamination"]))
        return summary

    def _summary(self, result: EvalResult) -> dict[str, Any]:
        task = self.task
        summary = result.summary()
        return {
            "benchmark": task.benchmark.name,
            "title": task.benchmark.title,
            "model": task.model,
            **summary,
            "expected_problems": task.benchmark.num_problems,
            "settings": {**summary["settings"], **task.settings},
            "contamination": _contamination(task.leaked, result.accuracy),
        }


def _contamination(leaked: frozenset[str] | None, accuracy: Mapping[str, float]) -> dict[str, Any] | None:
    """How many of the problems the training data have, and the score without them."""
    if leaked is None:
        return None
    clean = [share for uid, share in accuracy.items() if uid not in leaked]
    return {
        "num_problems": len(accuracy) - len(clean),
        "uids": sorted(leaked & accuracy.keys()),
        "avg_without": estimate_mean(clean).as_dict() if clean else None,
    }


def contamination_line(summary: Mapping[str, Any]) -> str:
    """`AMC: 37 of 83 problems are in the training data; without them avg@32 0.412 [0.388, 0.436]`."""
    found = summary["contamination"]
    if found is None:
        return f"{summary['title']}: not compared with any training data (data.train)"
    return f"{summary['title']}: {found['num_problems']} of {summary['num_problems']} problems" + (
        _leak_note(found, summary["num_samples"]) or " are in the training data"
    )


def _leak_note(found: Mapping[str, Any] | None, n: int | None = None) -> str:
    if found is None or not found["num_problems"]:
        return ""
    without = found["avg_without"]
    name = f"avg@{n}" if n else "avg"
    score = f"{without['value']:.3f} [{without['low']:.3f}, {without['high']:.3f}]" if without else "undefined"
    if n is None:
        return f"; {found['num_problems']} problems are in the training data, without them {name} {score}"
    return f" are in the training data; without them {name} {score}"
