"""A stream of named tensors as flat byte buckets with a header and a checksum, and back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from da3po.sync import SyncError
from da3po.types import BucketSum

ALIGNMENT = 16
CHECKSUM_ROW = 8192
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketHeader:
    """What the bytes of a bucket are.

    names, shapes, dtypes, offsets: of each tensor; an offset is where its bytes start in the payload.
    num_bytes: of the payload, padding included.
    checksum: of the payload, see `checksum`.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    offsets: tuple[int, ...]
    num_bytes: int
    checksum: str

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> BucketHeader:
        fields = json.loads(data)
        return cls(
            names=tuple(fields["names"]),
            shapes=tuple(tuple(shape) for shape in fields["shapes"]),
            dtypes=tuple(fields["dtypes"]),
            offsets=tuple(fields["offsets"]),
            num_bytes=fields["num_bytes"],
            checksum=fields["checksum"],
        )

    @property
    def proof(self) -> BucketSum:
        return BucketSum(names=self.names, num_bytes=self.num_bytes, checksum=self.checksum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A header and its payload: [num_bytes] uint8."""

    header: BucketHeader
    payload: Tensor


def checksum(payload: Tensor) -> str:
    """Digest of `payload` ([n] uint8, n a multiple of 16), computed where the bytes lie, at memory speed.

    The bytes are read as a matrix of int64 with 8192 columns; the digest hashes all row sums and all column sums
    (modulo 2^64, so the order of additions does not matter and every device agrees). Moving or changing a value changes
    the sum of its row or of its column; only changes that cancel out in both would go unseen.
    """
    words = payload.view(torch.int64)
    num_whole = words.numel() // CHECKSUM_ROW * CHECKSUM_ROW
    matrix = words[:num_whole].view(-1, CHECKSUM_ROW)
    sums = torch.cat([matrix.sum(1), matrix.sum(0), words[num_whole:]]).cpu()
    digest = hashlib.blake2b(payload.numel().to_bytes(8, "little"), digest_size=16)
    digest.update(sums.numpy().tobytes())
    return digest.hexdigest()


class Packer:
    """Turns streams into buckets of at most `bucket_bytes`; a larger tensor travels in a bucket of its own.

    Two buffers are used in turn, so a bucket is good until the next but one is asked for: one can be on its way while
    the next is being filled. Neither is larger than `bucket_bytes` or the largest tensor. They are kept from stream to
    stream, since touching fresh memory can cost more than sending it.
    """

    def __init__(self, bucket_bytes: int, device: torch.device) -> None:
        self.bucket_bytes = bucket_bytes
        self._limit = bucket_bytes // ALIGNMENT * ALIGNMENT
        self._device = device
        self._buffers = [torch.empty(ALIGNMENT, dtype=torch.uint8, device=device) for _ in range(2)]
        self._num_packed = 0

    def pack(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[Bucket]:
        """The buckets of `stream`, in its order. A tensor is read before the next one is asked for.

        Raises SyncError for a name that comes twice and for a dtype that cannot travel.
        """
        seen: set[str] = set()
        layout = _Layout()
        for name, tensor in stream:
            _check_travels(name, tensor, seen)
            if layout.names and layout.end_with(tensor) > self._limit:
                yield self._close(layout)
                layout = _Layout()
            self._write(layout.add(name, tensor), tensor)
        if layout.names:
            yield self._close(layout)

    def _write(self, offset: int, tensor: Tensor) -> None:
        end = offset + tensor.nbytes
        buffer = self._buffers[self._num_packed % 2]
        if buffer.numel() < end:
            buffer = self._grow(buffer, keep=offset, need=_aligned(end))
        buffer[offset:end].view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def _grow(self, buffer: Tensor, keep: int, need: int) -> Tensor:
        """Doubling, so that a small model under a large bucket size costs what the model needs."""
        num_bytes = max(need, min(2 * buffer.numel(), self._limit))
        grown = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        grown[:keep] = buffer[:keep]
        self._buffers[self._num_packed % 2] = grown
        return grown

    def _close(self, layout: _Layout) -> Bucket:
        num_bytes = max(_aligned(layout.end), ALIGNMENT)
        payload = self._buffers[self._num_packed % 2][:num_bytes]
        layout.zero_gaps(payload)
        self._num_packed += 1
        header = BucketHeader(
            names=tuple(layout.names),
            shapes=tuple(layout.shapes),
            dtypes=tuple(layout.dtypes),
            offsets=tuple(layout.offsets),
            num_bytes=num_bytes,
            checksum=checksum(payload),
        )
        return Bucket(header=header, payload=payload)


class _Layout:
    """Where the tensors of the bucket that is being filled lie."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.dtypes: list[str] = []
        self.offsets: list[int] = []
        self.ends: list[int] = []

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else 0

    def end_with(self, tensor: Tensor) -> int:
        return _aligned(_aligned(self.end) + tensor.nbytes)

    def add(self, name: str, tensor: Tensor) -> int:
        offset = _aligned(self.end)
        self.names.append(name)
        self.shapes.append(tuple(tensor.shape))
        self.dtypes.append(str(tensor.dtype).removeprefix("torch."))
        self.offsets.append(offset)
        self.ends.append(offset + tensor.nbytes)
        return offset

    def zero_gaps(self, payload: Tensor) -> None:
        """The bytes between tensors are part of the checksum, so they must be the same every time."""
        for end, start in zip(self.ends, [*self.offsets[1:], payload.numel()], strict=True):
            if end < start:
                payload[end:start] = 0


def unpack(header: BucketHeader, payload: Tensor) -> list[tuple[str, Tensor]]:
    """Views of `payload` as the named tensors, after its checksum has been verified. Raises SyncError."""
    found = checksum(payload)
    if found != header.checksum:
        raise SyncError(
            f"checksum of the bucket {header.names[0]} .. {header.names[-1]} is {found}, sent was {header.checksum}"
        )
    return [
        (name, _view(payload, offset, shape, DTYPES[dtype]))
        for name, shape, dtype, offset in zip(header.names, header.shapes, header.dtypes, header.offsets, strict=True)
    ]


def names_digest(proofs: Sequence[BucketSum]) -> str:
    """Digest of the set of names in some buckets, whatever their order and split."""
    names = sorted(name for proof in proofs for name in proof.names)
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest()


def _check_travels(name: str, tensor: Tensor, seen: set[str]) -> None:
    if name in seen:
        raise SyncError(f"the weight stream has {name} twice")
    if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        raise SyncError(f"{name} has dtype {tensor.dtype}, which weight sync does not carry")
    seen.add(name)


def _view(payload: Tensor, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    num_bytes = math.prod(shape) * dtype.itemsize
    return payload[offset : offset + num_bytes].view(dtype).view(shape)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
