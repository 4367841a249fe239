"""The digest that proves that bytes arrived as they were sent, computed where they lie."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Verify = Literal["full", "sampled", "off"]

ROW_WORDS = 8192
SAMPLING_STRIDE = 16
ROW_BYTES = 8 * ROW_WORDS
CPU_BLOCK_BYTES = 16 * ROW_BYTES  # stays in a core's cache while it is copied and summed twice
GPU_BLOCK_BYTES = 4096 * ROW_BYTES  # few launches


def block_bytes(device: torch.device) -> int:
    """Bytes to treat at a time, a multiple of a row."""
    return CPU_BLOCK_BYTES if device.type == "cpu" else GPU_BLOCK_BYTES


class RunningChecksum:
    """Digest of a payload ([n] uint8, n a multiple of 8) that is written from front to back.

    The bytes are read as a matrix of int64 with 8192 columns; the digest hashes their number, all row sums, all column
    sums (modulo 2^64, so the order of additions does not matter and every device agrees) and the words after the last
    whole row. Moving or changing a value changes the sum of its row or of its column; only changes that cancel out in
    both would go unseen. With a stride of k every k-th row stands for its neighbours.
    """

    def __init__(self, payload: Tensor, stride: int = 1) -> None:
        self._words = payload.view(torch.int64)
        self._stride = stride
        self._block_rows = block_bytes(payload.device) // ROW_BYTES
        self._row_sums: list[Tensor] = []
        self._column_sums = torch.zeros(ROW_WORDS, dtype=torch.int64, device=payload.device)
        self._num_summed = 0

    def advance(self, num_bytes: int) -> None:
        """The first `num_bytes` of the payload will not change any more: sum their whole rows."""
        end = num_bytes // ROW_BYTES * ROW_WORDS
        if end <= self._num_summed:
            return
        skipped = -(self._num_summed // ROW_WORDS) % self._stride
        rows = self._words[self._num_summed : end].view(-1, ROW_WORDS)[skipped :: self._stride]
        for block in rows.split(self._block_rows):
            self._row_sums.append(block.sum(1))
            self._column_sums += block.sum(0)
        self._num_summed = end

    def digest(self, num_bytes: int) -> str:
        """Of the first `num_bytes`, which is at least what has been advanced over."""
        self.advance(num_bytes)
        rest = self._words[self._num_summed : num_bytes // 8]
        sums = torch.cat([*self._row_sums, self._column_sums, rest]).cpu()
        digest = hashlib.blake2b(num_bytes.to_bytes(8, "little"), digest_size=16)
        digest.update(sums.numpy().data)
        return digest.hexdigest()


class NoChecksum:
    """Looks at nothing."""

    def advance(self, num_bytes: int) -> None:
        pass

    def digest(self, num_bytes: int) -> str:
        return ""


def running_checksum(payload: Tensor, verify: Verify) -> RunningChecksum | NoChecksum:
    """The checksum of a payload as `sync.verify` wants it."""
    if verify == "off":
        return NoChecksum()
    return RunningChecksum(payload, SAMPLING_STRIDE if verify == "sampled" else 1)


def checksum(payload: Tensor, verify: Verify = "full") -> str:
    """Digest of the whole of `payload`."""
    return running_checksum(payload, verify).digest(payload.numel())


def joined(digests: Sequence[str]) -> str:
    """The digest of pieces, from those of each in order."""
    if len(digests) == 1 or not any(digests):
        return digests[0]
    return hashlib.blake2b("\n".join(digests).encode(), digest_size=16).hexdigest()
