"""What becomes of a step whose prompts are used up before its batch is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from da3po.config.schema import DynamicSamplingConfig
from da3po.rollout.tally import Tally
from da3po.types import Group

Choose = Callable[[Sequence[Group], Sequence[Group], int], list[Group]]
"""(kept groups, dropped ones that could teach, prompts wanted) -> what to train on; nothing if that is not enough."""


class StarvationError(RuntimeError):
    """Dynamic sampling found too few groups to train on. The message has the counts and says what to check."""

    def __init__(self, step: int, num_prompts: int, num_usable: int, tally: Tally) -> None:
        dropped = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in tally.dropped.items())
        super().__init__(
            f"step {step} wants {num_prompts} prompts and has {num_usable}: of {tally.num_groups} generated, dynamic "
            f"sampling kept {tally.num_kept} and dropped {sum(tally.dropped.values())} ({dropped}); accuracy "
            f"{tally.accuracy:.3f}, {tally.truncated_fraction:.1%} of responses cut at rollout.max_tokens. "
            "All wrong: check that the prompts suit the model (data.train, data.template), that it has room to answer "
            "(rollout.max_tokens) and that reward.grader reads its answers. All correct: the problems are too easy. "
            "Too few graded: see reward/timeouts, reward/errors and rollout/aborted. Limits: "
            "algo.dynamic_sampling.max_rounds, .on_starvation, .max_empty_steps, .low and .high"
        )
        self.step = step
        self.num_generated = tally.num_groups
        self.num_kept = tally.num_kept
        self.dropped = dict(tally.dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Starvation:
    """The policy: what to train on, whether dropped groups are held for it, and how many steps may come to nothing."""

    choose: Choose
    holds_dropped: bool
    max_empty_steps: int


def _nothing(_kept: Sequence[Group], _dropped: Sequence[Group], _num_prompts: int, /) -> list[Group]:
    return []


def _what_there_is(kept: Sequence[Group], _dropped: Sequence[Group], _num_prompts: int, /) -> list[Group]:
    return list(kept)


def _fill_up(kept: Sequence[Group], dropped: Sequence[Group], num_prompts: int, /) -> list[Group]:
    """Dropped groups in the order they were drawn, which the whole keeps to."""
    return sorted([*kept, *dropped[: num_prompts - len(kept)]], key=lambda group: group.prompt.draw)


def build_starvation(config: DynamicSamplingConfig) -> Starvation:
    match config.on_starvation:
        case "raise":
            return Starvation(choose=_nothing, holds_dropped=False, max_empty_steps=1)
        case "short_batch":
            return Starvation(choose=_what_there_is, holds_dropped=False, max_empty_steps=config.max_empty_steps)
        case "widen_band":
            return Starvation(choose=_fill_up, holds_dropped=True, max_empty_steps=config.max_empty_steps)
