"""Weight sync against a raw gloo broadcast of the same bytes: two processes, one source and one receiver.

    python tools/bench/sync.py [--megabytes 500] [--bucket-mb 128] [--verify full] [--broadcast] [--repeat 9]

Three ways take turns in one run, on the same group of the same two processes, after one round that warms memory up:

    raw      the bytes, between two flat tensors in chunks of 64 MiB, two in flight (gloo is fastest so)
    sync     a publication: bundling, checksums, headers, payloads, verification, a copy into existing parameters
    receive  a publication whose tensors are verified and then dropped: what the wire and the checks cost alone

Payloads go through shared memory, as between a learner and engines of one machine, or with --broadcast through the
group, as between machines. Seconds run from the moment both ends are ready until the receiver has everything; a ratio
is that of `raw` to another way in one round, and the median of the rounds counts. `cpu_s_per_gb` is what both processes
spent together, and `receiver_growth_mb` the resident memory that publications added to the receiver, shared pages
included. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import get_args

import torch
import torch.distributed as dist
from torch import Tensor

from da3po.config.schema import SyncConfig
from da3po.sync.channel import ReceiverChannels, SourceChannel
from da3po.sync.checksum import Verify
from da3po.sync.link import StageLink
from da3po.sync.receive import Load, receive_weights
from da3po.sync.send import send_weights
from da3po.sync.store import ChannelPlan, host_store, join_store

TIMEOUT = 120.0
RAW_CHUNK = 64 * 2**20
HIDDEN = 2048
WAYS = ("raw", "sync", "receive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one turn, in one process."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one process measured: the cost of every turn of every way, and by how much its resident memory grew."""

    turns: dict[str, list[Cost]]
    growth: int


def model(num_bytes: int) -> dict[str, Tensor]:
    """Layers of a transformer's shapes, fp32, until they come to `num_bytes`."""
    shapes = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN // 4, HIDDEN), "norm": (HIDDEN,), "up": (3 * HIDDEN, HIDDEN)}
    weights: dict[str, Tensor] = {}
    size = layer = 0
    while size < num_bytes:
        for name, shape in shapes.items():
            weights[f"layers.{layer}.{name}"] = torch.full(shape, float(layer + 1))
            size += weights[f"layers.{layer}.{name}"].nbytes
        layer += 1
    return weights


def size_of(weights: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in weights.values())


def raw_broadcast(link: StageLink, flat: Tensor) -> None:
    before, *others = flat.split(RAW_CHUNK)
    in_flight = link.broadcast(before)
    for chunk in others:
        following = link.broadcast(chunk)
        in_flight.wait()
        in_flight = following
    in_flight.wait()


def take_turns(store: dist.Store, end: str, repeat: int, ways: Mapping[str, Callable[[int], None]]) -> Report:
    """Run every way once untimed, then `repeat` rounds of all ways; both ends start each turn together."""
    other = {"source": "receiver", "receiver": "source"}[end]
    turns: dict[str, list[Cost]] = {way: [] for way in WAYS}
    before = memory("VmRSS")
    for turn in range((1 + repeat) * len(WAYS)):
        way = WAYS[turn % len(WAYS)]
        store.set(f"bench/{end}/{turn}", "ready")
        store.wait([f"bench/{other}/{turn}"])
        start, cpu = time.perf_counter(), time.process_time()
        ways[way](turn)
        if turn >= len(WAYS):
            turns[way].append(Cost(wall=time.perf_counter() - start, cpu=time.process_time() - cpu))
    return Report(turns=turns, growth=memory("VmHWM") - before)


def memory(field: str) -> int:
    """Bytes, as the kernel counts them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"/proc/self/status has no {field}")


def source(args: argparse.Namespace) -> dict[str, object]:
    plan = ChannelPlan(backend="gloo", num_stages=1, num_receivers=1, shared_memory=not args.broadcast)
    store, address = host_store(plan, TIMEOUT)
    command = [sys.executable, __file__, "--join", address, *sys.argv[1:]]
    receiver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    weights = model(args.megabytes * 10**6)
    flat = torch.ones(size_of(weights), dtype=torch.uint8)
    channel = SourceChannel(store, address, 0, TIMEOUT)
    link = channel.connect()

    def publish(version: int) -> None:
        send_weights(channel, version, iter(weights.items()), int(args.bucket_mb * 2**20), args.verify)

    ways = {"raw": lambda turn: raw_broadcast(link, flat), "sync": publish, "receive": publish}
    sent = take_turns(join_store(address, TIMEOUT), "source", args.repeat, ways)
    output = json.loads(receiver.communicate(timeout=TIMEOUT)[0])
    channel.close()
    received = Report(
        turns={way: [Cost(**cost) for cost in costs] for way, costs in output["turns"].items()}, growth=output["growth"]
    )
    return {
        "bucket_mb": args.bucket_mb,
        "verify": args.verify,
        "shared_memory": not args.broadcast,
        "num_threads": 1,
        **summary(size_of(weights), sent, received),
    }


def summary(num_bytes: int, sent: Report, received: Report) -> dict[str, object]:
    """The receiver's seconds count: it has everything last."""
    wall = {way: [cost.wall for cost in received.turns[way]] for way in WAYS}
    cpu = {way: [a.cpu + b.cpu for a, b in zip(sent.turns[way], received.turns[way], strict=True)] for way in WAYS}
    ratios = {way: [raw / own for raw, own in zip(wall["raw"], wall[way], strict=True)] for way in WAYS[1:]}
    return {
        "num_bytes": num_bytes,
        "ratio": median(ratios["sync"]),
        "receive_ratio": median(ratios["receive"]),
        "gb_per_s": {way: num_bytes / 1e9 / median(wall[way]) for way in WAYS},
        "best_gb_per_s": {way: num_bytes / 1e9 / min(wall[way]) for way in WAYS},
        "cpu_s_per_gb": {way: median(cpu[way]) / num_bytes * 1e9 for way in WAYS},
        "receiver_growth_mb": received.growth / 2**20,
        "ratios": [round(ratio, 3) for ratio in ratios["sync"]],
        "seconds": {way: [round(seconds, 4) for seconds in wall[way]] for way in WAYS},
    }


def receive(args: argparse.Namespace) -> Report:
    channels = ReceiverChannels(args.join, 0, TIMEOUT)
    weights = model(args.megabytes * 10**6)
    flat = torch.ones(size_of(weights), dtype=torch.uint8)
    (link,) = channels.connect()

    def load(tensors: list[tuple[str, Tensor]]) -> None:
        for name, tensor in tensors:
            weights[name].copy_(tensor)

    def taking(how: Load) -> Callable[[int], None]:
        return lambda version: receive_weights(channels, version, how) and None

    ways = {"raw": lambda turn: raw_broadcast(link, flat), "sync": taking(load), "receive": taking(len)}
    report = take_turns(join_store(args.join, TIMEOUT), "receiver", args.repeat, ways)
    channels.close()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--bucket-mb", type=float, default=SyncConfig().bucket_mb)
    parser.add_argument("--verify", choices=get_args(Verify), default=SyncConfig().verify)
    parser.add_argument("--broadcast", action="store_true", help="without shared memory")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--join", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(asdict(receive(args)) if args.join else source(args)))


if __name__ == "__main__":
    main()
