"""Which node has which ranks and engines."""

from __future__ import annotations

from itertools import product

import pytest

from da3po.cluster.bundles import Demand, DoesNotFit, make_bundles
from da3po.config.schema import ClusterConfig, ConfigError, EngineConfig, ParallelConfig
from da3po.plan.placement import place


def test_learner_first_then_engines() -> None:
    nodes = place(
        ParallelConfig(tp=2, dp=3), EngineConfig(num_engines=5, tp=2), ClusterConfig(num_nodes=2, gpus_per_node=8)
    )
    assert nodes[0].ranks == (0, 1, 2, 3, 4, 5) and nodes[0].engines == {0: 2}
    assert nodes[1].ranks == () and nodes[1].engines == {1: 2, 2: 2, 3: 2, 4: 2}
    assert [node.idle for node in nodes] == [0, 0]


def test_tensor_parallel_groups_stay_inside_a_node() -> None:
    nodes = place(ParallelConfig(tp=4, dp=3), EngineConfig(num_engines=2), ClusterConfig(num_nodes=3, gpus_per_node=6))
    assert [node.ranks for node in nodes] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
    assert [node.engines for node in nodes] == [{0: 1, 1: 1}, {}, {}]


@pytest.mark.parametrize(
    ("parallel", "engine", "said"),
    [
        (ParallelConfig(tp=16), EngineConfig(), "parallel.tp=16 does not fit in a node of cluster.gpus_per_node=8"),
        (ParallelConfig(), EngineConfig(tp=12), "engine.tp=12 does not fit in a node of cluster.gpus_per_node=8; 8"),
        (ParallelConfig(tp=8, dp=3), EngineConfig(), "24 ranks, in groups of parallel.tp=8, do not fit on 2 nodes; 2"),
        (ParallelConfig(tp=4, dp=2), EngineConfig(num_engines=3, tp=4), "engine.num_engines=3 of engine.tp=4 do not"),
    ],
)
def test_what_does_not_fit_is_said_with_its_numbers(parallel: ParallelConfig, engine: EngineConfig, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        place(parallel, engine, ClusterConfig(num_nodes=2, gpus_per_node=8))


def fits_by_plan(parallel: ParallelConfig, engine: EngineConfig, cluster: ClusterConfig) -> bool:
    try:
        place(parallel, engine, cluster)
    except ConfigError:
        return False
    return True


def fits_by_run(parallel: ParallelConfig, engine: EngineConfig, cluster: ClusterConfig) -> bool:
    """As a run cuts itself into what it asks of Ray."""
    demand = Demand(
        device="cuda",
        num_ranks=parallel.num_ranks,
        group_size=parallel.tp,
        num_engines=engine.num_engines,
        engine_size=engine.tp,
    )
    try:
        make_bundles(demand, dict.fromkeys(map(str, range(cluster.num_nodes)), float(cluster.gpus_per_node or 0)))
    except DoesNotFit:
        return False
    return True


def test_what_a_plan_places_a_run_places() -> None:
    """And the other way about: two algorithms, for a plan has nodes of one size and a run those that Ray finds."""
    both = set()
    for num_nodes, size, tp, dp, engine_tp, num_engines in product(
        (1, 2, 3), (4, 8), (1, 2, 4, 8), (1, 3, 4), (1, 2, 3, 8), (1, 2, 5, 9)
    ):
        layout = (
            ParallelConfig(tp=tp, dp=dp),
            EngineConfig(tp=engine_tp, num_engines=num_engines),
            ClusterConfig(num_nodes=num_nodes, gpus_per_node=size),
        )
        assert fits_by_plan(*layout) == fits_by_run(*layout), layout
        both.add(fits_by_plan(*layout))
    assert both == {True, False}
