"""The pool while nothing goes wrong: who is asked for what, versions, publications, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from engine_scripted import ScriptedEngine, answer, request

from da3po.config.schema import EngineConfig
from da3po.engine.dispatch import Dispatch
from da3po.engine.member import Member
from da3po.engine.pool import EnginePool
from da3po.engine.protocol import EngineError, RequestError
from da3po.engine.roster import Roster
from da3po.types import GroupRequest, GroupResult


async def collect(pool: EnginePool, requests: Sequence[GroupRequest]) -> list[GroupResult]:
    return [result async for result in pool.generate(requests)]


async def give_weights(pool: EnginePool, version: int) -> None:
    async with pool.everyone() as engines:
        await engines.receive(version)
        engines.confirm(version)


async def test_every_group_comes_once_and_whole_from_one_engine() -> None:
    engines = [ScriptedEngine(), ScriptedEngine(), ScriptedEngine()]
    results = await collect(EnginePool(engines), [request(key) for key in range(7)])
    assert sorted(result.key for result in results) == list(range(7))
    assert all(result == answer(request(result.key), 0) for result in results)
    assert [engine.keys for engine in engines] == [[0, 3, 6], [1, 4], [2, 5]]


async def test_load_is_counted_in_samples() -> None:
    engines = [ScriptedEngine(), ScriptedEngine()]
    await collect(EnginePool(engines), [request(0, 8), request(1), request(2), request(3), request(4), request(5)])
    assert [engine.keys for engine in engines] == [[0, 5], [1, 2, 3, 4]]


async def test_calls_side_by_side_see_each_others_load_and_leave_none_behind() -> None:
    engines = [ScriptedEngine(seconds=0.02), ScriptedEngine()]
    pool = EnginePool(engines)
    async with aclosing(pool.generate([request(0, 4), request(1)])) as first:
        await anext(first)
        await collect(pool, [request(2), request(3)])
    assert engines[1].keys == [1, 2, 3]
    await collect(pool, [request(4)])
    assert engines[0].keys[-1] == 4  # both idle again, so the first one takes it


async def test_leaving_early_reaches_the_engines() -> None:
    engines = [ScriptedEngine(), ScriptedEngine(seconds=60)]
    async with aclosing(EnginePool(engines).generate([request(0), request(1)])) as results:
        assert (await anext(results)).key == 0
    assert engines[1].left_early


async def test_no_requests_are_no_results() -> None:
    assert await collect(EnginePool([ScriptedEngine()]), []) == []


async def test_a_request_that_no_engine_can_serve_ends_its_call_and_no_engine() -> None:
    engine = ScriptedEngine()
    engine.refusal = RequestError("request 0 may grow to 200 tokens")
    pool = EnginePool([engine, ScriptedEngine()])
    with pytest.raises(RequestError, match="may grow"):
        await collect(pool, [request(0)])
    assert pool.health() == {"engine/num_engines": 2.0, "engine/num_lost": 0.0}


async def test_each_engine_joins_the_channel_under_its_own_number() -> None:
    engines = [ScriptedEngine(), ScriptedEngine()]
    pool = EnginePool(engines, EngineConfig(num_engines=2, tp=4))
    async with pool.everyone() as audience:
        await audience.open_channel("127.0.0.1:1")
        assert audience.num_receivers == 8
    assert [engine.channel for engine in engines] == [("127.0.0.1:1", 0), ("127.0.0.1:1", 1)]


async def test_weights_that_were_not_confirmed_are_not_generated_from() -> None:
    pool = EnginePool([ScriptedEngine(), ScriptedEngine()])
    await give_weights(pool, 3)
    async with pool.everyone() as engines:
        assert [manifest.version for manifest in await engines.receive(4)] == [4, 4]
    with pytest.raises(EngineError, match=r"hold weights 3 \(engine 0: not whole, engine 1: not whole\)"):
        await collect(pool, [request(0)])
    await give_weights(pool, 5)
    assert (await collect(pool, [request(0)])) == [answer(request(0), 5)]


async def test_a_publication_waits_for_what_is_in_flight_and_new_requests_wait_for_it() -> None:
    engines = [ScriptedEngine(seconds=0.05), ScriptedEngine(seconds=0.05)]
    pool = EnginePool(engines)
    before = asyncio.create_task(collect(pool, [request(0), request(1)]))
    await asyncio.sleep(0.01)
    publishing = asyncio.create_task(give_weights(pool, 7))
    await asyncio.sleep(0.01)
    after = asyncio.create_task(collect(pool, [request(2)]))
    versions = [{c.weight_version for r in await task for c in r.completions} for task in (before, after)]
    await publishing
    assert versions == [{0}, {7}]


async def test_with_in_flight_updates_it_does_not_wait() -> None:
    engine = ScriptedEngine()
    pool = EnginePool([engine], in_flight_updates=True)
    engine.stuck = True
    generating = asyncio.create_task(collect(pool, [request(0), request(1)]))
    await asyncio.sleep(0.01)
    async with pool.everyone() as engines:
        receiving = asyncio.create_task(engines.receive(1))
        engine.stuck = False
        await receiving
        engines.confirm(1)
    assert {c.weight_version for result in await generating for c in result.completions} <= {0, 1}


async def test_weights_that_come_right_after_a_request_went_out_do_not_make_its_answer_wrong() -> None:
    class JustBefore(Roster):
        def follow(self, member: Member) -> None:
            member.newest = 1

    dispatch = Dispatch([request(0)], JustBefore([ScriptedEngine(version=0)], EngineConfig(), None))
    await dispatch.run()
    assert dispatch.arrived.get_nowait() == answer(request(0), 0)


async def test_close_reaches_every_engine_although_one_fails() -> None:
    engines = [ScriptedEngine(), ScriptedEngine()]
    engines[0].error = RuntimeError("stuck")
    with pytest.raises(EngineError, match="engine 0: close failed: stuck"):
        await EnginePool(engines).close()
    assert engines[1].closed


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one engine"):
        EnginePool([])
