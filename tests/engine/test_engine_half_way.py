"""Engines that are killed in the middle of a publication, over real channels between processes."""

from __future__ import annotations

import asyncio

import pytest
from engine_light import ChannelLearner, LightEngine
from engine_scripted import request

from da3po.config.schema import EngineConfig
from da3po.engine.pool import EnginePool
from da3po.engine.recovery import Recovery
from da3po.sync.publish import WeightPublisher

pytestmark = [pytest.mark.distributed, pytest.mark.soak, pytest.mark.timeout(600)]
CONFIG = EngineConfig(num_engines=2, max_restarts=100)


async def test_killed_at_ten_places_and_never_a_sample_from_mixed_weights() -> None:
    engines = {index: LightEngine() for index in range(2)}

    async def start(index: int) -> LightEngine:
        engines[index] = LightEngine()
        return engines[index]

    pool = EnginePool(list(engines.values()), CONFIG, recovery=Recovery(start, CONFIG, start_seconds=30))
    learner = ChannelLearner()
    publisher = WeightPublisher(learner, pool)
    await publisher.publish(1)
    assert learner.num_channels == 1
    for place in range(10):
        version = 2 + place
        engines[place % 2].dies_after = place
        stats = await publisher.publish(version)
        assert stats.values["sync/num_attempts"] >= 2
        assert stats.values["engine/num_lost"] == 1 + place
        await check(pool, version)
        async with asyncio.timeout(120):
            while pool.health()["engine/num_engines"] < 2 or await has_newcomers(pool):
                await asyncio.sleep(0.02)
        await check(pool, version)  # the replacement among them
    await pool.close()


async def has_newcomers(pool: EnginePool) -> bool:
    async with pool.newcomers() as audience:
        return bool(audience.engines)


async def check(pool: EnginePool, version: int) -> None:
    results = [result async for result in pool.generate([request(key) for key in range(6)])]
    assert {(c.weight_version, c.token_ids) for r in results for c in r.completions} == {(version, (version,))}
