"""From graded groups to the batch of a step: dynamic sampling, shaping, group advantage, DAA.

This is the only stateful step of the maths. It holds the kept groups that wait for a batch; a step in progress and the
surplus of a full one are the same list, in the order in which the prompts were drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from da3po.algo.daa import build_daa
from da3po.algo.dynamic_sampling import build_filter
from da3po.config.schema import AlgoConfig
from da3po.rollout.learning_signal import SignalMaker, count_grades, signal_metrics, train_samples
from da3po.rollout.serialize import group_from_dict, group_to_dict
from da3po.rollout.starvation import StarvationError, build_starvation
from da3po.rollout.tally import Tally
from da3po.types import Group, StepBatch, StepStats

__all__ = ["PostProcessor", "StarvationError"]

logger = logging.getLogger(__name__)


class PostProcessor:
    """Takes the groups of a step in draw order and gives its batch: `begin`, `add`, and if prompts run dry `starve`."""

    def __init__(self, algo: AlgoConfig, num_prompts: int, max_tokens: int) -> None:
        """num_prompts: groups of a batch. max_tokens: longest response, L_m of the overlong shaping."""
        self._num_prompts = num_prompts
        self._filter = build_filter(algo.dynamic_sampling)
        self._max_surplus_age = algo.dynamic_sampling.max_surplus_age
        self._daa = build_daa(algo.daa)
        self._signal = SignalMaker(algo, max_tokens, self._daa)
        self._starvation = build_starvation(algo.dynamic_sampling)
        self._kept: list[Group] = []
        self._held: list[Group] = []  # dropped groups of this step that `widen_band` may take back
        self._tally = Tally()
        self._num_empty_steps = 0
        self._last_draw = -1
        self._open = False
        self._step = 0
        self._weight_version = 0
        self._num_carried = 0
        self._num_expired = 0
        self._num_kept = 0

    @property
    def num_missing(self) -> int:
        """Groups that the batch still needs."""
        return max(0, self._num_prompts - len(self._kept))

    @property
    def num_kept(self) -> int:
        """Groups that dynamic sampling has kept since `begin`, those past a full batch included."""
        return self._num_kept

    def begin(self, step: int, weight_version: int) -> StepBatch | None:
        """Open a step; return its batch at once if groups left over from earlier steps fill it.

        weight_version: of the weights that generate for this step. Left-over groups that are more than
        `max_surplus_age` versions older are dropped, and counted.
        """
        oldest = weight_version - self._max_surplus_age
        waiting = [group for group in self._kept if _version(group) >= oldest]
        self._num_expired = len(self._kept) - len(waiting)
        self._num_carried = len(waiting)
        self._num_kept = 0
        self._kept = waiting
        self._held = []
        self._step = step
        self._weight_version = weight_version
        self._open = True
        return self._full_batch()

    def add(self, group: Group) -> StepBatch | None:
        """Take a group; return the batch when this one fills it. Later groups wait for the next step.

        Raises ValueError if a group with a later draw came first: completion order must not choose the batch.
        """
        if group.prompt.draw <= self._last_draw:
            raise ValueError(f"draw {group.prompt.draw} came after draw {self._last_draw}; groups enter in draw order")
        self._last_draw = group.prompt.draw
        num_correct, num_graded = count_grades(group)
        reason = self._filter(num_correct, num_graded)
        self._tally.count(group, num_correct, num_graded, reason)
        if num_graded:
            self._daa.observe(group.prompt.uid, num_correct, num_graded)
        if reason is None:
            self._kept.append(group)
            self._num_kept += 1
        elif self._starvation.holds_dropped and num_graded >= 2 and self._signal.teaches(group):
            self._held.append(group)
        return self._full_batch()

    def starve(self) -> StepBatch | None:
        """The step's rounds are used up: what the policy makes of it.

        None: nothing to train on, and `max_empty_steps` allows another attempt at this step. Raises StarvationError
        otherwise, and always under the policy `raise`.
        """
        groups = self._starvation.choose(self._kept, self._held, self._num_prompts)
        if groups:
            logger.warning("step %d trains on %d of %d prompts", self._step, len(groups), self._num_prompts)
            self._kept = []
            return self._batch(groups)
        self._num_empty_steps += 1
        if self._num_empty_steps >= self._starvation.max_empty_steps:
            raise StarvationError(self._step, self._num_prompts, len(self._kept), self._tally)
        return None

    def _full_batch(self) -> StepBatch | None:
        if not self._open or len(self._kept) < self._num_prompts:
            return None
        groups, self._kept = self._kept[: self._num_prompts], self._kept[self._num_prompts :]
        return self._batch(groups)

    def _batch(self, groups: list[Group]) -> StepBatch:
        signals = [self._signal(group) for group in groups]
        samples = [
            sample
            for group, signal in zip(groups, signals, strict=True)
            for sample in train_samples(group, signal, self._weight_version)
        ]
        stats = StepStats(
            {
                **self._tally.metrics(),
                "rollout/num_prompts_trained": len(groups),
                "rollout/surplus_carried": self._num_carried,
                "rollout/surplus_expired": self._num_expired,
                **signal_metrics(signals),
            }
        )
        self._open = False
        self._held = []
        self._tally = Tally()
        self._num_empty_steps = 0
        return StepBatch(
            step=self._step,
            samples=tuple(samples),
            group_sizes=tuple(len(signal.rewards) for signal in signals),
            stats=stats,
            groups=tuple(groups),
        )

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on, ready for JSON; taken between steps, or when a step could not be filled."""
        return {
            "kept": [group_to_dict(group) for group in self._kept],
            "tally": self._tally.state_dict(),
            "num_empty_steps": self._num_empty_steps,
            "last_draw": self._last_draw,
            "daa": self._daa.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept = [group_from_dict(group) for group in state["kept"]]
        self._tally = Tally.from_state_dict(state["tally"])
        self._num_empty_steps = state["num_empty_steps"]
        self._last_draw = state["last_draw"]
        self._daa.load_state_dict(state["daa"])


def _version(group: Group) -> int:
    """Of the oldest weights that took part in the group."""
    return min(completion.weight_version for completion in group.completions)
