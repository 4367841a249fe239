"""Read and write Hugging Face checkpoints: safetensors files, one or several with an index.

Both are ours, so that neither holds more than one tensor: the safetensors package keeps what it has read of a file for
as long as the file is open, and writes a file from all of its tensors at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from da3po.models.archive import map_tensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

DTYPE_CODES: Mapping[torch.dtype, str] = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}


class CheckpointReader:
    """The tensors of a model directory by name."""

    def __init__(self, model_dir: Path | str) -> None:
        """Errors: FileNotFoundError if the directory has neither model.safetensors nor an index."""
        self._dir = Path(model_dir)
        self._headers: dict[str, _Header] = {}
        index = self._dir / INDEX
        if index.is_file():
            self._file_of: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        elif (self._dir / SINGLE).is_file():
            self._file_of = dict.fromkeys(self._header(SINGLE).entries, SINGLE)
        else:
            raise FileNotFoundError(f"{self._dir} has neither {SINGLE} nor {INDEX}")

    def names(self) -> frozenset[str]:
        return frozenset(self._file_of)

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor, on the CPU, as it is stored: mapped, not copied.

        Errors: ValueError if it is missing, not of that shape, of a dtype that is no weight's, or cut off.
        """
        header = self._header(self._file_of[name]) if name in self._file_of else None
        if header is None or name not in header.entries:
            raise ValueError(f"{self._dir} has no tensor {name}")
        entry = header.entries[name]
        if tuple(entry["shape"]) != shape:
            raise ValueError(f"{self._dir}: {name} has shape {tuple(entry['shape'])}, config.json makes it {shape}")
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{self._dir}: {name} is {entry['dtype']}; weights are {', '.join(_DTYPES)}")
        return map_tensor(header.file, header.data_start + entry["data_offsets"][0], shape, _DTYPES[entry["dtype"]])

    def _header(self, name: str) -> _Header:
        if name not in self._headers:
            self._headers[name] = _read_header(self._dir / name)
        return self._headers[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """entries: name -> dtype, shape, data_offsets of each tensor. data_start: byte that offsets count from."""

    file: Path
    entries: Mapping[str, Mapping[str, Any]]
    data_start: int


def _read_header(file: Path) -> _Header:
    """Errors: ValueError if the file does not begin as a safetensors file does."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            entries = json.loads(stream.read(length)) if 0 < length < file.stat().st_size else None
        except ValueError:
            entries = None
    if not isinstance(entries, dict):
        raise ValueError(f"{file} is no safetensors file, or is cut off")
    entries.pop("__metadata__", None)
    return _Header(file=file, entries=entries, data_start=8 + length)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """One file to write: its name, and name -> shape of its tensors in order."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]


def plan_files(
    stages: Sequence[Mapping[str, tuple[int, ...]]], dtype: torch.dtype, max_bytes: int = 4 << 30
) -> tuple[tuple[FilePlan, ...], ...]:
    """The files of each stage: no file has tensors of two stages, nor more than `max_bytes` unless one tensor has.

    Every writer makes the same plan from the same arguments, so that stages write at the same time without speaking.
    """
    groups: list[list[dict[str, tuple[int, ...]]]] = []
    for shapes in stages:
        files: list[dict[str, tuple[int, ...]]] = []
        room = 0
        for name, shape in shapes.items():
            num_bytes = _num_bytes(shape, dtype)
            if not files or num_bytes > room:
                files.append({})
                room = max_bytes
            files[-1][name] = shape
            room -= num_bytes
        groups.append(files)
    total = sum(len(files) for files in groups)
    names = iter([SINGLE] if total == 1 else [f"model-{i + 1:05d}-of-{total:05d}.safetensors" for i in range(total)])
    return tuple(tuple(FilePlan(name=next(names), shapes=shapes) for shapes in files) for files in groups)


def write_file(directory: Path, plan: FilePlan, dtype: torch.dtype, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Write one file from `tensors`, taking exactly as many as the plan names.

    Errors: ValueError if a tensor is not the one that the plan expects next.
    """
    with (directory / plan.name).open("wb") as file:
        file.write(_header(plan.shapes, dtype))
        for name, shape in plan.shapes.items():
            got, tensor = next(tensors)
            if got != name or tuple(tensor.shape) != shape:
                raise ValueError(f"{plan.name}: expected {name} {shape}, got {got} {tuple(tensor.shape)}")
            data = tensor.detach().to(device="cpu", dtype=dtype).contiguous()
            file.write(data.reshape(-1).view(torch.uint8).numpy().data)


def write_index(directory: Path, stages: Sequence[Sequence[FilePlan]], dtype: torch.dtype) -> None:
    """Write the index of a checkpoint of several files; a single file needs none."""
    files = [plan for plans in stages for plan in plans]
    if len(files) == 1:
        return
    total = sum(_num_bytes(shape, dtype) for plan in files for shape in plan.shapes.values())
    weight_map = {name: plan.name for plan in files for name in plan.shapes}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _header(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> bytes:
    """Length and JSON that open a safetensors file; the JSON is padded with spaces so that the data starts aligned."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + _num_bytes(shape, dtype)
        entries[name] = {"dtype": DTYPE_CODES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _num_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize
