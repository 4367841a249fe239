"""What the rest of da3po knows of a learner."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from da3po.types import PackedStep, StepStats, WeightManifest


class Learner(Protocol):
    """All ranks of the trained model behind a few verbs."""

    async def step(self, batch: PackedStep) -> StepStats:
        """Old log-probs where they are needed, then one optimizer step per update of the batch."""
        ...

    async def open_channel(self, num_receivers: int) -> str:
        """Open the weight channel for so many receivers, in place of the last; return the address for each to join."""
        ...

    async def publish(self, version: int) -> WeightManifest:
        """Send one full set of weights through the channel. Raises SyncError if that failed and can be done again."""
        ...

    async def save(self, path: Path) -> None:
        """Write weights and optimizer state under `path`, an existing empty directory, all ranks together."""
        ...

    async def start_saving(self, path: Path) -> None:
        """Take a copy of what `save` would write and begin to write it; training may go on when this returns."""
        ...

    async def is_saving(self) -> bool:
        """Whether some rank is still writing."""
        ...

    async def finish_saving(self) -> None:
        """Wait for the writing to end on all ranks, and make the directory whole."""
        ...

    async def load(self, path: Path) -> None: ...

    async def load_weights(self, path: Path) -> None:
        """Take over the weights of a checkpoint and nothing else."""
        ...

    async def export(self, path: Path) -> None:
        """Write the weights as a Hugging Face model directory."""
        ...

    async def close(self) -> None: ...
