"""Cores, memory, limits and disks of this node."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from da3po.health.finding import Finding, Need
from da3po.runtime.cores import usable_cores

GIB = 1 << 30
SHARED_KINDS = (
    "nfs",
    "lustre",
    "gpfs",
    "beegfs",
    "weka",
    "ceph",
    "fuse.ceph",
    "panfs",
    "wekafs",
    "9p",
    "virtiofs",
    "smb3",
)
SHM_PER_PROCESS = GIB // 4
"""Of /dev/shm: Ray's objects, and segments through which NCCL and engines' workers talk inside a node."""
FILES_NEEDED = 4096
DISK_NEEDED = 10 * GIB


def check_host(need: Need, mounts: Path = Path("/proc/mounts")) -> Iterator[Finding]:
    cores = usable_cores()
    yield Finding(topic="host", name="cores", value=str(cores.num_cores), meaning=cores.reason)
    memory = psutil.virtual_memory()
    yield Finding(
        topic="host",
        name="memory",
        value=f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free",
        meaning="`da3po plan` says what a node needs",
    )
    yield _shared_memory(need)
    yield from _limits(need)
    yield from _disk(need, mounts)


def _shared_memory(need: Need, path: str = "/dev/shm") -> Finding:
    free, wanted = shutil.disk_usage(path).free, SHM_PER_PROCESS * max(4, need.processes)
    enough = free >= wanted
    return Finding(
        topic="host",
        name=path,
        value=f"{free / GIB:.1f} GiB free",
        status="ok" if enough else "problem",
        meaning="" if enough else f"{wanted / GIB:.1f} GiB are needed; in a container, raise --shm-size",
    )


def _limits(need: Need) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A process may raise its own soft limit up to the hard one, and Ray does.
    reachable = soft if hard == resource.RLIM_INFINITY else hard
    enough = reachable == resource.RLIM_INFINITY or reachable >= FILES_NEEDED
    yield Finding(
        topic="host",
        name="open files (ulimit -n)",
        value=f"{_number(soft)}, at most {_number(hard)}",
        status="ok" if enough else "problem",
        meaning="" if enough else f"raise it to {FILES_NEEDED} or more: many ranks and engines hold many connections",
    )
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = soft == resource.RLIM_INFINITY
    yield Finding(
        topic="host",
        name="locked memory (ulimit -l)",
        value=_number(soft),
        status="ok" if unlimited or not need.gpus else "note",
        meaning="" if unlimited else "InfiniBand needs it unlimited; on one node, and on CPU, it does not matter",
    )
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    yield Finding(topic="host", name="processes (ulimit -u)", value=_number(soft))


def _number(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _disk(need: Need, mounts: Path) -> Iterator[Finding]:
    folder = _existing(Path(need.folder).absolute())
    free = shutil.disk_usage(folder).free
    writable = os.access(folder, os.W_OK)
    yield Finding(
        topic="host",
        name=f"disk of run.dir ({folder})",
        value=f"{free / GIB:.1f} GiB free{'' if writable else ', not writable'}",
        status="ok" if writable and free >= DISK_NEEDED else "problem" if not writable else "note",
        meaning=""
        if free >= DISK_NEEDED
        else "checkpoints may not fit: 14 bytes a parameter each, checkpoint.keep of them",
    )
    kind = filesystem_kind(folder, mounts.read_text(encoding="utf-8") if mounts.exists() else "")
    shared = kind.startswith(SHARED_KINDS)
    yield Finding(
        topic="host",
        name="file system of run.dir",
        value=f"{kind}, {'shared' if shared else 'of this node alone'}",
        status="ok" if shared else "note",
        meaning="" if shared else "enough for one node; several nodes need run.dir and model.path where all see them",
    )


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def filesystem_kind(folder: Path, mounts: str) -> str:
    """Of the mount that `folder` lies on: the one with the longest path."""
    best: Mapping[int, str] = {
        len(parts[1]): parts[2]
        for parts in (line.split() for line in mounts.splitlines())
        if len(parts) > 2 and folder.is_relative_to(parts[1])
    }
    return best[max(best)] if best else "unknown"
