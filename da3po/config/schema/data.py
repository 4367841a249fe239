"""Problems, and how they become prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from da3po.config.schema.validation import require


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """One of several sources of training problems.

    path: as data.train.
    weight: how often each of its problems comes in an epoch; 0.5 takes one half of them in one epoch and the other half
        in the next.
    """

    path: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        require(
            self.weight > 0 and math.isfinite(self.weight),
            f"data.train: the weight of {self.path} must be positive, got {self.weight}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultyConfig:
    """Train on problems of a known difficulty only: those with low <= p_hat <= high in an earlier run.

    record: a run directory, an evaluation's .jsonl (uid, outcome) or a .jsonl of (uid, p_hat); null keeps everything.
    unknown: what happens to problems that the record does not have.
    """

    record: str | None = None
    low: float = 0.0
    high: float = 1.0
    unknown: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        require(
            0 <= self.low <= self.high <= 1,
            f"data.difficulty.low and .high must satisfy 0 <= low <= high <= 1, got {self.low} and {self.high}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Problems for training and for evaluation.

    train, eval: a .parquet or .jsonl file, `hub:OWNER/NAME[:SPLIT]` for a data set of the Hugging Face Hub, or
        `package:quickstart-train` / `package:quickstart-eval`. Training takes several, too:
        `data.train=[{path: a.parquet, weight: 2}, b.jsonl]`.
    dir: folder with the benchmarks' files; null takes them from the Hub.
    template: how a problem becomes a prompt. `problem` = the text as it is; `answer_line` = problem and an "Answer:"
        line to complete; `dapo` = the DAPO recipe's instructions around it; `chat` = the tokenizer's chat template;
        `messages` = the row's own prompt messages through the chat template.
    problem_key, answer_key: fields of a plain row ({problem, answer}); DAPO-Math-17K's schema is recognised by itself.
    max_prompt_tokens: longer prompts are left out, and counted.
    dedup: keep one row of equal problems.
    shuffle: a new order every epoch, a function of run.seed.
    """

    train: str | tuple[SourceConfig, ...] = "package:quickstart-train"
    eval: str = "package:quickstart-eval"
    dir: str | None = None
    template: Literal["problem", "answer_line", "dapo", "chat", "messages"] = "answer_line"
    problem_key: str = "problem"
    answer_key: str = "answer"
    max_prompt_tokens: int = 2048
    dedup: bool = True
    shuffle: bool = True
    difficulty: DifficultyConfig = field(default_factory=DifficultyConfig)

    def __post_init__(self) -> None:
        require(self.max_prompt_tokens > 0, f"data.max_prompt_tokens must be positive, got {self.max_prompt_tokens}")
        require(bool(self.train), "data.train must name at least one source")

    @property
    def sources(self) -> tuple[SourceConfig, ...]:
        """Where training problems come from, however it was written."""
        return (SourceConfig(path=self.train),) if isinstance(self.train, str) else self.train
