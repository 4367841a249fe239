"""The wire: one broadcast group per pipeline stage, on a store that the learner hosts.

A group is made directly from its backend, so it needs no default process group and cannot clash with one. Rank 0 is the
stage's source, rank 1 + i is receiver i. Groups are made on first use, because making one waits for all its members and
the address of the store has to travel to the receivers first.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Literal, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from da3po.sync import SyncError
from da3po.sync.buckets import Packer
from da3po.sync.checksum import Verify
from da3po.sync.memory import Memory

LOOPBACK = "127.0.0.1"
PLAN_KEY = "channel/plan"
POLL_SECONDS = 0.0005

Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPlan:
    """What every member must agree on; the host of the store publishes it there.

    num_stages: sources, one per pipeline stage.
    num_receivers: engine workers that listen; each takes every stage.
    """

    backend: Backend
    num_stages: int
    num_receivers: int


def host_store(plan: ChannelPlan, timeout: float, host: str = LOOPBACK) -> tuple[dist.Store, str]:
    """Open the store of a channel on a free port of `host` alone and publish `plan`; return it and its host:port."""
    listener = socket.create_server((host, 0), family=_family(host))
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # the store would bind to every interface by itself
    )
    store.set(PLAN_KEY, json.dumps(asdict(plan)))
    return store, f"{host}:{port}"


def join_store(address: str, timeout: float) -> dist.Store:
    """Connect to the store at `address` (host:port). Raises SyncError if nothing answers within `timeout` seconds."""
    host, port = _split(address)
    try:
        return dist.TCPStore(host, port, timeout=timedelta(seconds=timeout), wait_for_workers=False)
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        raise SyncError(f"no weight channel at {address}: {error}") from error


def read_plan(store: dist.Store) -> ChannelPlan:
    return ChannelPlan(**json.loads(store.get(PLAN_KEY)))


class _Group(Protocol):
    """A broadcast group as both backends offer it."""

    def broadcast(self, tensors: Sequence[Tensor], options: dist.BroadcastOptions) -> dist.Work: ...

    def abort(self) -> None: ...


class StageLink:
    """One member's end of one stage's broadcast group.

    device: where tensors that go through it must lie.
    """

    def __init__(
        self, store: dist.Store, address: str, stage: int, rank: int, plan: ChannelPlan, timeout: float
    ) -> None:
        self.stage = stage
        self.device = (
            torch.device("cpu") if plan.backend == "gloo" else torch.device("cuda", torch.cuda.current_device())
        )
        self._timeout = timeout
        self._group = _make_group(store, address, stage, rank, plan, timeout)

    def broadcast(self, tensor: Tensor) -> PendingBroadcast:
        """Start to send `tensor` (source) or to fill it (receiver). It must not be touched before `wait` returns."""
        try:
            work = self._group.broadcast([tensor], dist.BroadcastOptions())
        except RuntimeError as error:
            raise SyncError(f"stage {self.stage}: broadcast failed: {error}") from error
        return PendingBroadcast(work, tensor, self.stage, self._timeout, polled=self.device.type == "cuda")

    def close(self) -> None:
        self._group.abort()


class PendingBroadcast:
    """A broadcast under way; it keeps its tensor's memory from being given to others."""

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


class SourceChannel:
    """The sending end of one stage. The plan and all receivers are looked up in the store."""

    def __init__(self, store: dist.Store, address: str, stage: int, timeout: float) -> None:
        self._store = store
        self._address = address
        self._timeout = timeout
        self._link: StageLink | None = None
        self._packer: Packer | None = None
        self.stage = stage
        self.plan = read_plan(store)
        if not 0 <= stage < self.plan.num_stages:
            raise SyncError(f"stage {stage} is none of the channel's {self.plan.num_stages}")

    def connect(self) -> StageLink:
        """The link; the first call waits for all receivers. Raises SyncError naming those that did not come."""
        if self._link is None:
            try:
                self._link = StageLink(self._store, self._address, self.stage, 0, self.plan, self._timeout)
            except RuntimeError as error:
                missing = [
                    i for i in range(self.plan.num_receivers) if not self._store.check([_joined_key(self.stage, 1 + i)])
                ]
                raise SyncError(
                    f"stage {self.stage}: no weight channel within {self._timeout:g} s (sync.timeout); "
                    f"receivers that did not come: {missing or 'none'}: {error}"
                ) from error
        return self._link

    def packer(self, bucket_bytes: int, verify: Verify) -> Packer:
        """The packer for this channel's device, the same one as long as it is asked for the same."""
        if self._packer is None or (self._packer.bucket_bytes, self._packer.verify) != (bucket_bytes, verify):
            self._packer = Packer(bucket_bytes, self.connect().device, verify)
        return self._packer

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._packer = None


class ReceiverChannels:
    """The receiving end of every stage."""

    def __init__(self, address: str, receiver: int, timeout: float) -> None:
        self._store = join_store(address, timeout)
        self._address = address
        self._timeout = timeout
        self._links: tuple[StageLink, ...] = ()
        self.memory = Memory()
        self.receiver = receiver
        self.plan = read_plan(self._store)
        if not 0 <= receiver < self.plan.num_receivers:
            raise SyncError(f"receiver {receiver} is none of the channel's {self.plan.num_receivers}")

    def connect(self) -> tuple[StageLink, ...]:
        """A link to each stage's source, made at the first call, which waits for the sources. Raises SyncError."""
        if not self._links:
            try:
                self._links = tuple(
                    StageLink(self._store, self._address, stage, 1 + self.receiver, self.plan, self._timeout)
                    for stage in range(self.plan.num_stages)
                )
            except RuntimeError as error:
                raise SyncError(
                    f"receiver {self.receiver}: no weight channel within {self._timeout:g} s (sync.timeout): {error}"
                ) from error
        return self._links

    def close(self) -> None:
        for link in self._links:
            link.close()
        self._links = ()
        self.memory = Memory()


def _make_group(store: dist.Store, address: str, stage: int, rank: int, plan: ChannelPlan, timeout: float) -> _Group:
    store.set(_joined_key(stage, rank), "1")
    own = dist.PrefixStore(f"channel/stage{stage}", store)
    size = 1 + plan.num_receivers
    if plan.backend == "gloo":
        return cast(_Group, _make_gloo(own, rank, size, _own_host(address), timeout))
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout)
    return cast(_Group, dist.ProcessGroupNCCL(own, rank, size, options))


def _make_gloo(store: dist.Store, rank: int, size: int, host: str, timeout: float) -> dist.ProcessGroupGloo:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=timeout)
    return dist.ProcessGroupGloo(store, rank, size, options)


def _joined_key(stage: int, rank: int) -> str:
    return f"channel/stage{stage}/joined{rank}"


def _own_host(address: str) -> str:
    """Address of the interface through which this machine reaches the store; the other members reach us there too."""
    host, port = _split(address)
    with socket.socket(_family(host), socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise SyncError(f"{address!r} is no weight channel address (host:port)")
    return host, int(port)


def _family(host: str) -> socket.AddressFamily:
    is_v6 = ":" in host and ipaddress.ip_address(host).version == 6
    return socket.AF_INET6 if is_v6 else socket.AF_INET
