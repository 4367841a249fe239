"""Log-probabilities and entropies from hidden states, with the vocabulary split over tensor-parallel ranks.

Logits are worked out for a tile of tokens and vocabulary rows at a time, and again in the backward pass, so that full
logits never exist. The price is one more product in the backward pass; what is saved is the way of every element of the
logits through memory, several times over, which on CPU is worth more.

Shape legend: T tokens, h hidden size, V rows of the output layer on this rank, padding included; n tokens and r rows of
a tile. With z = W x / temperature, over the real rows of all ranks:
    log p_y = z_y - log sum_j exp z_j,           d log p_y / d z_j = [j = y] - p_j
    H = log sum_j exp z_j - sum_j p_j z_j,       d H / d z_j = -p_j (log p_j + H)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

TILE_TOKENS = 1024
"""Tokens of a tile: enough for matrix products to run at full speed."""

TILE_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 24}
"""Logits of a tile by kind of device: on CPU few enough to stay in cache, on CUDA many enough for few kernels."""


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
        for part in _slices(len(hidden), TILE_TOKENS):
            sums = _Sums(hidden[part], labels[part], shard)
            for rows in _row_slices(hidden[part], shard):
                sums.add(_logits(hidden[part], weight[rows], temperature), rows)
            logprobs[part], entropy[part], log_sums[part] = sums.finish()
        ctx.save_for_backward(hidden, weight, labels, log_sums, entropy)
        ctx.temperature, ctx.shard = temperature, shard
        return logprobs, entropy

    @staticmethod
    def backward(ctx, grad_logprobs, grad_entropy):  # type: ignore[no-untyped-def]
        hidden, weight, labels, log_sums, entropy = ctx.saved_tensors
        # Sums over tiles: not in half precision.
        grad_hidden = torch.zeros_like(hidden, dtype=_at_least_fp32(hidden))
        grad_weight = torch.zeros_like(weight, dtype=_at_least_fp32(weight))
        for part in _slices(len(hidden), TILE_TOKENS):
            of_logits = _LogitGradients(
                log_sums[part],
                entropy[part],
                None if grad_logprobs is None else grad_logprobs[part] / ctx.temperature,
                None if grad_entropy is None else grad_entropy[part] / ctx.temperature,
            )
            owner = _Labels(labels[part], ctx.shard)
            for rows in _row_slices(hidden[part], ctx.shard):
                logits = _logits(hidden[part], weight[rows], ctx.temperature)
                grad = of_logits(logits, *owner.within(rows)).to(weight.dtype)
                _add_product(grad_hidden[part], grad, weight[rows])
                _add_product(grad_weight[rows], grad.T, hidden[part])
        dist.all_reduce(grad_hidden, group=ctx.shard.group)
        return grad_hidden.to(hidden.dtype), grad_weight.to(weight.dtype), None, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, without a copy of its size where all have one dtype."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def _slices(count: int, size: int) -> Iterator[slice]:
    for begin in range(0, count, size):
        yield slice(begin, min(begin + size, count))


def _row_slices(hidden: Tensor, shard: VocabShard) -> Iterator[slice]:
    """The real rows of the vocabulary, so many that a tile is full. hidden: [n, h]."""
    return _slices(shard.num_real, max(1, TILE_ELEMENTS[hidden.device.type] // len(hidden)))


def _at_least_fp32(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """[n, r] in fp32 or better."""
    logits = (hidden @ weight.T).to(_at_least_fp32(hidden))
    return logits if temperature == 1.0 else logits.div_(temperature)


class _Labels:
    """Where the tokens' labels are among this rank's rows."""

    def __init__(self, labels: Tensor, shard: VocabShard) -> None:
        """labels: [n]."""
        self._local = labels - shard.first
        self._tokens = torch.arange(len(labels), device=labels.device)

    def within(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Whether each label is in `rows` [n]; the number of each token [n]; the label's place in `rows` [n], 0 where
        it is not there."""
        mine = (self._local >= rows.start) & (self._local < rows.stop)
        return mine, self._tokens, (self._local - rows.start).masked_fill(~mine, 0)


class _Sums:
    """What a tile's tokens need to know of all rows, added up over tiles with a running maximum, then over ranks.

    top: the largest logit so far. total: sum of exp(z - top). weighted: sum of exp(z - top) (z - top). picked: the
    label's logit. All [n].
    """

    def __init__(self, hidden: Tensor, labels: Tensor, shard: VocabShard) -> None:
        self._labels = _Labels(labels, shard)
        self._group = shard.group
        dtype = _at_least_fp32(hidden)
        # Not -inf, which a rank of padding alone would be left with: differences of it are not numbers.
        self._top = hidden.new_full((len(hidden),), torch.finfo(dtype).min, dtype=dtype)
        self._total = torch.zeros_like(self._top)
        self._weighted = torch.zeros_like(self._top)
        self._picked = torch.zeros_like(self._top)

    def add(self, logits: Tensor, rows: slice) -> None:
        """logits: [n, r], which are written over."""
        mine, tokens, places = self._labels.within(rows)
        self._picked += torch.where(mine, logits[tokens, places], 0.0)
        self._raise_top(torch.maximum(self._top, logits.amax(dim=1)))
        shifted = logits.sub_(self._top[:, None])
        weights = shifted.exp()
        self._total += weights.sum(1)
        self._weighted += torch.linalg.vecdot(weights, shifted)

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """log p(label), entropy and log-sum-exp, [n], over all ranks."""
        top = self._top.clone()
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=self._group)
        self._raise_top(top)
        sums = torch.stack((self._total, self._weighted, self._picked))
        dist.all_reduce(sums, group=self._group)
        total, weighted, picked = sums
        log_sum = total.log()
        return picked - top - log_sum, log_sum - weighted / total, log_sum + top

    def _raise_top(self, top: Tensor) -> None:
        by = self._top - top
        self._weighted = (self._weighted + by * self._total) * by.exp()
        self._total = self._total * by.exp()
        self._top = top


@dataclass(frozen=True, slots=True)
class _LogitGradients:
    """The gradient of a tile's logits from those of its tokens' log-probs and entropies, [n] each or None."""

    log_sums: Tensor
    entropy: Tensor
    of_logprobs: Tensor | None
    of_entropy: Tensor | None

    def __call__(self, logits: Tensor, mine: Tensor, tokens: Tensor, places: Tensor) -> Tensor:
        """logits: [n, r], which are written over. mine, tokens, places: of the labels among the rows."""
        logps = logits.sub_(self.log_sums[:, None])
        if self.of_entropy is None:
            grad = logps.exp_()
            if self.of_logprobs is None:
                return grad.zero_()
            grad.mul_(-self.of_logprobs[:, None])
        else:
            probs = logps.exp()
            surprise = torch.where(probs > 0, logps + self.entropy[:, None], 0.0)
            grad = probs * surprise.mul_(-self.of_entropy[:, None])
            if self.of_logprobs is not None:
                grad.addcmul_(probs, -self.of_logprobs[:, None])
        if self.of_logprobs is not None:
            # One element a token: no two additions meet, in whatever order they come.
            grad[tokens, places] += torch.where(mine, self.of_logprobs, 0.0)
        return grad
