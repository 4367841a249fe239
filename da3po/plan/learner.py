"""Memory of a learner's GPU in each phase of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from da3po.config.schema import Config, LearnerConfig, ParallelConfig, SyncConfig
from da3po.models.families import Stage, owned_weights
from da3po.models.hf_config import ModelSpec
from da3po.models.layouts import padded_vocab_size
from da3po.plan.activations import element_bytes, input_bytes, layer_bytes, rank_activation_bytes
from da3po.plan.hardware import GIB
from da3po.plan.state import RankState, pipeline_stages, rank_state

LOGPROB_CHUNK_ELEMENTS = 1 << 24
"""Logits of one chunk of the learner's log-probs; the learner's own number, which a test holds against this one."""
CHUNK_COPIES = 4
"""Of a chunk in fp32 at once: logits, probabilities, surprises and their gradient."""
OTHER_BYTES = 3 * GIB
"""CUDA context, communicators of NCCL (one for each group), and workspaces of cuBLAS and Transformer Engine."""
FRAGMENTATION = 0.05
"""Share of what the allocator hands out that is lost between pieces of different size."""
SYNC_ALIGNMENT = 16
"""Bytes that the start of each tensor in a bucket is a multiple of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerMemory:
    """Bytes on the fullest rank of pipeline index `pp`.

    state: weights, gradients, optimizer. fp8_copies: of the weights. activations: kept for the backward pass.
    head: chunk of logits, gradient of the output layer. working: of a forward pass that keeps nothing.
    sync: buckets and one gathered tensor. other: what no tensor is.
    """

    pp: int
    state: RankState
    fp8_copies: int
    activations: int
    head: int
    working: int
    sync: int
    other: int

    @property
    def phases(self) -> dict[str, int]:
        """Phase -> bytes at its peak."""
        always = self.state.total + self.fp8_copies
        parts = {
            "between steps": always,
            "old log-probs": always + self.working + self.head // 2,
            "forward and backward": always + self.activations + self.head,
            "optimizer": always,
            "weight sync": always + self.sync,
        }
        return {name: int(number * (1 + FRAGMENTATION)) + self.other for name, number in parts.items()}

    @property
    def peak(self) -> int:
        return max(self.phases.values())


def learner_memory(spec: ModelSpec, config: Config, tokens: int) -> list[LearnerMemory]:
    """Of each pipeline rank. tokens: of the largest micro-batch."""
    return [
        _of_rank(spec, config.parallel, config.learner, config.sync, tokens, pp) for pp in range(config.parallel.pp)
    ]


def _of_rank(
    spec: ModelSpec, parallel: ParallelConfig, learner: LearnerConfig, sync: SyncConfig, tokens: int, pp: int
) -> LearnerMemory:
    size = parallel.dp * parallel.cp
    state = max(
        (rank_state(spec, parallel, learner, pp=pp, dp=index) for index in {0, size - 1}), key=lambda one: one.total
    )
    element = element_bytes(learner)
    stages = pipeline_stages(spec.num_layers, parallel, pp)
    of_tokens = tokens / parallel.cp
    return LearnerMemory(
        pp=pp,
        state=state,
        # Transformer Engine keeps each weight in fp8, as it is and transposed, from micro-batch to micro-batch.
        fp8_copies=2 * state.num_parameters if learner.precision not in ("fp32", "bf16") else 0,
        activations=int(rank_activation_bytes(spec, parallel, learner, tokens, pp=pp)),
        head=_head_bytes(spec, parallel, of_tokens, element) if stages[-1].head else 0,
        working=int(of_tokens * (layer_bytes(spec, parallel, element) + 2 * input_bytes(spec, parallel, element))),
        sync=_sync_bytes(spec, stages, sync, element),
        other=OTHER_BYTES,
    )


def _head_bytes(spec: ModelSpec, parallel: ParallelConfig, of_tokens: float, element: int) -> int:
    """Of the output layer: a chunk of logits, its weight's gradient (summed in fp32, then as the weight is, with one
    chunk's product), and hidden states whole with their gradient."""
    rows = padded_vocab_size(spec.vocab_size, parallel.tp) // parallel.tp
    chunk = CHUNK_COPIES * 4 * min(LOGPROB_CHUNK_ELEMENTS, int(of_tokens * rows) or 1)
    weight = rows * spec.hidden_size * (4 if element == 4 else 4 + 2 * element)
    return int(chunk + weight + 2 * of_tokens * spec.hidden_size * element)


def _sync_bytes(spec: ModelSpec, stages: list[Stage], sync: SyncConfig, element: int) -> int:
    """Two buckets, and the largest parameter gathered from its ranks and joined again."""
    sizes = [sum(map(math.prod, weight.hf.values())) for stage in stages for weight in owned_weights(spec, stage)]
    bucket = int(sync.bucket_mb * (1 << 20))
    return 2 * bucket + 2 * max(sizes) * element


def publication_bytes(spec: ModelSpec, parallel: ParallelConfig, learner: LearnerConfig) -> int:
    """What the learner sends to each engine's worker in one publication: every Hugging Face tensor once, at the
    learner's weight precision, each padded to a multiple of 16 bytes."""
    element = element_bytes(learner)
    shapes = [
        shape
        for pp in range(parallel.pp)
        for stage in pipeline_stages(spec.num_layers, parallel, pp)
        for weight in owned_weights(spec, stage)
        for shape in weight.hf.values()
    ]
    return sum(-(-math.prod(shape) * element // SYNC_ALIGNMENT) * SYNC_ALIGNMENT for shape in shapes)
