"""A member's end of one stage: its broadcast group, and the way that payloads take.

A group is made directly from its backend, so it needs no default process group and cannot clash with one. Rank 0 is the
stage's source, rank 1 + i is receiver i.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from da3po.sync import SyncError
from da3po.sync.carrier import BroadcastReceiver, BroadcastSender, Receiver, Sender
from da3po.sync.memory import Memory
from da3po.sync.shared import Owner, SharedReceiver, SharedSender
from da3po.sync.store import ChannelPlan, own_host

POLL_SECONDS = 0.0005


class _Backend(Protocol):
    """A process group as gloo and NCCL both offer it."""

    def broadcast(self, tensors: Sequence[Tensor], options: dist.BroadcastOptions) -> dist.Work: ...

    def allreduce(self, tensors: Sequence[Tensor], options: dist.AllreduceOptions) -> dist.Work: ...

    def abort(self) -> None: ...


class StageLink:
    """One member's end of one stage's broadcast group.

    device: where tensors that go through it must lie.
    """

    def __init__(
        self, store: dist.Store, address: str, stage: int, rank: int, plan: ChannelPlan, timeout: float
    ) -> None:
        self.stage = stage
        self._store = store
        self._shares_memory = plan.backend == "gloo" and plan.shared_memory
        self.device = (
            torch.device("cpu") if plan.backend == "gloo" else torch.device("cuda", torch.cuda.current_device())
        )
        self._timeout = timeout
        self._group: _Backend | None = _make_group(store, address, stage, rank, plan, timeout)

    def broadcast(self, tensor: Tensor) -> PendingWork:
        """Start to send `tensor` (source) or to fill it (receiver). It must not be touched before `wait` returns."""
        return self._start(lambda group: group.broadcast([tensor], dist.BroadcastOptions()), tensor)

    def least(self, tensor: Tensor) -> PendingWork:
        """Start to put the least of all members' values into `tensor`. It must not be touched before `wait` returns."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        return self._start(lambda group: group.allreduce([tensor], options), tensor)

    def close(self) -> None:
        """Leave the group. What the others wait for fails at once, which takes that nothing here holds the group."""
        if self._group is not None:
            self._group.abort()
            self._group = None

    def _all_agree(self, mine: bool) -> bool:
        """Whether every member says yes."""
        answer = torch.tensor([int(mine)], dtype=torch.int64, device=self.device)
        self.least(answer).wait()
        return bool(answer.item())

    def _start(self, collective: Callable[[_Backend], dist.Work], tensor: Tensor) -> PendingWork:
        if self._group is None:
            raise SyncError(f"stage {self.stage}: this end has been closed")
        try:
            work = collective(self._group)
        except RuntimeError as error:
            raise SyncError(f"stage {self.stage}: the other side is gone: {error}") from error
        return PendingWork(work, tensor, self.stage, self._timeout, polled=self.device.type == "cuda")


class SourceLink(StageLink):
    """The source's end. sender: takes payloads."""

    def __init__(self, store: dist.Store, address: str, stage: int, plan: ChannelPlan, timeout: float) -> None:
        super().__init__(store, address, stage, 0, plan, timeout)
        self.sender: Sender = (self._shared_sender() if self._shares_memory else None) or BroadcastSender(self)

    def _shared_sender(self) -> Sender | None:
        """None if some member cannot read this process's memory."""
        sender = None
        with suppress(AttributeError, OSError):  # Linux alone has such memory, and a sandbox may forbid it
            sender = SharedSender(self)
        self._store.set(_owner_key(self.stage), sender.owner.to_json() if sender else b"")
        return sender if self._all_agree(sender is not None) else None


class ReceiverLink(StageLink):
    """A receiver's end. receiver: takes payloads, into `memory` if they have to lie in this process's own."""

    def __init__(
        self,
        store: dist.Store,
        address: str,
        stage: int,
        number: int,
        plan: ChannelPlan,
        timeout: float,
        memory: Memory,
    ) -> None:
        super().__init__(store, address, stage, 1 + number, plan, timeout)
        shared = self._shared_receiver() if self._shares_memory else None
        self.receiver: Receiver = shared or BroadcastReceiver(self, memory)

    def _shared_receiver(self) -> Receiver | None:
        data = self._store.get(_owner_key(self.stage))
        owner = Owner.from_json(data) if data else None
        agreed = self._all_agree(owner is not None and owner.is_near())
        return SharedReceiver(self, owner) if owner and agreed else None


class PendingWork:
    """A collective under way; it keeps its tensor's memory from being given to others."""

    def __init__(self, work: dist.Work, tensor: Tensor, stage: int, timeout: float, *, polled: bool) -> None:
        self._work = work
        self._tensor = tensor
        self._stage = stage
        self._timeout = timeout
        self._polled = polled

    def wait(self) -> None:
        """Return when the bytes are there. Raises SyncError when the other side is gone or the timeout has passed."""
        try:
            if self._polled:
                self._poll()
            self._work.wait(timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise SyncError(f"stage {self._stage}: the other side is gone or silent: {error}") from error

    def _poll(self) -> None:
        # NCCL's own wait only orders streams; a dead peer would be noticed by no one.
        deadline = time.monotonic() + self._timeout
        while not self._work.is_completed():
            if time.monotonic() > deadline:
                raise SyncError(f"stage {self._stage}: nothing arrived within {self._timeout:g} s (sync.timeout)")
            time.sleep(POLL_SECONDS)


def _make_group(store: dist.Store, address: str, stage: int, rank: int, plan: ChannelPlan, timeout: float) -> _Backend:
    store.set(joined_key(stage, rank), "1")
    own = dist.PrefixStore(f"channel/stage{stage}", store)
    size = 1 + plan.num_receivers
    if plan.backend == "gloo":
        return cast(_Backend, _make_gloo(own, rank, size, own_host(address), timeout))
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout)
    return cast(_Backend, dist.ProcessGroupNCCL(own, rank, size, options))


def _make_gloo(store: dist.Store, rank: int, size: int, host: str, timeout: float) -> dist.ProcessGroupGloo:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=timeout)
    return dist.ProcessGroupGloo(store, rank, size, options)


def joined_key(stage: int, rank: int) -> str:
    return f"channel/stage{stage}/joined{rank}"


def _owner_key(stage: int) -> str:
    return f"channel/stage{stage}/memory"
