"""Generation of one step, simulated event by event: engines with continuous batching, and the tail that all wait for.

An engine's step gives each running sequence one token, and takes `step + sequences x sequence + tokens x context`
seconds. Between two events (a sequence ends, others are let in) nothing changes but the tokens, so the simulation goes
from event to event. Source of the model: Yu et al. 2022 (Orca) for batching by iteration; Kwon et al. 2023 (vLLM) for
the cache that limits how many sequences run.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

from da3po.plan.lengths import ResponseLengths


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRates:
    """Seconds. step: of an engine step, whatever is in it. sequence: more for each running sequence. context: more for
    each token in the cache of running sequences. prompt: of each prompt token."""

    step: float
    sequence: float
    context: float
    prompt: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """num_places: sequences that an engine runs at once."""

    num_engines: int
    num_places: int
    rates: EngineRates


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a step asks for: num_prompts groups of num_samples that dynamic sampling keeps, each with chance keep_rate.

    margin: groups asked for, over those that the batch is expected to need. max_in_flight: groups at most.
    """

    num_prompts: int
    num_samples: int
    prompt_tokens: float
    lengths: ResponseLengths
    keep_rate: float
    margin: float
    max_in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """seconds: until the batch is full. groups: asked for. tokens: drawn of responses, those of dropped and stopped
    groups too. idle: mean share of the time for which an engine has nothing to do. tail: share of the time, at its end,
    for which less than half as many sequences run as at the most."""

    seconds: float
    groups: int
    tokens: int
    idle: float
    tail: float


@lru_cache(maxsize=64)
def generate(batch: Batch, engines: Engines, seed: int = 0) -> Generation:
    """Simulate one step as collector and pool run it: groups go to the engine with the fewest samples, more are asked
    for as groups turn out to be dropped, and the group that fills the batch, in the order of draws, ends the step."""
    return _Simulation(batch, engines, random.Random(seed)).run()


@dataclass(slots=True, kw_only=True)
class _Group:
    kept: bool
    num_left: int


class _Simulation:
    def __init__(self, batch: Batch, engines: Engines, chance: random.Random) -> None:
        self._batch = batch
        self._chance = chance
        self._engines = [_Engine(engines.num_places, engines.rates) for _ in range(engines.num_engines)]
        self._events: list[tuple[float, int, int]] = []  # when, engine, how often it had changed then
        self._pool = batch.lengths.quantiles(1000)
        self._groups: list[_Group] = []
        self._num_unfinished = self._num_useful = 0
        self._next = self._num_taken = 0
        self._now = self._half_full = 0.0
        self._num_running = self._most = 0

    def run(self) -> Generation:
        self._top_up()
        while self._num_taken < self._batch.num_prompts:
            self._now, index, change = heapq.heappop(self._events)
            if change == self._engines[index].num_changes:
                self._engine_event(index)
        idle = [engine.idle_until(self._now) for engine in self._engines]
        return Generation(
            seconds=self._now,
            groups=len(self._groups),
            tokens=sum(engine.num_tokens(self._now) for engine in self._engines),
            idle=math.fsum(idle) / len(idle) / self._now,
            tail=1 - self._half_full / self._now,
        )

    def _engine_event(self, index: int) -> None:
        if 2 * self._num_running >= self._most:
            self._half_full = self._now
        for number in self._engines[index].finish_next():
            self._sample_ends(number)
        self._schedule(index)

    def _sample_ends(self, number: int) -> None:
        group = self._groups[number]
        group.num_left -= 1
        if group.num_left:
            return
        self._num_unfinished -= 1
        self._num_useful += group.kept
        while self._next < len(self._groups) and self._groups[self._next].num_left == 0:
            self._num_taken += self._groups[self._next].kept
            self._next += 1
        self._top_up()

    def _top_up(self) -> None:
        missing = max(0, self._batch.num_prompts - self._num_useful)
        expected = math.ceil(missing / self._batch.keep_rate * self._batch.margin)
        for _ in range(min(expected, self._batch.max_in_flight) - self._num_unfinished):
            self._ask()

    def _ask(self) -> None:
        number = len(self._groups)
        self._groups.append(
            _Group(kept=self._chance.random() < self._batch.keep_rate, num_left=self._batch.num_samples)
        )
        self._num_unfinished += 1
        index = min(range(len(self._engines)), key=lambda one: self._engines[one].num_samples)
        lengths = [self._chance.choice(self._pool) for _ in range(self._batch.num_samples)]
        self._engines[index].add(self._now, number, lengths, self._batch.prompt_tokens)
        self._schedule(index)

    def _schedule(self, index: int) -> None:
        """The engine's next event, and the number that run in all."""
        engine = self._engines[index]
        engine.num_changes += 1
        self._num_running += len(engine.running) - engine.num_counted
        engine.num_counted = len(engine.running)
        self._most = max(self._most, self._num_running)
        if engine.running:
            heapq.heappush(self._events, (engine.next_end(), index, engine.num_changes))


