"""How payloads get to receivers, where nothing but the group connects them: by broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from da3po.sync.buckets import BucketHeader, PayloadMemory
from da3po.sync.checksum import checksum
from da3po.sync.memory import Memory


class Pending(Protocol):
    def wait(self) -> None:
        """Return when it is done. Raises SyncError when the other side is gone or silent."""
        ...


class Group(Protocol):
    """The members of one stage, who all call the same of these in the same order. What is given must not be touched
    before it is done.

    device: where tensors must lie.
    """

    device: torch.device

    def broadcast(self, tensor: Tensor) -> Pending:
        """Start to send `tensor` (source) or to fill it (receiver)."""
        ...

    def least(self, tensor: Tensor) -> Pending:
        """Start to put the least of all members' values into `tensor`."""
        ...


class Sender(PayloadMemory, Protocol):
    """The source's end of the way that payloads take."""

    def send(self, pieces: Sequence[Tensor]) -> Pending:
        """Start to send a payload, which must stay as it is until `wait` returns."""
        ...


class Arrival(Protocol):
    """A payload on its way.

    in_turn: nothing else may be asked of the group until this has been taken and released.
    """

    in_turn: bool

    def take(self) -> tuple[Tensor, list[str]]:
        """Wait for it; return the payload ([num_bytes] uint8) and the checksums of its pieces. Raises SyncError."""
        ...

    def release(self) -> None:
        """The payload has been used; views of it may still be held."""
        ...


class Receiver(Protocol):
    """A receiver's end."""

    def begin(self, header: BucketHeader) -> Arrival:
        """Start to take the payload of a bucket."""
        ...


class AllOf:
    """What has been started, together."""

    def __init__(self, *pending: Pending) -> None:
        self._pending = pending

    def wait(self) -> None:
        for one in self._pending:
            one.wait()


class BroadcastSender:
    """Sends from wherever a piece lies."""

    own_memory = False

    def __init__(self, group: Group) -> None:
        self.device = group.device
        self._group = group

    def allocate(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def may_reuse(self, buffer: Tensor) -> bool:
        return True

    def send(self, pieces: Sequence[Tensor]) -> Pending:
        return AllOf(*map(self._group.broadcast, pieces))


class BroadcastReceiver:
    """Fills memory of its own."""

    def __init__(self, group: Group, memory: Memory) -> None:
        self._group = group
        self._memory = memory

    def begin(self, header: BucketHeader) -> Arrival:
        payload = self._memory.take(header.num_bytes, self._group.device)
        pieces = payload.split(list(header.pieces))
        return _Broadcasts(header, payload, AllOf(*map(self._group.broadcast, pieces)))


class _Broadcasts:
    in_turn = False

    def __init__(self, header: BucketHeader, payload: Tensor, pending: Pending) -> None:
        self._header = header
        self._payload = payload
        self._pending = pending

    def take(self) -> tuple[Tensor, list[str]]:
        self._pending.wait()
        pieces = self._payload.split(list(self._header.pieces))
        return self._payload, [checksum(piece, self._header.verify) for piece in pieces]

    def release(self) -> None:
        pass
