"""The store that the members of a channel meet on; the learner hosts it."""

from __future__ import annotations

import ipaddress
import json
import socket
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Literal

import torch.distributed as dist

from da3po.sync import SyncError

LOOPBACK = "127.0.0.1"
PLAN_KEY = "channel/plan"

Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPlan:
    """What every member must agree on; the host of the store publishes it there.

    num_stages: sources, one per pipeline stage.
    num_receivers: engine workers that listen; each takes every stage.
    shared_memory: with gloo, a stage all of whose members are on one machine sends payloads through shared memory.
    """

    backend: Backend
    num_stages: int
    num_receivers: int
    shared_memory: bool


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


def own_host(address: str) -> str:
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
