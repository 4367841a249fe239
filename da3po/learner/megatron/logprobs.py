"""Log-probabilities and entropies of a vocabulary that is split over tensor-parallel ranks.

The output layer's product is inside, a chunk of tokens at a time, forward and backward, so that full logits never
exist. The price is one more product in the backward pass.

Shape legend: T tokens, h hidden size, V rows of the output layer on this rank, padding included.
With z = W x / temperature, over the real rows of all ranks:
    log p_y = z_y - log sum_j exp z_j,           d log p_y / d z_j = [j = y] - p_j
    H = log sum_j exp z_j - sum_j p_j z_j,       d H / d z_j = -p_j (log p_j + H)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""Logits of one chunk, in elements (64 MiB in fp32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabShard:
    """Which rows of the vocabulary this rank holds: those from `first`, of which `num_real` are not padding."""

    group: dist.ProcessGroup
    first: int
    num_real: int

    @staticmethod
    def of_rank(group: dist.ProcessGroup, num_rows: int, vocab_size: int) -> VocabShard:
        """num_rows: rows on each rank; vocab_size: without padding."""
        first = group.rank() * num_rows
        return VocabShard(group=group, first=first, num_real=max(0, min(num_rows, vocab_size - first)))


def token_logprobs(
    hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float, shard: VocabShard
) -> tuple[Tensor, Tensor]:
    """log p(label) and entropy at each token, [T] in fp32 or better, the same on every tensor-parallel rank.

    hidden: [T, h], whole on every rank; its gradient is summed over the ranks. weight: [V, h]. labels: [T] int64.
    """
    return _TokenLogprobs.apply(hidden, weight, labels, temperature, shard)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, temperature, shard):  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)
        logprobs = hidden.new_empty(len(hidden), dtype=_at_least_fp32(hidden))
        entropy, log_sums = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for part in _chunks(len(hidden), len(weight)):
            logits = _logits(hidden[part], weight, temperature, shard)
            logprobs[part], entropy[part], log_sums[part] = _reduce(logits, labels[part], shard)
        ctx.save_for_backward(hidden, weight, labels, log_sums, entropy)
        ctx.temperature, ctx.shard = temperature, shard
        return logprobs, entropy

    @staticmethod
    def backward(ctx, grad_logprobs, grad_entropy):  # type: ignore[no-untyped-def]
        hidden, weight, labels, log_sums, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        # A sum over chunks: not in half precision.
        grad_weight = torch.zeros_like(weight, dtype=_at_least_fp32(weight))
        for part in _chunks(len(hidden), len(weight)):
            logits = _logits(hidden[part], weight, ctx.temperature, ctx.shard)
            grad = _grad_logits(
                logits,
                labels[part],
                log_sums[part],
                entropy[part],
                None if grad_logprobs is None else grad_logprobs[part],
                None if grad_entropy is None else grad_entropy[part],
                ctx.shard,
            )
            grad = grad.div_(ctx.temperature).to(weight.dtype)
            grad_hidden[part] = grad @ weight
            _add_product(grad_weight, grad.T, hidden[part])
        dist.all_reduce(grad_hidden, group=ctx.shard.group)
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, without a copy of its size where all have one dtype."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def _chunks(num_tokens: int, num_rows: int) -> Iterator[slice]:
    size = max(1, CHUNK_ELEMENTS // num_rows)
    for begin in range(0, num_tokens, size):
        yield slice(begin, min(begin + size, num_tokens))


def _at_least_fp32(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _logits(hidden: Tensor, weight: Tensor, temperature: float, shard: VocabShard) -> Tensor:
    """[tokens, V] in fp32 or better, -inf in padding rows."""
    logits = (hidden @ weight.T).to(_at_least_fp32(hidden)).div_(temperature)
    logits[:, shard.num_real :] = -torch.inf
    return logits


def _own_labels(labels: Tensor, shard: VocabShard) -> tuple[Tensor, Tensor]:
    """Whether this rank holds each label's row, and which it is (0 where it does not)."""
    local = labels - shard.first
    mine = (local >= 0) & (local < shard.num_real)
    return mine, local.masked_fill(~mine, 0)


def _reduce(logits: Tensor, labels: Tensor, shard: VocabShard) -> tuple[Tensor, Tensor, Tensor]:
    """log p(label), entropy and log-sum-exp of [tokens, V] `logits`, over all ranks."""
    mine, local = _own_labels(labels, shard)
    picked = torch.where(mine, logits.gather(1, local[:, None]).squeeze(1), 0.0)
    # A rank of padding alone has no maximum of its own.
    top = logits.amax(dim=1)
    dist.all_reduce(top, op=dist.ReduceOp.MAX, group=shard.group)
    shifted = logits[:, : shard.num_real] - top[:, None]
    weights = shifted.exp()
    sums = torch.stack((weights.sum(1), torch.linalg.vecdot(weights, shifted), picked))
    dist.all_reduce(sums, group=shard.group)
    total, weighted, picked = sums
    log_sum = total.log()
    return picked - top - log_sum, log_sum - weighted / total, log_sum + top


def _grad_logits(
    logits: Tensor,
    labels: Tensor,
    log_sums: Tensor,
    entropy: Tensor,
    grad_logprobs: Tensor | None,
    grad_entropy: Tensor | None,
    shard: VocabShard,
) -> Tensor:
    """Gradient of [tokens, V] `logits`, which are written over; 0 in padding rows."""
    logps = logits.sub_(log_sums[:, None])
    probs = logps.exp()
    # of the log-prob of every other row, with the label's own added below
    grad = torch.zeros_like(probs) if grad_logprobs is None else probs * -grad_logprobs[:, None]
    if grad_logprobs is not None:
        mine, local = _own_labels(labels, shard)
        # One element a row: no two additions meet, in whatever order they come.
        grad[torch.arange(len(grad), device=grad.device), local] += torch.where(mine, grad_logprobs, 0.0)
    if grad_entropy is not None:
        surprise = torch.where(probs > 0, logps + entropy[:, None], 0.0)
        grad.addcmul_(probs, surprise * -grad_entropy[:, None])
    return grad
