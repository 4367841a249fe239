"""All checks of one node, in one call that also runs on another node."""

from __future__ import annotations

import socket
from dataclasses import asdict
from typing import Any

from da3po.health.bandwidth import check_bandwidth
from da3po.health.finding import Finding, Need
from da3po.health.gpus import check_gpus
from da3po.health.host import check_host
from da3po.health.packages import check_packages
from da3po.health.slurm import check_slurm


def check_node(need: Need, num_nodes: int, probe: bool = True) -> list[Finding]:
    """probe: measure bandwidth too, which takes seconds."""
    findings = [*check_packages(need), *check_gpus(need), *check_host(need), *check_slurm(num_nodes)]
    return [*findings, check_bandwidth()] if probe else findings


def report_node(need: dict[str, Any], num_nodes: int) -> dict[str, Any]:
    """The same with plain values in and out: host name and findings."""
    return {"node": socket.gethostname(), "findings": [asdict(one) for one in check_node(Need(**need), num_nodes)]}
