"""How long a step takes, and which side waits for the other."""

from __future__ import annotations

from dataclasses import dataclass

from da3po.config.schema import Config
from da3po.plan.engine import EngineMemory
from da3po.plan.rates import Rates
from da3po.plan.rollouts import Engines, Generation, generate
from da3po.plan.work import Work, wanted_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of each part of a step.

    generation: see there. grading: of all answers, beside generation. other: everything else.
    overlapped: the next batch is generated while the learner works on this one (rollout.max_lag above 0).
    """

    generation: Generation
    grading: float
    old_logprobs: float
    forward_backward: float
    updates: float
    sync: float
    other: float
    overlapped: bool

    @property
    def rollout(self) -> float:
        """Until a batch is there: the longer of generation and grading."""
        return max(self.generation.seconds, self.grading)

    @property
    def learner(self) -> float:
        return self.old_logprobs + self.forward_backward + self.updates

    @property
    def total(self) -> float:
        both = max(self.rollout, self.learner) if self.overlapped else self.rollout + self.learner
        return both + self.sync + self.other

    @property
    def engines_wait(self) -> float:
        """Share of the step for which the engines' GPUs have nothing to do, mean over engines."""
        return 1 - (self.generation.seconds * (1 - self.generation.idle) + self.sync) / self.total

    @property
    def learner_wait(self) -> float:
        return 1 - (self.learner + self.sync) / self.total

    @property
    def waits(self) -> str:
        return "learner" if self.rollout > self.learner else "engines"


def step_time(config: Config, work: Work, rates: Rates, memory: EngineMemory) -> StepTime:
    """Simulated from the work and the rates."""
    batch = wanted_batch(config)
    # A sequence that runs has half of its response in the cache on average.
    places = memory.sequences(batch.prompt_tokens + batch.lengths.mean / 2, config.engine)
    engines = Engines(num_engines=config.engine.num_engines, num_places=places, rates=rates.engine)
    generation = generate(batch, engines)
    grading = generation.groups * batch.num_samples * rates.grade / config.reward.num_workers
    forward, train, updates = _learner_seconds(config, work, rates)
    return StepTime(
        generation=generation,
        grading=grading,
        old_logprobs=forward if work.updates > 1 else 0.0,
        forward_backward=train,
        updates=updates,
        sync=rates.sync,
        other=rates.step,
        overlapped=config.rollout.max_lag > 0,
    )


def _learner_seconds(config: Config, work: Work, rates: Rates) -> tuple[float, float, float]:
    """Forward passes alone, forward and backward, and optimizer updates. Pipeline ranks wait (P - 1) / V micro-batches
    at the ends of each pass (Narayanan et al. 2021)."""
    parallel, learner = config.parallel, rates.learner
    of_rank = work.trained_tokens / parallel.dp
    bubble = 1 + (parallel.pp - 1) / parallel.vpp / work.micro_batches
    per_pass = work.updates * work.micro_batches * learner.micro_batch
    return (
        bubble * (of_rank * learner.forward + per_pass),
        bubble * (of_rank * learner.train + per_pass),
        work.updates * learner.update,
    )
