"""The environment that vLLM runs in, set in one place and before its first import, because it reads most of it once."""

from __future__ import annotations

import os

from da3po.engine.spec import EngineSpec

LOOPBACK = "127.0.0.1"

# Left over from a scheduler, a launcher or another engine, each would move this engine's ports, ranks or cache.
STALE = (
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_DP_MASTER_IP",
    "VLLM_DP_MASTER_PORT",
    "VLLM_DP_RANK",
    "VLLM_DP_SIZE",
    "VLLM_PORT",
    "WORLD_SIZE",
)


def environment(spec: EngineSpec) -> dict[str, str]:
    """Variables that an engine needs.

    The engine core runs in this process; its tensor-parallel workers, if any, are on this machine and meet on loopback.
    """
    # vLLM's sampler compiles one small function of its own even in eager mode: seconds at the first step, and an error
    # where there is no C++ compiler. On a GPU it needs none, and is worth it.
    compiles = spec.device == "cuda" or not spec.config.enforce_eager
    return {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(spec.num_threads),
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_COMPILE_DISABLE": "0" if compiles else "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": LOOPBACK,
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "da3po_weights",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }


def apply_environment(spec: EngineSpec) -> None:
    """Make this process's environment the engine's own. Children inherit it."""
    for name in STALE:
        os.environ.pop(name, None)
    os.environ.update(environment(spec))
