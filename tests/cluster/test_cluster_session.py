"""A place in a Ray cluster that is already there: what is refused before Ray is asked."""

import pytest

from da3po.cluster.errors import ClusterError
from da3po.cluster.session import Session
from da3po.config.schema import ClusterConfig


@pytest.mark.parametrize(
    ("address", "says"),
    [("", "needs RAY_ADDRESS"), ("ray://10.0.0.1:10001", "the run must itself be on a node of the cluster")],
)
def test_an_address_that_cannot_be_joined(address, says, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ClusterError, match=says), Session(ClusterConfig(kind="existing")):
        pass
