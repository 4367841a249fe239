"""How near a plan's time of a step comes to the real one, on this machine's CPU.

    python tools/bench/plan.py [--out rates.json] [--number 20] [--seed 1]

One engine and one learner rank of the tiny model, which stay up, go through all steps. A set-up differs in prompts,
samples, longest response, temperature (at a high one the model rambles), prompts of an update, budget of a micro-batch
and dynamic sampling. First the rates of engine, learner, sync and grader are measured, and at each temperature lengths
of responses and the share of groups kept; then set-ups are drawn at random, and each is planned from what was measured,
and run. The file `--out` holds the rates, in the form that `plan.rates` takes.

Prints one JSON object: the rates, each set-up with its predicted and real seconds, and the median of the errors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from da3po.cluster.session import Session
from da3po.config.load import load
from da3po.config.schema import Config
from da3po.launch import Engines, Ranks, reserve
from da3po.models.hf_config import read_model_spec
from da3po.plan.overview import make_plan
from da3po.reward.pool import GraderPool
from da3po.sync.publish import WeightPublisher
from da3po.train import Prepared, build_collector, build_packer, prepare
from da3po.types import GroupRequest, SamplingParams, StepBatch

PLACES = 64
LONGEST = 96
BASE = (
    "experiment=quickstart",
    f"engine.max_num_seqs={PLACES}",
    f"rollout.max_tokens={LONGEST}",
    f"eval.max_tokens={LONGEST}",
    "data.max_prompt_tokens=64",
    "learner.device=cpu",
    "engine.num_threads=1",
    "learner.num_threads=1",
)
TEMPERATURES = (1.0, 1.6)
# Sequences, response tokens: what the engine is measured on; and samples, prompts of an update, budget for the learner.
ENGINE_RUNS = ((8, 40), (64, 40), (32, 20), (64, 80), (16, 80), (128, 30))
LEARNER_RUNS = ((64, None, 4096), (64, 2, 4096), (64, None, 512), (256, 4, 2048), (256, None, 2048), (128, 1, 4096))
MAX_TOKENS_DRAWN = 20_000
"""Of a set-up: a step of some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """One step's options."""

    temperature: float
    num_prompts: int
    num_samples: int
    max_tokens: int
    prompts_per_update: int | None
    budget: int
    dynamic: bool

    def apply(self, config: Config) -> Config:
        sampling = replace(config.algo.dynamic_sampling, enabled=self.dynamic)
        return replace(
            config,
            rollout=replace(
                config.rollout,
                num_prompts=self.num_prompts,
                num_samples=self.num_samples,
                max_tokens=self.max_tokens,
                temperature=self.temperature,
            ),
            algo=replace(config.algo, dynamic_sampling=sampling),
            train=replace(config.train, prompts_per_update=self.prompts_per_update),
            learner=replace(config.learner, max_tokens_per_micro_batch=self.budget),
        )


def draw_set_ups(number: int, seed: int) -> list[SetUp]:
    chance = random.Random(seed)
    found: list[SetUp] = []
    while len(found) < number:
        prompts = chance.choice((8, 12, 16, 24, 32, 48, 64))
        temperature = chance.choice(TEMPERATURES)
        one = SetUp(
            temperature=temperature,
            num_prompts=prompts,
            num_samples=chance.choice((4, 8, 16)),
            max_tokens=chance.choice((12, 24, 48, LONGEST)),
            prompts_per_update=chance.choice([None, *(size for size in (4, 8, 16) if prompts % size == 0)]),
            budget=chance.choice((512, 1024, 2048, 4096)),
            dynamic=temperature == TEMPERATURES[0] and chance.random() < 0.5,
        )
        if one.num_prompts * one.num_samples * one.max_tokens <= MAX_TOKENS_DRAWN:
            found.append(one)
    return found


class Machine:
    """Engine, learner and graders that stay up, and the steps taken so far."""

    def __init__(self, config: Config, prepared: Prepared, engines: Engines, learner: Any, graders: GraderPool) -> None:
        self.config = config
        self.prepared = prepared
        self.engines = engines
        self.learner = learner
        self.graders = graders
        self.weights = WeightPublisher(learner, engines.pool)
        self.step = 0

    async def publish(self) -> float:
        start = time.perf_counter()
        await self.weights.publish(version=self.step)
        return time.perf_counter() - start

    async def collect(self, config: Config) -> StepBatch:
        collector = build_collector(config, self.prepared.train, self.engines, self.graders)
        return await collector.collect(self.step + 1)

    async def learn(self, config: Config, batch: StepBatch) -> tuple[Any, dict[str, float]]:
        packed = build_packer(config)(batch)
        stats = await self.learner.step(packed)
        self.step += 1
        return packed, dict(stats.values)

    async def whole_step(self, config: Config) -> dict[str, float]:
        """Seconds of the parts of one step."""
        start = time.perf_counter()
        batch = await self.collect(config)
        collected = time.perf_counter()
        await self.learn(config, batch)
        learned = time.perf_counter()
        await self.publish()
        end = time.perf_counter()
        return {
            "rollout": collected - start,
            "learner": learned - collected,
            "sync": end - learned,
            "total": end - start,
        }


