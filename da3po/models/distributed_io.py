"""Read and write weights in PyTorch's distributed checkpoint format, which Megatron keeps its checkpoints in.

Without a process group, one tensor at a time: a reader holds what was asked for, a writer what it is just writing.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, EnumType
from io import SEEK_CUR
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.serialization import get_crc32_options, set_crc32_options

from da3po.models.archive import map_saved_tensor
from da3po.models.checkpoint_names import Place

METADATA = ".metadata"
COMMON = "common.pt"
BACKENDS = "metadata.json"
FILE_BYTES = 1 << 30
"""Several files are read, and their checksums taken, side by side."""

ALIGNMENT = 64
"""Bytes of which values begin at a multiple in an archive of torch.save; so an archive has to begin at one too."""

_MARKS = (METADATA, COMMON, BACKENDS)

# What the pickled index of a checkpoint is made of. Nothing else is looked up, so reading one runs no foreign code.
_INDEX_CLASSES = frozenset(
    {
        *(("torch.distributed.checkpoint.metadata", name) for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )),
        *(("torch.distributed.checkpoint.planner", name) for name in (
            "BytesIOWriteData",
            "SavePlan",
            "TensorWriteData",
            "WriteItem",
            "WriteItemType",
        )),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.distributed.checkpoint.filesystem", "_StoragePrefix"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        ("collections", "OrderedDict"),
        ("pathlib", "PosixPath"),
    }
)  # fmt: skip


def is_distributed_checkpoint(path: Path) -> bool:
    return all((path / name).is_file() for name in _MARKS)


class DistributedReader:
    """The tensors of a checkpoint by name."""

    def __init__(self, path: Path) -> None:
        """Errors: FileNotFoundError if `path` is no such checkpoint, ValueError if its index is not one."""
        self._path = path
        with (path / METADATA).open("rb") as file:
            index = _IndexUnpickler(file, path).load()
        if not isinstance(index, Metadata) or not index.storage_data:
            raise ValueError(f"{path / METADATA} is no index of a distributed checkpoint")
        self._tensors: Mapping[str, TensorStorageMetadata] = {
            name: entry for name, entry in index.state_dict_metadata.items() if isinstance(entry, TensorStorageMetadata)
        }
        self._places: Mapping[MetadataIndex, _StorageInfo] = index.storage_data

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, place: Place) -> tuple[int, ...]:
        """Errors: ValueError if it is missing."""
        size = tuple(self._entry(place).size)
        return size if place.layer is None else size[1:]

    def dtype(self, place: Place) -> torch.dtype:
        return self._entry(place).properties.dtype

    def read(self, place: Place, rows: tuple[int, int] | None = None) -> Tensor:
        """One tensor, or rows [first, end) of it, on the CPU, as it is stored.

        If one rank wrote all of it, the file is mapped and nothing is copied; else it is assembled from their pieces.
        """
        entry = self._entry(place)
        box = _Box.of(self.shape(place), place.layer, rows)
        overlaps = [(piece, box.overlap(piece)) for piece in entry.chunks]
        pieces = [(piece, shared) for piece, shared in overlaps if shared is not None]
        if len(pieces) == 1 and pieces[0][1].shape == box.shape:
            return self._read_piece(place, pieces[0][0], box).reshape(box.own_shape(place))
        whole = torch.empty(box.shape, dtype=entry.properties.dtype)
        for piece, shared in pieces:
            whole[shared.within(box.starts)] = self._read_piece(place, piece, shared)
        num_filled = sum(torch.Size(shared.shape).numel() for _, shared in pieces)
        if num_filled != whole.numel():
            raise ValueError(f"{self._path}: pieces of {place.name} hold {num_filled} of its {whole.numel()} values")
        return whole.reshape(box.own_shape(place))

    def _entry(self, place: Place) -> TensorStorageMetadata:
        if place.name not in self._tensors:
            raise ValueError(f"{self._path} has no tensor {place.name}")
        return self._tensors[place.name]

    def _read_piece(self, place: Place, piece: ChunkStorageMetadata, box: _Box) -> Tensor:
        """What a piece holds of a box that lies in it."""
        stored = self._places[MetadataIndex(place.name, piece.offsets)]
        tensor = map_saved_tensor(self._path / stored.relative_path, stored.offset, stored.length)
        if tuple(tensor.shape) != tuple(piece.sizes):
            raise ValueError(
                f"{self._path}: a piece of {place.name} has shape {tuple(tensor.shape)}, not {piece.sizes}"
            )
        return tensor[box.within(tuple(piece.offsets))]


@dataclass(frozen=True, slots=True)
class _Box:
    """A block of a tensor: along each axis, [start, end)."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @staticmethod
    def of(shape: tuple[int, ...], layer: int | None, rows: tuple[int, int] | None) -> _Box:
        """Rows of a layer, or of a tensor without layers, of that shape."""
        first, end = rows or (0, shape[0])
        starts, ends = (first, *[0] * (len(shape) - 1)), (end, *shape[1:])
        return _Box(starts, ends) if layer is None else _Box((layer, *starts), (layer + 1, *ends))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(end - start for start, end in zip(self.starts, self.ends, strict=True))

    def own_shape(self, place: Place) -> tuple[int, ...]:
        """Without the axis of layers."""
        return self.shape if place.layer is None else self.shape[1:]

    def overlap(self, piece: ChunkStorageMetadata) -> _Box | None:
        bounds = zip(self.starts, self.ends, piece.offsets, piece.sizes, strict=True)
        edges = [(max(start, offset), min(end, offset + size)) for start, end, offset, size in bounds]
        if any(start >= end for start, end in edges):
            return None
        return _Box(tuple(start for start, _ in edges), tuple(end for _, end in edges))

    def within(self, origin: tuple[int, ...]) -> tuple[slice, ...]:
        """As an index into a tensor whose first element is at `origin`."""
        bounds = zip(self.starts, self.ends, origin, strict=True)
        return tuple(slice(start - zero, end - zero) for start, end, zero in bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows of a tensor to write, from `first_row` of `num_rows` in all.

    num_layers: how many are stacked where it belongs; of no meaning without a layer.
    """

    place: Place
    num_layers: int
    first_row: int
    num_rows: int
    tensor: Tensor

    def entry(self) -> TensorStorageMetadata:
        """Of the tensor that it is a piece of, without any pieces."""
        layers = () if self.place.layer is None else (self.num_layers,)
        size = torch.Size((*layers, self.num_rows, *self.tensor.shape[1:]))
        return TensorStorageMetadata(properties=TensorProperties(dtype=self.tensor.dtype), size=size, chunks=[])

    def chunk(self) -> ChunkStorageMetadata:
        rest = [0] * (self.tensor.dim() - 1)
        if self.place.layer is None:
            return ChunkStorageMetadata(offsets=torch.Size([self.first_row, *rest]), sizes=self.tensor.shape)
        return ChunkStorageMetadata(
            offsets=torch.Size([self.place.layer, self.first_row, *rest]), sizes=torch.Size([1, *self.tensor.shape])
        )


def write_distributed(
    path: Path, pieces: Iterable[Piece], common: Mapping[str, Any], max_bytes: int = FILE_BYTES
) -> None:
    """Write a checkpoint of weights alone into `path`, an existing directory.

    common: what Megatron keeps beside tensors. max_bytes: a file that has reached it gets no further piece.
    """
    entries: dict[str, TensorStorageMetadata] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    files = _Files(path, max_bytes)
    with files, _no_checksums():
        for piece in pieces:
            entry = entries.setdefault(piece.place.name, piece.entry())
            chunk = piece.chunk()
            index = MetadataIndex(piece.place.name, chunk.offsets, len(entry.chunks))
            places[index] = files.add(piece.tensor.reshape(chunk.sizes))
            entry.chunks.append(chunk)
    torch.save(dict(common), path / COMMON)
    backends = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    backends |= {"common_backend": "torch", "common_backend_version": 1}
    (path / BACKENDS).write_text(json.dumps(backends), encoding="utf-8")
    # Last, since it is what makes the rest a checkpoint.
    (path / METADATA).write_bytes(pickle.dumps(Metadata(state_dict_metadata=dict(entries), storage_data=places)))


class _Files:
    """The files of a checkpoint, written one after another, named as those of rank 0."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._count = 0
        self._open()

    def add(self, tensor: Tensor) -> _StorageInfo:
        if self._file.tell() >= self._max_bytes:
            self._file.close()
            self._count += 1
            self._open()
        start = self._file.seek(-self._file.tell() % ALIGNMENT, SEEK_CUR)  # so that values can be read where they lie
        torch.save(_alone(tensor), self._file)
        return _StorageInfo(self._name, start, self._file.tell() - start)

    def _open(self) -> None:
        self._name = f"__0_{self._count}.distcp"
        self._file = (self._path / self._name).open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@contextmanager
def _no_checksums() -> Iterator[None]:
    """torch.save's CRC-32 takes longer than the writing; a checkpoint's manifest has better ones."""
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def _alone(tensor: Tensor) -> Tensor:
    """The tensor in storage of its own: torch.save writes the whole storage that a view is of."""
    tensor = tensor.contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


class _IndexUnpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # how Python 3.11.2, Debian 12's, pickles a member of an enum
            return self._member
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _INDEX_CLASSES:
            raise ValueError(f"{self._path / METADATA} asks for {module}.{name}, which no index of a checkpoint needs")
        return super().find_class(module, name)

    def _member(self, of: Any, name: str) -> Enum:
        if not isinstance(of, EnumType):
            raise ValueError(f"{self._path / METADATA} asks for {name} of {of!r}, which no index of a checkpoint needs")
        return of[name]
