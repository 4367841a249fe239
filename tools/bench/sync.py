"""Weight sync against a raw gloo broadcast of the same bytes: two processes, one source and one receiver.

    python tools/bench/sync.py [--megabytes 500] [--bucket-mb 256] [--repeat 5]

Both are measured in one run, turn about, on the same group members; the best of `--repeat` counts for each. The sync
path is the whole of it: packing, checksum, headers, broadcast, verification, hand-over to a loader that copies the
tensors into place as an engine does. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from da3po.sync.channel import ChannelPlan, ReceiverChannels, SourceChannel, StageLink, host_store
from da3po.sync.receive import receive_weights
from da3po.sync.send import send_weights

TIMEOUT = 120.0
RAW_CHUNK = 64 * 2**20
HIDDEN = 2048


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


def raw_broadcast(link: StageLink, flat: Tensor) -> float:
    """Seconds to broadcast `flat` in chunks, memory already there on both sides."""
    start = time.perf_counter()
    for chunk in flat.split(RAW_CHUNK):
        link.broadcast(chunk).wait()
    return time.perf_counter() - start


def source(args: argparse.Namespace) -> dict[str, object]:
    store, address = host_store(ChannelPlan(backend="gloo", num_stages=1, num_receivers=1), TIMEOUT)
    command = [sys.executable, __file__, "--join", address, *sys.argv[1:]]
    receiver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    weights = model(args.megabytes * 10**6)
    num_bytes = sum(tensor.nbytes for tensor in weights.values())
    flat = torch.zeros(num_bytes, dtype=torch.uint8)
    channel = SourceChannel(store, address, 0, TIMEOUT)
    link = channel.connect()
    for version in range(args.repeat):
        raw_broadcast(link, flat)
        send_weights(channel, version, iter(weights.items()), int(args.bucket_mb * 2**20))
    raw, synced = zip(*json.loads(receiver.communicate(timeout=TIMEOUT)[0]), strict=True)
    channel.close()
    return {
        "num_bytes": num_bytes,
        "bucket_mb": args.bucket_mb,
        "raw_gb_per_s": num_bytes / 1e9 / min(raw),
        "sync_gb_per_s": num_bytes / 1e9 / min(synced),
        "ratio": min(raw) / min(synced),
        "raw_s": raw,
        "sync_s": synced,
    }


def receive(args: argparse.Namespace) -> Iterator[tuple[float, float]]:
    """(raw, sync) seconds of each turn, as the receiver sees them: it has the data only when its own part is done."""
    channels = ReceiverChannels(args.join, 0, TIMEOUT)
    weights = model(args.megabytes * 10**6)
    flat = torch.zeros(sum(tensor.nbytes for tensor in weights.values()), dtype=torch.uint8)
    (link,) = channels.connect()

    def load(tensors: list[tuple[str, Tensor]]) -> None:
        for name, tensor in tensors:
            weights[name].copy_(tensor)

    for version in range(args.repeat):
        raw = raw_broadcast(link, flat)
        start = time.perf_counter()
        receive_weights(channels, version, load)
        yield raw, time.perf_counter() - start
    channels.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--bucket-mb", type=float, default=256.0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--join", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(list(receive(args)) if args.join else source(args)))


if __name__ == "__main__":
    main()
