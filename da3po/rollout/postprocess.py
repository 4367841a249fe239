"""From graded groups to the batch of a step: dynamic sampling, shaping, group advantage, DAA.

This is the only stateful step of the maths. Groups come in the order in which their prompts were drawn, and the one
that fills the batch is the last that the step takes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import chain
from typing import Any

from da3po.algo.daa import build_daa
from da3po.algo.dynamic_sampling import build_filter
from da3po.config.schema import AlgoConfig
from da3po.rollout.learning_signal import GroupSignal, SignalMaker, count_grades, signal_metrics, train_samples
from da3po.rollout.staleness import staleness_metrics
from da3po.rollout.starvation import StarvationError, build_starvation
from da3po.rollout.tally import Tally
from da3po.types import DroppedGroup, Group, StepBatch, StepStats, TrainSample

__all__ = ["PostProcessor", "StarvationError"]

logger = logging.getLogger(__name__)


class PostProcessor:
    """Takes the groups of a step in draw order and gives its batch: `begin`, `add`, and if prompts run dry `starve`."""

    def __init__(self, algo: AlgoConfig, num_prompts: int, max_tokens: int) -> None:
        """num_prompts: groups of a batch. max_tokens: longest response, L_m of the overlong shaping."""
        self._num_prompts = num_prompts
        self._filter = build_filter(algo.dynamic_sampling)
        self._daa = build_daa(algo.daa)
        self._signal = SignalMaker(algo, max_tokens, self._daa)
        self._starvation = build_starvation(algo.dynamic_sampling)
        self._last_draw = -1
        self.begin(0, weight_version=0)
        self._open = False

    @property
    def num_missing(self) -> int:
        """Groups that the batch still needs."""
        return max(0, self._num_prompts - len(self._kept))

    @property
    def keep_rate(self) -> float:
        """Share of groups that dynamic sampling has kept since `begin`; 0 if none came."""
        return self._tally.num_kept / self._tally.num_groups if self._tally.num_groups else 0.0

    def keeps(self, group: Group) -> bool:
        """Whether dynamic sampling would keep the group."""
        return self._filter(*count_grades(group)) is None

    def begin(self, step: int, weight_version: int) -> None:
        """Open a step. weight_version: of the weights that the learner opens it with."""
        self._step = step
        self._weight_version = weight_version
        self._kept: list[Group] = []
        self._made: list[tuple[GroupSignal, list[TrainSample]]] = []  # of the kept groups, in the same order
        self._dropped: list[DroppedGroup] = []
        self._teaching: list[Group] = []  # dropped groups that `widen_band` may take back
        self._tally = Tally()
        self._num_empty_attempts = 0
        self._open = True

    def add(self, group: Group) -> StepBatch | None:
        """Take a group; return the batch when this one fills it.

        Raises ValueError if a group with a later draw came first, since completion order must not choose the batch, or
        if the batch is full.
        """
        if group.prompt.draw <= self._last_draw:
            raise ValueError(f"draw {group.prompt.draw} came after draw {self._last_draw}; groups enter in draw order")
        if not self._open:
            raise ValueError(f"draw {group.prompt.draw} came after the batch of step {self._step} was full")
        self._last_draw = group.prompt.draw
        num_correct, num_graded = count_grades(group)
        reason = self._filter(num_correct, num_graded)
        self._tally.count(group, num_correct, num_graded, reason)
        if num_graded:
            self._daa.observe(group.prompt.uid, num_correct, num_graded)
        if reason is None:
            self._kept.append(group)
            self._made.append(self._make(group))
            return self._batch(self._kept, self._made) if len(self._kept) == self._num_prompts else None
        self._dropped.append(DroppedGroup(group=group, reason=reason.value))
        if self._starvation.holds_dropped and num_graded >= 2 and self._signal.teaches(group):
            self._teaching.append(group)
        return None

    def starve(self) -> StepBatch | None:
        """The step's prompts are used up: what the policy makes of it.

        None: nothing to train on, and `max_empty_steps` allows another attempt at this step. Raises StarvationError
        otherwise, and always under the policy `raise`.
        """
        groups = self._starvation.choose(self._kept, self._teaching, self._num_prompts)
        if groups:
            logger.warning("step %d trains on %d of %d prompts", self._step, len(groups), self._num_prompts)
            made = {group.prompt.draw: made for group, made in zip(self._kept, self._made, strict=True)}
            return self._batch(groups, [made.get(group.prompt.draw) or self._make(group) for group in groups])
        self._num_empty_attempts += 1
        if self._num_empty_attempts >= self._starvation.max_empty_steps:
            raise StarvationError(self._step, self._num_prompts, len(self._kept), self._tally)
        return None

    def _make(self, group: Group) -> tuple[GroupSignal, list[TrainSample]]:
        """When a group comes, beside generation, and not when the learner waits for the batch."""
        signal = self._signal(group)
        return signal, train_samples(group, signal, self._weight_version)

    def _batch(self, groups: list[Group], made: list[tuple[GroupSignal, list[TrainSample]]]) -> StepBatch:
        self._open = False
        signals = [signal for signal, _ in made]
        trained = {group.prompt.draw for group in groups}
        stats = StepStats(
            {
                **self._tally.metrics(),
                "rollout/num_prompts_trained": len(groups),
                "rollout/tokens_trained": sum(signal.num_tokens for signal in signals),
                **staleness_metrics(signals, self._weight_version),
                **signal_metrics(signals),
            }
        )
        return StepBatch(
            step=self._step,
            samples=tuple(chain.from_iterable(samples for _, samples in made)),
            group_sizes=tuple(len(signal.rewards) for signal in signals),
            stats=stats,
            groups=tuple(groups),
            plain_advantages=tuple(chain.from_iterable(signal.plain for signal in signals)),
            dropped=tuple(dropped for dropped in self._dropped if dropped.group.prompt.draw not in trained),
        )

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on, ready for JSON; taken between steps."""
        return {"last_draw": self._last_draw, "daa": self._daa.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._last_draw = state["last_draw"]
        self._daa.load_state_dict(state["daa"])
