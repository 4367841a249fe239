"""A function of this package, run once on every node of the cluster."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from da3po.cluster.placement import node_names


async def on_every_node(entry: str, *args: Any, timeout: float) -> dict[str, Any]:
    """Node name -> what `entry` (`module:function`) returned there, or the exception that it raised.

    A node that does not answer within `timeout` seconds has a TimeoutError.
    """
    names = node_names()
    answers = await asyncio.gather(*(_on_node(node, entry, args, timeout) for node in names), return_exceptions=True)
    return dict(zip(names.values(), answers, strict=True))


async def _on_node(node: str, entry: str, args: tuple[Any, ...], timeout: float) -> Any:
    task = ray.remote(num_cpus=0)(call).options(
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False), max_retries=0
    )
    async with asyncio.timeout(timeout):
        return await task.remote(entry, args)


def call(entry: str, args: tuple[Any, ...]) -> Any:
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)(*args)
