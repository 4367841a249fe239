"""Engines that die, hang, slow down or answer nonsense, and what becomes of what they owe."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from engine_scripted import Factory, ScriptedEngine, answer, request, with_completion

from da3po.config.schema import EngineConfig
from da3po.engine.pool import EnginePool
from da3po.engine.protocol import EngineError
from da3po.engine.recovery import Recovery
from da3po.sync import SyncError
from da3po.sync.publish import PublishedLearner, WeightPublisher
from da3po.types import GroupRequest, GroupResult, PackedStep, StepStats, WeightManifest

REQUESTS = [request(key) for key in range(12)]
FAST = EngineConfig(num_engines=2, probe_seconds=0.01, stall_seconds=0.1)
# Where no engine is to be taken for one that hangs, however busy the machine is.
PATIENT = replace(FAST, probe_seconds=0.2, stall_seconds=1.0)


def make_pool(
    engines: Sequence[ScriptedEngine], factory: Factory | None = None, config: EngineConfig = FAST
) -> EnginePool:
    recovery = Recovery(factory, config, start_seconds=1.0) if factory else None
    return EnginePool(engines, config, recovery=recovery)


async def collect(pool: EnginePool, requests: Sequence[GroupRequest] = REQUESTS) -> list[GroupResult]:
    return await asyncio.wait_for(_collect(pool, requests), 20)


async def _collect(pool: EnginePool, requests: Sequence[GroupRequest]) -> list[GroupResult]:
    return [result async for result in pool.generate(requests)]


def check_whole(results: Sequence[GroupResult], version: int = 0) -> None:
    """Each request once, with exactly the samples of its seeds."""
    assert sorted(results, key=lambda result: result.key) == [answer(one, version) for one in REQUESTS]


class Learner:
    """Sends nothing, to whoever asks; can be made to fail, to take long, and to be killed."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.channels: list[int] = []
        self.step_seconds = 0.0

    async def open_channel(self, num_receivers: int) -> str:
        self.channels.append(num_receivers)
        return "127.0.0.1:1"

    async def publish(self, version: int) -> WeightManifest:
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        return WeightManifest(version=version, buckets=())

    async def step(self, batch: PackedStep) -> StepStats:
        await asyncio.sleep(self.step_seconds)
        return StepStats()


def packed(step: int) -> PackedStep:
    return PackedStep(step=step, updates=(), stats=StepStats())


async def test_what_a_dead_engine_owes_goes_to_the_others_once() -> None:
    engines = [ScriptedEngine(), ScriptedEngine(), ScriptedEngine()]
    engines[1].stop_after = 2
    engines[0].num_aborted_tokens, engines[1].num_aborted_tokens = 5, 7
    pool = make_pool(engines, config=replace(FAST, num_engines=3))
    check_whole(await collect(pool))
    assert engines[1].killed.is_set()
    assert pool.health() == {"engine/num_engines": 2.0, "engine/num_lost": 1.0}
    assert pool.num_aborted_tokens == 12  # those of the dead one are not forgotten
    moved = {1, 4, 7, 10} - {1, 4}
    assert moved <= set(engines[0].keys + engines[2].keys)


def hang(engine: ScriptedEngine) -> None:
    engine.hung.set()


def get_stuck(engine: ScriptedEngine) -> None:
    engine.stuck = True


