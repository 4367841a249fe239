"""The folder of a run: what lies where, and that only one process works in it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from da3po.checkpoint.directory import MANIFEST, Checkpoint, CheckpointDirectory, CheckpointError, find_damage


class RunDirectory:
    """Paths of a run. Folders are made when the directory is opened."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        self.evaluations = self.path / "eval"
        self.logs = self.path / "logs"
        self.export = self.path / "export"

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make the folders and hold the directory until the end of the block.

        Raises:
            CheckpointError: another process holds it.
        """
        try:
            for folder in (self.path, self.checkpoints, self.evaluations, self.logs):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"run.dir={self.path} cannot be made: {error}") from error
        descriptor = os.open(self.path / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise CheckpointError(f"another process is running in {self.path}; choose another run.dir") from error
        try:
            yield
        finally:
            os.close(descriptor)


def find_start(checkpoints: CheckpointDirectory, resume: Literal["auto", "never", "must"]) -> Checkpoint | None:
    """The checkpoint to go on from, or None to begin.

    Raises:
        CheckpointError: `resume` forbids what is there, or there are checkpoints and none is complete; a run never
            starts over quietly.
    """
    latest = checkpoints.latest()
    if latest is None:
        if damaged := checkpoints.damaged():
            names = ", ".join(path.name for path in damaged)
            raise CheckpointError(
                f"{damaged[0].parent} holds no complete checkpoint, only {names}; remove them to start over"
            )
        if resume == "must":
            raise CheckpointError("run.resume=must, but the run directory has no checkpoint")
    elif resume == "never":
        raise CheckpointError(
            f"run.resume=never, but the run directory has a checkpoint of step {latest.step}; choose another run.dir"
        )
    return latest


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that `path` names: a step's folder, or a run directory or its checkpoints, for the newest step.

    Raises:
        CheckpointError: there is none, or it is incomplete.
    """
    if (path / MANIFEST).exists() or path.name.startswith("step_"):
        problem = find_damage(path, checksums=False)
        if problem:
            raise CheckpointError(f"{path} is no complete checkpoint: {problem}")
        return Checkpoint(step=json.loads((path / MANIFEST).read_text())["step"], path=path)
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    latest = CheckpointDirectory(folder, keep=1).latest()
    if latest is None:
        raise CheckpointError(f"{path} is no checkpoint, and no run directory with a complete one")
    return latest
