"""A stream of named tensors as flat byte buckets with a header and a checksum, and back."""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from da3po.sync import SyncError
from da3po.sync.checksum import Verify, block_bytes, checksum, joined, running_checksum
from da3po.types import BucketSum

ALIGNMENT = 16
LARGE_BYTES = 1 << 20  # a tensor of so many bytes is worth a message of its own, for what it saves is a copy
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
    pieces: bytes of each message that the payload comes in, one after another, padding included.
    verify: how the checksum was made, and checksum: of the pieces, see `da3po.sync.checksum`.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    offsets: tuple[int, ...]
    pieces: tuple[int, ...]
    verify: Verify
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
            pieces=tuple(fields["pieces"]),
            verify=fields["verify"],
            checksum=fields["checksum"],
        )

    @property
    def num_bytes(self) -> int:
        """Of the payload, padding included."""
        return sum(self.pieces)

    @property
    def proof(self) -> BucketSum:
        return BucketSum(names=self.names, num_bytes=self.num_bytes, checksum=self.checksum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A header and its payload, in pieces of [n] uint8 each, n as the header has them."""

    header: BucketHeader
    pieces: tuple[Tensor, ...]


class PayloadMemory(Protocol):
    """Where payloads are put together.

    device: where they must lie. own_memory: whether they must lie in memory from `allocate`, too.
    """

    device: torch.device
    own_memory: bool

    def allocate(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8. It is given back when nobody holds it."""
        ...

    def may_reuse(self, buffer: Tensor) -> bool:
        """Whether what was sent from `buffer` has been used everywhere."""
        ...


class Packer:
    """Turns streams into buckets.

    Tensors are bundled, in their order, into buckets of at most `bucket_bytes`; one at least as large travels alone.
    A large one is a piece of its own, sent from where it lies if it lies in one piece and may be sent from there. All
    others are copied together, into two buffers in turn, so a bucket is good until the next but one is asked for: one
    can be on its way while the next is being filled. The buffers are kept from stream to stream, since touching fresh
    memory can cost more than sending it.
    """

    def __init__(self, bucket_bytes: int, memory: PayloadMemory, verify: Verify = "full") -> None:
        self.bucket_bytes = bucket_bytes
        self.verify = verify
        self._limit = bucket_bytes // ALIGNMENT * ALIGNMENT
        self._memory = memory
        self._buffers = deque([torch.empty(0, dtype=torch.uint8, device=memory.device) for _ in range(2)])

    def pack(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[Bucket]:
        """The buckets of `stream`, in its order. A tensor must stay as it is until its bucket has been used.

        Raises SyncError for a name that comes twice and for a dtype that cannot travel.
        """
        seen: set[str] = set()
        bundle: _Bundle | None = None
        for name, given in stream:
            tensor = given.detach()
            _check_travels(name, tensor, seen)
            if bundle is not None and bundle.end_with(tensor) > self._limit:
                yield bundle.close()
                bundle = None
            as_it_lies = self._travels_as_it_lies(tensor)
            if bundle is None:
                bundle = _Bundle(self._next_buffer(0 if as_it_lies else tensor.nbytes), self.verify)
            if as_it_lies:
                bundle.add_as_it_lies(name, tensor)
            else:
                bundle.add_copy(name, tensor)
        if bundle is not None:
            yield bundle.close()

    def _travels_as_it_lies(self, tensor: Tensor) -> bool:
        return (
            not self._memory.own_memory
            and tensor.nbytes >= min(LARGE_BYTES, max(self._limit, ALIGNMENT))
            and tensor.nbytes % ALIGNMENT == 0
            and tensor.data_ptr() % ALIGNMENT == 0
            and tensor.is_contiguous()
            and tensor.device == self._memory.device
        )

    def _next_buffer(self, num_bytes: int) -> Tensor:
        """The buffer that was used longest ago, or another in its place if receivers keep that one or it cannot hold a
        bucket that starts with `num_bytes`.

        A whole bucket's memory is asked for at once; on CPU what is not touched costs nothing.
        """
        buffer = self._buffers.popleft()
        need = max(_aligned(num_bytes), self._limit, ALIGNMENT)
        if buffer.numel() < need or not self._memory.may_reuse(buffer):
            buffer = self._memory.allocate(need)
        self._buffers.append(buffer)
        return buffer


class _Bundle:
    """A bucket that is being filled from front to back. What is copied is summed while it is in the cache."""

    def __init__(self, buffer: Tensor, verify: Verify) -> None:
        self._verify = verify
        self._block_bytes = block_bytes(buffer.device)
        self._entries: list[_Entry] = []
        self._pieces: list[Tensor] = []
        self._digests: list[str] = []
        self._end = 0  # of the payload
        self._free = buffer  # what has not been copied into
        self._copied = 0  # of it, into the piece that is open
        self._sum = running_checksum(self._free, verify)

    def end_with(self, tensor: Tensor) -> int:
        return _aligned(self._end + tensor.nbytes)

    def add_as_it_lies(self, name: str, tensor: Tensor) -> None:
        self._end_piece()
        piece = _as_bytes(tensor)
        self._entries.append(_Entry.of(name, tensor, self._end))
        self._pieces.append(piece)
        self._digests.append(checksum(piece, self._verify))
        self._end += tensor.nbytes

    def add_copy(self, name: str, tensor: Tensor) -> None:
        start = self._copied
        self._entries.append(_Entry.of(name, tensor, self._end))
        if tensor.is_contiguous():
            self._copy_in_blocks(start, _as_bytes(tensor))
        else:
            self._free[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        self._copied = _aligned(start + tensor.nbytes)
        self._end += self._copied - start
        # Padding is part of the checksum, so it must be the same every time.
        self._free[start + tensor.nbytes : self._copied] = 0
        self._sum.advance(self._copied)

    def close(self) -> Bucket:
        if self._end == 0:  # empty tensors alone
            self._free[:ALIGNMENT] = 0
            self._copied = ALIGNMENT
        self._end_piece()
        header = BucketHeader(
            names=tuple(entry.name for entry in self._entries),
            shapes=tuple(entry.shape for entry in self._entries),
            dtypes=tuple(entry.dtype for entry in self._entries),
            offsets=tuple(entry.offset for entry in self._entries),
            pieces=tuple(piece.numel() for piece in self._pieces),
            verify=self._verify,
            checksum=joined(self._digests),
        )
        return Bucket(header=header, pieces=tuple(self._pieces))

    def _end_piece(self) -> None:
        """What has been copied since the last piece is one."""
        if self._copied:
            self._pieces.append(self._free[: self._copied])
            self._digests.append(self._sum.digest(self._copied))
            self._free = self._free[self._copied :]
            self._copied = 0
            self._sum = running_checksum(self._free, self._verify)

    def _copy_in_blocks(self, start: int, source: Tensor) -> None:
        for offset in range(0, source.numel(), self._block_bytes):
            block = source[offset : offset + self._block_bytes]
            end = start + offset + block.numel()
            self._free[start + offset : end].copy_(block)
            self._sum.advance(end)


class _Entry(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @classmethod
    def of(cls, name: str, tensor: Tensor, offset: int) -> _Entry:
        return cls(name, tuple(tensor.shape), _dtype_name(tensor), offset)


def unpack(header: BucketHeader, payload: Tensor, digests: Sequence[str]) -> list[tuple[str, Tensor]]:
    """Views of `payload` ([num_bytes] uint8) as the named tensors, if the checksums of its pieces are those sent.

    Raises SyncError.
    """
    found = joined(digests)
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
    if _dtype_name(tensor) not in DTYPES:
        raise SyncError(f"{name} has dtype {tensor.dtype}, which weight sync does not carry")
    seen.add(name)


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _as_bytes(tensor: Tensor) -> Tensor:
    """[nbytes] uint8, of the memory of a contiguous tensor."""
    return tensor.view(-1).view(torch.uint8)


def _view(payload: Tensor, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    num_bytes = math.prod(shape) * dtype.itemsize
    return payload[offset : offset + num_bytes].view(dtype).view(shape)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
