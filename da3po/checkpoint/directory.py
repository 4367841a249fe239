"""The checkpoints of a run: numbered steps, each complete or not there.

RUN/checkpoints/step_000010/manifest.json    written last; names every file with its size and checksum
                           /state.json       what the controller needs to go on
                           /config.yaml      the config that made it
                           /learner/...      weights and optimizer, in the learner's own format
RUN/checkpoints/.writing-step_000020         a save in progress, or one that was cut off
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_STEP = re.compile(r"step_(\d+)")
_WRITING = ".writing-"
MANIFEST = "manifest.json"


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
        return json.loads((self.path / "state.json").read_text())


class CheckpointDirectory:
    """Writes, finds and retires checkpoints under one folder."""

    def __init__(self, path: Path, keep: int) -> None:
        self._path = path
        self._keep = keep

    def begin(self, step: int) -> Path:
        """An empty folder to write step `step` into; it becomes a checkpoint by `commit` only."""
        writing = self._path / f"{_WRITING}step_{step:06d}"
        if writing.exists():
            shutil.rmtree(writing)
        (writing / "learner").mkdir(parents=True)
        return writing

    def commit(self, step: int, writing: Path) -> Checkpoint:
        """Seal what was written under `begin`'s folder, make it step `step`, then retire old ones."""
        entries = {
            file.relative_to(writing).as_posix(): {"bytes": file.stat().st_size, "blake2b": _checksum(file)}
            for file in _files(writing)
        }
        _write_durably(writing / MANIFEST, json.dumps({"step": step, "files": entries}, indent=1))
        for file in _files(writing):
            _flush(file)
        final = self._path / f"step_{step:06d}"
        if final.exists():  # an older attempt at the same step, from before the run was resumed
            shutil.rmtree(final)
        writing.rename(final)
        _flush(self._path)
        self._retire()
        return Checkpoint(step=step, path=final)

    def latest(self) -> Checkpoint | None:
        """The complete checkpoint with the highest step. Incomplete ones are named in the log and passed over."""
        for step, path in sorted(self._steps(), reverse=True):
            problem = find_damage(path, checksums=False)
            if problem is None:
                return Checkpoint(step=step, path=path)
            logger.warning("passing over incomplete checkpoint %s: %s", path, problem)
        return None

    def damaged(self) -> list[Path]:
        """Steps that are there but incomplete."""
        return [path for _, path in sorted(self._steps()) if find_damage(path, checksums=False)]

    def _steps(self) -> Iterator[tuple[int, Path]]:
        if not self._path.is_dir():
            return
        for path in self._path.iterdir():
            match = _STEP.fullmatch(path.name)
            if match and path.is_dir():
                yield int(match[1]), path

    def _retire(self) -> None:
        """Keep the newest complete ones. Only called once a new one is complete."""
        complete = [path for _, path in sorted(self._steps()) if find_damage(path, checksums=False) is None]
        for path in complete[: -self._keep]:
            shutil.rmtree(path)


def find_damage(path: Path, *, checksums: bool) -> str | None:
    """What is wrong with a checkpoint folder, or None if every file of its manifest is there in full."""
    if not (path / MANIFEST).is_file():
        return f"it has no {MANIFEST}"
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
        entries = [(name, int(entry["bytes"]), str(entry["blake2b"])) for name, entry in files.items()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST} cannot be read"
    if "state.json" not in files:
        return f"its {MANIFEST} names no state.json"
    for name, num_bytes, checksum in entries:
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != num_bytes:
            return f"{name} has {file.stat().st_size} bytes, not {num_bytes}"
        if checksums and _checksum(file) != checksum:
            return f"{name} does not match its checksum"
    return None


def write_state(writing: Path, state: dict[str, Any], config: str) -> None:
    """Put the controller's part into a checkpoint that is being written."""
    _write_durably(writing / "state.json", json.dumps(state))
    _write_durably(writing / "config.yaml", config)


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _write_durably(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    _flush(file)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
