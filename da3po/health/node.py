"""All checks of one node, in one call that also runs on another node."""

from __future__ import annotations

from da3po.health.bandwidth import check_bandwidth
from da3po.health.finding import Finding, Need
from da3po.health.gpus import check_gpus
from da3po.health.host import check_host
from da3po.health.packages import check_packages
from da3po.health.slurm import check_slurm


def check_node(need: Need, num_nodes: int) -> list[Finding]:
    return [*check_packages(need), *check_gpus(need), *check_host(need), *check_slurm(num_nodes), check_bandwidth()]
