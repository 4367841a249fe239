"""Inference engines and how weights reach them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from da3po.config.schema.learner import OpenSection
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
    probe_seconds: between two heartbeats of an engine that has work in hand.
    stall_seconds: an engine that has work in hand and has drawn no token for so long is lost, as is one that does not
        answer; a slow one is not. Its prompts go to others, and a new engine takes its place.
    min_engines: with fewer engines than that, generation waits for replacements.
    max_restarts: replacements within restart_window seconds, of all engines together; one more ends the run.
    vllm: arguments of vLLM's own EngineArgs, passed on as they are (`engine.vllm.ARGUMENT=VALUE`). One that vLLM does
        not have, or that another option decides, is refused by name. A section is written as JSON.
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
    probe_seconds: float = 5.0
    stall_seconds: float = 180.0
    min_engines: int = 1
    max_restarts: int = 16
    restart_window: float = 3600.0
    vllm: OpenSection = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.num_engines >= 1, f"engine.num_engines must be >= 1, got {self.num_engines}")
        require(self.tp >= 1, f"engine.tp must be >= 1, got {self.tp}")
        require(self.max_num_seqs >= 1, f"engine.max_num_seqs must be >= 1, got {self.max_num_seqs}")
        require(0 < self.memory_fraction <= 1, "engine.memory_fraction must lie in (0, 1]")
        require(self.kv_cache_gb > 0, "engine.kv_cache_gb must be positive")
        require(self.probe_seconds > 0, f"engine.probe_seconds must be positive, got {self.probe_seconds}")
        require(
            self.stall_seconds >= self.probe_seconds,
            f"engine.stall_seconds={self.stall_seconds} is shorter than engine.probe_seconds={self.probe_seconds}",
        )
        require(
            1 <= self.min_engines <= self.num_engines,
            f"engine.min_engines must lie between 1 and engine.num_engines={self.num_engines}, got {self.min_engines}",
        )
        require(self.max_restarts >= 0, f"engine.max_restarts must be >= 0, got {self.max_restarts}")
        require(self.restart_window > 0, f"engine.restart_window must be positive, got {self.restart_window}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncConfig:
    """Weight publication.

    backend: auto = nccl on CUDA, gloo on CPU.
    shared_memory: with gloo, weights go through shared memory where the learner and all engines are on one machine.
    bucket_mb: tensors are bundled up to it.
    timeout: seconds of silence on the channel after which the other side is taken for gone.
    verify: full = a checksum of every byte | sampled = of a part of every bucket | off = none. Names, shapes, sizes and
        the version are compared in any case.
    """

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    shared_memory: bool = True
    bucket_mb: float = 128.0
    timeout: float = 300.0
    verify: Literal["full", "sampled", "off"] = "full"

    def __post_init__(self) -> None:
        require(self.bucket_mb > 0, f"sync.bucket_mb must be positive, got {self.bucket_mb}")
        require(self.timeout > 0, f"sync.timeout must be positive, got {self.timeout}")
