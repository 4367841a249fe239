"""Context parallelism: who holds which tokens of a micro-batch, and what its ranks tell each other. Chosen once."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from da3po.learner.megatron.attention import Gather, gather_over, whole
from da3po.learner.packed_attention import AttentionPlan, plan_attention, plan_context_attention
from da3po.pack.context import context_shard, local_tokens
from da3po.types import MicroBatch


class Context(Protocol):
    def shard(self, batch: MicroBatch) -> MicroBatch:
        """The part of a micro-batch that this rank works on."""
        ...

    def attention(self, cu_seqlens: Tensor) -> tuple[AttentionPlan, Gather]:
        """For the packed attention on CPU; Transformer Engine's knows by itself."""
        ...

    def reduce(self, partial: Tensor) -> Tensor:
        """Add per-sequence sums [S] over the ranks that share the sequences. Without a gradient."""
        ...


class WholeSequences:
    """No context parallelism."""

    def shard(self, batch: MicroBatch) -> MicroBatch:
        return batch

    def attention(self, cu_seqlens: Tensor) -> tuple[AttentionPlan, Gather]:
        return plan_attention(cu_seqlens), whole

    def reduce(self, partial: Tensor) -> Tensor:
        return partial


class SharedSequences:
    """Every sequence is spread over the ranks of `group`."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._size = group.size()
        self._rank = group.rank()

    def shard(self, batch: MicroBatch) -> MicroBatch:
        return context_shard(batch, self._size, self._rank)

    def attention(self, cu_seqlens: Tensor) -> tuple[AttentionPlan, Gather]:
        of_ranks = [local_tokens(cu_seqlens, self._size, rank) for rank in range(self._size)]
        order = torch.argsort(torch.cat(of_ranks))
        return plan_context_attention(cu_seqlens, self._size, self._rank), gather_over(self._group, order)

    def reduce(self, partial: Tensor) -> Tensor:
        total = partial.clone()
        dist.all_reduce(total, group=self._group)
        return total


def build_context() -> Context:
    """Of the layout that `process_groups.split` made."""
    group = parallel_state.get_context_parallel_group()
    return SharedSequences(group) if group.size() > 1 else WholeSequences()
