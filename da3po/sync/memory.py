"""Where a receiver puts the bytes that arrive."""

from __future__ import annotations

import time

import torch
from torch import Tensor

LET_GO_SECONDS = 0.005


class Memory:
    """Payload memory that is used again, from bucket to bucket and version to version, once nobody holds a view of it.

    An engine may keep a layer's first tensors until its last has come (vLLM's layerwise reload does), so a buffer must
    not be overwritten blindly; and touching fresh memory for every bucket can cost more than the transfer itself.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def take(self, num_bytes: int, device: torch.device) -> Tensor:
        """[num_bytes] uint8 that nobody else uses. A new buffer takes the place of free ones, which were too small."""
        free = self._free()
        buffer = min((one for one in free if one.numel() >= num_bytes), key=Tensor.numel, default=None)
        if buffer is None:
            self._buffers = [one for one in self._buffers if not any(one is other for other in free)]
            del free
            buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device)
            self._buffers.append(buffer)
        return buffer[:num_bytes]

    def _free(self) -> list[Tensor]:
        """Buffers that nobody holds. The channel's own thread lets go of one a moment after it has said that the bytes
        are there, so where none is free although there are enough, the moment is given to it."""
        deadline = time.monotonic() + LET_GO_SECONDS
        while True:
            free = [buffer for buffer in self._buffers if num_holders(buffer) == 1]
            if free or len(self._buffers) < 2 or time.monotonic() > deadline:
                return free
            time.sleep(LET_GO_SECONDS / 10)


def num_holders(buffer: Tensor) -> int:
    """Tensors, of Python or C++, that share the buffer's storage, itself included."""
    storage = buffer.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1  # less the storage object made here