class _Engine:
    """running: (number of the engine step that ends a sequence, its length, its group)."""

    def __init__(self, num_places: int, rates: EngineRates) -> None:
        self._num_places = max(1, num_places)
        self._rates = rates
        self.running: list[tuple[int, int, int]] = []
        self._waiting: deque[tuple[int, int]] = deque()
        self._prompt_of: dict[int, float] = {}
        self._now, self._step, self._context, self._idle = 0.0, 0, 0.0, 0.0
        self._num_drawn = 0
        self.num_samples = 0
        self.num_changes = 0
        self.num_counted = 0

    def add(self, now: float, group: int, lengths: list[int], prompt_tokens: float) -> None:
        if self.running:
            self._advance(self._steps_until(now))
        else:
            self._idle += max(0.0, now - self._now)
            self._now = max(now, self._now)
        self._now += prompt_tokens * self._rates.prompt  # once: the group's samples share it
        self._prompt_of[group] = prompt_tokens
        self._waiting.extend((length, group) for length in lengths)
        self.num_samples += len(lengths)
        self._admit()

    def next_end(self) -> float:
        return self._now + self._seconds(self.running[0][0] - self._step)

    def finish_next(self) -> list[int]:
        """Go to the end of the next sequence; the groups of all that end there."""
        self._advance(self.running[0][0] - self._step)
        ended = []
        while self.running and self.running[0][0] == self._step:
            _, length, group = heapq.heappop(self.running)
            self._context -= self._prompt_of[group] + length
            self.num_samples -= 1
            ended.append(group)
        self._admit()
        return ended

    def idle_until(self, end: float) -> float:
        return self._idle + (0.0 if self.running else max(0.0, end - self._now))

    def num_tokens(self, end: float) -> int:
        steps = self._steps_until(end) if self.running else 0
        return self._num_drawn + steps * len(self.running)

    def _admit(self) -> None:
        while self._waiting and len(self.running) < self._num_places:
            length, group = self._waiting.popleft()
            heapq.heappush(self.running, (self._step + length, length, group))
            self._context += self._prompt_of[group]

    def _seconds(self, num_steps: int) -> float:
        """Every step adds a token to each sequence, so the tokens over several are an arithmetic series."""
        count, rates = len(self.running), self._rates
        read = num_steps * self._context + count * num_steps * (num_steps - 1) / 2
        return num_steps * (rates.step + count * rates.sequence) + rates.context * read

    def _advance(self, num_steps: int) -> None:
        self._now += self._seconds(num_steps)
        self._step += num_steps
        self._context += len(self.running) * num_steps
        self._num_drawn += len(self.running) * num_steps

    def _steps_until(self, now: float) -> int:
        """Whole steps that have begun by `now`, not past the next end."""
        low, high = 0, self.running[0][0] - self._step
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._now + self._seconds(middle) < now else (low, middle)
        return low
