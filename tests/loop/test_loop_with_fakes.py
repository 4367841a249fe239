"""The whole flow, prompts to published weights, in a second: real cursor, collector, post-processing, packer, pool and
publisher around a fake learner and fake engines."""

import json
import subprocess
import sys

import fakes
import pytest

from da3po import loop
from da3po.algo.mismatch import MismatchGate
from da3po.config.load import load
from da3po.data.cursor import Cursor
from da3po.engine.pool import EnginePool
from da3po.pack.packer import Packer
from da3po.rollout.collector import Collector
from da3po.rollout.pipeline import PublishBetweenBatches, RolloutPipeline
from da3po.rollout.postprocess import PostProcessor, StarvationError
from da3po.sync.publish import WeightPublisher

NUM_PROMPTS, NUM_SAMPLES = 6, 4
SMALL = [f"rollout.num_prompts={NUM_PROMPTS}", f"rollout.num_samples={NUM_SAMPLES}", "rollout.max_tokens=8"]
SMALL += ["algo.overlong.cache=2"]


class Parts:
    """A run of fakes; `overrides` are those of the command line."""

    def __init__(self, *overrides, steps=3, num_engines=2, script=fakes.coin_toss, grade=fakes.grade_text, count=40):
        config = load([*SMALL, *overrides])
        self.channel = fakes.FakeChannel()
        self.engines = [fakes.FakeEngine(self.channel, script) for _ in range(num_engines)]
        self.learner = fakes.FakeLearner(self.channel)
        self.recorder = fakes.FakeRecorder()
        in_flight = config.rollout.in_flight_updates
        self.grade = grade
        self.pool = pool = EnginePool(self.engines, in_flight_updates=in_flight)
        sampling = config.algo.dynamic_sampling
        self.collector = Collector(
            cursor=Cursor(fakes.prompts(count), seed=1, shuffle=True),
            generate=pool.generate,
            grade=grade,
            post=PostProcessor(config.algo, config.rollout.num_prompts, config.rollout.max_tokens),
            config=config.rollout,
            max_rounds=sampling.max_rounds,
            filters=sampling.enabled,
            seed=1,
            max_surplus_age=sampling.max_surplus_age,
        )
        self.pipeline = RolloutPipeline(self.collector, config.rollout.max_lag)
        weights = WeightPublisher(self.learner, pool)
        self.run = loop.Run(
            step=0,
            last_step=steps,
            rollouts=self.pipeline,
            packer=Packer(
                loss=config.algo.loss,
                dp=2,
                max_tokens=64,
                pad_to_multiple=1,
                prompts_per_update=config.train.prompts_per_update,
            ),
            learner=self.learner,
            gate=MismatchGate(config.mismatch),
            weights=weights if in_flight else PublishBetweenBatches(weights, self.pipeline),
            evaluator=fakes.Never(),
            checkpoints=fakes.Never(),
            recorder=self.recorder,
        )

    async def train(self):
        await loop.train(self.run)
        return self


async def test_a_run_learns_and_every_step_is_whole():
    parts = await Parts(steps=4).train()
    assert [samples.step for samples, _ in parts.recorder.steps] == [1, 2, 3, 4]
    assert parts.run.step == 4
    for samples, _ in parts.recorder.steps:
        assert samples.group_sizes == (NUM_SAMPLES,) * NUM_PROMPTS
        assert len({group.prompt.draw for group in samples.groups}) == NUM_PROMPTS
        for group in samples.groups:
            assert 0 < group.p_hat < 1
            assert {completion.weight_version for completion in group.completions} == {samples.step - 1}
    assert parts.learner.skill == pytest.approx(0.8)
    assert parts.engines[0].skill == parts.engines[1].skill == parts.learner.skill


