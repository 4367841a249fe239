"""From prompts to the batch of a training step.

    cursor ──Prompt──▶ engines ──GroupResult──▶ grader ──Group, in draw order──▶ post-processing ──StepBatch──▶

Groups are generated and graded side by side, a set number at a time, and enter post-processing in the order in which
their prompts were drawn. A step takes groups up to the one that fills its batch, and that is the last of its draws: so
which prompts a step uses depends on their groups and on nothing else, neither on how many were in flight nor on what
finished first. Without this, short answers, which finish first, would choose the batch, and a resumed run could not
draw what an uninterrupted one does.

What is in flight past the last draw is surplus. Generating it is stopped at once and what it cost is counted; its
prompts go back to the head of the supply and are drawn again, under the same draw numbers and so with the same seeds,
by the step that comes to them. With `algo.dynamic_sampling.max_surplus_age` above 0 those groups that were finished by
then are kept instead, with the log-probs and the version of the weights that made them, and take their places in the
next step. Prompts and their order stay the same; which of them have older samples then depends on timing.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from da3po.config.schema import RolloutConfig
from da3po.rollout.in_flight import Generate, GradeResponses, InFlight
from da3po.rollout.postprocess import PostProcessor
from da3po.rollout.serialize import group_from_dict, group_to_dict
from da3po.runtime.seeds import sample_seed
from da3po.types import Group, GroupRequest, Prompt, SamplingParams, StepBatch, StepStats

# The share of groups that a fresh run expects dynamic sampling to keep, and how far each step moves the estimate.
INITIAL_KEEP_RATE = 2 / 3
KEEP_RATE_MOMENTUM = 0.5
# Batches in flight at most, whatever the estimate, and batches in a round of `max_rounds`: the DAPO recipe generates
# three prompts for one that it trains on.
MAX_BATCHES = 3
# More than the estimate asks for: a group that turns out to be missing at the end costs a whole response's time.
MARGIN = 1.1


class Cursor(Protocol):
    """An endless, resumable supply of prompts."""

    def draw(self, n: int, /) -> list[Prompt]: ...
    def give_back(self, n: int, /) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSnapshot:
    """Everything that decides what the next step draws, at one moment between two steps.

    cursor, post: their states. surplus: finished groups past the last batch, as they are: to write them out takes long.
    """

    cursor: dict[str, Any]
    post: dict[str, Any]
    keep_rate: float
    surplus: tuple[Group, ...]

    def state_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "cursor": self.cursor,
            "post": self.post,
            "keep_rate": self.keep_rate,
            "surplus": [group_to_dict(group) for group in self.surplus],
        }


class Collector:
    """Collects the groups of one step after another."""

    def __init__(
        self,
        *,
        cursor: Cursor,
        generate: Generate,
        grade: GradeResponses,
        post: PostProcessor,
        config: RolloutConfig,
        max_rounds: int,
        filters: bool,
        seed: int,
        max_surplus_age: int = 0,
        aborted_tokens: Callable[[], int] = lambda: 0,
    ) -> None:
        """
        Args:
            filters: whether dynamic sampling drops groups, so that more must be generated than the batch takes.
            seed: of the run; every sample's seed derives from it, the prompt's draw and the sample's index.
            max_surplus_age: versions that a finished surplus group may lie behind when it is used; 0 keeps none.
            aborted_tokens: response tokens, so far, that engines drew for groups they were told to stop.
        """
        self._cursor = cursor
        self._generate = generate
        self._grade = grade
        self._post = post
        self._config = config
        self._max_prompts = max_rounds * MAX_BATCHES * config.num_prompts
        self._max_in_flight = config.max_in_flight or MAX_BATCHES * config.num_prompts
        self._seed = seed
        self._max_surplus_age = max_surplus_age
        self._aborted_tokens = aborted_tokens
        self._keep_rate = INITIAL_KEEP_RATE if filters else 1.0
        self._margin = MARGIN if filters else 1.0
        self._surplus: dict[int, Group] = {}  # finished groups past the last batch, by draw
        self._sampling = SamplingParams(
            temperature=config.temperature, top_p=config.top_p, top_k=config.top_k, max_tokens=config.max_tokens
        )

    async def collect(self, step: int) -> StepBatch:
        """The batch of one step. Raises what the starvation policy raises when prompts run dry."""
        start = time.perf_counter()
        self._post.begin(step, weight_version=step - 1)
        carried = self._still_good(oldest=step - 1 - self._max_surplus_age)
        batch = None
        while batch is None:
            batch, surplus = await self._attempt()
            batch = batch or self._post.starve()
        took = StepStats({"time/collect": time.perf_counter() - start})
        return dataclasses.replace(batch, stats=batch.stats | carried | surplus | took)

    def _still_good(self, oldest: int) -> StepStats:
        """Leave the carried groups that are too old to be generated again."""
        kept = {draw: group for draw, group in self._surplus.items() if _version(group) >= oldest}
        num_expired = len(self._surplus) - len(kept)
        self._surplus = kept
        return StepStats({"rollout/surplus_carried": len(kept), "rollout/surplus_expired": num_expired})

    async def _attempt(self) -> tuple[StepBatch | None, StepStats]:
        """Take groups until the batch is full, or None if the limit on prompts comes first; and what was surplus."""
        flight = InFlight(self._generate, self._grade, self._post.keeps)
        aborted_before = self._aborted_tokens()
        batch, num_asked = None, 0
        try:
            while batch is None:
                num_asked += self._top_up(flight, self._max_prompts - num_asked)
                if not flight.num_waiting:
                    break
                if flight.ready:
                    batch = self._post.add(await flight.take())
                else:
                    await flight.arrival()
        finally:
            await flight.close()
        self._keep_rate += KEEP_RATE_MOMENTUM * (self._post.keep_rate - self._keep_rate)
        return batch, self._put_away(flight, self._aborted_tokens() - aborted_before)

    def _top_up(self, flight: InFlight, limit: int) -> int:
        """Ask for as many more as the batch is expected to need, `limit` at most; returns how many."""
        missing = max(self._post.num_missing - flight.num_useful, 0)
        expected = math.ceil(missing / max(self._keep_rate, 1e-6) * self._margin)
        count = max(0, min(min(expected, self._max_in_flight) - flight.num_unfinished, limit))
        if count:
            prompts = self._cursor.draw(count)
            for prompt in prompts:
                if group := self._surplus.pop(prompt.draw, None):
                    flight.put(group)
            flight.ask(prompts, [self._request(prompt) for prompt in prompts if prompt.draw not in flight.finished])
        return count

    def _put_away(self, flight: InFlight, num_aborted_tokens: int) -> StepStats:
        """Give the surplus prompts back; keep their finished groups or count what they cost."""
        self._cursor.give_back(flight.num_waiting)
        finished = flight.finished
        if self._max_surplus_age > 0:
            self._surplus |= finished
            finished = {}
        return StepStats(
            {
                "rollout/surplus_prompts": flight.num_waiting,
                "rollout/tokens_surplus": num_aborted_tokens
                + flight.num_ungraded_tokens
                + sum(map(_num_tokens, finished.values())),
            }
        )

    def _request(self, prompt: Prompt) -> GroupRequest:
        return GroupRequest(
            key=prompt.draw,
            prompt_ids=prompt.token_ids,
            seeds=tuple(sample_seed(self._seed, "rollout", prompt.draw, i) for i in range(self._config.num_samples)),
            sampling=self._sampling,
        )

    def snapshot(self) -> CollectorSnapshot:
        """Taken between steps, after each; cheap, and not changed afterwards."""
        return CollectorSnapshot(
            cursor=self._cursor.state_dict(),
            post=self._post.state_dict(),
            keep_rate=self._keep_rate,
            surplus=tuple(self._surplus.values()),
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the `state_dict` of a snapshot."""
        self._cursor.load_state_dict(state["cursor"])
        self._post.load_state_dict(state["post"])
        self._keep_rate = state["keep_rate"]
        self._surplus = {group.prompt.draw: group for group in map(group_from_dict, state["surplus"])}


def _version(group: Group) -> int:
    """Of the oldest weights that took part in the group."""
    return min(completion.weight_version for completion in group.completions)


def _num_tokens(group: Group) -> int:
    return sum(len(completion.token_ids) for completion in group.completions)
