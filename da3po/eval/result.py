"""What an evaluation came to, and how it is shown."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from da3po.config.schema import EvalConfig
from da3po.eval.statistics import Estimate, estimate_mean, majority_at_n, pass_at_k
from da3po.types import Completion, Grade, Outcome, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One response to one problem and its grade, as it is written down: `index` is which of the n."""

    uid: str
    source: str
    gold: str
    index: int
    response: str
    answer: str | None
    outcome: Outcome
    detail: str
    finish: str
    num_tokens: int
    weight_version: int

    @property
    def correct(self) -> bool:
        return self.outcome is Outcome.CORRECT

    def as_row(self) -> dict[str, Any]:
        """JSON-able."""
        row = dataclasses.asdict(self)
        row["sample"] = row.pop("index")
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Sample:
        """The inverse of `as_row`; other fields of the row are left aside. Raises KeyError for one that is missing."""
        names = [f.name for f in dataclasses.fields(cls) if f.name not in ("index", "outcome")]
        return cls(index=row["sample"], outcome=Outcome(row["outcome"]), **{name: row[name] for name in names})


def make_sample(prompt: Prompt, index: int, completion: Completion, grade: Grade) -> Sample:
    return Sample(
        uid=prompt.uid,
        source=prompt.source,
        gold=prompt.gold,
        index=index,
        response=completion.text,
        answer=grade.answer,
        outcome=grade.outcome,
        detail=grade.detail,
        finish=completion.finish,
        num_tokens=len(completion.token_ids),
        weight_version=completion.weight_version,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """Scores over problems, with 95 % intervals clustered by problem.

    num_problems: different problems; num_duplicates: further copies of them in the data, which were not asked.
    num_samples: n, samples per problem. avg: avg@n. pass_at: k -> pass@k for powers of two up to n, and n.
    majority: maj@n.
    accuracy: uid -> share of correct samples, for a paired comparison with another run.
    truncated_fraction: share of samples cut at max_tokens. mean_tokens: mean length of a response.
    num_failed: samples without a grade (timeout, error, aborted); they count as not correct.
    settings: how the samples were drawn.
    """

    num_problems: int
    num_duplicates: int
    num_samples: int
    avg: Estimate
    pass_at: Mapping[int, Estimate]
    majority: Estimate
    accuracy: Mapping[str, float]
    truncated_fraction: float
    mean_tokens: float
    num_failed: int
    settings: Mapping[str, Any]
    samples: Sequence[Sample]

    def metrics(self) -> dict[str, float]:
        """name -> value, as they are logged."""
        values = {f"eval/avg@{self.num_samples}": self.avg.value}
        values |= {"eval/avg_low": self.avg.low, "eval/avg_high": self.avg.high}
        values |= {f"eval/pass@{k}": estimate.value for k, estimate in self.pass_at.items()}
        values |= {f"eval/maj@{self.num_samples}": self.majority.value}
        values |= {"eval/truncated_fraction": self.truncated_fraction, "eval/num_failed": float(self.num_failed)}
        return values

    def summary(self) -> dict[str, Any]:
        """JSON-able, without the samples."""

        return {
            "num_problems": self.num_problems,
            "num_duplicates": self.num_duplicates,
            "num_samples": self.num_samples,
            "avg": self.avg.as_dict(),
            "pass_at": {str(k): of.as_dict() for k, of in self.pass_at.items()},
            "majority": self.majority.as_dict(),
            "truncated_fraction": self.truncated_fraction,
            "mean_tokens": self.mean_tokens,
            "num_failed": self.num_failed,
            "settings": dict(self.settings),
            "accuracy": dict(self.accuracy),
        }

    def __str__(self) -> str:
        """One line for a terminal: `avg@8 0.412 [0.388, 0.436]  pass@8 0.701 [0.660, 0.739]  ...`."""
        n = self.num_samples
        parts = [f"avg@{n} {self.avg}"]
        if n > 1:
            parts += [f"pass@{n} {self.pass_at[n]}", f"maj@{n} {self.majority}"]
        parts.append(f"({self.num_problems} problems")
        line = "  ".join(parts) + f", {self.truncated_fraction:.1%} truncated"
        return line + (f", {self.num_failed} not graded)" if self.num_failed else ")")


def summarise(samples: Sequence[Sample], config: EvalConfig, num_duplicates: int) -> EvalResult:
    """The result of samples that are in order: all of a problem's together, each problem having as many."""
    n = config.num_samples
    groups = {uid: list(group) for uid, group in itertools.groupby(samples, key=lambda sample: sample.uid)}
    num_correct = {uid: sum(sample.correct for sample in group) for uid, group in groups.items()}
    accuracy = {uid: count / n for uid, count in num_correct.items()}
    majority = [
        majority_at_n([sample.answer for sample in group], [sample.correct for sample in group])
        for group in groups.values()
    ]
    return EvalResult(
        num_problems=len(groups),
        num_duplicates=num_duplicates,
        num_samples=n,
        avg=estimate_mean(list(accuracy.values())),
        pass_at={k: estimate_mean([pass_at_k(n, c, k) for c in num_correct.values()]) for k in reported_ks(n)},
        majority=estimate_mean(majority),
        accuracy=accuracy,
        truncated_fraction=fmean(sample.finish == "length" for sample in samples),
        mean_tokens=fmean(sample.num_tokens for sample in samples),
        num_failed=sum(not sample.outcome.graded for sample in samples),
        settings=sampling_settings(config),
        samples=samples,
    )


def reported_ks(n: int) -> list[int]:
    """1, 2, 4, ... up to n, and n itself."""
    return sorted({2**i for i in range(n.bit_length())} | {n})


def sampling_settings(config: EvalConfig) -> dict[str, Any]:
    """How the samples are drawn; a score means nothing without it."""
    return {
        "num_samples": config.num_samples,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "max_tokens": config.max_tokens,
    }
