from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pytest

from da3po.engine.pool import EnginePool
from da3po.engine.protocol import EngineError
from da3po.types import Completion, GroupRequest, GroupResult, SamplingParams, WeightManifest

SAMPLING = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=8)


class FakeEngine:
    """Answers at once, in order, after `delay` loop turns a group; notes what it was asked."""

    def __init__(self, error: Exception | None = None, stop_after: int | None = None, hang: bool = False) -> None:
        self.error = error
        self.stop_after = stop_after
        self.hang = hang
        self.keys: list[int] = []
        self.channel: tuple[str, int] | None = None
        self.version_offset = 0
        self.left_early = False
        self.closed = False

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        self.keys += [request.key for request in requests]
        finished = False
        try:
            for request in requests[: self.stop_after]:
                await asyncio.sleep(60 if self.hang else 0)
                if self.error:
                    raise self.error
                yield GroupResult(key=request.key, completions=tuple(completion() for _ in request.seeds))
            finished = True
        finally:
            self.left_early = not finished

    async def open_channel(self, address: str, rank: int) -> None:
        self.channel = (address, rank)

    async def receive(self, version: int) -> WeightManifest:
        if self.hang:
            await asyncio.sleep(60)
        if self.error:
            raise self.error
        return WeightManifest(version=version + self.version_offset, buckets=())

    async def close(self) -> None:
        self.closed = True
        if self.error:
            raise self.error


def completion() -> Completion:
    return Completion(token_ids=(1,), logprobs=(-1.0,), text="", finish="stop", weight_version=0)


def request(key: int, num_samples: int = 2) -> GroupRequest:
    return GroupRequest(key=key, prompt_ids=(1,), seeds=tuple(range(num_samples)), sampling=SAMPLING)


async def collect(pool: EnginePool, requests: Sequence[GroupRequest]) -> list[GroupResult]:
    return [result async for result in pool.generate(requests)]


async def test_every_group_comes_once_and_whole_from_one_engine() -> None:
    engines = [FakeEngine(), FakeEngine(), FakeEngine()]
    results = await collect(EnginePool(engines), [request(key) for key in range(7)])
    assert sorted(result.key for result in results) == list(range(7))
    assert all(len(result.completions) == 2 for result in results)
    assert [engine.keys for engine in engines] == [[0, 3, 6], [1, 4], [2, 5]]


async def test_load_is_counted_in_samples() -> None:
    engines = [FakeEngine(), FakeEngine()]
    await collect(EnginePool(engines), [request(0, 8), request(1), request(2), request(3), request(4), request(5)])
    assert [engine.keys for engine in engines] == [[0, 5], [1, 2, 3, 4]]


async def test_calls_side_by_side_see_each_others_load_and_leave_none_behind() -> None:
    engines = [FakeEngine(), FakeEngine()]
    pool = EnginePool(engines)
    async with aclosing(pool.generate([request(0, 4), request(1)])) as first:
        await anext(first)
        await collect(pool, [request(2), request(3)])
    await collect(pool, [request(4)])
    assert engines[0].keys[-1] == 4  # both idle again, so the first one takes it


async def test_the_first_error_of_any_engine_ends_the_call_and_names_it() -> None:
    engines = [FakeEngine(hang=True), FakeEngine(error=OSError("socket closed"))]
    with pytest.raises(EngineError, match="engine 1: generate failed: OSError: socket closed"):
        await asyncio.wait_for(collect(EnginePool(engines), [request(0), request(1)]), 5)
    assert engines[0].left_early


async def test_an_engine_that_names_itself_is_not_named_twice() -> None:
    with pytest.raises(EngineError, match=r"^engine 0 died$"):
        await collect(EnginePool([FakeEngine(error=EngineError("engine 0 died"))]), [request(0)])


async def test_an_engine_that_ends_early_is_an_error() -> None:
    with pytest.raises(EngineError, match=r"engine 0 ended without the groups \[1, 2\]"):
        await collect(EnginePool([FakeEngine(stop_after=1)]), [request(0), request(1), request(2)])


async def test_leaving_early_reaches_the_engines() -> None:
    engines = [FakeEngine(), FakeEngine(hang=True)]
    async with aclosing(EnginePool(engines).generate([request(0), request(1)])) as results:
        assert (await anext(results)).key == 0
    assert engines[1].left_early


async def test_no_requests_are_no_results() -> None:
    assert await collect(EnginePool([FakeEngine()]), []) == []


async def test_each_engine_joins_the_channel_under_its_own_number() -> None:
    engines = [FakeEngine(), FakeEngine()]
    pool = EnginePool(engines, workers_per_engine=4)
    await pool.open_channel("127.0.0.1:1")
    assert [engine.channel for engine in engines] == [("127.0.0.1:1", 0), ("127.0.0.1:1", 1)]
    assert pool.num_receivers == 8


async def test_one_version_on_all_engines_or_no_generation() -> None:
    engines = [FakeEngine(), FakeEngine()]
    pool = EnginePool(engines)
    assert [manifest.version for manifest in await pool.receive(3)] == [3, 3]
    engines[1].version_offset = -1
    await pool.receive(4)
    with pytest.raises(EngineError, match=r"different weights \(engine 0: 4, engine 1: 3\)"):
        await collect(pool, [request(0)])
    engines[1].version_offset = 0
    await pool.receive(5)
    assert len(await collect(pool, [request(0)])) == 1


async def test_after_a_failed_publication_the_pool_refuses_at_once() -> None:
    engines = [FakeEngine(hang=True), FakeEngine(error=RuntimeError("half-way"))]
    pool = EnginePool(engines)
    with pytest.raises(EngineError, match="engine 1: receive failed: RuntimeError: half-way"):
        await asyncio.wait_for(pool.receive(1), 5)
    with pytest.raises(EngineError, match="engine 0: not whole, engine 1: not whole"):
        await collect(pool, [request(0)])


async def test_close_reaches_every_engine_although_one_fails() -> None:
    engines = [FakeEngine(error=RuntimeError("stuck")), FakeEngine()]
    with pytest.raises(EngineError, match="engine 0: close failed: RuntimeError: stuck"):
        await EnginePool(engines).close()
    assert engines[1].closed


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one engine"):
        EnginePool([])
