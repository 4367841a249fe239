"""What Slurm gave this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from da3po.health.finding import Finding

VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_MEM_PER_NODE",
    "SLURM_JOB_END_TIME",
)


def check_slurm(num_nodes: int, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """num_nodes: that the run asks for."""
    if "SLURM_JOB_ID" not in environ:
        yield Finding(topic="slurm", name="job", value="none", status="note", meaning="not inside a Slurm job")
        return
    for name in VARIABLES:
        if name in environ:
            yield Finding(topic="slurm", name=name, value=environ[name])
    given = environ.get("SLURM_JOB_NUM_NODES", "")
    if given.isdigit() and int(given) < num_nodes:
        yield Finding(
            topic="slurm",
            name="nodes",
            value=given,
            status="problem",
            meaning=f"cluster.num_nodes={num_nodes}: sbatch --nodes={num_nodes}",
        )
