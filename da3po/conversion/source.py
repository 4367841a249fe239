"""What a conversion starts from: a checkpoint of a run, also of one that is going on, or an imported one."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree

from da3po.checkpoint.directory import Checkpoint, CheckpointDirectory, CheckpointError
from da3po.checkpoint.run_directory import find_checkpoint
from da3po.models.checkpoint_names import COMPANIONS
from da3po.models.distributed_io import METADATA, is_distributed_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint to read weights from.

    path: what it is called to people. step: training steps behind it; 0 for an imported model, None if unknown.
    weights: folder in Megatron's format. model: folder with the model's files beside the weights.
    """

    path: Path
    step: int | None
    weights: Path
    model: Path

    @property
    def fingerprint(self) -> str:
        """Changes when the checkpoint is written anew; the same under another name of its files."""
        index = self.weights / METADATA
        return hashlib.blake2b(index.read_bytes() + str(index.stat().st_mtime_ns).encode(), digest_size=16).hexdigest()

    @property
    def title(self) -> str:
        """A short name: run and step, or the folder's name."""
        if self.path.parent.name == "checkpoints":
            return f"{self.path.parent.parent.name}-{self.path.name}"
        return self.path.name


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is one of the things that `find_source` takes. A damaged one is too, and refused there."""
    return (
        (path / "checkpoints").is_dir()
        or is_distributed_checkpoint(path)
        or is_distributed_checkpoint(path / "learner")
    )


def find_source(path: Path, step: int | None = None, model: Path | None = None) -> Source:
    """The checkpoint that `path` names: a run directory (its newest step, or `step`), a step's folder, an imported one.

    model: model directory to take config and tokenizer from, for a checkpoint that does not hold them.

    Raises:
        CheckpointError: there is none, it is incomplete, or nothing says what model it is of.
    """
    found = find_step(path, step) if step is not None else None
    if found is None and is_distributed_checkpoint(path):
        source = Source(path=path.absolute(), step=None, weights=path, model=path / COMPANIONS)
    else:
        found = found or find_checkpoint(path)
        weights = found.learner
        source = Source(path=found.path.absolute(), step=found.step, weights=weights, model=weights / COMPANIONS)
    source = replace(source, model=model or source.model)
    if not is_distributed_checkpoint(source.weights):
        raise CheckpointError(f"{source.weights} is no checkpoint in Megatron's distributed format")
    if not (source.model / "config.json").is_file():
        raise CheckpointError(
            f"{source.path} does not hold the files of its model (config.json, tokenizer, ...): {source.model} is "
            "missing; name the model directory that the run began from with --model"
        )
    return source


def find_step(path: Path, step: int) -> Checkpoint:
    """The complete checkpoint of one step of a run. Raises CheckpointError naming the steps that there are."""
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    complete = {found.step: found for found in CheckpointDirectory(folder, keep=1).complete()}
    if step not in complete:
        steps = ", ".join(map(str, complete)) or "none"
        raise CheckpointError(f"{path} has no complete checkpoint of step {step}; complete steps: {steps}")
    return complete[step]


@contextmanager
def held(source: Source, near: Path) -> Iterator[Source]:
    """The source, safe from a run that goes on and removes the step: its files get a second name in `near`.

    On another file system, or one without hard links, the files are read where they are.
    Raises CheckpointError if they are gone already.
    """
    folder = Path(tempfile.mkdtemp(prefix=".da3po-held-", dir=near))
    try:
        if not _link(source.weights, folder):
            yield source
            return
        if not is_distributed_checkpoint(folder):  # a folder that is gone has no files, which is no error by itself
            raise _gone(source.weights)
        kept = folder / COMPANIONS if source.model == source.weights / COMPANIONS else source.model
        yield replace(source, weights=folder, model=kept)
    finally:
        rmtree(folder)


def _link(source: Path, target: Path) -> bool:
    """Whether every file of a folder now has a second name in another."""
    try:
        for file in sorted(path for path in source.rglob("*") if path.is_file()):
            copy = target / file.relative_to(source)
            copy.parent.mkdir(exist_ok=True, parents=True)
            os.link(file, copy)
    except FileNotFoundError as error:
        raise _gone(source) from error
    except OSError:
        return False
    return True


def _gone(source: Path) -> CheckpointError:
    return CheckpointError(f"{source} went away while it was read; a run that goes on removed it")
