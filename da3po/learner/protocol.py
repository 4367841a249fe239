"""What the rest of da3po knows of a learner."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from da3po.types import PackedStep, StepStats, WeightManifest


class Learner(Protocol):
    """All ranks of the trained model behind five verbs."""

    async def step(self, batch: PackedStep) -> StepStats:
        """Old log-probs where they are needed, then one optimizer step per update of the batch."""
        ...

    async def open_channel(self, num_receivers: int) -> str:
        """Open the weight channel for so many engines; return the address that each must join."""
        ...

    async def publish(self, version: int) -> WeightManifest:
        """Send one full set of weights through the channel."""
        ...

    async def save(self, path: Path) -> None:
        """Write weights and optimizer state under `path`, an existing empty directory, all ranks together."""
        ...

    async def load(self, path: Path) -> None: ...

    async def export(self, path: Path) -> None:
        """Write the weights as a Hugging Face model directory."""
        ...

    async def close(self) -> None: ...
