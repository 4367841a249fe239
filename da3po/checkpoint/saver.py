"""Saves the steps of a run that are due."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from da3po.checkpoint.directory import Checkpoint, CheckpointDirectory, CheckpointError, write_state


class Learner(Protocol):
    async def save(self, path: Path) -> None: ...


class Saver:
    """Puts everything that belongs to a step into one checkpoint."""

    def __init__(
        self,
        *,
        directory: CheckpointDirectory,
        learner: Learner,
        rollout_state: Callable[[], dict[str, Any]],
        identity: dict[str, Any],
        config: str,
        every: int,
        last_step: int,
        announce: Callable[[str], None],
    ) -> None:
        """
        Args:
            rollout_state: gives the state of cursor, dynamic sampling and DAA as it is now.
            identity: what the run cannot change on resuming (see `check_identity`).
            config: the resolved config as YAML.
            every: steps between checkpoints; 0 saves the last step only.
        """
        self._directory = directory
        self._learner = learner
        self._rollout_state = rollout_state
        self._identity = identity
        self._config = config
        self._every = every
        self._last_step = last_step
        self._announce = announce
        self._saved: int | None = None

    async def after(self, step: int) -> None:
        if step == self._last_step or (self._every and step % self._every == 0):
            await self.save(step)

    async def save(self, step: int) -> None:
        """Save `step` now, unless that was just done."""
        if step == self._saved:
            return
        writing = self._directory.begin(step)
        await self._learner.save(writing / "learner")
        state = {"step": step, "identity": self._identity, "rollouts": self._rollout_state()}
        write_state(writing, state, self._config)
        checkpoint = self._directory.commit(step, writing)
        self._saved = step
        self._announce(f"saved {checkpoint.path}")


def check_identity(checkpoint: Checkpoint, saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Raises CheckpointError if the checkpoint belongs to a run of something else, naming what differs."""
    for key, value in here.items():
        if saved.get(key) != value:
            raise CheckpointError(
                f"{checkpoint.path} was made with {key}={saved.get(key)!r}, this run has {value!r}; "
                "choose another run.dir"
            )