@pytest.mark.parametrize(
    ("fault", "words"),
    [(hang, "gave no sign of life for 0.1 s"), (get_stuck, "drew no token for 0.1 s")],
)
async def test_a_hung_engine_is_noticed_and_what_it_says_later_is_not_heard(
    fault: Callable[[ScriptedEngine], None], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    engines = [ScriptedEngine(), ScriptedEngine()]
    fault(engines[1])
    engines[1].kill = lambda: None  # the kill does not reach it, and it wakes up later
    pool = make_pool(engines)
    results = await collect(pool)
    engines[1].hung.clear()
    engines[1].stuck = False
    await asyncio.sleep(0.05)
    check_whole(results)
    assert f"engine 1 {words} (engine.stall_seconds) with 12 samples in flight" in caplog.text


async def test_a_slow_engine_is_left_alone() -> None:
    slow = ScriptedEngine(seconds=0.2)  # a token well within stall_seconds, and more than stall_seconds in all
    pool = make_pool([slow, ScriptedEngine()], config=PATIENT)
    check_whole(await collect(pool))
    assert pool.health()["engine/num_lost"] == 0
    assert len(slow.keys) == 6


GARBAGE = {
    "answered request 100, which it does not owe": lambda result: replace(result, key=100),
    "with 1 of 2 samples": lambda result: replace(result, completions=result.completions[:1]),
    "with 2 tokens and 1 log-probs": with_completion(logprobs=(-1.0,)),
    "with 9 tokens, more than the 8 asked for": with_completion(token_ids=(1,) * 9, logprobs=(-1.0,) * 9),
    "with log-probs that are none": with_completion(logprobs=(float("nan"), -1.0)),
    "with a negative token id": with_completion(token_ids=(-1, 1)),
    "with samples of weights 3, it holds 0": with_completion(weight_version=3),
    "'dict' object has no attribute 'key'": lambda result: {"status": "todo"},
}


@pytest.mark.parametrize("words", GARBAGE)
async def test_an_engine_that_answers_nonsense_is_not_asked_again(words: str, caplog: pytest.LogCaptureFixture) -> None:
    engines = [ScriptedEngine(), ScriptedEngine()]
    engines[0].garble = GARBAGE[words]
    check_whole(await collect(make_pool(engines)))
    assert words in caplog.text


async def test_without_replacements_the_last_loss_ends_the_run() -> None:
    engines = [ScriptedEngine(), ScriptedEngine()]
    for engine in engines:
        engine.error = OSError("socket closed")
    with pytest.raises(EngineError, match=r"min_engines=1 engines hold weights 0 \(all engines are lost\)"):
        await collect(make_pool(engines))


async def test_the_only_engine_is_waited_for() -> None:
    engine = ScriptedEngine()
    engine.stop_after = 5
    factory = Factory()
    pool = make_pool([engine], factory, EngineConfig())
    check_whole(await collect(pool))
    ((index, replacement),) = factory.started
    assert index == 0 and replacement.keys == list(range(5, 12))


async def test_fewer_than_min_engines_wait() -> None:
    engines = [ScriptedEngine(), ScriptedEngine()]
    engines[1].error = OSError("socket closed")
    gate = asyncio.Event()

    async def slowly(index: int) -> ScriptedEngine:
        await gate.wait()
        return ScriptedEngine()

    factory = Factory(slowly)
    pool = make_pool(engines, factory, replace(FAST, min_engines=2))
    generating = asyncio.create_task(collect(pool))
    await asyncio.sleep(0.05)
    assert engines[0].keys == [0, 2, 4, 6, 8, 10]  # the rest waits
    gate.set()
    check_whole(await generating)
    assert factory.started[0][1].keys


async def test_too_many_restarts_end_the_run_with_the_reason() -> None:
    async def broken(index: int) -> ScriptedEngine:
        raise EngineError("CUDA out of memory")

    engine = ScriptedEngine()
    engine.error = OSError("socket closed")
    pool = make_pool([engine], Factory(broken), EngineConfig(max_restarts=3))
    with pytest.raises(
        EngineError, match=r"(?s)engine 0 did not start: CUDA out of memory.*no more replacements: 3 within 3600 s"
    ):
        await collect(pool)


async def test_a_replacement_gets_the_present_weights_before_it_is_asked_for_anything() -> None:
    engines = [ScriptedEngine(), ScriptedEngine()]
    factory = Factory()
    pool = make_pool(engines, factory)
    learner = Learner()
    publisher = WeightPublisher(learner, pool)
    await publisher.publish(4)
    engines[0].error = engines[1].error = OSError("killed -9")
    check_whole(await collect(pool), version=4)
    assert [engine.version for _, engine in factory.started] == [4, 4]
    stats = await publisher.publish(5)
    assert stats.values["engine/num_engines"] == 2 and stats.values["engine/num_lost"] == 2
    check_whole(await collect(pool), version=5)


async def test_the_channel_is_opened_again_only_when_the_engines_have_changed() -> None:
    engines = [ScriptedEngine(), ScriptedEngine()]
    pool = make_pool(engines, Factory())
    learner = Learner()
    publisher = WeightPublisher(learner, pool)
    for version in (0, 1, 2):
        await publisher.publish(version)
    assert learner.channels == [2]
    engines[1].error = OSError("killed -9")
    check_whole(await collect(pool), version=2)
    while pool.health()["engine/num_engines"] < 2:
        await asyncio.sleep(0.01)
    await publisher.publish(3)
    await publisher.publish(4)
    assert learner.channels == [2, 1, 2]


async def test_a_publication_in_which_an_engine_dies_is_done_again_with_the_rest() -> None:
    engines = [ScriptedEngine(), ScriptedEngine()]
    pool = make_pool(engines)
    learner = Learner()
    learner.errors = [SyncError("the other side is gone")]
    engines[1].dies_receiving = True
    stats = await WeightPublisher(learner, pool).publish(1)
    assert stats.values["sync/num_attempts"] == 2
    assert learner.channels == [2, 1]
    check_whole(await collect(pool), version=1)
    assert engines[0].keys == list(range(12))


async def test_an_engine_that_dies_in_an_exchange_takes_no_other_with_it() -> None:
    """The others' publication fails too: they give up what they have in flight, and are asked again for it."""
    engines = [ScriptedEngine(seconds=0.02), ScriptedEngine(seconds=0.02)]
    pool = EnginePool(engines, PATIENT, in_flight_updates=True)
    generating = asyncio.create_task(collect(pool))
    await asyncio.sleep(0.03)
    learner = Learner()
    learner.errors = [SyncError("the other side is gone")]
    engines[0].breaks_off = engines[1].dies_receiving = True
    await WeightPublisher(learner, pool).publish(1)
    results = await generating
    assert sorted(result.key for result in results) == list(range(12))
    assert {c.weight_version for result in results for c in result.completions} == {0, 1}
    assert pool.health() == {"engine/num_engines": 1.0, "engine/num_lost": 1.0}
    assert len(engines[0].keys) > len(set(engines[0].keys))


async def test_what_the_learner_raises_is_not_tried_again() -> None:
    learner = Learner()
    learner.errors = [RuntimeError("rank 1 died")]
    with pytest.raises(RuntimeError, match="rank 1 died"):
        await WeightPublisher(learner, make_pool([ScriptedEngine()])).publish(1)


async def test_a_replacement_that_comes_while_the_learner_steps_waits_for_the_next_version() -> None:
    """And the other engine goes on with the old one."""
    engines = [ScriptedEngine(seconds=0.01), ScriptedEngine()]
    factory = Factory()
    pool = make_pool(engines, factory)
    learner = Learner()
    learner.step_seconds = 0.2
    publisher = WeightPublisher(learner, pool)
    await publisher.publish(1)
    stepping = asyncio.create_task(PublishedLearner(learner, publisher).step(packed(2)))
    await asyncio.sleep(0.01)
    engines[1].error = OSError("killed -9")
    check_whole(await collect(pool), version=1)
    await stepping
    assert factory.started[0][1].version == 0
    await publisher.publish(2)
    assert factory.started[0][1].version == 2
    check_whole(await collect(pool), version=2)


async def test_if_nobody_is_left_while_the_learner_steps_generation_goes_on_with_what_comes_out() -> None:
    engine = ScriptedEngine()
    pool = make_pool([engine], Factory(), EngineConfig())
    learner = Learner()
    learner.step_seconds = 0.1
    publisher = WeightPublisher(learner, pool)
    await publisher.publish(1)
    stepping = asyncio.create_task(PublishedLearner(learner, publisher).step(packed(2)))
    await asyncio.sleep(0.01)
    engine.error = OSError("killed -9")
    check_whole(await collect(pool), version=2)
    await stepping
    await publisher.publish(2)


@pytest.mark.parametrize("seed", range(20))
async def test_chaos(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are killed, hung and garbled at random moments over ten steps: every group comes once, whole, and from
    the weights of its step."""
    monkeypatch.setattr("da3po.sync.publish.MAX_ATTEMPTS", 100)  # every strike may meet one publication
    rng = random.Random(seed)
    living: list[ScriptedEngine] = []

    async def start(index: int) -> ScriptedEngine:
        await asyncio.sleep(rng.random() * 0.01)
        living.append(ScriptedEngine(seconds=0.002))
        return living[-1]

    config = replace(FAST, max_restarts=100)
    pool = make_pool([await start(0), await start(1)], Factory(start), config)
    publisher = WeightPublisher(Learner(), pool)
    faults: list[Callable[[ScriptedEngine], None]] = [
        lambda engine: setattr(engine, "error", OSError("killed -9")),
        lambda engine: setattr(engine, "error", OSError("killed -9")),
        hang,
        lambda engine: setattr(engine, "garble", rng.choice(list(GARBAGE.values()))),
    ]
    done = False

    async def strike() -> None:
        for _ in range(20):
            await asyncio.sleep(rng.random() * 0.02)
            candidates = [engine for engine in living if not engine.killed.is_set()]
            if candidates and not done:
                rng.choice(faults)(rng.choice(candidates))

    striking = asyncio.create_task(strike())
    for step in range(10):
        await publisher.publish(step)
        check_whole(await collect(pool), version=step)
    done = True
    await striking
    await pool.close()
