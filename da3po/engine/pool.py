"""All engines as one: who samples what, and which weights they hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from da3po.config.schema import EngineConfig
from da3po.engine.audience import Audience
from da3po.engine.dispatch import Dispatch
from da3po.engine.member import Member
from da3po.engine.protocol import Engine, EngineError
from da3po.engine.recovery import Recovery
from da3po.engine.roster import Roster
from da3po.types import GroupRequest, GroupResult


class EnginePool:
    """Spreads groups over engines, keeps the engines on one version of the weights, and replaces those it loses.

    All samples of a prompt go to one engine, which computes the prompt once. An engine that raises, dies, hangs or
    answers nonsense is lost: what it owes goes to the others, and a new engine takes its place as soon as it holds the
    weights of the others. Samples have seeds of their own, so they do not depend on which engine draws them.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        config: EngineConfig | None = None,
        *,
        recovery: Recovery | None = None,
        in_flight_updates: bool = False,
    ) -> None:
        """
        Args:
            config: `tp` (every worker of an engine receives weights), and how engines are watched.
            recovery: replaces engines; without it an engine that is lost stays lost.
            in_flight_updates: engines take weights with samples in flight, whose tokens each keep the log-prob and the
                version of the weights that drew them; otherwise a publication waits for the samples.
        """
        if not engines:
            raise ValueError("a pool needs at least one engine")
        self._config = config or EngineConfig(num_engines=len(engines))
        self._roster = Roster(engines, self._config, recovery)
        self._in_flight_updates = in_flight_updates

    @property
    def num_aborted_tokens(self) -> int:
        """Response tokens, so far, that engines drew for groups that nobody waited for to the end."""
        here = sum(member.engine.num_aborted_tokens for member in self._roster.members.values())
        return here + self._roster.num_aborted_tokens_lost

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        """Sample every group and yield each as it completes, once. Leaving early aborts the rest.

        The same requests to an idle pool of the same engines go to the same engines, in the same order. Requests wait
        while weights are published, and while fewer than `engine.min_engines` engines hold the present weights.
        Raises EngineError if there will not be enough engines again, and RequestError for one that none can serve.
        """
        dispatch = Dispatch(requests, self._roster)
        running = asyncio.create_task(dispatch.run())
        try:
            for _ in requests:
                result = await dispatch.arrived.get()
                if isinstance(result, Exception):
                    raise result
                yield result
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def when_new(self, ask_for_weights: Callable[[], Awaitable[None]]) -> None:
        """Name the one that brings the present weights to engines that have just started."""
        self._roster.when_new(ask_for_weights)

    @asynccontextmanager
    async def everyone(self) -> AsyncIterator[Audience]:
        """All engines, once they may take weights; no request goes out before the end of the context.

        Raises EngineError if there will not be enough engines again.
        """
        self._roster.num_publications += 1
        try:
            yield self._audience(await self._roster.may_receive(idle=not self._in_flight_updates))
        finally:
            self._roster.num_publications -= 1
            self._roster.changed.ring()

    @asynccontextmanager
    async def newcomers(self) -> AsyncIterator[Audience]:
        """Engines that hold no whole weights; the others generate on."""
        yield self._audience(self._roster.newcomers())

    @property
    def starving(self) -> bool:
        """Too few engines hold the present weights to generate."""
        return self._roster.starving

    def health(self) -> dict[str, float]:
        """Engines here now, and engines lost so far, as metrics."""
        return {
            "engine/num_engines": float(len(self._roster.members)),
            "engine/num_lost": float(self._roster.num_lost),
        }

    async def close(self) -> None:
        """Close every engine, also after one failed to; then raise the first error."""
        await self._roster.stop()
        members = list(self._roster.members.values())
        outcomes = await asyncio.gather(*(member.engine.close() for member in members), return_exceptions=True)
        for member, outcome in zip(members, outcomes, strict=True):
            if isinstance(outcome, Exception):
                raise EngineError(f"engine {member.index}: close failed: {outcome}") from outcome

    def _audience(self, members: Sequence[Member]) -> Audience:
        return Audience(members, self._config.tp, self._roster)
