"""On which node each learner rank and each engine runs. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from da3po.config.schema import ClusterConfig, ConfigError, EngineConfig, ParallelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """What one node has. ranks: learner ranks. engines: engine -> how many of its GPUs are here. idle: GPUs left."""

    ranks: tuple[int, ...]
    engines: dict[int, int]
    idle: int


def place(parallel: ParallelConfig, engine: EngineConfig, cluster: ClusterConfig) -> tuple[NodeShare, ...]:
    """Fill the nodes in order: learner ranks first, whole tensor-parallel groups together, then engines.

    Ranks are numbered tp fastest, so that a run of parallel.tp ranks is one tensor-parallel group, which talks in every
    layer and so stays inside a node. So does an engine.

    Raises ConfigError, with the numbers, if a group or an engine cannot be placed or the nodes are too few.
    """
    size = cluster.gpus_per_node
    if size is None:
        raise ConfigError("cluster.gpus_per_node is not given, so there are no nodes to place anything on")
    for key, tp in (("parallel.tp", parallel.tp), ("engine.tp", engine.tp)):
        if tp > size:
            raise ConfigError(f"{key}={tp} does not fit in a node of cluster.gpus_per_node={size}; {size} would do")
    nodes = [_Node(free=size, ranks=[], engines={}) for _ in range(cluster.num_nodes)]
    _place_ranks(nodes, parallel)
    _place_engines(nodes, engine)
    return tuple(NodeShare(ranks=tuple(node.ranks), engines=dict(node.engines), idle=node.free) for node in nodes)


@dataclass(slots=True, kw_only=True)
class _Node:
    free: int
    ranks: list[int]
    engines: dict[int, int]


def _place_ranks(nodes: list[_Node], parallel: ParallelConfig) -> None:
    for first in range(0, parallel.num_ranks, parallel.tp):
        node = next((node for node in nodes if node.free >= parallel.tp), None)
        if node is None:
            raise ConfigError(
                f"the learner's {parallel.num_ranks} ranks, in groups of parallel.tp={parallel.tp}, do not fit on "
                f"{len(nodes)} nodes; {first // parallel.tp} such groups do"
            )
        node.ranks += range(first, first + parallel.tp)
        node.free -= parallel.tp


def _place_engines(nodes: list[_Node], engine: EngineConfig) -> None:
    for index in range(engine.num_engines):
        node = next((node for node in nodes if node.free >= engine.tp), None)
        if node is None:
            raise ConfigError(
                f"engine.num_engines={engine.num_engines} of engine.tp={engine.tp} do not fit beside the learner: its "
                f"ranks leave {sum(node.free for node in nodes)} GPUs in pieces too small; {index} would do"
            )
        node.engines[index] = engine.tp
        node.free -= engine.tp
