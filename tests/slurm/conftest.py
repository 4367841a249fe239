import tempfile
from pathlib import Path

import pytest
from slurm_cluster import local_slurm, why_not_here


@pytest.fixture(scope="session")
def cluster():
    if reason := why_not_here():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="da3po-slurm-") as folder, local_slurm(Path(folder)) as cluster:
        yield cluster
