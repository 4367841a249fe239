"""Inference engines and how weights reach them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from da3po.config.schema.validation import require


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The pool of vLLM engines.

    num_engines, tp: engines, and GPUs (or CPU workers) of each.
    dtype: of the engine's weights and activations.
    max_num_seqs, max_num_batched_tokens: sequences and tokens of one engine step.
    max_model_len: prompt + response; null = data.max_prompt_tokens + the longest response.
    memory_fraction: of GPU memory; kv_cache_gb: on CPU.
    num_threads: CPU threads of each engine; 0 shares the cores among the engines.
    """

    num_engines: int = 1
    tp: int = 1
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    memory_fraction: float = 0.9
    kv_cache_gb: float = 1.0
    enforce_eager: bool = True
    prefix_caching: bool = True
    num_threads: int = 0

    def __post_init__(self) -> None:
        require(self.num_engines >= 1, f"engine.num_engines must be >= 1, got {self.num_engines}")
        require(self.tp >= 1, f"engine.tp must be >= 1, got {self.tp}")
        require(self.max_num_seqs >= 1, f"engine.max_num_seqs must be >= 1, got {self.max_num_seqs}")
        require(0 < self.memory_fraction <= 1, "engine.memory_fraction must lie in (0, 1]")
        require(self.kv_cache_gb > 0, "engine.kv_cache_gb must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncConfig:
    """Weight publication. backend: auto = nccl on CUDA, gloo on CPU. bucket_mb: tensors are bundled up to it."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    bucket_mb: float = 128.0
    timeout: float = 300.0

    def __post_init__(self) -> None:
        require(self.bucket_mb > 0, f"sync.bucket_mb must be positive, got {self.bucket_mb}")
        require(self.timeout > 0, f"sync.timeout must be positive, got {self.timeout}")
