"""One generate call: who has been asked for what, and what is still owed."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Sequence
from typing import Protocol

from da3po.engine.answers import check_answer
from da3po.engine.member import Member
from da3po.engine.protocol import EngineError, RequestError, WorkAbandoned
from da3po.runtime.waiting import Signal
from da3po.types import GroupRequest, GroupResult

logger = logging.getLogger(__name__)


class Members(Protocol):
    """Where engines come from (see `da3po.engine.roster`)."""

    changed: Signal

    async def ready(self) -> Sequence[Member]: ...
    def follow(self, member: Member) -> None: ...
    def lose(self, member: Member, reason: str) -> None: ...


class Dispatch:
    """Gets each request answered exactly once.

    A request is in one place at any time: waiting, at one engine, or answered. What an engine still owes when it is
    lost, or when it gives its work up, goes back to waiting; what a lost one says afterwards is not heard.
    """

    def __init__(self, requests: Sequence[GroupRequest], members: Members) -> None:
        self._waiting = list(requests)
        self._members = members
        self.arrived: asyncio.Queue[GroupResult | Exception] = asyncio.Queue()

    async def run(self) -> None:
        """Put every result into `arrived`, or the error after which no more will come."""
        shares: set[asyncio.Task[list[GroupRequest]]] = set()
        try:
            while self._waiting or shares:
                if self._waiting:
                    shares |= self._hand_out(await self._members.ready())
                done, shares = await asyncio.wait(shares, return_when=asyncio.FIRST_COMPLETED)
                for share in done:
                    self._waiting += share.result()
        except Exception as error:  # noqa: BLE001 - whoever waits for results is to hear of it
            self.arrived.put_nowait(error)
        finally:
            for share in shares:
                share.cancel()
            await asyncio.gather(*shares, return_exceptions=True)

    def _hand_out(self, members: Sequence[Member]) -> set[asyncio.Task[list[GroupRequest]]]:
        shares = assign(self._waiting, members)
        self._waiting = []
        return {asyncio.create_task(self._ask(member, share, member.newest)) for member, share in shares}

    async def _ask(self, member: Member, share: Sequence[GroupRequest], oldest: int) -> list[GroupRequest]:
        """Pass on what one engine answers; return what it still owes when it is lost or gives up.

        oldest: weights that may draw the answers, those that it had when it was chosen.
        """
        owed = {request.key: request for request in share}
        member.num_in_flight += sum(len(request.seeds) for request in share)
        self._members.follow(member)
        try:
            await member.call(self._read(member, share, oldest, owed))
        except RequestError:
            raise
        except WorkAbandoned as error:
            logger.warning("engine %d: %s", member.index, error)
        except Exception as error:  # noqa: BLE001 - any error of an engine but those is its end
            if not member.lost:
                self._members.lose(member, f"engine {member.index}: {error}")
        finally:
            member.num_in_flight -= sum(len(request.seeds) for request in owed.values())
            self._members.changed.ring()
        return list(owed.values())

    async def _read(
        self, member: Member, share: Sequence[GroupRequest], oldest: int, owed: dict[int, GroupRequest]
    ) -> None:
        async for result in member.engine.generate(share):
            if member.lost:
                return
            check_answer(result, owed, (oldest, member.newest))
            member.num_in_flight -= len(owed.pop(result.key).seeds)
            self.arrived.put_nowait(result)
        if owed:
            raise EngineError(f"ended without the groups {sorted(owed)}")


def assign(requests: Sequence[GroupRequest], members: Sequence[Member]) -> list[tuple[Member, list[GroupRequest]]]:
    """Each request to the engine with the fewest samples in flight, the first of equals."""
    shares: list[list[GroupRequest]] = [[] for _ in members]
    loads = [(member.num_in_flight, place) for place, member in enumerate(members)]
    heapq.heapify(loads)
    for request in requests:
        load, place = loads[0]
        shares[place].append(request)
        heapq.heapreplace(loads, (load + len(request.seeds), place))
    return [(member, share) for member, share in zip(members, shares, strict=True) if share]