async def with_machine(work: Any) -> Any:
    config = load(BASE)
    prepared = prepare(config)
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        async with AsyncExitStack() as stack:
            graders = GraderPool(config.reward)
            stack.callback(graders.close)
            placement = await reserve(config, prepared.platform, prepared.model, logs, training=True)
            stack.callback(placement.release)
            engines = Engines(config, prepared.platform, prepared.model, logs, training=True, placement=placement)
            stack.push_async_callback(engines.close)
            ranks = Ranks(config, prepared.platform, prepared.model, logs, placement)
            stack.push_async_callback(ranks.close)
            learner, _ = await asyncio.gather(ranks.start(), engines.start())
            machine = Machine(config, prepared, engines, learner, graders)
            await machine.publish()
            # The first calls of everything are slow.
            await machine.whole_step(SETTLING.apply(config))
            return await work(machine)


SETTLING = SetUp(
    temperature=1.0, num_prompts=8, num_samples=8, max_tokens=12, prompts_per_update=4, budget=1024, dynamic=False
)


async def measure(machine: Machine) -> dict[str, Any]:
    """Rates by least squares over a few runs, and how responses come out."""
    lengths = {str(temperature): await response_lengths(machine, temperature) for temperature in TEMPERATURES}
    engine = await engine_rates(machine)
    learner, other = await learner_rates(machine)
    syncs = [await machine.publish() for _ in range(3)]
    rates = {
        "engine": engine,
        "learner": learner,
        "sync": statistics.median(syncs),
        "grade": await grade_rate(machine),
        "step": other,
    }
    return {"rates": rates, "lengths": lengths}


async def response_lengths(machine: Machine, temperature: float) -> dict[str, Any]:
    """Lengths of responses that may be LONGEST tokens long, and the share of groups that are neither all right nor all
    wrong, for each group size."""
    set_up = replace(SETTLING, num_prompts=24, num_samples=16, max_tokens=LONGEST, temperature=temperature)
    batch = await machine.collect(set_up.apply(machine.config))
    lengths = [len(sample.response_ids) for sample in batch.samples]
    rewards = [sample.reward > 0 for sample in batch.samples]
    kept = {}
    for size in (4, 8, 16):
        groups = [rewards[begin : begin + size] for begin in range(0, len(rewards), size)]
        kept[str(size)] = max(0.05, sum(0 < sum(group) < size for group in groups) / len(groups))
    await machine.learn(set_up.apply(machine.config), batch)
    await machine.publish()
    return {"tokens": sorted(lengths), "kept": kept}


