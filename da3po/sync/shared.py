"""Payloads in memory that the source and receivers on its machine share.

NCCL finds such ways by itself; gloo goes through sockets even within a machine, which takes two copies more and most of
two cores. Announcements, places and acknowledgements go over the group, so order, deadlines and the death of a member
remain the group's matter.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import secrets
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from da3po.sync import SyncError
from da3po.sync.buckets import BucketHeader
from da3po.sync.carrier import AllOf, Arrival, Group, Pending
from da3po.sync.checksum import checksum
from da3po.sync.memory import num_holders

NUM_BUFFERS = 2  # that a source uses in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who has the shared memory.

    pid: the source's process. token: name of each of its files, so that a process of the same number on another
    machine, or in another container, is not taken for it. descriptor: of a file to try.
    """

    pid: int
    token: str
    descriptor: int

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Owner:
        return cls(**json.loads(data))

    def open(self, descriptor: int) -> int:
        """A descriptor of this process for the owner's file `descriptor`. Raises OSError if it is out of reach."""
        path = Path(f"/proc/{self.pid}/fd/{descriptor}")
        if self.token not in str(path.readlink()):  # looked at first, since opening another's file may block
            raise FileNotFoundError(f"{path} is not the source's")
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def is_near(self) -> bool:
        """Whether its memory can be read from this process."""
        with suppress(OSError):
            os.close(self.open(self.descriptor))
            return True
        return False


@dataclass(slots=True, kw_only=True)
class _File:
    """addresses: where it is mapped. kept: a receiver holds tensors in it."""

    number: int
    descriptor: int
    addresses: range
    kept: bool = False


class SharedSender:
    """Payloads are put together in files without a name in any folder: nothing is left of one when the last process
    that holds it ends. Raises OSError or AttributeError where the system has none."""

    own_memory = True

    def __init__(self, group: Group) -> None:
        self.device = group.device
        self._group = group
        self._files: dict[int, _File] = {}
        self._numbers = itertools.count()
        self._token = f"da3po-{secrets.token_hex(8)}"
        self._sample = self.allocate(mmap.PAGESIZE)
        self.owner = Owner(pid=os.getpid(), token=self._token, descriptor=self._file_of(self._sample).descriptor)

    def allocate(self, num_bytes: int) -> Tensor:
        descriptor = os.memfd_create(self._token, os.MFD_CLOEXEC)
        os.ftruncate(descriptor, num_bytes)
        mapping = mmap.mmap(descriptor, num_bytes)
        buffer = torch.frombuffer(mapping, dtype=torch.uint8)
        number = next(self._numbers)
        addresses = range(buffer.data_ptr(), buffer.data_ptr() + num_bytes)
        self._files[number] = _File(number=number, descriptor=descriptor, addresses=addresses)
        weakref.finalize(mapping, _forget, self._files, number)
        return buffer

    def may_reuse(self, buffer: Tensor) -> bool:
        return not self._file_of(buffer).kept

    def send(self, pieces: Sequence[Tensor]) -> Pending:
        """Tell where the payload lies, and wait until all have used it."""
        [payload] = pieces  # what is copied into one buffer is one piece
        file = self._file_of(payload)
        place = [file.number, file.descriptor, len(file.addresses), payload.data_ptr() - file.addresses.start]
        told = self._group.broadcast(torch.tensor(place, dtype=torch.int64))
        free = torch.ones(1, dtype=torch.int64)
        return AllOf(told, _Use(self._group.least(free), free, file))

    def _file_of(self, tensor: Tensor) -> _File:
        return next(file for file in self._files.values() if tensor.data_ptr() in file.addresses)


class _Use:
    """Of a payload by all receivers."""

    def __init__(self, pending: Pending, free: Tensor, file: _File) -> None:
        self._pending = pending
        self._free = free
        self._file = file

    def wait(self) -> None:
        self._pending.wait()
        self._file.kept = not self._free.item()


class SharedReceiver:
    """Hands out payloads where they lie. They must not be written to, and cannot be: the memory is read-only here."""

    def __init__(self, group: Group, owner: Owner) -> None:
        self._group = group
        self._owner = owner
        self._buffers: dict[int, Tensor] = {}  # those used last, the source's files by number

    def begin(self, header: BucketHeader) -> Arrival:
        place = torch.empty(4, dtype=torch.int64)
        self._group.broadcast(place).wait()
        number, descriptor, size, offset = place.tolist()
        try:
            buffer = self._buffers.pop(number, None)
            self._buffers[number] = self._map(descriptor, size) if buffer is None else buffer
        except OSError as error:
            raise SyncError(f"the source's memory cannot be read: {error}") from error
        while len(self._buffers) > NUM_BUFFERS:
            del self._buffers[next(iter(self._buffers))]
        return _Shared(self, header, number, offset)

    def payload(self, number: int, offset: int, num_bytes: int) -> Tensor:
        return self._buffers[number][offset : offset + num_bytes]

    def release(self, number: int) -> None:
        """Give the buffer back to the source, or let it go if something here holds tensors in it."""
        free = num_holders(self._buffers[number]) == 1
        if not free:
            del self._buffers[number]
        self._group.least(torch.tensor([int(free)], dtype=torch.int64))

    def _map(self, descriptor: int, size: int) -> Tensor:
        file = self._owner.open(descriptor)
        try:
            mapping = mmap.mmap(file, size, prot=mmap.PROT_READ)
        finally:
            os.close(file)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            return torch.frombuffer(mapping, dtype=torch.uint8)


class _Shared:
    in_turn = True

    def __init__(self, receiver: SharedReceiver, header: BucketHeader, number: int, offset: int) -> None:
        self._receiver = receiver
        self._header = header
        self._number = number
        self._offset = offset

    def take(self) -> tuple[Tensor, list[str]]:
        payload = self._receiver.payload(self._number, self._offset, self._header.num_bytes)
        return payload, [checksum(payload, self._header.verify)]

    def release(self) -> None:
        self._receiver.release(self._number)


def _forget(files: dict[int, _File], number: int) -> None:
    os.close(files.pop(number).descriptor)
