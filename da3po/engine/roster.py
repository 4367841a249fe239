"""Which engines a pool has, which weights they hold, and who takes the place of one that is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from da3po.config.schema import EngineConfig
from da3po.engine.member import Member
from da3po.engine.protocol import Engine, EngineError
from da3po.engine.recovery import Recovery
from da3po.engine.watch import Watch
from da3po.runtime.waiting import Signal

logger = logging.getLogger(__name__)

FIRST_VERSION = 0


class Roster:
    """The engines of a pool, at most one in each place.

    version: of the weights that engines generate with now.
    num_publications: that are in progress; no request goes out meanwhile.
    num_lost: engines, so far.
    num_aborted_tokens_lost: that the engines which are lost had drawn in vain, so that the sum never falls.
    """

    def __init__(self, engines: Sequence[Engine], config: EngineConfig, recovery: Recovery | None) -> None:
        self.members = {index: Member(index, engine, FIRST_VERSION) for index, engine in enumerate(engines)}
        self.version = FIRST_VERSION
        self.num_publications = 0
        self.num_lost = 0
        self.num_aborted_tokens_lost = 0
        self.changed = Signal()
        self._min_engines = config.min_engines
        self._watch = Watch(config.probe_seconds, config.stall_seconds, self.lose)
        self._recovery = recovery
        self._recovering: set[asyncio.Task[None]] = set()
        self._ask_for_weights: Callable[[], Awaitable[None]] | None = None
        self._failure: EngineError | None = None

    def when_new(self, ask_for_weights: Callable[[], Awaitable[None]]) -> None:
        """Name the one that brings the present weights to engines that have just started."""
        self._ask_for_weights = ask_for_weights

    async def ready(self) -> list[Member]:
        """The engines that may generate, in order: all those on the present weights, once there are enough.

        Raises EngineError if there will not be enough again.
        """
        await self._until(
            lambda: self.num_publications == 0 and not self.starving,
            lambda: bool(self.num_publications or self._recovering or self._has_newcomers()),
        )
        return self._current()

    async def may_receive(self, *, idle: bool) -> list[Member]:
        """All engines, once there are enough and, if so asked, none has work in hand. Raises EngineError as above."""
        await self._until(
            lambda: self._is_enough() and not (idle and any(m.num_in_flight for m in self.members.values())),
            lambda: self._is_enough() or bool(self._recovering),
        )
        return [self.members[index] for index in sorted(self.members)]

    @property
    def starving(self) -> bool:
        """Too few engines hold the present weights to generate."""
        return len(self._current()) < self._min_engines

    def newcomers(self) -> list[Member]:
        """Engines that hold no whole weights."""
        return [self.members[i] for i in sorted(self.members) if self.members[i].version is None]

    def follow(self, member: Member) -> None:
        """Watch an engine for as long as it has work in hand."""
        self._watch.follow(member)

    def lose(self, member: Member, reason: str) -> None:
        """Give an engine up and start another in its place."""
        if member.lost:
            return
        logger.warning("%s", reason)
        self.num_lost += 1
        self.num_aborted_tokens_lost += member.engine.num_aborted_tokens
        del self.members[member.index]
        member.lose(reason)
        if self._recovery is not None:
            task = asyncio.create_task(self._recover(self._recovery, member.index, reason))
            self._recovering.add(task)
            task.add_done_callback(self._recovered)
        self.changed.ring()

    def confirmed(self, version: int) -> None:
        """Engines hold the weights of `version`, whole and verified."""
        self.version = version
        self.changed.ring()

    async def inspect(self, members: Sequence[Member]) -> None:
        """Give up those that are gone or do not answer."""

        async def one(member: Member) -> None:
            try:
                answer = await self._watch.heartbeat(member)
            except Exception as error:  # noqa: BLE001 - whatever a heartbeat raises, there is none
                self.lose(member, f"engine {member.index}: {error}")
            else:
                if answer is None:
                    self.lose(member, f"engine {member.index} gives no sign of life after a failed publication")

        await asyncio.gather(*(one(member) for member in members))

    async def stop(self) -> None:
        """Watch no more and start no more."""
        self._watch.close()
        for task in tuple(self._recovering):
            task.cancel()
        await asyncio.gather(*self._recovering, return_exceptions=True)

    async def _recover(self, recovery: Recovery, index: int, reason: str) -> None:
        try:
            engine = await recovery.replacement(index, reason)
            logger.warning("engine %d has been started again", index)
            # Where nothing is published, all engines hold the model's own weights, and so does this one.
            self.members[index] = Member(index, engine, None if self._ask_for_weights else FIRST_VERSION)
            self.changed.ring()
            if self._ask_for_weights:
                await self._ask_for_weights()
        except Exception as error:  # noqa: BLE001 - it ends the run, by way of whoever waits for engines
            self._failure = error if isinstance(error, EngineError) else EngineError(f"{reason}\n{error}")

    def _recovered(self, task: asyncio.Task[None]) -> None:
        self._recovering.discard(task)
        self.changed.ring()

    def _current(self) -> list[Member]:
        return [self.members[i] for i in sorted(self.members) if self.members[i].version == self.version]

    def _is_enough(self) -> bool:
        return len(self.members) >= self._min_engines

    def _has_newcomers(self) -> bool:
        return self._ask_for_weights is not None and bool(self.newcomers())

    async def _until(self, condition: Callable[[], bool], hope: Callable[[], bool]) -> None:
        """Wait for `condition`, as long as there is hope."""
        await self.changed.until(lambda: self._failure is not None or condition() or not hope())
        if self._failure is not None:
            raise self._failure
        if not condition():
            held = ", ".join(
                f"engine {i}: {'not whole' if member.version is None else member.version}"
                for i, member in sorted(self.members.items())
            )
            raise EngineError(
                f"fewer than engine.min_engines={self._min_engines} engines hold weights {self.version} "
                f"({held or 'all engines are lost'})"
            )
