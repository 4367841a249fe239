"""Export and import as a whole: write under another name, prove, report, and only then take the name asked for.

One at a time for a target: whoever calls this holds `lock.locked`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch

from da3po.checkpoint.directory import write_state
from da3po.checkpoint.manifest import seal
from da3po.config.schema import ConfigError
from da3po.conversion.proof import EXPORT, IMPORT, TOLERANCE, Direction, LearnerLogprobs, Proof, prove
from da3po.conversion.report import JSON, lines, write_report
from da3po.conversion.source import Source
from da3po.conversion.weights import export_weights, import_weights
from da3po.models.checkpoint_names import COMPANIONS
from da3po.models.companions import export_companions, read_companions, write_companions
from da3po.models.hf_config import read_model_spec

logger = logging.getLogger(__name__)

PARTIAL = ".partial"


class ProofError(RuntimeError):
    """A conversion that was written and did not pass its proof; the message names where it is and what failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proving:
    """How a conversion is proved. learner: runs the learner's model; None leaves log-probs out."""

    learner: LearnerLogprobs | None
    tolerance: float = TOLERANCE


def export_model(source: Source, target: Path, *, dtype: str | None, max_bytes: int, proving: Proving) -> Proof:
    """Write a checkpoint as a Hugging Face directory and prove it.

    dtype: of the files; None is that of the model that the run began from. max_bytes: of a file.

    Raises:
        ConfigError: the model cannot be converted, or `target` is there.
        ProofError: it was written and is not the same model.
    """
    spec = read_model_spec(source.model)
    dtype = dtype or spec.dtype
    about: dict[str, Any] = {
        "kind": "export",
        "source": str(source.path),
        "step": source.step,
        "dtype": dtype,
        "fingerprint": source.fingerprint,
    }

    def write(folder: Path) -> None:
        export_companions(read_companions(source.model), folder, dtype)
        export_weights(source.weights, spec, folder, getattr(torch, dtype), max_bytes)

    def check(folder: Path) -> Proof:
        return _prove(source.weights, folder, EXPORT, proving)

    return _convert(target, {"write": write}, check, about)


def import_model(model_dir: Path, target: Path, *, proving: Proving) -> Proof:
    """Write a Hugging Face directory as a checkpoint of step 0 and prove it. Raises as `export_model` does."""
    spec = read_model_spec(model_dir)
    about: dict[str, Any] = {"kind": "import", "source": str(model_dir.absolute()), "family": spec.family}

    def write(folder: Path) -> None:
        weights = folder / "learner"
        weights.mkdir()
        import_weights(model_dir, spec, weights)
        write_companions(read_companions(model_dir), weights / COMPANIONS)
        write_state(folder, {"step": 0, "identity": {}, "rollouts": {}, "best": None}, f"model:\n  path: {model_dir}\n")

    def finish(folder: Path) -> None:
        seal(folder, 0, {})

    def check(folder: Path) -> Proof:
        return _prove(folder / "learner", model_dir, IMPORT, proving)

    return _convert(target, {"write": write, "seal": finish}, check, about)


def _prove(checkpoint: Path, model_dir: Path, direction: Direction, proving: Proving) -> Proof:
    return prove(checkpoint, model_dir, direction, learner=proving.learner, tolerance=proving.tolerance)


def _convert(
    target: Path,
    steps: Mapping[str, Callable[[Path], None]],
    check: Callable[[Path], Proof],
    about: dict[str, Any],
) -> Proof:
    """Take the steps, then the proof, in a folder beside `target`; the report has the seconds of each."""
    partial = _clear(target)
    for name, step in steps.items():
        with _timed(name, about):
            step(partial)
    with _timed("proof", about):
        proof = check(partial)
    write_report(partial, proof, about)
    for line in lines(proof):
        logger.info(line)
    if not proof.passed:
        failed = "; ".join(f"{check.name}: {check.detail}" for check in proof.checks if not check.passed)
        raise ProofError(f"{partial} did not pass its proof and is left there: {failed}")
    partial.rename(target)
    return proof


@contextmanager
def _timed(name: str, about: dict[str, Any]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    about[f"{name}_seconds"] = round(time.perf_counter() - began, 2)


def _clear(target: Path) -> Path:
    """An empty folder beside `target` to write to. Nothing is written over but a conversion that was cut off."""
    if target.exists():
        raise ConfigError(f"{target} is there already; choose another directory, or remove it")
    partial = target.with_name(target.name + PARTIAL)
    if (partial / JSON).exists():
        raise ConfigError(f"{partial} is a conversion that did not pass its proof; look at it, and remove it")
    if partial.exists():
        rmtree(partial)
    partial.mkdir(parents=True)
    return partial
