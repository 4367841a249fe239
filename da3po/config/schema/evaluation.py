"""Evaluation, in training and by benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

from da3po.config.schema.rollout import MAX_TEMPERATURE
from da3po.config.schema.validation import require


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """num_samples: n of avg@n. every: steps between evaluations, 0 for none. limit: first problems only; null all."""

    num_samples: int = 8
    every: int = 0
    before: bool = True
    after: bool = True
    limit: int | None = None
    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = -1
    max_tokens: int = 4096

    def __post_init__(self) -> None:
        require(self.num_samples >= 1, f"eval.num_samples must be >= 1, got {self.num_samples}")
        require(self.every >= 0, f"eval.every must be >= 0, got {self.every}")
        require(self.limit is None or self.limit >= 1, f"eval.limit must be >= 1 or null, got {self.limit}")
        require(
            0 <= self.temperature <= MAX_TEMPERATURE,
            f"eval.temperature must lie in [0, {MAX_TEMPERATURE:g}], vLLM's limit, got {self.temperature}",
        )
        require(
            self.temperature > 0 or self.num_samples == 1,
            f"eval.temperature=0 gives {self.num_samples} equal samples; set eval.num_samples=1",
        )
        require(0 < self.top_p <= 1, f"eval.top_p must lie in (0, 1], got {self.top_p}")
        require(self.top_k == -1 or self.top_k >= 1, f"eval.top_k must be -1 (off) or >= 1, got {self.top_k}")
        require(self.max_tokens >= 1, f"eval.max_tokens must be >= 1, got {self.max_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkConfig:
    """A benchmark: a file of conf/benchmark, chosen with `benchmark=NAME[,NAME...]` or `benchmark=all`.

    name, title: in commands and file names, and in tables.
    file: its name in data.dir. hub: where it comes from if data.dir is null, `hub:OWNER/NAME[:SPLIT]`.
    problem_key, answer_key: fields of the Hub's rows; files in data.dir have those of data.problem_key and .answer_key.
    num_samples: n of avg@n; eval.num_samples on the command line goes before it.
    num_problems: how many different problems it should have; another number is warned of.
    """

    name: str
    title: str
    file: str
    hub: str | None = None
    problem_key: str = "problem"
    answer_key: str = "answer"
    num_samples: int = 8
    num_problems: int | None = None

    def __post_init__(self) -> None:
        require(self.num_samples >= 1, f"benchmark {self.name}: num_samples must be >= 1, got {self.num_samples}")
