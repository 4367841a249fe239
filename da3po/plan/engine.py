"""Memory of an engine's GPU: weights, KV cache, and how many sequences that holds at once."""

from __future__ import annotations

from dataclasses import dataclass

from da3po.config.schema import EngineConfig
from da3po.models.families import whole_model
from da3po.models.hf_config import ModelSpec
from da3po.plan.hardware import GIB, Gpu
from da3po.plan.state import shard_parameters

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
OTHER_BYTES = 2 * GIB
"""CUDA context, communicators, the weight channel's two buffers and, unless engine.enforce_eager, captured graphs."""
SAMPLER_COPIES = 3
"""Of [sequences, vocabulary] in fp32: logits, their log-softmax, and what sampling works on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Bytes on one GPU (or CPU worker) of an engine.

    budget: what the engine may take in all; None on CPU, where the KV cache has a size of its own.
    kv_cache: what is left for it. kv_token: of one token in it.
    """

    budget: int | None
    weights: int
    working: int
    other: int
    kv_cache: int
    kv_token: int

    @property
    def kv_tokens(self) -> int:
        return max(0, self.kv_cache) // self.kv_token

    def sequences(self, tokens: float, config: EngineConfig) -> int:
        """How many sequences of `tokens` run at once."""
        return min(config.max_num_seqs, int(self.kv_tokens / tokens))


def engine_memory(spec: ModelSpec, config: EngineConfig, gpu: Gpu | None) -> EngineMemory:
    """gpu: None is a CPU.

    vLLM takes memory_fraction of the GPU, loads, runs once at full size, and gives the rest to the KV cache. Each
    worker has its part of the key/value heads, one at least.
    """
    element = DTYPE_BYTES[config.dtype]
    weights = shard_parameters(spec, whole_model(spec), config.tp) * element
    heads = max(1, spec.num_kv_heads // config.tp)
    kv_token = 2 * spec.num_layers * heads * spec.head_dim * element
    working = _working_bytes(spec, config, element)
    if gpu is None:
        return EngineMemory(
            budget=None,
            weights=weights,
            working=working,
            other=0,
            kv_cache=int(config.kv_cache_gb * GIB),
            kv_token=kv_token,
        )
    budget = int(config.memory_fraction * gpu.memory)
    return EngineMemory(
        budget=budget,
        weights=weights,
        working=working,
        other=OTHER_BYTES,
        kv_cache=budget - weights - working - OTHER_BYTES,
        kv_token=kv_token,
    )


def _working_bytes(spec: ModelSpec, config: EngineConfig, element: int) -> int:
    """Of the largest step: hidden states with their residual and norm, q, k, v, gate and up of one layer at a time, and
    the sampler's rows over the whole vocabulary."""
    tokens = max(config.max_num_batched_tokens, config.max_num_seqs)
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = 4 * spec.hidden_size + (2 * query + 2 * key + 3 * spec.ffn_hidden_size) / config.tp
    return int(tokens * layer * element + SAMPLER_COPIES * 4 * config.max_num_seqs * spec.vocab_size)
