"""Whether every node of the cluster sees the files of a run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from da3po.cluster.errors import ClusterError
from da3po.cluster.everywhere import on_every_node

# A network file system may show a new file to other nodes late.
PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.5
# The first process on a node takes a while to start.
ANSWER_SECONDS = 120.0


async def check_shared(folder: Path, files: Sequence[Path]) -> None:
    """Raises ClusterError naming the nodes that do not see a file just written to `folder`, or one of `files`."""
    canary = folder / f".seen-by-all-{secrets.token_hex(4)}"
    canary.touch()
    wanted = [str(path) for path in (canary, *files)]
    try:
        answers = await on_every_node(f"{__name__}:{unseen.__name__}", wanted, timeout=ANSWER_SECONDS)
    finally:
        canary.unlink()
    if failed := {name: answer for name, answer in answers.items() if isinstance(answer, BaseException)}:
        raise ClusterError(f"nodes that cannot be asked for the run's files: {failed}")
    if blind := [f"{name} does not see {', '.join(paths)}" for name, paths in answers.items() if paths]:
        raise ClusterError("; ".join(blind) + ": run.dir and model.path must lie on a file system that all nodes share")


def unseen(paths: list[str]) -> list[str]:
    """Those that this machine does not see, even after a while."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (missing := [path for path in paths if not _is_listed(Path(path))]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return missing


def _is_listed(path: Path) -> bool:
    """Listing the folder makes a network file system look; asking for one name may be answered from memory."""
    try:
        return path in path.parent.iterdir()
    except OSError:
        return False
