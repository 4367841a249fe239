"""Notices engines that hang: they have work in hand and draw no tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from da3po.engine.member import Member


class Watch:
    """Asks every engine that has work in hand for its heartbeat, and gives up one that stands still.

    A slow engine draws tokens, however few, and is left alone. One that takes weights draws none, and has to answer.
    """

    def __init__(self, probe_seconds: float, stall_seconds: float, give_up: Callable[[Member, str], None]) -> None:
        """give_up: told of the engine that stands still, and why it is thought to."""
        self._probe_seconds = probe_seconds
        self._stall_seconds = stall_seconds
        self._give_up = give_up
        self._following: dict[Member, asyncio.Task[None]] = {}

    def follow(self, member: Member) -> None:
        """Watch an engine for as long as it has work in hand."""
        if member not in self._following:
            self._following[member] = asyncio.create_task(self._follow(member))

    def close(self) -> None:
        for task in self._following.values():
            task.cancel()

    async def heartbeat(self, member: Member) -> int | None:
        """Tokens it has drawn; None if it does not say in time. Raises EngineError if it is known to be gone."""
        try:
            async with asyncio.timeout(self._probe_seconds):
                return await member.engine.heartbeat()
        except TimeoutError:
            return None

    async def _follow(self, member: Member) -> None:
        try:
            reason = await self._reason_to_give_up(member)
        except Exception as error:  # noqa: BLE001 - whatever a heartbeat raises, there is none
            reason = f"engine {member.index}: {error}"
        finally:
            del self._following[member]
        if reason and not member.lost:
            self._give_up(member, reason)

    async def _reason_to_give_up(self, member: Member) -> str | None:
        last, since = -1, time.monotonic()
        while member.busy and not member.lost:
            tokens = await self.heartbeat(member)
            if tokens is not None and (member.receiving or tokens != last):
                last, since = tokens, time.monotonic()
            elif time.monotonic() - since >= self._stall_seconds:
                how = "gave no sign of life" if tokens is None else "drew no token"
                return (
                    f"engine {member.index} {how} for {self._stall_seconds:g} s (engine.stall_seconds) "
                    f"with {member.num_in_flight} samples in flight"
                )
            await asyncio.sleep(self._probe_seconds)
        return None