@pytest.mark.parametrize(
    ("options", "ages"),
    [([], {0}), (["rollout.max_lag=1"], {0, 1}), (["algo.dynamic_sampling.max_surplus_age=1"], {0, 1})],
)
async def test_samples_of_the_opening_weights_are_fresh_and_older_ones_are_not(options, ages):
    parts = await Parts(*options, steps=3).train()
    seen = set()
    for samples, _ in parts.recorder.steps:
        versions = [c.weight_version for group in samples.groups for c in group.completions]
        assert [sample.fresh for sample in samples.samples] == [version == samples.step - 1 for version in versions]
        seen |= {samples.step - 1 - version for version in versions}
    assert seen == ages


async def test_weights_may_be_exchanged_while_a_batch_is_collected():
    parts = await Parts("rollout.max_lag=2", "rollout.in_flight_updates=true", steps=6).train()
    assert parts.learner.skill == pytest.approx(1.0)
    for samples, values in parts.recorder.steps:
        assert samples.group_sizes == (NUM_SAMPLES,) * NUM_PROMPTS
        assert 0 <= values["rollout/staleness_mean"] <= values["rollout/staleness_max"] <= 2


async def test_groups_enter_in_the_order_they_were_drawn_whatever_finishes_first():
    parts = await Parts(steps=3).train()
    for samples, _ in parts.recorder.steps:
        draws = [group.prompt.draw for group in samples.groups]
        assert draws == sorted(draws)


async def test_all_samples_of_a_prompt_are_asked_of_one_engine_with_seeds_of_their_own():
    parts = await Parts(steps=2).train()
    keys = [request.key for engine in parts.engines for request in engine.requests]
    assert keys
    # A draw that is asked for again, since its batch was full, has the same seeds; all others have their own.
    seeds = {request.key: request.seeds for engine in parts.engines for request in engine.requests}
    assert len({seed for own in seeds.values() for seed in own}) == len(seeds) * NUM_SAMPLES
    assert all(request.seeds == seeds[request.key] for engine in parts.engines for request in engine.requests)


async def test_metrics_that_others_rely_on_are_there():
    _, values = (await Parts(steps=1).train()).recorder.steps[0]
    wanted = {
        "rollout/accuracy", "rollout/num_prompts_generated", "rollout/dropped_all_correct", "rollout/dropped_all_wrong",
        "daa/amplified_groups", "rollout/truncated_fraction", "time/step", "time/generate", "time/learn", "time/sync",
        "tokens/per_second",
    }  # fmt: skip
    assert wanted <= values.keys()
    phases = sum(values[f"time/{name}"] for name in ("generate", "pack", "learn", "sync"))
    assert values["time/step"] == pytest.approx(phases)


@pytest.mark.parametrize("algo", ["grpo", "dapo", "da3po", "gspo"])
async def test_the_loop_is_the_same_for_every_algorithm(algo):
    parts = await Parts(f"algo={algo}", steps=2).train()
    assert len(parts.learner.batches) == 2
    filters = algo in ("dapo", "da3po")
    for samples, values in parts.recorder.steps:
        assert len(samples.group_sizes) == NUM_PROMPTS
        assert filters or values["rollout/num_prompts_generated"] == NUM_PROMPTS


async def test_a_step_is_split_into_the_updates_asked_for():
    parts = await Parts("train.prompts_per_update=2", steps=1).train()
    assert [update.num_sequences for update in parts.learner.batches[0].updates] == [2 * NUM_SAMPLES] * 3


class StoppedError(RuntimeError):
    pass


class StopAfter(fakes.Never):
    """Saves a step, and ends the run then."""

    def __init__(self, parts, step, path):
        self.parts, self.step, self.path = parts, step, path

    async def after(self, step):
        if step == self.step:
            await self.parts.learner.save(self.path)
            self.state = self.parts.pipeline.state_of(step)
            raise StoppedError


def drawn(parts):
    return [
        (samples.step, [(g.prompt.uid, g.prompt.draw, [c.text for c in g.completions]) for g in samples.groups])
        for samples, _ in parts.recorder.steps
    ]


