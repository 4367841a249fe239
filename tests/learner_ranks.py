"""Learners of several layouts, each taken through some steps on real gloo ranks (see gloo_ranks)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gloo_ranks import open_channel, run_on_ranks

from da3po.config.schema import LearnerConfig, LossConfig, OptimConfig, ParallelConfig
from da3po.learner.client import dp_index, updates_of
from da3po.learner.spec import LearnerSpec
from da3po.pack.packer import Packer
from da3po.plan.layout import pack_multiples
from da3po.types import MicroBatch, PackedStep, StepBatch, StepStats, TrainSample

if TYPE_CHECKING:
    from da3po.learner.megatron.worker import LearnerRank

NUM_STEPS = 3
SAVED_STEP = 2
LENGTHS = ((1, 6), (3, 5), (4, 4), (7, 2), (2, 60), (30, 130), (5, 1), (1, 0), (9, 33), (10, 10))
"""Prompt and response tokens of a step's samples: some of 7, 8, 9 and 1 in all, one above the token budget."""
TOKEN_BUDGET = 96

LAYOUTS = {
    "single": ParallelConfig(),
    "tp2": ParallelConfig(tp=2),
    "tp2sp": ParallelConfig(tp=2, sequence_parallel=True),
    "pp2": ParallelConfig(pp=2),
    "dp2": ParallelConfig(dp=2),
    "tp2pp2": ParallelConfig(tp=2, pp=2),
    "cp2": ParallelConfig(cp=2),
    "vpp": ParallelConfig(pp=2, vpp=2),
    "uneven": ParallelConfig(pp=2, first_stage_layers=3),
}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One learner, taken through three training steps, an export, and a resume.

    out: directory for what it saw. lengths: prompt and response tokens of each sample.
    resume_from: other scenarios, earlier in the list, whose checkpoints to go on from at the end.
    receives: a process of its own takes the weights from the channel after each of the three steps.
    brief: the three steps alone.
    token_budget: of a micro-batch.
    amplification: factor of every other positive advantage, as DAA has for the right answers of hard groups.
    without_advantage: indices of samples whose advantage is 0.
    learner: options beyond the device.
    """

    name: str
    model: str
    parallel: ParallelConfig
    out: str
    temperature: float = 1.0
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    lengths: tuple[tuple[int, int], ...] = LENGTHS
    resume_from: tuple[str, ...] = ()
    receives: bool = False
    brief: bool = False
    token_budget: int = TOKEN_BUDGET
    amplification: float = 1.0
    without_advantage: tuple[int, ...] = ()
    learner: LearnerConfig = field(default_factory=partial(LearnerConfig, device="cpu", num_threads=1))

    @property
    def spec(self) -> LearnerSpec:
        return LearnerSpec(
            model_path=self.model,
            train_steps=NUM_STEPS,
            temperature=self.temperature,
            parallel=self.parallel,
            learner=self.learner,
            loss=self.loss,
            optim=self.optim,
        )


def packed_step(scenario: Scenario, step: int, bad: bool = False) -> PackedStep:
    """The data of a step: one update in the first, then two. bad: one sample has an infinite advantage."""
    samples = _samples(step, scenario.lengths)
    for index in range(0, len(samples), 2):
        factor = scenario.amplification if samples[index].advantage > 0 else 1.0
        samples[index] = samples[index]._replace(advantage=factor * samples[index].advantage)
    for index in scenario.without_advantage:
        samples[index] = samples[index]._replace(advantage=0.0)
    if bad:
        samples[0] = samples[0]._replace(advantage=float("inf"))
    multiples = pack_multiples(scenario.parallel, scenario.learner.precision)
    packer = Packer(
        loss=scenario.loss,
        dp=scenario.parallel.dp,
        max_tokens=scenario.token_budget,
        pad_to_multiple=multiples.tokens,
        sequence_multiple=multiples.sequence,
        micro_batch_multiple=multiples.micro_batches,
        equal_lengths=multiples.equal_lengths,
        prompts_per_update=None if step == 1 else 1,
        zero_advantage=scenario.learner.zero_advantage,
    )
    sizes = (len(samples) // 2, len(samples) - len(samples) // 2)
    return packer(StepBatch(step=step, samples=tuple(samples), group_sizes=sizes, stats=StepStats()))


def _samples(step: int, lengths: Sequence[tuple[int, int]]) -> list[TrainSample]:
    generator = torch.Generator().manual_seed(step)
    samples = []
    for prompt_tokens, response_tokens in lengths:
        ids = torch.randint(4, 1003, (prompt_tokens + response_tokens,), generator=generator).tolist()
        samples.append(
            TrainSample(
                prompt_uid="uid",
                prompt_ids=tuple(ids[:prompt_tokens]),
                response_ids=tuple(ids[prompt_tokens:]),
                behaviour_logprobs=(-7.0,) * response_tokens,
                reward=1.0,
                advantage=float(torch.randn((), generator=generator)),
                fresh=True,
            )
        )
    return samples


def run_scenarios(scenarios: Sequence[Scenario], timeout: float = 400.0) -> None:
    """Take every scenario through its learner. Errors: the first of any rank."""
    run_on_ranks(_run, scenarios, num_versions=NUM_STEPS, timeout=timeout)


def _run(scenario: Scenario, rank: int, port: int) -> None:
    _Run(scenario, rank, port).all()


class _Run:
    """One rank of one scenario."""

    def __init__(self, scenario: Scenario, rank: int, port: int) -> None:
        from da3po.learner.megatron.worker import LearnerRank

        self.scenario = scenario
        self.rank = rank
        self.out = Path(scenario.out)
        self.learner: LearnerRank = LearnerRank()
        self.learner.init(rank, scenario.parallel.num_ranks, "127.0.0.1", port)
        self.learner.setup(scenario.spec)

    def all(self) -> None:
        seen: dict[str, Any] = {"metrics": []}
        first = self._updates(packed_step(self.scenario, 1))[0]
        seen["logprobs"] = self.learner.logprobs(first)
        seen["again"] = self.learner.logprobs(first)
        for step in range(1, NUM_STEPS + 1):
            seen["metrics"].append(self.learner.step(step, self._updates(packed_step(self.scenario, step))))
            if step == 1:
                seen["gradients"] = self._gradients()
            if step == SAVED_STEP and not self.scenario.brief:
                self._save()
            if self.scenario.receives:
                seen.setdefault("sent", []).append(self._publish(step))
                seen.setdefault("at_step", []).append(self._weights())
        seen["weights"] = self._weights()
        seen["own"] = self._own_parameters()
        if self.scenario.learner.precision == "bf16":
            seen["bf16"] = self._main_weights()
        if not self.scenario.brief:
            self._rest(first, seen)
        torch.save(seen, self.out / f"rank{self.rank}.pt")
        self.learner.close()

    def _rest(self, first: Sequence[MicroBatch], seen: dict[str, Any]) -> None:
        """What does not differ from one set of numbers to another."""
        trainer = self.learner.trainer
        trainer.spec = replace(trainer.spec, model_path=str(self.out / "gone"))  # as if it had been removed since
        self.learner.export(self.out / "export")
        seen["final_logprobs"] = self.learner.logprobs(first)
        seen["empty"] = self._learn_from_nothing()
        seen["skipped"] = self._skip()
        seen["refused"] = self._save_what_is_not_finite()
        seen["resumed"] = {name: self._resume(name) for name in (*self.scenario.resume_from, self.scenario.name)}

    def _updates(self, step: PackedStep) -> tuple[tuple[MicroBatch, ...], ...]:
        return updates_of(step, dp_index(self.rank, self.scenario.parallel))

    def _weights(self) -> dict[str, torch.Tensor]:
        from da3po.learner.megatron.weights import hf_stream

        return {name: tensor.clone() for name, tensor in hf_stream(self.learner.trainer.models)}

    def _publish(self, step: int) -> Any:
        if step == 1:
            open_channel(self.learner, self.out, self.rank)
        return self.learner.publish(step)

    def _own_parameters(self) -> dict[str, torch.Tensor]:
        models = self.learner.trainer.models
        return {
            (name if len(models) == 1 else f"{number}.{name}"): value.detach().clone()
            for number, model in enumerate(models)
            for name, value in model.named_parameters()
        }

    def _main_weights(self) -> dict[str, Any]:
        """Number formats, and this rank's part of the main weights beside the model's."""
        trainer = self.learner.trainer
        (optimizer,) = trainer.optimizer.inner.chained_optimizers
        main = [part for group in optimizer.shard_fp32_from_float16_groups for part in group]
        own = [part for group in optimizer.shard_float16_groups for part in group]
        return {
            "parameters": {parameter.dtype for model in trainer.models for parameter in model.parameters()},
            "gradients": {buffer.grad_data.dtype for ddp in trainer.ddps for buffer in ddp.buffers},
            "main": [part.detach().clone() for part in main],
            "own": [part.detach().clone() for part in own],
        }

    def _gradients(self) -> dict[str, torch.Tensor]:
        """Whole gradients of the last update, of which the distributed optimizer leaves each rank its part."""
        import torch.distributed as dist
        from megatron.core import parallel_state

        from da3po.learner.megatron.weights import hf_stream

        trainer = self.learner.trainer
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        # A bucket is what is cut into shares; a shared embedding has one of its own.
        for bucket in (bucket for ddp in trainer.ddps for buffer in ddp.buffers for bucket in buffer.buckets):
            own = bucket.grad_data.chunk(group.size())[group.rank()].clone()
            dist.all_gather_into_tensor(bucket.grad_data, own, group=group)
        return {name: value.clone() for name, value in hf_stream(trainer.models, of=lambda weight: weight.main_grad)}

    def _skip(self) -> dict[str, Any]:
        """Non-finite gradients: two skipped updates leave everything as it was, and the third ends the run."""
        from da3po.learner.megatron.optimizer import TooManySkipped

        before = self._own_parameters()
        bad = self._updates(packed_step(self.scenario, 1, bad=True))
        metrics = [self.learner.step(NUM_STEPS, bad) for _ in range(2)]
        unchanged = all(torch.equal(before[name], value) for name, value in self._own_parameters().items())
        try:
            self.learner.step(NUM_STEPS, bad)
        except TooManySkipped as error:
            return {"metrics": metrics, "unchanged": unchanged, "error": str(error)}
        return {"metrics": metrics, "unchanged": unchanged, "error": ""}

    def _learn_from_nothing(self) -> dict[str, Any]:
        """A step whose responses are all empty: metrics, and whether the weights are what they were."""
        before = self._own_parameters()
        silent = replace(self.scenario, lengths=tuple((prompt, 0) for prompt, _ in self.scenario.lengths))
        metrics = self.learner.step(NUM_STEPS, self._updates(packed_step(silent, NUM_STEPS)))
        unchanged = all(torch.equal(before[name], value) for name, value in self._own_parameters().items())
        return {"metrics": metrics, "unchanged": unchanged}

    def _save_what_is_not_finite(self) -> tuple[str, list[str]]:
        """The error of a save with one weight that is no number, and the files that it left."""
        path = self.out / f"refused{self.rank}"
        path.mkdir()
        weight = next(self.learner.trainer.models[-1].parameters()).data.view(-1)
        kept, weight[0] = weight[0].clone(), torch.nan
        try:
            self.learner.save(path)
        except FloatingPointError as error:
            weight[0] = kept
            return str(error), [file.name for file in path.iterdir()]
        return "", []

    def _save(self) -> None:
        import torch.distributed as dist

        path = self.out / "checkpoint"
        if self.rank == 0:
            path.mkdir()
        dist.barrier()
        self.learner.save(path)

    def _resume(self, name: str) -> dict[str, Any]:
        """Go on from the checkpoint of scenario `name` to the end."""
        self.learner.load(self.out.parent / name / "checkpoint")
        metrics = [
            self.learner.step(step, self._updates(packed_step(self.scenario, step)))
            for step in range(SAVED_STEP + 1, NUM_STEPS + 1)
        ]
        return {"metrics": metrics, "weights": self._weights()}
