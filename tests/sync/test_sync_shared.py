"""Payloads in shared memory. Source and receiver are threads of this process, over a real gloo group."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

from da3po.sync import SyncError
from da3po.sync.carrier import BroadcastReceiver, BroadcastSender
from da3po.sync.channel import ReceiverChannels, SourceChannel
from da3po.sync.receive import receive_weights
from da3po.sync.send import send_weights
from da3po.sync.shared import Owner, SharedReceiver, SharedSender
from da3po.sync.store import ChannelPlan, host_store

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(60)]

TIMEOUT = 5.0
Pairs = list[tuple[str, Tensor]]


def shared_files() -> list[str]:
    """Of this process: the source's descriptors and the mappings of both ends."""
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            names.append(str(descriptor.readlink()))
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in [*names, *mapped] if "memfd:da3po" in line]


class Ends:
    """A source and some receivers."""

    def __init__(self, num_receivers: int = 1) -> None:
        plan = ChannelPlan(backend="gloo", num_stages=1, num_receivers=num_receivers, shared_memory=True)
        store, address = host_store(plan, TIMEOUT)
        self.source = SourceChannel(store, address, 0, TIMEOUT)
        self.receivers = [ReceiverChannels(address, i, TIMEOUT) for i in range(num_receivers)]
        self.threads = ThreadPoolExecutor(1 + num_receivers)

    def connect(self) -> tuple[object, list[object]]:
        """The two ends of the way that payloads take."""
        joining = [self.threads.submit(receiver.connect) for receiver in self.receivers]
        sender = self.source.connect().sender
        return sender, [link.receiver for future in joining for link in future.result()]

    def transfer(self, version: int, pairs: Pairs, bucket_bytes: int, load: Callable[[Pairs], object]) -> None:
        sending = self.threads.submit(send_weights, self.source, version, pairs, bucket_bytes)
        receive_weights(self.receivers[0], version, load)
        sending.result()

    def close(self) -> None:
        for end in (self.source, *self.receivers):
            end.close()
        self.threads.shutdown()


@pytest.fixture
def open_ends() -> Iterator[Callable[..., Ends]]:
    opened: list[Ends] = []

    def open_some(num_receivers: int = 1) -> Ends:
        opened.append(Ends(num_receivers))
        return opened[-1]

    yield open_some
    for ends in opened:
        ends.close()


def numbered(num: int) -> Pairs:
    return [(str(i), torch.full((1000,), float(i))) for i in range(num)]


def test_members_of_one_machine_share_memory_and_others_broadcast(open_ends, monkeypatch) -> None:
    sender, receivers = open_ends(2).connect()
    assert isinstance(sender, SharedSender)
    assert all(isinstance(receiver, SharedReceiver) for receiver in receivers)
    answers = iter([True, False])
    monkeypatch.setattr(Owner, "is_near", lambda _: next(answers))
    sender, receivers = open_ends(2).connect()
    assert isinstance(sender, BroadcastSender)
    assert all(isinstance(receiver, BroadcastReceiver) for receiver in receivers)


@pytest.mark.parametrize("error", [AttributeError("no memfd_create"), PermissionError("sandbox")])
def test_a_system_without_such_memory_broadcasts(open_ends, monkeypatch, error: Exception) -> None:
    def refuse(*_: object) -> int:
        raise error

    ends = open_ends()
    monkeypatch.setattr(os, "memfd_create", refuse)
    sender, [receiver] = ends.connect()
    assert isinstance(sender, BroadcastSender)
    assert isinstance(receiver, BroadcastReceiver)
    loaded: Pairs = []
    ends.transfer(1, numbered(3), 1, loaded.extend)
    assert [tensor[0].item() for _, tensor in loaded] == [0.0, 1.0, 2.0]


def test_a_file_of_another_process_is_not_taken_for_the_sources() -> None:
    mine = os.memfd_create("da3po-mine")
    try:
        assert Owner(pid=os.getpid(), token="da3po-mine", descriptor=mine).is_near()
        assert not Owner(pid=os.getpid(), token="da3po-other", descriptor=mine).is_near()
        assert not Owner(pid=os.getpid(), token="da3po-mine", descriptor=10**6).is_near()
        assert not Owner(pid=2**22 + 1, token="da3po-mine", descriptor=mine).is_near()
    finally:
        os.close(mine)


def test_an_owner_survives_the_store() -> None:
    owner = Owner(pid=7, token="da3po-ab", descriptor=9)
    assert Owner.from_json(owner.to_json()) == owner


def test_two_files_serve_all_versions_and_what_is_held_is_replaced(open_ends) -> None:
    ends = open_ends()
    places: list[int] = []

    def see(tensors: Pairs) -> None:
        places.extend(tensor.untyped_storage().data_ptr() for _, tensor in tensors)

    for version in (1, 2):
        ends.transfer(version, numbered(6), 1, see)
    assert len(set(places)) == 2
    held: Pairs = []
    ends.transfer(3, numbered(6), 1, held.extend)  # every buffer
    places.clear()
    ends.transfer(4, numbered(6), 1, see)
    assert [tensor[0].item() for _, tensor in held] == [float(i) for i in range(6)]
    assert not set(places) & {tensor.untyped_storage().data_ptr() for _, tensor in held}
    assert len(set(places)) == 2


def test_nothing_is_left_when_both_ends_are_closed(open_ends) -> None:
    ends = open_ends()
    ends.transfer(1, numbered(6), 1, len)
    assert shared_files()
    ends.close()
    gc.collect()
    assert shared_files() == []


def test_a_receiver_cannot_write_into_what_the_others_read(open_ends) -> None:
    ends = open_ends()
    protections: list[str] = []

    def see(tensors: Pairs) -> None:
        address = tensors[0][1].untyped_storage().data_ptr()
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
            if start <= address < end:
                protections.append(line.split()[1])

    ends.transfer(1, numbered(1), 1, see)
    assert protections == ["r--s"]


def test_memory_out_of_reach_is_told_and_ends_both(open_ends, monkeypatch) -> None:
    ends = open_ends()
    ends.connect()

    def refuse(*_: object) -> int:
        raise FileNotFoundError("/proc/1/fd/9")

    monkeypatch.setattr(Owner, "open", refuse)
    sending = ends.threads.submit(send_weights, ends.source, 1, numbered(3), 1)
    with pytest.raises(SyncError, match="the source's memory cannot be read: /proc/1/fd/9"):
        receive_weights(ends.receivers[0], 1, len)
    with pytest.raises(SyncError):
        sending.result()
