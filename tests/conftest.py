"""What every test gets: one thread, no network, and a reason instead of a failure where the machine lacks something."""

from __future__ import annotations

import os
import shutil

import pytest

# Before any library reads them; processes that a test starts inherit them. Several at once share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs hardware or services that are not here."""
    missing = {}
    if any(item.get_closest_marker("gpu") for item in items):
        import torch  # only if a selected test asks for it: it takes seconds

        if not torch.cuda.is_available():
            missing["gpu"] = "no NVIDIA GPU"
    if shutil.which("sbatch") is None:
        missing["slurm"] = "no sbatch on PATH"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
