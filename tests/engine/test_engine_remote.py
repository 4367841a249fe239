"""Leaving a generate call early must reach the other process, which does not see that nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from da3po.engine.protocol import RequestError, WorkAbandoned
from da3po.engine.remote import RemoteEngine
from da3po.types import GroupRequest, GroupResult, SamplingParams

SAMPLING = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=4)
REQUESTS = [GroupRequest(key=key, prompt_ids=(1,), seeds=(key,), sampling=SAMPLING) for key in range(3)]


class FakeWorker:
    """Gives one group and then nothing more, until the call is aborted."""

    def __init__(self) -> None:
        self.aborted: list[int] = []
        self.started: list[int] = []
        self.whole = False
        self.error: Exception | None = None

    async def call(self, method: str, *args: Any) -> Any:
        assert method == "abort"
        self.aborted += args
        return 17

    async def stream(self, method: str, *args: Any) -> AsyncIterator[Any]:
        requests, call = args
        self.started.append(call)
        if self.error:
            raise self.error
        for request in requests:
            yield GroupResult(key=request.key, completions=())
            if not self.whole:
                await asyncio.Event().wait()

    def kill(self) -> None:
        pass


async def test_leaving_early_aborts_by_number_and_counts_what_it_cost() -> None:
    worker = FakeWorker()
    engine = RemoteEngine(worker)
    for _ in range(2):
        async with aclosing(engine.generate(REQUESTS)) as results:
            assert (await anext(results)).key == 0
    assert worker.aborted == worker.started
    assert len(set(worker.started)) == 2
    assert engine.num_aborted_tokens == 34


async def test_being_cancelled_aborts_too() -> None:
    worker = FakeWorker()
    engine = RemoteEngine(worker)

    async def collect() -> None:
        async for _ in engine.generate(REQUESTS):
            pass

    collecting = asyncio.create_task(collect())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    collecting.cancel()
    await asyncio.wait({collecting})
    assert worker.aborted == worker.started == [0]


async def test_a_call_that_came_to_its_end_is_not_aborted() -> None:
    worker = FakeWorker()
    worker.whole = True
    engine = RemoteEngine(worker)
    assert [result.key async for result in engine.generate(REQUESTS)] == [0, 1, 2]
    assert worker.aborted == []
    assert engine.num_aborted_tokens == 0


class ErrorOfWorker(RuntimeError):
    def __init__(self, cause: Exception) -> None:
        super().__init__("engine-0: generate failed")
        self.cause = cause


@pytest.mark.parametrize("cause", [RequestError("too long"), WorkAbandoned("not whole")])
async def test_errors_of_an_engine_that_is_well_come_through_as_they_are(cause: Exception) -> None:
    worker = FakeWorker()
    worker.error = ErrorOfWorker(cause)
    with pytest.raises(type(cause)) as raised:
        [result async for result in RemoteEngine(worker).generate(REQUESTS)]
    assert raised.value is cause