async def engine_rates(machine: Machine) -> dict[str, float]:
    prompts = machine.prepared.train.prompts
    rows, seconds = [], []
    for number, (sequences, tokens) in enumerate(ENGINE_RUNS):
        sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=tokens, ignore_eos=True)
        group = 8
        requests = [
            GroupRequest(
                key=1_000_000 + 1000 * number + index,
                prompt_ids=prompts[(137 * number + index) % len(prompts)].token_ids,
                seeds=tuple(range(group * index, group * index + group)),
                sampling=sampling,
            )
            for index in range(sequences // group)
        ]
        start = time.perf_counter()
        async for _ in machine.engines.pool.generate(requests):
            pass
        seconds.append(time.perf_counter() - start)
        waves = math.ceil(sequences / PLACES)
        rows.append([waves * tokens, sequences * tokens, sum(len(request.prompt_ids) for request in requests)])
    step, sequence, prompt = fit(rows, seconds)
    return {"step": step, "sequence": sequence, "context": 0.0, "prompt": prompt}


async def learner_rates(machine: Machine) -> tuple[dict[str, float], float]:
    """Rates, and what a step takes beside its passes and updates."""
    rows, seconds, updates, rest = [], [], [], []
    for samples, per_update, budget in LEARNER_RUNS:
        set_up = replace(
            SETTLING,
            num_prompts=samples // 8,
            max_tokens=48,
            prompts_per_update=per_update,
            budget=budget,
            temperature=1.6,
        )
        config = set_up.apply(machine.config)
        batch = await machine.collect(config)
        start = time.perf_counter()
        packed, stats = await machine.learn(config, batch)
        whole = time.perf_counter() - start
        tokens = sum(len(one.input_ids) for update in packed.updates for rank in update.micro_batches for one in rank)
        passes = sum(len(update.micro_batches[0]) for update in packed.updates)
        if len(packed.updates) > 1:
            rows.append([tokens, 0.0, passes])
            seconds.append(stats["time/old_logprobs"])
        rows.append([0.0, tokens, passes])
        seconds.append(stats["time/forward_backward"])
        updates.append(stats["time/optimizer"] / len(packed.updates))
        rest.append(whole - sum(stats[f"time/{name}"] for name in ("old_logprobs", "forward_backward", "optimizer")))
        await machine.publish()
    forward, train, micro_batch = fit(rows, seconds)
    rates = {"forward": forward, "train": train, "micro_batch": micro_batch, "update": statistics.median(updates)}
    return rates, statistics.median(rest)


async def grade_rate(machine: Machine) -> float:
    prompts = machine.prepared.train.prompts[:32]
    start = time.perf_counter()
    await asyncio.gather(*(machine.graders.grade(one.gold, [one.gold, "12", "no"]) for one in prompts))
    return (time.perf_counter() - start) * machine.config.reward.num_workers / (3 * len(prompts))


def fit(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Rates >= 0 with which the rows come nearest to the seconds, each in proportion to its size."""
    a, b = np.array(rows, dtype=float), np.array(seconds, dtype=float)
    a, b = a / b[:, None], np.ones(len(b))
    used = list(range(a.shape[1]))
    while True:
        found = np.linalg.lstsq(a[:, used], b, rcond=None)[0]
        if (found >= 0).all():
            break
        used.pop(int(found.argmin()))
    rates = [0.0] * a.shape[1]
    for index, value in zip(used, found, strict=True):
        rates[index] = float(value)
    return rates


def predict(config: Config, set_up: SetUp, measured: dict[str, Any], rates: str) -> dict[str, float]:
    """By plan, from measured rates and lengths."""
    seen = measured["lengths"][str(set_up.temperature)]
    lengths = [min(set_up.max_tokens, length) for length in seen["tokens"]]
    logs = [math.log(max(1, length)) for length in seen["tokens"]]
    planned = replace(
        set_up.apply(config),
        plan=replace(
            config.plan,
            rates=rates,
            mean_response_tokens=statistics.fmean(lengths),
            mean_prompt_tokens=measured["prompt_tokens"],
            spread=statistics.pstdev(logs),
            keep_rate=seen["kept"][str(set_up.num_samples)],
        ),
    )
    spec = read_model_spec(measured["model"])
    time_of = make_plan(spec, planned, 64 + LONGEST).time
    assert time_of is not None
    parts = {"rollout": time_of.rollout, "learner": time_of.learner + time_of.other, "sync": time_of.sync}
    return parts | {"total": time_of.total}


async def compare(machine: Machine, measured: dict[str, Any], rates: str, set_ups: Sequence[SetUp]) -> dict[str, Any]:
    results = []
    for set_up in set_ups:
        predicted = predict(machine.config, set_up, measured, rates)
        real = await machine.whole_step(set_up.apply(machine.config))
        error = predicted["total"] / real["total"] - 1
        results.append({"set_up": repr(set_up), "predicted": predicted, "real": real, "error": error})
        print(f"{error:+.0%} of {real['total']:.1f} s {predicted} {real} {set_up}", file=sys.stderr, flush=True)
    errors = [abs(one["error"]) for one in results]
    return {"median_error": statistics.median(errors), "largest_error": max(errors), "set_ups": results}


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold simulated steps against real ones.")
    parser.add_argument("--out", default="rates.json", help="file for the rates (default: %(default)s)")
    parser.add_argument("--number", type=int, default=20, help="set-ups (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    async def run(machine: Machine) -> dict[str, Any]:
        prompts = machine.prepared.train.prompts
        measured = await measure(machine)
        measured["prompt_tokens"] = statistics.fmean(len(prompt.token_ids) for prompt in prompts)
        measured["model"] = str(machine.prepared.model)
        Path(options.out).write_text(json.dumps(measured), encoding="utf-8")
        print(json.dumps(measured["rates"]), file=sys.stderr, flush=True)
        return measured | await compare(machine, measured, options.out, draw_set_ups(options.number, options.seed))

    with Session(load(BASE).cluster):
        print(json.dumps(asyncio.run(with_machine(run)), indent=2))


if __name__ == "__main__":
    main()
