"""The whole path over real gloo groups. Members are threads of this process, except where one has to die."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import Tensor

from da3po.sync import SyncError
from da3po.sync.buckets import BucketHeader
from da3po.sync.carrier import BroadcastSender
from da3po.sync.channel import ReceiverChannels, SourceChannel
from da3po.sync.receive import receive_weights
from da3po.sync.send import send_weights
from da3po.sync.shared import SharedSender
from da3po.sync.store import ChannelPlan, host_store, join_store
from da3po.types import BucketSum, WeightManifest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(60)]

TIMEOUT = 5.0
Pairs = list[tuple[str, Tensor]]


def stage_weights(stage: int, scale: float = 1.0, num: int = 7) -> Pairs:
    generator = torch.Generator().manual_seed(stage)
    return [(f"stage{stage}.w{i}", scale * torch.randn(3 + 40 * i, 5, generator=generator)) for i in range(num)]


class Channel:
    """All members of one channel."""

    def __init__(
        self, *, shared_memory: bool, num_stages: int = 1, num_receivers: int = 1, timeout: float = TIMEOUT
    ) -> None:
        plan = ChannelPlan(
            backend="gloo", num_stages=num_stages, num_receivers=num_receivers, shared_memory=shared_memory
        )
        self.store, self.address = host_store(plan, timeout)
        self.sources = [
            SourceChannel(self.store if stage == 0 else join_store(self.address, timeout), self.address, stage, timeout)
            for stage in range(num_stages)
        ]
        self.receivers = [ReceiverChannels(self.address, i, timeout) for i in range(num_receivers)]
        self.threads = ThreadPoolExecutor(num_stages + num_receivers)

    def send(self, version: int, weights: Callable[[int], Pairs], bucket_bytes: int) -> list[Future]:
        return [
            self.threads.submit(send_weights, source, version, weights(source.stage), bucket_bytes)
            for source in self.sources
        ]

    def receive(self, version: int) -> list[Future]:
        def take(receiver: ReceiverChannels) -> tuple[WeightManifest, dict[str, Tensor]]:
            loaded: Pairs = []
            return receive_weights(receiver, version, loaded.extend), dict(loaded)

        return [self.threads.submit(take, receiver) for receiver in self.receivers]

    def close(self) -> None:
        for member in [*self.sources, *self.receivers]:
            member.close()
        self.threads.shutdown()


@pytest.fixture(params=[False, True], ids=["broadcast", "shared"])
def open_channel(request) -> Iterator[Callable[..., Channel]]:
    opened: list[Channel] = []

    def open_one(**options: float) -> Channel:
        opened.append(Channel(shared_memory=request.param, **options))
        return opened[-1]

    yield open_one
    for channel in opened:
        channel.close()


@pytest.mark.parametrize("bucket_bytes", [1, 1024, 1 << 30])
@pytest.mark.parametrize("num_stages", [1, 2])
def test_all_receivers_get_every_stage_three_times_in_a_row(open_channel, num_stages: int, bucket_bytes: int) -> None:
    channel = open_channel(num_stages=num_stages, num_receivers=2)
    for version in (1, 2, 3):
        weights = lambda stage: stage_weights(stage, scale=float(version), num=7 + stage)  # noqa: B023, E731
        sending = channel.send(version, weights, bucket_bytes)
        receiving = channel.receive(version)
        sent = tuple(proof for future in sending for proof in future.result())
        expected = dict(pair for stage in range(num_stages) for pair in weights(stage))
        for future in receiving:
            manifest, loaded = future.result()
            assert manifest == WeightManifest(version=version, buckets=sent)
            assert loaded.keys() == expected.keys()
            assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


def test_kept_tensors_are_not_overwritten_and_dropped_ones_free_their_memory(open_channel) -> None:
    channel = open_channel()
    pairs = [(str(i), torch.full((1000,), float(i))) for i in range(12)]
    kept: dict[str, Tensor] = {}
    memory: set[int] = set()

    def load(tensors: Pairs) -> None:
        for name, tensor in tensors:
            memory.add(tensor.untyped_storage().data_ptr())
            if int(name) % 3 == 0:
                kept[name] = tensor[10:20]  # a view of a view, as an engine's loader makes them

    sending = channel.threads.submit(send_weights, channel.sources[0], 1, pairs, 1)
    receive_weights(channel.receivers[0], 1, load)
    sending.result()
    assert {name: tensor[0].item() for name, tensor in kept.items()} == {"0": 0.0, "3": 3.0, "6": 6.0, "9": 9.0}
    assert len(memory) <= len(kept) + 2


def test_the_next_bucket_is_made_while_one_is_loaded(open_channel) -> None:
    """The first load ends only after the source has been asked for its second bucket, or, where it has to travel as
    well, has had that taken and has been asked for its fourth."""
    channel = open_channel()
    asked = threading.Event()
    last = 1 if channel.receivers[0].plan.shared_memory else 3

    def stream() -> Iterator[tuple[str, Tensor]]:
        for i in range(4):
            if i == last:
                asked.set()
            yield str(i), torch.full((1000,), float(i))

    waited: list[bool] = []
    sending = channel.threads.submit(send_weights, channel.sources[0], 1, stream(), 1)
    receive_weights(channel.receivers[0], 1, lambda _: waited.append(asked.wait(TIMEOUT)))
    sending.result()
    assert waited == [True] * 4


def test_memory_is_two_buckets_and_is_used_again(open_channel) -> None:
    channel = open_channel()
    memory: dict[int, int] = {}

    def load(tensors: Pairs) -> None:
        storage = tensors[0][1].untyped_storage()
        memory[storage.data_ptr()] = storage.nbytes()

    for version in range(1, 6):
        pairs = [(str(i), torch.full((1 + i * 37 % 100,), float(i))) for i in range(60)]
        sending = channel.threads.submit(send_weights, channel.sources[0], version, pairs, 512)
        if version == 4:  # by then both have grown to the largest bucket that they meet
            memory.clear()
        receive_weights(channel.receivers[0], version, load)
        sending.result()
    assert len(memory) == 2
    assert sum(memory.values()) <= 2 * 512


def test_a_payload_damaged_on_the_way_is_refused(open_channel, monkeypatch) -> None:
    """The source hears of it at once, and does not wait for as long as it would for one that is silent."""
    channel = open_channel(timeout=300.0)

    def damage(send: Callable[..., object]) -> Callable[..., object]:
        def damaging(sender: object, pieces: Sequence[Tensor]) -> object:
            if pieces[0].numel() == 3008:
                pieces[0][123] ^= 1
            return send(sender, pieces)

        return damaging

    for sender in (BroadcastSender, SharedSender):
        monkeypatch.setattr(sender, "send", damage(sender.send))
    pairs = [
        ("good", torch.ones(100)),
        ("bad", torch.ones(3008, dtype=torch.uint8)),
        *((f"later{i}", torch.ones(100)) for i in range(3)),
    ]
    sending = channel.threads.submit(send_weights, channel.sources[0], 1, pairs, 1)
    loaded: Pairs = []
    with pytest.raises(SyncError, match=r"stage 0, bucket 1: checksum of the bucket bad"):
        receive_weights(channel.receivers[0], 1, loaded.extend)
    assert [name for name, _ in loaded] == ["good"]
    with pytest.raises(SyncError):
        sending.result()


def test_another_version_is_refused(open_channel) -> None:
    channel = open_channel()
    channel.send(4, stage_weights, 1024)
    with pytest.raises(SyncError, match="the source sends version 4, version 5 was asked for"):
        receive_weights(channel.receivers[0], 5, list)


def test_a_stream_that_raises_reaches_the_receivers_with_its_reason(open_channel) -> None:
    channel = open_channel(num_receivers=2)

    def stream() -> Iterator[tuple[str, Tensor]]:
        yield from stage_weights(0)[:3]
        raise KeyError("decoder.layers.3")

    sending = channel.threads.submit(send_weights, channel.sources[0], 1, stream(), 1)
    for receiving in channel.receive(1):
        with pytest.raises(SyncError, match=r"stage 0: the source failed: KeyError: 'decoder\.layers\.3'"):
            receiving.result()
    with pytest.raises(KeyError):
        sending.result()


def test_a_bucket_that_went_missing_is_noticed_at_the_end(open_channel, monkeypatch) -> None:
    channel = open_channel()
    of = BucketHeader.proof
    forged = BucketSum(names=("phantom",), num_bytes=16, checksum="")
    monkeypatch.setattr(
        BucketHeader, "proof", property(lambda self: forged if threading.current_thread() in senders else of.fget(self))
    )
    senders: list[threading.Thread] = []

    def send():
        senders.append(threading.current_thread())
        return send_weights(channel.sources[0], 1, stage_weights(0), 1)

    sending = channel.threads.submit(send)
    with pytest.raises(SyncError, match="the source closed its stream with"):
        receive_weights(channel.receivers[0], 1, list)
    sending.result()


def test_absent_receivers_are_named(open_channel) -> None:
    channel = open_channel(num_receivers=3, timeout=1.0)
    joining = channel.threads.submit(channel.receivers[1].connect)
    with pytest.raises(SyncError, match=r"receivers that did not come: \[0, 2\]"):
        channel.sources[0].connect()
    with pytest.raises(SyncError, match=r"receiver 1: no weight channel within 1 s"):
        joining.result()


def test_wrong_addresses_and_numbers_are_refused(open_channel) -> None:
    channel = open_channel()
    with pytest.raises(SyncError, match="is no weight channel address"):
        join_store("localhost", 1.0)
    with pytest.raises(SyncError, match=r"no weight channel at 127\.0\.0\.1:1"):
        join_store("127.0.0.1:1", 1.0)
    with pytest.raises(SyncError, match="receiver 1 is none of the channel's 1"):
        ReceiverChannels(channel.address, 1, 1.0)
    with pytest.raises(SyncError, match="stage 1 is none of the channel's 1"):
        SourceChannel(channel.store, channel.address, 1, 1.0)


def test_the_store_listens_on_loopback_alone(open_channel) -> None:
    port = int(open_channel().address.split(":")[1])
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for line in Path(table).read_text().splitlines()
        if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
    ]
    assert all(address.startswith("0100007F") for address in listening), listening


SENDER = """
import sys, time, torch
from da3po.sync.store import ChannelPlan, host_store
from da3po.sync.channel import SourceChannel
from da3po.sync.send import send_weights
torch.set_num_threads(1)
plan = ChannelPlan(backend="gloo", num_stages=1, num_receivers=1, shared_memory=sys.argv[1] == "shared")
store, address = host_store(plan, 20.0)
print(address, flush=True)
def stream():
    for i in range(10):
        if i == 5:
            print("half", flush=True)
            time.sleep(60)
        yield f"w{i}", torch.full((1000,), float(i))
