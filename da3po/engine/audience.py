"""The engines that one publication goes to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from da3po.engine.member import Member
from da3po.engine.roster import Roster
from da3po.sync import SyncError
from da3po.types import WeightManifest


class Audience:
    """Some engines as the receivers of a channel of their own.

    An engine that takes weights holds none that are whole until `confirm`, and does not generate.
    """

    def __init__(self, members: Sequence[Member], workers_per_engine: int, roster: Roster) -> None:
        self._members = tuple(members)
        self._roster = roster
        self.num_receivers = len(members) * workers_per_engine

    @property
    def key(self) -> tuple[Member, ...]:
        """Equal for equal engines: they can go on listening to the channel that they have."""
        return self._members

    @property
    def engines(self) -> tuple[int, ...]:
        """Their places in the pool."""
        return tuple(member.index for member in self._members)

    async def open_channel(self, address: str) -> None:
        """Let each join the channel at `address` as the receiver of its number among them. Raises SyncError."""
        await self._on_all("open_channel", lambda i, member: member.engine.open_channel(address, i))

    async def receive(self, version: int) -> list[WeightManifest]:
        """Let each take one full set of weights; return what each took. Raises SyncError naming the first to fail."""
        for member in self._members:
            member.version, member.newest = None, version
        return await self._on_all("receive", lambda _, member: member.engine.receive(version))

    def confirm(self, version: int) -> None:
        """What they took has been compared with what was sent, and is whole."""
        for member in self._members:
            member.version = version
        self._roster.confirmed(version)

    async def inspect(self) -> None:
        """After a publication that failed: give up the engines that are gone or hang."""
        await self._roster.inspect(self._members)

    async def _on_all(self, what: str, call: Callable[[int, Member], Coroutine[Any, Any, Any]]) -> list[Any]:
        """Results in order; the first failure at once, whatever the other engines are still waiting for."""

        async def one(number: int, member: Member) -> Any:
            member.receiving = True
            self._roster.follow(member)
            try:
                return await member.call(call(number, member))
            except Exception as error:
                raise SyncError(f"engine {member.index}: {what} failed: {error}") from error
            finally:
                member.receiving = False

        tasks = [asyncio.create_task(one(number, member)) for number, member in enumerate(self._members)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
