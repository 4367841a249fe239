"""Which processes must lie together on a node, in numbers: no Ray in here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

# On CPU more processes than this to a core do nothing but wait for each other.
PROCESSES_PER_CORE = 4
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The processes of a run.

    num_ranks: learner ranks; each takes one GPU. group_size: consecutive ranks that exchange tensors in every layer
    (tensor parallel) and must lie on one node. num_engines, engine_size: engines and GPUs of each.
    """

    device: Device
    num_ranks: int
    group_size: int
    num_engines: int
    engine_size: int

    @property
    def resource(self) -> str:
        return "GPU" if self.device == "cuda" else "CPU"

    @property
    def share(self) -> float:
        """How much of the resource one rank, or one worker of an engine, takes."""
        return 1 if self.device == "cuda" else 1 / PROCESSES_PER_CORE

    def __str__(self) -> str:
        parts = [f"{self.num_ranks} learner ranks" if self.num_ranks else "", f"{self.num_engines} engines"]
        if self.engine_size > 1:
            parts[1] += f" of {self.engine_size}"
        return " and ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundles:
    """What is asked of Ray: each bundle lies on one node.

    learner: ranks in each of the learner's bundles, in the order of ranks. engines: workers in each engine.
    """

    learner: tuple[int, ...]
    engines: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.learner + self.engines


class DoesNotFit(ValueError):
    """The nodes have no room for the processes; the message has both numbers."""


def make_bundles(demand: Demand, nodes: Mapping[str, float]) -> Bundles:
    """Cut the learner into pieces of whole groups, as few as nodes allow; every engine is a piece.

    nodes: how much of demand.resource each node has, by name. Raises DoesNotFit.
    """
    slots = {name: int(amount / demand.share) for name, amount in nodes.items()}
    needed = demand.num_ranks + demand.num_engines * demand.engine_size
    if needed > sum(slots.values()):
        raise DoesNotFit(_too_few(demand, needed, nodes))
    bundles = Bundles(learner=_pieces(demand, list(slots.values())), engines=(demand.engine_size,) * demand.num_engines)
    if not _fit(bundles.sizes, list(slots.values())):
        pieces = " + ".join(map(str, sorted(bundles.sizes, reverse=True)))
        raise DoesNotFit(
            f"{demand} need {pieces} {_unit(demand)}, each number on one node; the nodes have {_per_node(slots)}: "
            "neither tensor-parallel groups nor engines are cut"
        )
    return bundles


def _pieces(demand: Demand, slots: Sequence[int]) -> tuple[int, ...]:
    if demand.num_ranks == 0:
        return ()
    room = max(slots) // demand.group_size * demand.group_size
    if room == 0:
        raise DoesNotFit(
            f"parallel.tp={demand.group_size} learner ranks must lie on one node, the largest has {max(slots)} "
            f"{_unit(demand)}"
        )
    if demand.device == "cpu":  # cores are not what ranks are short of: every node gets its part of them
        groups_per_node = -(-demand.num_ranks // demand.group_size // len(slots))
        room = min(room, groups_per_node * demand.group_size)
    whole, rest = divmod(demand.num_ranks, room)
    return (room,) * whole + ((rest,) if rest else ())


def _fit(sizes: Sequence[int], slots: Sequence[int]) -> bool:
    """Whether the largest first, each where most room is left, all find room."""
    left = list(slots)
    for size in sorted(sizes, reverse=True):
        roomiest = left.index(max(left))
        if left[roomiest] < size:
            return False
        left[roomiest] -= size
    return True


def _too_few(demand: Demand, needed: int, nodes: Mapping[str, float]) -> str:
    total = sum(nodes.values())
    if demand.device == "cuda":
        return f"{demand} need {needed} GPUs, the cluster has {total:g} ({_per_node(nodes)})"
    return (
        f"{demand} need {needed * demand.share:g} cores at {PROCESSES_PER_CORE} processes to a core, "
        f"the cluster has {total:g} ({_per_node(nodes)})"
    )


def _unit(demand: Demand) -> str:
    return "GPUs" if demand.device == "cuda" else "processes"


def _per_node(nodes: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {amount:g}" for name, amount in nodes.items())


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which node2 comes before node10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", name)]