send_weights(SourceChannel(store, address, 0, 20.0), 1, stream(), 1)
"""


@pytest.mark.parametrize("way", ["broadcast", "shared"])
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_a_sender_that_dies_or_hangs_half_way_ends_the_receiver_in_time(death: signal.Signals, way: str) -> None:
    sender = subprocess.Popen([sys.executable, "-c", SENDER, way], stdout=subprocess.PIPE, text=True)
    try:
        receiver = ReceiverChannels(sender.stdout.readline().strip(), 0, 3.0)
        loaded: Pairs = []

        def strike() -> None:
            assert sender.stdout.readline().strip() == "half"
            sender.send_signal(death)

        striking = threading.Thread(target=strike)
        striking.start()
        start = time.monotonic()
        with pytest.raises(SyncError, match=r"the other side is gone or silent|the source's memory cannot be read"):
            receive_weights(receiver, 1, loaded.extend)
        assert time.monotonic() - start < 10
        assert 0 < len(loaded) < 6
        striking.join()
    finally:
        sender.kill()
        sender.wait()


RECEIVER = """
import sys, time, torch
from da3po.sync.channel import ReceiverChannels
from da3po.sync.receive import receive_weights
torch.set_num_threads(1)
def load(tensors):
    if tensors[0][0] == "w5":
        print("half", flush=True)
        time.sleep(60)
receive_weights(ReceiverChannels(sys.argv[1], int(sys.argv[2]), 20.0), 1, load)
"""


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_a_receiver_that_dies_or_hangs_half_way_ends_the_source_in_time(open_channel, death: signal.Signals) -> None:
    """The other receiver ends too, without having taken all."""
    channel = open_channel(num_receivers=2, timeout=3.0)
    command = [sys.executable, "-c", RECEIVER, channel.address, "1"]
    receiver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        pairs = [(f"w{i}", torch.full((1000,), float(i))) for i in range(100)]
        # Waits for the process to start longer than a channel that is in use waits for a sign of life.
        channel.store.wait(["channel/stage0/joined2"], timedelta(seconds=50))
        loaded: Pairs = []
        sending = channel.threads.submit(send_weights, channel.sources[0], 1, pairs, 1)
        receiving = channel.threads.submit(receive_weights, channel.receivers[0], 1, loaded.extend)
        assert receiver.stdout.readline().strip() == "half"
        receiver.send_signal(death)
        for future in (sending, receiving):
            with pytest.raises(SyncError, match="the other side is gone or silent"):
                future.result(timeout=20)
        assert 0 < len(loaded) < len(pairs)
    finally:
        receiver.kill()
        receiver.wait()