@pytest.mark.parametrize("stop", [1, 2, 4, 5])
@pytest.mark.parametrize("options", [["algo=da3po"], ["algo=grpo"], ["rollout.max_lag=1"]])
async def test_a_resumed_run_draws_what_an_uninterrupted_one_does(stop, options, tmp_path):
    whole = await Parts(*options, steps=6, count=13).train()
    first = Parts(*options, steps=6, count=13)
    first.run.checkpoints = StopAfter(first, stop, tmp_path)
    with pytest.raises(StoppedError):
        await first.train()
    state = json.loads(json.dumps(first.run.checkpoints.state))

    second = Parts(*options, steps=6, count=13)
    await second.learner.load(tmp_path)
    second.pipeline.load_state_dict(state)
    second.run.step = stop
    await second.train()
    assert drawn(first) + drawn(second) == drawn(whole)


async def test_prompts_that_are_never_solved_end_the_run_after_the_named_number_of_rounds():
    parts = Parts("algo.dynamic_sampling.max_rounds=3", script=fakes.always(fakes.WRONG))
    with pytest.raises(StarvationError, match="all wrong"):
        await parts.train()
    assert parts.run.step == 0 and not parts.learner.batches
    requested = sum(len(engine.requests) for engine in parts.engines)
    assert requested == 3 * 3 * NUM_PROMPTS


async def test_a_run_that_starves_later_trains_on_what_it_found_first():
    def sometimes(prompt_ids, seed, skill):
        return fakes.coin_toss(prompt_ids, seed, skill) if prompt_ids[0] % 40 == 0 else fakes.WRONG

    parts = Parts("algo.dynamic_sampling.max_rounds=2", steps=1, script=sometimes)
    await parts.train()
    (samples, _), *_ = parts.recorder.steps
    assert 0 < len(samples.group_sizes) < NUM_PROMPTS


async def test_steps_count_updates_and_epochs_count_prompts():
    """Case S02: 8 prompts of which every other is degenerate, 2 a step, 4 at a time."""

    def every_other(prompt_ids, seed, skill):
        return fakes.RIGHT if prompt_ids[0] % 2 else fakes.coin_toss(prompt_ids, seed, skill)

    small = ["rollout.num_prompts=2", "rollout.max_in_flight=4"]
    parts = await Parts(*small, script=every_other, count=8, steps=3).train()
    assert [batch.step for batch in parts.learner.batches] == [1, 2, 3]  # the learning rate is a function of it
    assert [len(batch.updates) for batch in parts.learner.batches] == [1, 1, 1]
    taken = [
        group.prompt
        for samples, _ in parts.recorder.steps
        for group in (*samples.groups, *(dropped.group for dropped in samples.dropped))
    ]
    assert sorted(prompt.draw for prompt in taken) == list(range(len(taken)))
    assert {prompt.epoch for prompt in taken} == {prompt.draw // 8 for prompt in taken} > {0}


class BrokenError(RuntimeError):
    pass


async def broken_grade(gold, responses):
    raise BrokenError("grader")


def broken_script(prompt_ids, seed, skill):
    raise BrokenError("engine")


async def test_a_grader_that_raises_ends_the_run():
    with pytest.raises(BrokenError, match="grader"):
        await Parts(grade=broken_grade).train()


async def test_an_engine_that_raises_ends_the_run():
    with pytest.raises(Exception, match="engine"):
        await Parts(script=broken_script).train()


@pytest.mark.parametrize("method", ["step", "publish"])
async def test_a_learner_that_raises_ends_the_run(method):
    parts = Parts()

    async def fail(*args, **kwargs):
        raise BrokenError(method)

    setattr(parts.learner, method, fail)
    with pytest.raises(BrokenError, match=method):
        await parts.train()


async def test_an_engine_that_forgets_a_prompt_is_not_waited_for():
    parts = Parts(num_engines=1)
    whole = parts.engines[0].generate

    async def forgetful(requests):
        async for result in whole(requests[1:]):
            yield result

    parts.engines[0].generate = forgetful
    with pytest.raises(Exception, match="all engines are lost"):
        await parts.train()


def test_the_loop_imports_nothing_heavy():
    script = (
        "import sys, da3po.loop\n"
        "heavy = {'ray', 'vllm', 'megatron', 'transformers', 'hydra'} & set(sys.modules)\nassert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
