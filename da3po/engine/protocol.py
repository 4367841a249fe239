"""What the rest of da3po knows of an inference engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from da3po.types import GroupRequest, GroupResult, WeightManifest


class Engine(Protocol):
    """One inference engine, local or remote. Any method may raise EngineError; the engine is then not to be used,
    but after the two kinds that say that it is well.

    num_aborted_tokens: response tokens, so far, of groups that were never delivered because `generate` was left early.
    """

    num_aborted_tokens: int

    def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        """Sample every group and yield each as it completes. All requests enter the engine before its next step.

        Leaving early aborts the rest; once the iterator is closed the engine works on none of them.
        """
        ...

    async def open_channel(self, address: str, rank: int) -> None:
        """Join the weight channel at `address` (host:port of its store) as receiver number `rank` (from 0)."""
        ...

    async def receive(self, version: int) -> WeightManifest:
        """Take one full set of weights from the channel, load it, drop cached prefixes; return what arrived.

        Groups in flight go on under the new weights if the engine was made for that (EngineSpec.in_flight_updates),
        and are an error otherwise. Every token keeps the log-prob and the version of the weights that drew it: tokens
        drawn before are not scored again, and Completion.versions says where one version ends and the next begins.
        """
        ...

    async def heartbeat(self) -> int:
        """Response tokens drawn since the start. Answered at once, also while a step runs or weights arrive."""
        ...

    async def close(self) -> None: ...

    def kill(self) -> None:
        """End it at once, whatever it is doing; calls in progress fail."""
        ...


class EngineError(RuntimeError):
    """An engine failed; the message says which and why."""


class EngineLost(EngineError):
    """An engine is gone, hangs or answers nonsense: it will never serve again."""


class WorkAbandoned(EngineError):
    """Work was given up, or not begun, for want of whole weights; the engine itself is well, and may be asked again."""


class RequestError(EngineError):
    """A request that no engine can serve; the engine itself is well."""
