"""Engines that do as they are told: answer, be slow, hang, die, or answer nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from da3po.engine.protocol import WorkAbandoned
from da3po.types import Completion, GroupRequest, GroupResult, SamplingParams, WeightManifest

SAMPLING = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=8)

Garble = Callable[[GroupResult], GroupResult]


def request(key: int, num_samples: int = 2) -> GroupRequest:
    seeds = tuple(100 * key + i for i in range(num_samples))
    return GroupRequest(key=key, prompt_ids=(1,), seeds=seeds, sampling=SAMPLING)


def answer(asked: GroupRequest, version: int) -> GroupResult:
    """A sample depends on its seed and the weights alone."""
    return GroupResult(
        key=asked.key,
        completions=tuple(
            Completion(token_ids=(seed, 1), logprobs=(-1.0, -2.0), text="", finish="stop", weight_version=version)
            for seed in asked.seeds
        ),
    )


class ScriptedEngine:
    """Answers in order, each group after `seconds`; `behaviour` is looked at before each group."""

    def __init__(self, seconds: float = 0.0, version: int = 0) -> None:
        self.seconds = seconds
        self.version = version
        self.keys: list[int] = []
        self.channel: tuple[str, int] | None = None
        self.error: Exception | None = None  # dead: every call raises it
        self.refusal: Exception | None = None  # well, but does not generate
        self.stop_after: int | None = None
        self.garble: Garble | None = None
        self.hung = asyncio.Event()  # set: neither steps nor answers
        self.whole = True  # its weights
        self.stuck = False  # answers, and does not step
        self.num_tokens = 0
        self.num_aborted_tokens = 0
        self.killed = asyncio.Event()
        self.closed = False
        self.left_early = False
        self.dies_receiving = False
        self.breaks_off = False  # its next publication fails; it gives up its work in hand, and is well

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        self.keys += [request.key for request in requests]
        finished = False
        try:
            if self.refusal:
                raise self.refusal
            for asked in requests[: self.stop_after]:
                await self._work()
                self._check_whole()
                result = answer(asked, self.version)
                self.num_tokens += 2 * len(asked.seeds)
                yield self.garble(result) if self.garble else result
            finished = True
        finally:
            self.left_early = not finished

    async def _work(self) -> None:
        await asyncio.sleep(self.seconds)
        while self.hung.is_set() or self.stuck:
            await asyncio.sleep(0.005)
        if self.error:
            raise self.error

    async def open_channel(self, address: str, rank: int) -> None:
        self._check_alive()
        self.channel = (address, rank)

    async def receive(self, version: int) -> WeightManifest:
        self._check_alive()
        await self._work()
        if self.dies_receiving:
            self.error = OSError("killed -9")
        self._check_alive()
        self.whole = not self.breaks_off
        self.breaks_off = False
        if not self.whole:
            raise RuntimeError("the other side is gone")
        self.version = version
        return WeightManifest(version=version, buckets=())

    async def heartbeat(self) -> int:
        self._check_alive()
        while self.hung.is_set():
            await asyncio.sleep(0.005)
        return self.num_tokens

    async def close(self) -> None:
        self.closed = True
        if self.error:
            raise self.error

    def kill(self) -> None:
        self.killed.set()
        self.error = self.error or RuntimeError("killed")

    def _check_whole(self) -> None:
        if not self.whole:
            raise WorkAbandoned("a publication failed half-way")

    def _check_alive(self) -> None:
        if self.error:
            raise self.error


def with_completion(**changes: object) -> Garble:
    """Answers whose first sample is changed."""

    def garble(result: GroupResult) -> GroupResult:
        first, *others = result.completions
        return replace(result, completions=(replace(first, **changes), *others))

    return garble


class Factory:
    """Starts engines in place of others, as its `make` does; remembers them."""

    def __init__(self, make: Callable[[int], Awaitable[ScriptedEngine]] | None = None) -> None:
        self._make = make
        self.started: list[tuple[int, ScriptedEngine]] = []

    async def __call__(self, index: int) -> ScriptedEngine:
        engine = await self._make(index) if self._make else ScriptedEngine()
        self.started.append((index, engine))
        return engine
