"""The same bits from the same batches: `learner.deterministic`.

Two runs of one version on one kind of machine, with the same layout, threads, seed and batches, then have the same
weights, moments and metrics, bit for bit. An operation without such a kernel raises, by name, instead of differing.
Batches are outside of it: what an engine samples may depend on which requests it ran together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

import torch

ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
        "NCCL_ALGO": "^NVLS",
    }
)
"""What libraries read at their start: cuBLAS takes workspaces of its own for each stream, Transformer Engine only
attention kernels that add up in a fixed order, NCCL no reduction inside the switch."""


def fix_kernels() -> None:
    """Change this process for good; before it touches CUDA or joins a group."""
    os.environ.update(ENVIRONMENT)
    torch.use_deterministic_algorithms(True)
