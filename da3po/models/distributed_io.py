"""Read and write weights in PyTorch's distributed checkpoint format, which Megatron keeps its checkpoints in.

Without a process group, one tensor at a time: a reader holds what was asked for, a writer what it is just writing.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

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

from da3po.models.checkpoint_names import Place

METADATA = ".metadata"
COMMON = "common.pt"
BACKENDS = "metadata.json"
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

    def read(self, place: Place) -> Tensor:
        """One tensor, on the CPU, as it is stored; assembled from the pieces that ranks wrote."""
        entry = self._entry(place)
        pieces = [chunk for chunk in entry.chunks if _holds(chunk, place)]
        shape = self.shape(place)
        if len(pieces) == 1 and _own_sizes(pieces[0], place) == shape:
            return self._read_piece(place, pieces[0])
        whole = torch.empty(shape, dtype=entry.properties.dtype)
        num_filled = 0
        for piece in pieces:
            tensor = self._read_piece(place, piece)
            starts = piece.offsets if place.layer is None else piece.offsets[1:]
            whole[tuple(slice(start, start + size) for start, size in zip(starts, tensor.shape, strict=True))] = tensor
            num_filled += tensor.numel()
        if num_filled != whole.numel():
            raise ValueError(f"{self._path}: pieces of {place.name} hold {num_filled} of its {whole.numel()} values")
        return whole

    def _entry(self, place: Place) -> TensorStorageMetadata:
        if place.name not in self._tensors:
            raise ValueError(f"{self._path} has no tensor {place.name}")
        return self._tensors[place.name]

    def _read_piece(self, place: Place, piece: ChunkStorageMetadata) -> Tensor:
        stored = self._places[MetadataIndex(place.name, piece.offsets)]
        with (self._path / stored.relative_path).open("rb", buffering=0) as file:
            piece_file = cast(BinaryIO, _Slice(file, stored.offset, stored.length))
            tensor: Tensor = torch.load(piece_file, weights_only=True)
        if tuple(tensor.shape) != tuple(piece.sizes):
            raise ValueError(
                f"{self._path}: a piece of {place.name} has shape {tuple(tensor.shape)}, not {piece.sizes}"
            )
        return tensor if place.layer is None else tensor[place.layer - piece.offsets[0]]


def write_distributed(path: Path, tensors: Iterable[tuple[Place, int, Tensor]], common: Mapping[str, Any]) -> None:
    """Write a checkpoint of weights alone into `path`, an existing directory.

    tensors: where each belongs, the number of layers that are stacked there (of no meaning without a layer), and it.
    common: what Megatron keeps beside tensors.
    """
    entries: dict[str, TensorStorageMetadata] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    name = "__0_0.distcp"
    with (path / name).open("wb") as file:
        for place, num_layers, tensor in tensors:
            chunk, size = _chunk(place, num_layers, tensor)
            entry = entries.setdefault(
                place.name,
                TensorStorageMetadata(properties=TensorProperties(dtype=tensor.dtype), size=size, chunks=[]),
            )
            start = file.tell()
            torch.save(_alone(tensor.reshape(chunk.sizes)), file)
            index = MetadataIndex(place.name, chunk.offsets, len(entry.chunks))
            places[index] = _StorageInfo(name, start, file.tell() - start)
            entry.chunks.append(chunk)
    torch.save(dict(common), path / COMMON)
    backends = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    backends |= {"common_backend": "torch", "common_backend_version": 1}
    (path / BACKENDS).write_text(json.dumps(backends), encoding="utf-8")
    # Last, since it is what makes the rest a checkpoint.
    (path / METADATA).write_bytes(pickle.dumps(Metadata(state_dict_metadata=dict(entries), storage_data=places)))


def _chunk(place: Place, num_layers: int, tensor: Tensor) -> tuple[ChunkStorageMetadata, torch.Size]:
    """Where a tensor lies in the one that it is stacked into, and that one's size."""
    if place.layer is None:
        return ChunkStorageMetadata(offsets=torch.Size([0] * tensor.dim()), sizes=tensor.shape), tensor.shape
    offsets = torch.Size([place.layer, *[0] * tensor.dim()])
    return ChunkStorageMetadata(offsets=offsets, sizes=torch.Size([1, *tensor.shape])), torch.Size(
        [num_layers, *tensor.shape]
    )


def _alone(tensor: Tensor) -> Tensor:
    """The tensor in storage of its own: torch.save writes the whole storage that a view is of."""
    tensor = tensor.contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _holds(chunk: ChunkStorageMetadata, place: Place) -> bool:
    return place.layer is None or chunk.offsets[0] <= place.layer < chunk.offsets[0] + chunk.sizes[0]


def _own_sizes(chunk: ChunkStorageMetadata, place: Place) -> tuple[int, ...]:
    return tuple(chunk.sizes) if place.layer is None else tuple(chunk.sizes[1:])


class _IndexUnpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _INDEX_CLASSES:
            raise ValueError(f"{self._path / METADATA} asks for {module}.{name}, which no index of a checkpoint needs")
        return super().find_class(module, name)


class _Slice(io.RawIOBase):
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
        """Fills as much of the buffer as there is; a plain read of a file may stop at 2 GiB."""
        view = memoryview(buffer)[: max(0, self._length - self._position)]
        self._file.seek(self._start + self._position)
        num_read = 0
        while num_read < len(view) and (got := self._file.readinto(view[num_read:])):
            num_read += got
        self._position += num_read
        return num_read
