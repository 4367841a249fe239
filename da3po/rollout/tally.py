"""What was generated, graded and dropped between two batches."""

from __future__ import annotations

from dataclasses import dataclass, field

from da3po.algo.dynamic_sampling import DropReason
from da3po.types import Group, Outcome

BUCKETS = ("0", "0_25", "25_50", "50_75", "75_100", "100")
"""Of p_hat in percent: exactly 0, four quarters open at 0 and 100, exactly 100."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Plain sums over the groups that a step took; `metrics` makes means of them."""

    num_groups: int = 0
    num_kept: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: {reason.value: 0 for reason in DropReason})
    outcomes: dict[str, int] = field(default_factory=lambda: {outcome.value: 0 for outcome in Outcome})
    num_responses: int = 0
    num_truncated: int = 0
    num_empty: int = 0
    num_tokens: int = 0
    dropped_tokens: dict[str, int] = field(default_factory=lambda: {reason.value: 0 for reason in DropReason})
    max_tokens: int = 0
    num_graded_groups: int = 0
    sum_p_hat: float = 0.0
    bucket_groups: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))
    bucket_graded: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))
    bucket_correct: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))

    def count(self, group: Group, num_correct: int, num_graded: int, dropped: DropReason | None) -> None:
        """One group and what dynamic sampling said of it."""
        self.num_groups += 1
        outcomes = [grade.outcome for grade in group.grades]
        for outcome in set(outcomes):
            self.outcomes[outcome] += outcomes.count(outcome)
        finishes = [completion.finish for completion in group.completions]
        lengths = [
            len(completion.token_ids)
            for completion, finish in zip(group.completions, finishes, strict=True)
            if finish != "abort"
        ]
        num_tokens = sum(lengths)
        if dropped is None:
            self.num_kept += 1
        else:
            self.dropped[dropped.value] += 1
            self.dropped_tokens[dropped.value] += num_tokens
        self.num_responses += len(lengths)
        self.num_tokens += num_tokens
        self.num_empty += lengths.count(0)
        self.max_tokens = max(self.max_tokens, *lengths, 0)
        self.num_truncated += finishes.count("length")
        if num_graded:
            self._count_p_hat(num_correct, num_graded)

    def _count_p_hat(self, num_correct: int, num_graded: int) -> None:
        self.num_graded_groups += 1
        self.sum_p_hat += num_correct / num_graded
        if num_correct == num_graded:
            bucket = len(BUCKETS) - 1
        elif num_correct == 0:
            bucket = 0
        else:
            bucket = 1 + 4 * num_correct // num_graded
        self.bucket_groups[bucket] += 1
        self.bucket_graded[bucket] += num_graded
        self.bucket_correct[bucket] += num_correct

    @property
    def accuracy(self) -> float:
        """Over all graded samples."""
        return _mean(sum(self.bucket_correct), sum(self.bucket_graded))

    @property
    def truncated_fraction(self) -> float:
        """Of the responses that were not aborted, those that the engine cut at the limit, and no others."""
        return _mean(self.num_truncated, self.num_responses)

    def metrics(self) -> dict[str, float]:
        """A mean over nothing is 0; the count beside it tells."""
        values: dict[str, float] = {
            "rollout/accuracy": self.accuracy,
            "rollout/num_prompts_generated": self.num_groups,
            "rollout/num_prompts_kept": self.num_kept,
            "rollout/truncated_fraction": self.truncated_fraction,
            "rollout/empty_responses": self.num_empty,
            "rollout/response_length_mean": _mean(self.num_tokens, self.num_responses),
            "rollout/response_length_max": self.max_tokens,
            "rollout/tokens_generated": self.num_tokens,
            "rollout/aborted": self.outcomes[Outcome.ABORTED],
            "reward/timeouts": self.outcomes[Outcome.TIMEOUT],
            "reward/errors": self.outcomes[Outcome.ERROR],
            "reward/no_answer": self.outcomes[Outcome.NO_ANSWER],
            "p_hat/mean": _mean(self.sum_p_hat, self.num_graded_groups),
        }
        values |= {f"rollout/dropped_{reason}": count for reason, count in self.dropped.items()}
        values |= {f"rollout/tokens_dropped_{reason}": count for reason, count in self.dropped_tokens.items()}
        values |= {f"p_hat/count_{name}": count for name, count in zip(BUCKETS, self.bucket_groups, strict=True)}
        for index, name in list(enumerate(BUCKETS))[1:-1]:
            values[f"p_hat/accuracy_{name}"] = _mean(self.bucket_correct[index], self.bucket_graded[index])
        return values


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0
