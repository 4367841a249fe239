"""What other processes are doing, seen from outside, for they may be past saying so themselves."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

DUMP_SECONDS = 20.0
NODE_SECONDS = 60.0
# In the innermost frames of a rank that waits for others.
COLLECTIVE = "distributed_c10d"
NUM_INNERMOST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a process is."""

    node_id: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """state: the kernel's letter for it (R, S, D, T: stopped, Z: dead), or "" if it is gone. text: py-spy's words."""

    state: str
    text: str

    @property
    def waits_for_others(self) -> bool:
        """Whether a thread of it is inside a collective."""
        return any(
            COLLECTIVE in "\n".join(thread.splitlines()[1 : 1 + NUM_INNERMOST])
            for thread in self.text.split("\nThread ")
        )

    @property
    def is_unable(self) -> bool:
        """It cannot do anything at all."""
        return self.state in ("", "T", "t", "Z", "X")


async def read_stacks(places: Sequence[Place]) -> dict[Place, Stacks]:
    """Of processes anywhere in the cluster. What cannot be had is said instead."""
    by_node: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        by_node[place.node_id].append(place)
    nodes = await asyncio.gather(*(_of_node(node, own) for node, own in by_node.items()))
    return {place: stacks for node in nodes for place, stacks in node.items()}


async def _of_node(node_id: str, places: Sequence[Place]) -> dict[Place, Stacks]:
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    reading = _read.options(scheduling_strategy=strategy).remote([place.pid for place in places])
    try:
        async with asyncio.timeout(NODE_SECONDS):
            found = await reading
    except Exception as error:  # noqa: BLE001 - a node that does not answer is news, not the end of this
        found = [Stacks(state="", text=f"node {node_id} does not answer: {error}")] * len(places)
    return dict(zip(places, found, strict=True))


@ray.remote(num_cpus=0, max_retries=0)
def _read(pids: Sequence[int]) -> list[Stacks]:
    with ThreadPoolExecutor(len(pids)) as pool:
        return list(pool.map(read_process, pids))


def read_process(pid: int) -> Stacks:
    """Of a process of this machine."""
    try:
        # The name, in parentheses, may have spaces.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return Stacks(state="", text="the process is gone")
    beside = Path(sys.executable).with_name("py-spy")
    tool = str(beside) if beside.exists() else shutil.which("py-spy")
    if tool is None:
        return Stacks(state=state, text="py-spy is not installed")
    # Nonblocking: to pause a process that is stopped already would never end.
    command = [tool, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DUMP_SECONDS)
    except subprocess.TimeoutExpired:
        return Stacks(state=state, text=f"py-spy had no answer within {DUMP_SECONDS:g} s")
    return Stacks(state=state, text=done.stdout + done.stderr)
