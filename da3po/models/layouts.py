"""How one Megatron parameter is made of Hugging Face tensors, and how tensor-parallel ranks share it.

Every layout answers two questions, each the inverse of the other: what part of the given HF tensors does rank r of n
hold, and what are the HF tensors if these are the parts of all ranks. Shapes of HF tensors are the ones in the file.
torch is imported where tensors are joined, so that shapes can be worked out without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Layout(Protocol):
    """split_axis: the axis of the parameter that the ranks share out; None if each has it whole.

    is_stack: the whole parameter is the HF tensors one below the other, but for padding at its end.
    """

    @property
    def split_axis(self) -> int | None: ...

    @property
    def is_stack(self) -> bool: ...

    def shard(self, parts: Sequence[Tensor], rank: int, size: int) -> Tensor:
        """The parameter of tensor-parallel rank `rank` of `size`, from whole HF tensors."""
        ...

    def join(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The whole HF tensors, from the parameter of every tensor-parallel rank in order."""
        ...


@dataclass(frozen=True, slots=True)
class Replicated:
    """Every rank holds the one tensor whole."""

    @property
    def split_axis(self) -> None:
        return None

    @property
    def is_stack(self) -> bool:
        return True

    def shard(self, parts: Sequence[Tensor], rank: int, size: int) -> Tensor:
        (whole,) = parts
        return whole

    def join(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (shards[0],)


@dataclass(frozen=True, slots=True)
class Split:
    """One tensor cut into equal pieces along `axis`."""

    axis: int

    @property
    def split_axis(self) -> int:
        return self.axis

    @property
    def is_stack(self) -> bool:
        return True

    def shard(self, parts: Sequence[Tensor], rank: int, size: int) -> Tensor:
        (whole,) = parts
        return _piece(whole, self.axis, rank, size)

    def join(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (_cat(shards, self.axis),)


@dataclass(frozen=True, slots=True)
class VocabularyRows:
    """One row per token, padded with zero rows to a multiple of the ranks; the padding exists in Megatron alone."""

    vocab_size: int

    @property
    def split_axis(self) -> int:
        return 0

    @property
    def is_stack(self) -> bool:
        return True

    def shard(self, parts: Sequence[Tensor], rank: int, size: int) -> Tensor:
        (whole,) = parts
        if whole.shape[0] != self.vocab_size:
            raise ValueError(f"embedding has {whole.shape[0]} rows, the config says vocab_size={self.vocab_size}")
        rows = padded_vocab_size(self.vocab_size, size) // size
        real = whole[rank * rows : (rank + 1) * rows]  # none, on a rank of padding alone
        return _cat((real, real.new_zeros((rows - len(real), *real.shape[1:]))))

    def join(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (_cat(shards)[: self.vocab_size],)


@dataclass(frozen=True, slots=True)
class GateUp:
    """Gate and up projections stacked on every rank: each rank holds its rows of the gate, then its rows of up."""

    @property
    def split_axis(self) -> int:
        return 0

    @property
    def is_stack(self) -> bool:
        return True

    def shard(self, parts: Sequence[Tensor], rank: int, size: int) -> Tensor:
        gate, up = parts
        return _cat((_piece(gate, 0, rank, size), _piece(up, 0, rank, size)))

    def join(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        halves = [shard.chunk(2) for shard in shards]
        return _cat([gate for gate, _ in halves]), _cat([up for _, up in halves])


@dataclass(frozen=True, slots=True)
class QkvByGroup:
    """Query, key and value projections interleaved by query group, then cut into equal pieces.

    Megatron keeps, for each of the num_kv_heads groups, the rows of its query heads, of its key head and of its value
    head. Weights [rows, hidden] and biases [rows] go the same way.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def split_axis(self) -> int:
        return 0

    @property
    def is_stack(self) -> bool:
        return False

    def shard(self, parts: Sequence[Tensor], rank: int, size: int) -> Tensor:
        by_group = [part.reshape(self.num_kv_heads, -1, *part.shape[1:]) for part in parts]
        return _piece(_cat(by_group, 1).flatten(0, 1), 0, rank, size)

    def join(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        fused = _cat(shards)
        query_rows = self.num_heads // self.num_kv_heads * self.head_dim
        by_group = fused.reshape(self.num_kv_heads, query_rows + 2 * self.head_dim, *fused.shape[1:])
        parts = by_group.split((query_rows, self.head_dim, self.head_dim), dim=1)
        return tuple(part.flatten(0, 1) for part in parts)


def padded_vocab_size(vocab_size: int, tp: int) -> int:
    """The smallest multiple of `tp` that is not below `vocab_size`."""
    return -(-vocab_size // tp) * tp


def _cat(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Of a single part, that part itself."""
    import torch

    return torch.cat(tuple(parts), dim=axis) if len(parts) > 1 else parts[0]


def _piece(whole: Tensor, axis: int, rank: int, size: int) -> Tensor:
    length = whole.shape[axis]
    if length % size:
        raise ValueError(
            f"axis {axis} of a tensor of shape {tuple(whole.shape)} cannot be cut into {size} equal pieces"
        )
    return whole.narrow(axis, rank * (length // size), length // size)
