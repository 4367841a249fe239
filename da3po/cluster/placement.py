"""Room for a run's processes on the nodes of its Ray cluster, reserved as a whole before the first one starts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import ray
from ray.util import placement_group_table
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from da3po.cluster.bundles import Demand, DoesNotFit, make_bundles, natural
from da3po.cluster.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where a process goes: the options of its Ray actor, and the node's name."""

    options: Mapping[str, Any] = field(default_factory=lambda: {"num_cpus": 0, "num_gpus": 0})
    node: str = ""


class Placement:
    """A slot for each learner rank and each engine.

    Ranks that follow each other lie on the same node as far as it goes, nodes in the order of their names; engines are
    spread over what is left.
    """

    def __init__(self, group: PlacementGroup, ranks: tuple[Slot, ...], engines: tuple[Slot, ...]) -> None:
        self._group = group
        self.ranks = ranks
        self.engines = engines

    @classmethod
    async def reserve(cls, demand: Demand, timeout: float) -> Placement:
        """Raises ClusterError at once if the nodes are too small, after `timeout` seconds if they are not free."""
        names = node_names()
        amounts = _amounts(names, demand.resource)
        try:
            bundles = make_bundles(demand, amounts)
        except DoesNotFit as error:
            raise ClusterError(str(error)) from error
        group = placement_group([{demand.resource: size * demand.share} for size in bundles.sizes], strategy="SPREAD")
        if not await asyncio.to_thread(group.wait, timeout):
            remove_placement_group(group)
            free = ray.available_resources().get(demand.resource, 0)
            raise ClusterError(
                f"{demand} did not find room within {timeout:g} s (cluster.start_timeout): of "
                f"{sum(amounts.values()):g} {demand.resource}s {free:g} are free now, not all on the "
                "nodes where they are needed; does another run use this cluster?"
            )
        nodes = [names[node] for _, node in sorted(placement_group_table(group)["bundles_to_node_id"].items())]
        num_pieces = len(bundles.learner)
        pieces = sorted(range(num_pieces), key=lambda piece: (-bundles.learner[piece], natural(nodes[piece]), piece))
        ranks = [_slot(demand, group, p, nodes[p], 1) for p in pieces for _ in range(bundles.learner[p])]
        places = sorted(range(num_pieces, len(nodes)), key=lambda bundle: (natural(nodes[bundle]), bundle))
        engines = [_slot(demand, group, bundle, nodes[bundle], demand.engine_size) for bundle in places]
        return cls(group, tuple(ranks), tuple(engines))

    def __str__(self) -> str:
        parts = [*_runs("learner", self.ranks), *_runs("engine", self.engines)]
        return "; ".join(parts)

    def release(self) -> None:
        remove_placement_group(self._group)


def node_names() -> dict[str, str]:
    """Name of each node by its id, in the order of names. Those that are called the same get a number besides."""
    found = sorted(
        (natural(node["NodeName"]), node["NodeID"], node["NodeName"]) for node in ray.nodes() if node["Alive"]
    )
    names: dict[str, str] = {}
    for _, node, name in found:
        again = sum(other.partition("#")[0] == name for other in names.values())
        names[node] = f"{name}#{again + 1}" if again else name
    return names


def _amounts(names: Mapping[str, str], resource: str) -> dict[str, float]:
    """How much of it each node has."""
    resources = {node["NodeID"]: node["Resources"] for node in ray.nodes()}
    return {name: resources[node].get(resource, 0.0) for node, name in names.items()}


def _slot(demand: Demand, group: PlacementGroup, bundle: int, node: str, size: int) -> Slot:
    amount = {"GPU": "num_gpus", "CPU": "num_cpus"}[demand.resource]
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    options = {"num_cpus": 0, "num_gpus": 0, "scheduling_strategy": strategy, amount: size * demand.share}
    return Slot(options=options, node=node)


def _runs(what: str, slots: tuple[Slot, ...]) -> list[str]:
    """`learner 0-7 on node1`, for each run of consecutive ones on a node."""
    said = []
    for node, run in groupby(enumerate(slots), key=lambda item: item[1].node):
        indices = [index for index, _ in run]
        span = f"{indices[0]}-{indices[-1]}" if len(indices) > 1 else f"{indices[0]}"
        said.append(f"{what} {span} on {node}")
    return said
