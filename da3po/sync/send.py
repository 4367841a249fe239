"""The sending side of one publication.

On the wire each message is a prelude ([2] int64: kind, bytes of JSON), the JSON, and, of a bucket, the pieces of its
payload as its header has them.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from da3po.sync import SyncError
from da3po.sync.buckets import Bucket, names_digest
from da3po.sync.carrier import AllOf
from da3po.sync.channel import SourceChannel
from da3po.sync.checksum import Verify
from da3po.sync.link import SourceLink
from da3po.types import BucketSum


class Kind(enum.IntEnum):
    BEGIN = 1
    BUCKET = 2
    END = 3
    ABORT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfStream:
    """Closes a stage's stream, so that a stream cut short cannot pass for a whole one."""

    version: int
    num_buckets: int
    names_digest: str

    @classmethod
    def of(cls, version: int, proofs: list[BucketSum]) -> EndOfStream:
        return cls(version=version, num_buckets=len(proofs), names_digest=names_digest(proofs))

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> EndOfStream:
        return cls(**json.loads(data))


def send_weights(
    channel: SourceChannel,
    version: int,
    stream: Iterable[tuple[str, Tensor]],
    bucket_bytes: int,
    verify: Verify = "full",
) -> tuple[BucketSum, ...]:
    """Send one stage's weights to all receivers under `version`; return what was sent.

    stream: (Hugging Face name, whole tensor) pairs; a tensor must stay as it is until all have been sent, since a large
        one travels from where it lies.
    verify: what of the bytes goes into checksums.
    The next bucket is filled while one is on its way. If `stream` raises, receivers are told and the error goes on.
    Raises SyncError when a receiver is gone or silent. The channel is then closed, and a new one must be opened.
    """
    link = channel.connect()
    try:
        return _send(link, version, channel.packer(bucket_bytes, verify).pack(stream))
    except _StreamError as failure:
        with suppress(SyncError):  # they will see it by themselves; what matters is why
            _start_message(link, Kind.ABORT, json.dumps({"reason": str(failure)}).encode()).wait()
        channel.close()
        raise failure.error from None
    except SyncError:
        channel.close()
        raise


class _StreamError(Exception):
    """The stream of weights raised `error`; the wire is still good."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


def _send(link: SourceLink, version: int, buckets: Iterator[Bucket]) -> tuple[BucketSum, ...]:
    """While a bucket is on its way the next one is made, and announced, so that receivers are ready for it."""
    proofs: list[BucketSum] = []
    in_flight = _start_message(link, Kind.BEGIN, json.dumps({"version": version}).encode())
    for bucket in _told_apart(buckets):
        announcement = _start_message(link, Kind.BUCKET, bucket.header.to_json())
        in_flight.wait()
        in_flight = AllOf(announcement, link.sender.send(bucket.pieces))
        proofs.append(bucket.header.proof)
    in_flight.wait()
    _start_message(link, Kind.END, EndOfStream.of(version, proofs).to_json()).wait()
    return tuple(proofs)


def _told_apart(buckets: Iterator[Bucket]) -> Iterator[Bucket]:
    """`buckets`, with an error in making one told apart from an error in sending one."""
    try:
        yield from buckets
    except Exception as error:
        raise _StreamError(error) from error


def _start_message(link: SourceLink, kind: Kind, body: bytes) -> AllOf:
    """Start to send all of a message but its payload."""
    prelude = torch.tensor([kind, len(body)], dtype=torch.int64, device=link.device)
    content = torch.frombuffer(bytearray(body), dtype=torch.uint8).to(link.device)
    return AllOf(link.broadcast(prelude), link.broadcast(content))
