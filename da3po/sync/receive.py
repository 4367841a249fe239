"""The receiving side of one publication."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from da3po.sync import SyncError
from da3po.sync.buckets import BucketHeader, unpack
from da3po.sync.carrier import Arrival
from da3po.sync.channel import ReceiverChannels
from da3po.sync.link import ReceiverLink
from da3po.sync.send import EndOfStream, Kind
from da3po.types import BucketSum, WeightManifest

PRELUDE_WORDS = 2

Load = Callable[[list[tuple[str, Tensor]]], object]


def receive_weights(channels: ReceiverChannels, version: int, load: Load) -> WeightManifest:
    """Take one full set of weights; hand each verified bucket to `load`; return what arrived, stage after stage.

    load: gets (name, tensor) pairs. It may keep tensors: their memory is not written to again while they live.
    Raises SyncError for another version, a wrong checksum, a stream that ends early or a source that fails, is gone or
    silent. The channels are then closed: what was loaded is incomplete, and new channels must be opened.
    """
    links = channels.connect()
    try:
        streams = [_StageStream(link, version) for link in links]
        _take_turns(streams, load)
        return WeightManifest(version=version, buckets=tuple(proof for stream in streams for proof in stream.proofs))
    except BaseException:
        channels.close()
        raise


def _take_turns(streams: Sequence[_StageStream], load: Load) -> None:
    """A bucket from each stage in turn, until all have ended. One is verified and loaded while the next one arrives,
    unless it lies where nothing has to arrive."""
    arriving: _Arriving | None = None
    waiting = deque(streams)
    while waiting:
        stream = waiting.popleft()
        following = stream.begin_next()
        if following is None:
            continue
        waiting.append(stream)
        if arriving is not None:
            arriving.finish(load)
        arriving = following
        if following.in_turn:
            following.finish(load)
            arriving = None
    if arriving is not None:
        arriving.finish(load)


class _Arriving:
    """A bucket on its way."""

    def __init__(self, header: BucketHeader, arrival: Arrival, place: str) -> None:
        self._header = header
        self._arrival = arrival
        self._place = place
        self.in_turn = arrival.in_turn

    def finish(self, load: Load) -> None:
        """Wait for the bytes, verify them, then load them. Raises SyncError."""
        self._verify_and_load(load)
        self._arrival.release()

    def _verify_and_load(self, load: Load) -> None:
        payload, digests = self._arrival.take()
        try:
            tensors = unpack(self._header, payload, digests)
        except SyncError as error:
            raise SyncError(f"{self._place}: {error}") from error
        load(tensors)


class _StageStream:
    """One stage's messages, in order."""

    def __init__(self, link: ReceiverLink, version: int) -> None:
        self._link = link
        self._version = version
        self.proofs: list[BucketSum] = []
        kind, body = self._next()
        if kind is not Kind.BEGIN:
            raise SyncError(
                f"stage {link.stage}: a publication begins with {kind.name}, so an earlier one was cut short"
            )
        sent = json.loads(body)["version"]
        if sent != version:
            raise SyncError(f"stage {link.stage}: the source sends version {sent}, version {version} was asked for")

    def begin_next(self) -> _Arriving | None:
        """Start to take the next bucket; None if there is none, and the source's own account of it all agrees."""
        kind, body = self._next()
        if kind is Kind.END:
            self._check_end(EndOfStream.from_json(body))
            return None
        if kind is not Kind.BUCKET:
            raise SyncError(f"stage {self._link.stage}: {kind.name} in the middle of version {self._version}")
        header = BucketHeader.from_json(body)
        place = f"stage {self._link.stage}, bucket {len(self.proofs)}"
        self.proofs.append(header.proof)
        return _Arriving(header, self._link.receiver.begin(header), place)

    def _check_end(self, end: EndOfStream) -> None:
        mine = EndOfStream.of(self._version, self.proofs)
        if end != mine:
            raise SyncError(f"stage {self._link.stage}: the source closed its stream with {end}, received was {mine}")

    def _next(self) -> tuple[Kind, bytes]:
        prelude = torch.empty(PRELUDE_WORDS, dtype=torch.int64, device=self._link.device)
        self._link.broadcast(prelude).wait()
        kind, num_body_bytes = prelude.tolist()
        body = torch.empty(num_body_bytes, dtype=torch.uint8, device=self._link.device)
        self._link.broadcast(body).wait()
        content = body.cpu().numpy().tobytes()
        if kind == Kind.ABORT:
            raise SyncError(f"stage {self._link.stage}: the source failed: {json.loads(content)['reason']}")
        return Kind(kind), content
