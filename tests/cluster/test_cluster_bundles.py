"""Which processes lie together on a node."""

import pytest

from da3po.cluster.bundles import Demand, DoesNotFit, make_bundles, natural


def gpus(num_ranks, num_engines, *, tp=1, engine_size=1):
    return Demand(device="cuda", num_ranks=num_ranks, group_size=tp, num_engines=num_engines, engine_size=engine_size)


def nodes(*amounts):
    return {f"node{i}": amount for i, amount in enumerate(amounts, 1)}


@pytest.mark.parametrize(
    ("demand", "cluster", "learner", "engines"),
    [
        (gpus(4, 4, tp=2), nodes(8), (4,), (1, 1, 1, 1)),
        (gpus(8, 8), nodes(8, 8), (8,), (1,) * 8),
        (gpus(16, 16), nodes(8, 8, 8, 8), (8, 8), (1,) * 16),
        (gpus(12, 2, tp=4, engine_size=2), nodes(8, 8), (8, 4), (2, 2)),
        (gpus(6, 0, tp=3), nodes(8), (6,), ()),
        (gpus(12, 1, tp=3), nodes(8, 8), (6, 6), (1,)),  # two groups of three on a node of eight
        (gpus(0, 2, engine_size=8), nodes(8, 8), (), (8, 8)),
    ],
)
def test_pieces_of_whole_groups(demand, cluster, learner, engines):
    bundles = make_bundles(demand, cluster)
    assert (bundles.learner, bundles.engines) == (learner, engines)


@pytest.mark.parametrize(
    ("demand", "cluster", "says"),
    [
        (gpus(8, 4), nodes(8), r"8 learner ranks and 4 engines need 12 GPUs, the cluster has 8 \(node1: 8\)"),
        (gpus(4, 3, engine_size=4), nodes(8, 6, 2), r"need 4 \+ 4 \+ 4 \+ 4 GPUs.*node1: 8, node2: 6, node3: 2"),
        (gpus(16, 0, tp=16), nodes(8, 8), r"parallel.tp=16 learner ranks must lie on one node, the largest has 8"),
    ],
)
def test_needs_and_has(demand, cluster, says):
    with pytest.raises(DoesNotFit, match=says):
        make_bundles(demand, cluster)


def test_on_cpu_ranks_are_spread_and_cores_shared_by_four_at_most():
    two_nodes = {"node1": 2.0, "node2": 2.0}
    demand = Demand(device="cpu", num_ranks=4, group_size=2, num_engines=1, engine_size=1)
    assert make_bundles(demand, two_nodes).learner == (2, 2)
    too_many = Demand(device="cpu", num_ranks=16, group_size=1, num_engines=1, engine_size=1)
    with pytest.raises(DoesNotFit, match=r"need 4\.25 cores at 4 processes to a core, the cluster has 2 \(here: 2\)"):
        make_bundles(too_many, {"here": 2.0})


def test_names_sort_as_people_count():
    assert sorted(["node10", "node2", "gpu-1"], key=natural) == ["gpu-1", "node2", "node10"]
    assert sorted(["10.0.0.10", "10.0.0.9"], key=natural) == ["10.0.0.9", "10.0.0.10"]
