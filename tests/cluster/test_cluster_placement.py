"""Slots on a Ray of two nodes with GPUs that exist for Ray alone."""

import asyncio
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from da3po.cluster.bundles import Demand
from da3po.cluster.errors import ClusterError
from da3po.cluster.placement import Placement
from da3po.cluster.shared_files import check_shared
from da3po.cluster.workers import Worker, WorkerSpec

pytestmark = pytest.mark.distributed
ENV = {"PYTHONPATH": str(Path(__file__).parents[1])}


@pytest.fixture(scope="module", autouse=True)
def two_nodes():
    cluster = Cluster()
    cluster.add_node(node_name="node10", num_cpus=1, num_gpus=4, object_store_memory=100 << 20)
    cluster.add_node(node_name="node9", num_cpus=1, num_gpus=4, object_store_memory=100 << 20)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(autouse=True)
async def all_is_free(two_nodes):
    """Ray takes a moment to see what the test before has released, and spreads over what it sees."""
    async with asyncio.timeout(30):
        while ray.available_resources().get("GPU", 0) < 8:
            await asyncio.sleep(0.05)


def gpus(num_ranks, num_engines, tp=1, engine_size=1):
    return Demand(device="cuda", num_ranks=num_ranks, group_size=tp, num_engines=num_engines, engine_size=engine_size)


async def test_ranks_in_the_order_of_nodes_and_engines_on_the_rest():
    placement = await Placement.reserve(gpus(6, 1, tp=2, engine_size=2), 30)
    assert str(placement) in (
        "learner 0-3 on node9; learner 4-5 on node10; engine 0 on node10",
        "learner 0-3 on node10; learner 4-5 on node9; engine 0 on node9",
    )
    placement.release()
    whole = await Placement.reserve(gpus(8, 0, tp=4), 30)
    assert str(whole) == "learner 0-3 on node9; learner 4-7 on node10"
    whole.release()


async def test_engines_are_spread():
    placement = await Placement.reserve(gpus(0, 4), 30)
    placement.release()
    assert str(placement) == "engine 0-1 on node9; engine 2-3 on node10"


async def test_processes_get_their_gpus_and_no_others(tmp_path):
    placement = await Placement.reserve(gpus(6, 1, tp=2, engine_size=2), 30)
    slots = {"rank-0": placement.ranks[0], "rank-1": placement.ranks[1], "engine-0": placement.engines[0]}
    workers = [
        Worker(
            WorkerSpec(name=name, entry="cluster_target:Target", args=(0,), env=ENV, slot=slot),
            tmp_path,
            concurrent=False,
        )
        for name, slot in slots.items()
    ]
    seen = [set((await worker.call("environment", "CUDA_VISIBLE_DEVICES")).split(",")) for worker in workers]
    assert [len(devices) for devices in seen] == [1, 1, 2]
    assert not seen[0] & seen[1]
    for worker in workers:
        worker.kill()
    placement.release()


async def test_needs_and_has():
    with pytest.raises(ClusterError, match=r"8 learner ranks and 2 engines need 10 GPUs, the cluster has 8"):
        await Placement.reserve(gpus(8, 2), 30)
    sixteen = Demand(device="cpu", num_ranks=16, group_size=1, num_engines=1, engine_size=1)
    with pytest.raises(ClusterError, match=r"need 4\.25 cores at 4 processes to a core, the cluster has 2"):
        await Placement.reserve(sixteen, 30)


async def test_room_that_others_hold_is_waited_for_up_to_a_deadline():
    held = await Placement.reserve(gpus(8, 0), 30)
    with pytest.raises(ClusterError, match=r"2 engines did not find room within 1 s .* of 8 GPUs 0 are free now"):
        await Placement.reserve(gpus(0, 2), 1)
    held.release()
    again = await Placement.reserve(gpus(8, 0), 30)
    again.release()


@pytest.mark.slow
async def test_files_that_nodes_do_not_see(tmp_path, monkeypatch):
    await check_shared(tmp_path, [])
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("da3po.cluster.shared_files.PATIENCE_SECONDS", 0.1)
    with pytest.raises(ClusterError, match=r"node9 does not see .*nowhere/config.json; node10 does not see .*nowhere"):
        await check_shared(tmp_path, [tmp_path / "nowhere" / "config.json"])
