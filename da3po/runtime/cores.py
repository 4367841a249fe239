"""How many cores this process may use: a scheduler gives a job a part of a node. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ReadQuota = Callable[[Path], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """num_cores: cores that this process may use. reason: the limit that decided."""

    num_cores: int
    reason: str


def usable_cores(
    environ: Mapping[str, str] = os.environ,
    cgroup_root: Path = Path("/sys/fs/cgroup"),
    own_cgroups: Path = Path("/proc/self/cgroup"),
) -> Cores:
    """The smallest of the CPU affinity, the cgroup's quota (v2 and v1) and SLURM_CPUS_PER_TASK; at least 1.

    The machine's own count is none of these: a scheduler gives a job a part of a node.
    """
    limits = {"CPU affinity": len(os.sched_getaffinity(0))}
    quota = _cgroup_quota(cgroup_root, own_cgroups)
    if quota is not None:
        limits["cgroup quota"] = max(1, int(quota))
    if environ.get("SLURM_CPUS_PER_TASK", "").isdigit():
        limits["SLURM_CPUS_PER_TASK"] = max(1, int(environ["SLURM_CPUS_PER_TASK"]))
    name, num_cores = min(limits.items(), key=lambda limit: limit[1])
    return Cores(num_cores=num_cores, reason=f"{num_cores} {'core' if num_cores == 1 else 'cores'} by {name}")


def _cgroup_quota(root: Path, own_cgroups: Path) -> float | None:
    """CPU time per wall time that the strictest cgroup around this process allows; None if none is limited."""
    if not own_cgroups.exists():
        return None
    quotas: list[float] = []
    for line in own_cgroups.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            quotas += _quotas_upwards(root, path, _read_v2)
        elif "cpu" in controllers.split(","):
            quotas += _quotas_upwards(root / "cpu", path, _read_v1)
    return min(quotas, default=None)


def _quotas_upwards(mount: Path, path: str, read: ReadQuota) -> list[float]:
    """A limit holds for everything below it, so each ancestor is asked. In a container the own path may not exist."""
    inside = PurePosixPath(path.lstrip("/"))
    folders = [mount / inside, *(mount / parent for parent in inside.parents), mount]
    return [quota for folder in folders if (quota := read(folder)) is not None]


def _read_v2(folder: Path) -> float | None:
    file = folder / "cpu.max"
    if not file.exists():
        return None
    quota, period = file.read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _read_v1(folder: Path) -> float | None:
    file = folder / "cpu.cfs_quota_us"
    if not file.exists():
        return None
    quota = int(file.read_text())
    return quota / int((folder / "cpu.cfs_period_us").read_text()) if quota > 0 else None
