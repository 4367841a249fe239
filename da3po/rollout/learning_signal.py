"""From a graded group to its learning signal: shaping, group advantage, DAA, in this order (Eq. 7, 3, 14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

from da3po.algo.advantage import group_advantages
from da3po.algo.daa import Daa
from da3po.algo.overlong import build_overlong
from da3po.config.schema import AlgoConfig
from da3po.types import Completion, Group, Outcome, TrainSample

# Bound once: reading a member off its enum class costs as much as the test itself.
CORRECT, WRONG, NO_ANSWER = Outcome.CORRECT, Outcome.WRONG, Outcome.NO_ANSWER


def count_grades(group: Group) -> tuple[int, int]:
    """Correct samples, and graded ones."""
    outcomes = [grade.outcome for grade in group.grades]
    num_correct = outcomes.count(CORRECT)
    return num_correct, num_correct + outcomes.count(WRONG) + outcomes.count(NO_ANSWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSignal:
    """Of the graded samples of one group, in order; failures to grade are left out of everything.

    completions: the responses. lengths: their tokens. rewards: R_acc + R_len.
    plain, advantages: the group advantage before and after DAA.
    """

    completions: Sequence[Completion]
    lengths: Sequence[int]
    rewards: Sequence[float]
    plain: Sequence[float]
    advantages: Sequence[float]

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def num_amplified_tokens(self) -> int:
        changed = zip(self.lengths, self.plain, self.advantages, strict=True)
        return sum([length for length, before, after in changed if before != after])


class SignalMaker:
    """The parts of an algorithm that make a group's signal."""

    def __init__(self, algo: AlgoConfig, max_tokens: int, daa: Daa) -> None:
        self._advantage = algo.advantage
        self._overlong: Callable[[int], float] = build_overlong(algo.overlong, max_tokens)
        self._daa = daa

    def rewards(self, lengths: Sequence[int], correct: Sequence[bool]) -> list[float]:
        """R = R_acc + R_len (Eq. 7), R_acc being 1 or -1."""
        overlong = self._overlong
        return [(1.0 if right else -1.0) + overlong(length) for length, right in zip(lengths, correct, strict=True)]

    def teaches(self, group: Group) -> bool:
        """Whether the group's rewards differ, so that its advantages are not all 0."""
        completions, correct = _graded(group)
        return len(set(self.rewards(_lengths(completions), correct))) > 1

    def __call__(self, group: Group) -> GroupSignal:
        """Raises ValueError for a group with fewer than two graded samples, which every filter drops."""
        completions, correct = _graded(group)
        lengths = _lengths(completions)
        rewards = self.rewards(lengths, correct)
        plain = group_advantages(rewards, self._advantage)
        advantages = self._daa.apply(group.prompt.uid, plain, correct)
        return GroupSignal(
            completions=completions, lengths=lengths, rewards=rewards, plain=plain, advantages=advantages
        )


def _lengths(completions: Sequence[Completion]) -> list[int]:
    return [len(completion.token_ids) for completion in completions]


def _graded(group: Group) -> tuple[Sequence[Completion], list[bool]]:
    outcomes = [grade.outcome for grade in group.grades]
    graded = [outcome is CORRECT or outcome is WRONG or outcome is NO_ANSWER for outcome in outcomes]
    if all(graded):
        return group.completions, [outcome is CORRECT for outcome in outcomes]
    completions = list(compress(group.completions, graded))
    return completions, [outcome is CORRECT for outcome in compress(outcomes, graded)]


def train_samples(group: Group, signal: GroupSignal, weight_version: int) -> list[TrainSample]:
    """weight_version: of the weights that open the step; samples of any other are not fresh."""
    uid, prompt_ids = group.prompt.uid, group.prompt.token_ids
    # By position, in the order of the fields: by name it takes twice as long.
    return [
        TrainSample(uid, prompt_ids, c.token_ids, c.logprobs, reward, advantage, c.weight_version == weight_version)
        for c, reward, advantage in zip(signal.completions, signal.rewards, signal.advantages, strict=True)
    ]


def signal_metrics(signals: Sequence[GroupSignal]) -> dict[str, float]:
    """Of the batch that is trained on: the mean shaped reward, and what DAA did.

    That is the share of groups and of response tokens amplified, the mean |advantage| before and after, and the mean
    over groups of the mean advantage after, which is 0 without DAA.
    """
    num_samples = sum(len(signal.rewards) for signal in signals)
    amplified = [signal for signal in signals if signal.advantages != signal.plain]
    num_tokens = sum(signal.num_tokens for signal in signals)
    return {
        "reward/mean": sum(sum(signal.rewards) for signal in signals) / num_samples,
        "daa/amplified_groups": len(amplified) / len(signals),
        "daa/amplified_tokens": sum(signal.num_amplified_tokens for signal in amplified) / max(num_tokens, 1),
        "daa/mean_abs_advantage_before": sum(sum(map(abs, signal.plain)) for signal in signals) / num_samples,
        "daa/mean_abs_advantage_after": sum(sum(map(abs, signal.advantages)) for signal in signals) / num_samples,
        "daa/group_mean_after": sum(sum(signal.advantages) / len(signal.advantages) for signal in signals)
        / len(signals),
    }
