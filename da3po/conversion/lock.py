"""One conversion at a time into a directory."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from da3po.checkpoint.directory import CheckpointError

logger = logging.getLogger(__name__)


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Wait until no other process, nor another thread of this one, is writing `target`, and keep them out.

    The lock is a file beside the target, whose folder must be there. It goes with the process that holds it, however
    that ends. A file system without locks has none, and the log says so. Raises CheckpointError if it cannot be made.
    """
    path = target.absolute().parent / f".{target.absolute().name}.lock"
    try:
        file = _take(path)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error}") from error
    try:
        yield
    finally:
        # While it is locked: whoever waits for this file then sees that it is gone, and makes another.
        path.unlink(missing_ok=True)
        file.close()


def _take(path: Path) -> TextIO:
    while True:
        file = path.open("w", encoding="utf-8")
        _wait(file, path)
        if _is_at(file, path):
            return file
        file.close()


def _wait(file: TextIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("another conversion holds %s; waiting for it", path)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        logger.warning("%s cannot be locked (%s); start no second conversion to the same place", path, error)


def _is_at(file: TextIO, path: Path) -> bool:
    """Whether the file is the one that has that name now."""
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(file.fileno()))
