"""Whether every node of the cluster sees the files of a run."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from da3po.cluster.placement import node_names
from da3po.cluster.session import ClusterError

# A network file system may show a new file to other nodes late.
PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.5


async def check_shared(folder: Path, files: Sequence[Path]) -> None:
    """Raises ClusterError naming the nodes that do not see a file just written to `folder`, or one of `files`."""
    canary = folder / f".seen-by-all-{secrets.token_hex(4)}"
    canary.touch()
    wanted = [str(path) for path in (canary, *files)]
    names = node_names()
    try:
        answers = await asyncio.gather(*(_look_from(node, wanted) for node in names))
    finally:
        canary.unlink()
    missing = zip(names.values(), answers, strict=True)
    if blind := [f"{name} does not see {', '.join(paths)}" for name, paths in missing if paths]:
        raise ClusterError("; ".join(blind) + ": run.dir and model.path must lie on a file system that all nodes share")


async def _look_from(node: str, paths: list[str]) -> list[str]:
    look = ray.remote(num_cpus=0)(unseen).options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
    return await look.remote(paths)


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
