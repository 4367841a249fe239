"""A checkpoint where a Hugging Face model directory is asked for: exported once, beside it."""

from __future__ import annotations

import getpass
import logging
import os
import tempfile
from pathlib import Path
from shutil import rmtree

from da3po.conversion.convert import Proving, export_model
from da3po.conversion.lock import locked
from da3po.conversion.report import read_report
from da3po.conversion.source import Source, find_source, held, is_checkpoint

logger = logging.getLogger(__name__)

FOLDER = "exports"
MAX_BYTES = 5 * 10**9


def exported(path: str, proving: Proving) -> str:
    """`path`, or, if it is a checkpoint (see `find_source`), the directory that it was exported to.

    The directory is named after run and step. One that is there is used again as long as the checkpoint is the same;
    one that another process is writing is waited for.

    Raises:
        CheckpointError: it is a checkpoint that cannot be used.
        ProofError: the export is not the same model.
    """
    if (Path(path) / "config.json").is_file() or not is_checkpoint(Path(path)):
        return path
    source = find_source(Path(path))
    target = _folder(source) / source.title
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target):
        _export(source, target, proving)
    return str(target)


def _export(source: Source, target: Path, proving: Proving) -> None:
    record = read_report(target)
    if record and record["passed"] and record["conversion"].get("fingerprint") == source.fingerprint:
        logger.info("%s was exported to %s before", source.path, target)
        return
    if record:  # of an earlier attempt at the same step
        rmtree(target)
    with held(source, target.parent) as kept:
        export_model(kept, target, dtype=None, max_bytes=MAX_BYTES, proving=proving)
    logger.info("exported %s to %s", source.path, target)


def _folder(source: Source) -> Path:
    """Beside the checkpoints of a run, or beside the checkpoint; in the system's temporary folder if that is closed."""
    parent = source.path.parent
    beside = parent.parent if parent.name == "checkpoints" else parent
    if os.access(beside, os.W_OK):
        return beside / FOLDER
    return Path(tempfile.gettempdir()) / f"da3po-{FOLDER}-{getpass.getuser()}"
