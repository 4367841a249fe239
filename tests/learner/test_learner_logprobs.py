"""Log-probs and entropies on one rank, against the plain formula. Several ranks: test_learner_layouts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from da3po.learner.megatron import logprobs as module
from da3po.learner.megatron.logprobs import VocabShard, token_logprobs


@pytest.fixture(scope="module")
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def plain(hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float, vocab_size: int) -> tuple[Tensor, Tensor]:
    logps = (hidden @ weight[:vocab_size].T / temperature).log_softmax(-1)
    return logps.gather(1, labels[:, None]).squeeze(1), -(logps.exp() * logps).sum(-1)


def example(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """hidden [6, 5], weight [11, 5] of which 9 rows are real, labels [6]."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 5, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 5, generator=generator, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.tensor([0, 8, 3, 3, 1, 7])


def test_temperature_divides_logits_not_log_probs(group: dist.ProcessGroup) -> None:
    """L01: logits [1, 0, -1, -2] at temperature 0.5; -0.4402 and -0.8804 would be the known errors."""
    logits = torch.tensor([[1.0, 0.0, -1.0, -2.0]])
    shard = VocabShard.of_rank(group, 4, 4)
    logp, entropy = token_logprobs(logits, torch.eye(4), torch.tensor([0]), 0.5, shard)
    assert logp.item() == pytest.approx(-0.1451, abs=1e-4)
    probs = torch.tensor([2.0, 0.0, -2.0, -4.0]).softmax(0)
    assert entropy.item() == pytest.approx(-(probs * probs.log()).sum().item(), rel=1e-6)


@pytest.mark.parametrize(("tokens", "elements"), [(1, 1), (2, 8), (4, 9), (1024, 1 << 20)])
def test_tiles_and_padding_change_nothing(
    group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, tokens: int, elements: int
) -> None:
    """L10: padding rows hold large values here, and neither values nor gradients know of them."""
    monkeypatch.setattr(module, "TILE_TOKENS", tokens)
    monkeypatch.setitem(module.TILE_ELEMENTS, "cpu", elements)
    hidden, weight, labels = example()
    with torch.no_grad():
        weight[9:] = 100.0
    shard = VocabShard.of_rank(group, 11, 9)
    got = token_logprobs(hidden, weight, labels, 0.7, shard)
    expected = plain(hidden, weight, labels, 0.7, 9)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    cotangents = torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    grads = torch.autograd.grad(got, (hidden, weight), cotangents)
    for mine, theirs in zip(grads, torch.autograd.grad(expected, (hidden, weight), cotangents), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert grads[1][9:].abs().max() == 0


@pytest.mark.parametrize("which", [0, 1], ids=["log-prob", "entropy"])
def test_gradients_against_finite_differences(group: dist.ProcessGroup, which: int) -> None:
    hidden, weight, labels = example()
    shard = VocabShard.of_rank(group, 11, 9)
    assert torch.autograd.gradcheck(
        lambda h, w: token_logprobs(h, w, labels, 0.7, shard)[which], (hidden, weight), atol=1e-8
    )


def test_half_precision_weights_give_fp32_log_probs(group: dist.ProcessGroup) -> None:
    hidden, weight, labels = example(torch.bfloat16)
    logp, entropy = token_logprobs(hidden, weight, labels, 1.0, VocabShard.of_rank(group, 11, 11))
    assert logp.dtype == entropy.dtype == torch.float32
    (logp.sum()).backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16


def test_shards_know_their_rows() -> None:
    class Rank:
        def __init__(self, rank: int) -> None:
            self._rank = rank

        def rank(self) -> int:
            return self._rank

    shards = [VocabShard.of_rank(Rank(rank), 2, 5) for rank in range(4)]  # type: ignore[arg-type]
    assert [(shard.first, shard.num_real) for shard in shards] == [(0, 2), (2, 2), (4, 1), (6, 0)]
