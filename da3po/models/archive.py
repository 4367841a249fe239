"""Tensors where they lie in a file, without a copy: mapped into memory for as long as the tensor lives."""

from __future__ import annotations

import io
import mmap
import pickle
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor


def map_tensor(path: Path, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The values at byte `start` of a file, little-endian. What is written to the tensor does not reach the file.

    Values that do not begin at a multiple of their size, as other writers leave them, are copied.
    Errors: ValueError if the file ends before them.
    """
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    # A mapping of its own for each tensor: it goes when the tensor goes, and with it what was read from the file.
    page = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    end = start + count * dtype.itemsize
    with path.open("rb") as file:
        if file.seek(0, io.SEEK_END) < end:
            raise ValueError(f"{path} ends before byte {end}: it is cut off")
        if start % dtype.itemsize:
            copy = torch.empty(count * dtype.itemsize, dtype=torch.uint8)
            file.seek(start)
            file.readinto(copy.numpy().data)
            return copy.view(dtype).reshape(shape)
        mapping = mmap.mmap(file.fileno(), end - page, access=mmap.ACCESS_COPY, offset=page)
    return torch.frombuffer(mapping, dtype=dtype, count=count, offset=start - page).reshape(shape)


def map_saved_tensor(path: Path, start: int, length: int) -> Tensor:
    """The tensor that torch.save wrote to bytes [start, start + length) of a file.

    An archive that is not as torch.save writes them is left to torch.load, which copies.
    """
    with path.open("rb", buffering=0) as file:
        view = cast(BinaryIO, FileSlice(file, start, length))
        try:
            with zipfile.ZipFile(view) as archive:
                members = _Members(archive, view)
                saved = _read_index(members)
                data_start = start + members.start(f"data/{saved.key}")
        except (zipfile.BadZipFile, pickle.UnpicklingError, KeyError):
            view.seek(0)
            loaded: Tensor = torch.load(view, weights_only=True)
            return loaded
    flat = map_tensor(path, data_start, (saved.storage_size,), saved.dtype)
    return flat.as_strided(saved.shape, saved.stride, saved.offset)


class FileSlice(io.RawIOBase):
    """Bytes [start, start + length) of an open file as a file of their own."""

    def __init__(self, file: Any, start: int, length: int) -> None:
        self._file = file
        self._start = start
        self._length = length
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fills as much of the buffer as there is: a plain read of a file may stop at 2 GiB."""
        view = memoryview(buffer)[: max(0, self._length - self._position)]
        self._file.seek(self._start + self._position)
        num_read = 0
        while num_read < len(view) and (got := self._file.readinto(view[num_read:])):
            num_read += got
        self._position += num_read
        return num_read


class _Saved:
    """What a tensor's pickle says of it."""

    def __init__(self, storage: tuple[torch.dtype, str, int], offset: int, shape: Any, stride: Any, *_: Any) -> None:
        self.dtype, self.key, self.storage_size = storage
        self.offset, self.shape, self.stride = offset, tuple(shape), tuple(stride)


class _Index(pickle.Unpickler):
    """Reads the pickle in a torch.save archive of one tensor; builds nothing but the description of it."""

    _CLASSES = {  # noqa: RUF012 never changed
        ("torch._utils", "_rebuild_tensor_v2"): _Saved,
        ("collections", "OrderedDict"): dict,
        ("torch", "FloatStorage"): torch.float32,
        ("torch", "BFloat16Storage"): torch.bfloat16,
        ("torch", "HalfStorage"): torch.float16,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._CLASSES:
            raise pickle.UnpicklingError(f"{module}.{name} is not known here")
        return self._CLASSES[module, name]

    def persistent_load(self, pid: Any) -> tuple[torch.dtype, str, int]:
        _, dtype, key, _, size = pid
        return dtype, key, size


class _Members:
    """The uncompressed members of an archive. Their checksums, on which zipfile insists, may have been left out."""

    def __init__(self, archive: zipfile.ZipFile, file: BinaryIO) -> None:
        self._archive, self._file = archive, file
        self._folder = archive.namelist()[0].partition("/")[0]

    def start(self, name: str) -> int:
        """Where a member's bytes begin: behind a header whose last two numbers are lengths. Errors: KeyError."""
        member = self._archive.getinfo(f"{self._folder}/{name}")
        if member.compress_type != zipfile.ZIP_STORED:
            raise pickle.UnpicklingError("compressed")
        self._file.seek(member.header_offset + 26)
        lengths = self._file.read(4)
        return member.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")

    def read(self, name: str) -> bytes:
        self._file.seek(self.start(name))
        return self._file.read(self._archive.getinfo(f"{self._folder}/{name}").file_size)


def _read_index(members: _Members) -> _Saved:
    if members.read("byteorder") != b"little":
        raise pickle.UnpicklingError("another byte order")
    saved = _Index(io.BytesIO(members.read("data.pkl"))).load()
    if not isinstance(saved, _Saved):
        raise pickle.UnpicklingError("no tensor")
    return saved
