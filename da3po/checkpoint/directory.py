"""The checkpoints of a run: numbered steps, each complete or not there.

RUN/checkpoints/step_000010/manifest.json    written last; names every file with its size and checksum
                           /state.json       what the controller needs to go on
                           /config.yaml      the config that made it
                           /learner/...      weights and optimizer, in the learner's own format
RUN/checkpoints/best.json                    the step that evaluated best, if the run looks for one
RUN/checkpoints/.writing-step_000020         a save in progress, or one that was cut off
RUN/checkpoints/.removing-step_000005        one that is going away, or whose removal was cut off
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3po.checkpoint.manifest import MANIFEST, STATE, find_damage, flush, seal, write_durably
from da3po.checkpoint.retention import Best, Retention, read_best, write_best

__all__ = ["MANIFEST", "Checkpoint", "CheckpointDirectory", "CheckpointError", "find_damage", "write_state"]

logger = logging.getLogger(__name__)

_STEP = re.compile(r"step_(\d+)")
_WRITING = ".writing-"
_REMOVING = ".removing-"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or used; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    step: int
    path: Path

    @property
    def learner(self) -> Path:
        return self.path / "learner"

    def state(self) -> dict[str, Any]:
        """The controller's state. Raises CheckpointError if a file has changed since it was written."""
        problem = find_damage(self.path, checksums=True)
        if problem:
            raise CheckpointError(f"{self.path}: {problem}")
        return json.loads((self.path / STATE).read_text())


class CheckpointDirectory:
    """Writes, finds and retires checkpoints under one folder."""

    def __init__(self, path: Path, keep: int, keep_every: int = 0) -> None:
        """keep: newest ones kept. keep_every: multiples of it are kept for ever; 0 for none."""
        self._path = path
        self._retention = Retention(keep=keep, every=keep_every)

    def begin(self, step: int) -> Path:
        """An empty folder to write step `step` into; it becomes a checkpoint by `commit` only."""
        writing = self._path / f"{_WRITING}{_name(step)}"
        if writing.exists():
            shutil.rmtree(writing)
        (writing / "learner").mkdir(parents=True)
        return writing

    def commit(
        self, step: int, writing: Path, *, identity: dict[str, Any] | None = None, best: Best | None = None
    ) -> Checkpoint:
        """Seal what was written under `begin`'s folder, make it step `step`, then retire old ones.

        best: that this step is the best so far, if it is.
        """
        seal(writing, step, identity or {})
        final = self._path / _name(step)
        if final.exists():  # an older attempt at the same step, from before the run was resumed
            self._remove(final)
        writing.rename(final)
        flush(self._path)
        if best is not None:
            write_best(self._path, best)
        self._retire()
        return Checkpoint(step=step, path=final)

    def discard(self, writing: Path) -> None:
        """Give up a save: what was written of it goes, so that the space is there for the next one."""
        shutil.rmtree(writing, ignore_errors=True)

    def clear(self) -> list[str]:
        """Remove what saves and removals that were cut off have left; returns the names. Nobody may be saving.

        A save that was cut off after its seal is whole, and becomes the step that it is, unless that is there.
        """
        if not self._path.is_dir():
            return []
        left = sorted(path for path in self._path.iterdir() if path.name.startswith((_WRITING, _REMOVING)))
        for path in left:
            final = self._path / path.name.removeprefix(_WRITING)
            if path.name.startswith(_WRITING) and not final.exists() and find_damage(path, checksums=True) is None:
                path.rename(final)
            else:
                _delete(path)
        return [path.name for path in left]

    def latest(self) -> Checkpoint | None:
        """The complete checkpoint with the highest step. Incomplete ones are named in the log and passed over."""
        for step, path in sorted(self._steps(), reverse=True):
            problem = find_damage(path, checksums=False)
            if problem is None:
                return Checkpoint(step=step, path=path)
            logger.warning("passing over incomplete checkpoint %s: %s", path, problem)
        return None

    def complete(self) -> list[Checkpoint]:
        """All complete ones, oldest first."""
        return [
            Checkpoint(step=step, path=path)
            for step, path in sorted(self._steps())
            if find_damage(path, checksums=False) is None
        ]

    def damaged(self) -> list[Path]:
        """Steps that are there but incomplete."""
        return [path for _, path in sorted(self._steps()) if find_damage(path, checksums=False)]

    def best(self, known: Best | None = None) -> Best | None:
        """The best step and its value, if its checkpoint is complete.

        known: the best as of the latest step, by its own state; the pointer is older if the run died in between.
        """
        found = [best for best in (read_best(self._path), known) if best is not None]
        complete = [b for b in found if find_damage(self._path / _name(b.step), checksums=False) is None]
        return max(complete, key=lambda best: best.step, default=None)

    def mark_best(self, best: Best) -> None:
        """Point at a step that was saved before its evaluation was known."""
        write_best(self._path, best)
        self._retire()

    def _steps(self) -> Iterator[tuple[int, Path]]:
        if not self._path.is_dir():
            return
        for path in self._path.iterdir():
            match = _STEP.fullmatch(path.name)
            if match and path.is_dir():
                yield int(match[1]), path

    def _retire(self) -> None:
        """Remove those that retention lets go. Only called once a new one is complete."""
        complete = {checkpoint.step: checkpoint.path for checkpoint in self.complete()}
        best = self.best()
        for step in self._retention.retired(list(complete), best.step if best else None):
            try:
                self._remove(complete[step])
            except OSError as error:  # the new one is safe, and no reason to end a run
                logger.warning("old checkpoint %s could not be removed: %s", complete[step], error)

    def _remove(self, path: Path) -> None:
        """Under another name first: a removal that is cut off leaves no step that looks half there."""
        removing = self._path / f"{_REMOVING}{path.name}"
        if removing.exists():
            shutil.rmtree(removing)
        path.rename(removing)
        _delete(removing)


def _delete(path: Path) -> None:
    """What cannot be deleted is in nobody's way under its name; `clear` tries again at the next start."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        logger.warning("%s could not be deleted: %s", path, error)


def _name(step: int) -> str:
    return f"step_{step:06d}"


def write_state(writing: Path, state: dict[str, Any], config: str) -> None:
    """Put the controller's part into a checkpoint that is being written."""
    write_durably(writing / STATE, json.dumps(state))
    write_durably(writing / "config.yaml", config)
