from __future__ import annotations

import pytest
import torch
from torch import Tensor

from da3po.models.layouts import GateUp, Layout, QkvByGroup, Replicated, Split, VocabularyRows, padded_vocab_size

LAYOUTS: list[tuple[Layout, list[tuple[int, ...]]]] = [
    (Replicated(), [(6,)]),
    (Split(1), [(3, 8)]),
    (VocabularyRows(7), [(7, 3)]),
    (GateUp(), [(8, 3), (8, 3)]),
    (QkvByGroup(8, 4, 2), [(16, 3), (8, 3), (8, 3)]),
    (QkvByGroup(8, 4, 2), [(16,), (8,), (8,)]),
]


def random_parts(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(("layout", "shapes"), LAYOUTS)
def test_join_is_the_inverse_of_shard(layout: Layout, shapes: list[tuple[int, ...]], size: int) -> None:
    parts = random_parts(shapes)
    shards = [layout.shard(parts, rank, size) for rank in range(size)]
    assert len({shard.shape for shard in shards}) == 1
    joined = layout.join(shards)
    assert len(joined) == len(parts)
    assert all(torch.equal(got, want) for got, want in zip(joined, parts, strict=True))


def test_qkv_rows_are_interleaved_by_group() -> None:
    """Two groups of two query heads, head_dim 1: q0 q1 k0 v0, q2 q3 k1 v1."""
    query, key, value = torch.tensor([0.0, 1, 2, 3]), torch.tensor([10.0, 11]), torch.tensor([20.0, 21])
    layout = QkvByGroup(num_heads=4, num_kv_heads=2, head_dim=1)
    assert layout.shard([query, key, value], 0, 1).tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    assert layout.shard([query, key, value], 1, 2).tolist() == [2, 3, 11, 21]


def test_gate_and_up_are_cut_before_they_are_stacked() -> None:
    gate, up = torch.arange(4.0), torch.arange(10.0, 14.0)
    assert GateUp().shard([gate, up], 1, 2).tolist() == [2, 3, 12, 13]


def test_vocabulary_is_padded_with_zeros_and_cut_again() -> None:
    """H03."""
    assert padded_vocab_size(1003, 1) == 1003
    assert padded_vocab_size(1003, 2) == 1004
    assert padded_vocab_size(1004, 4) == 1004
    whole = torch.ones(5, 2)
    layout = VocabularyRows(5)
    shards = [layout.shard([whole], rank, 4) for rank in range(4)]
    assert [shard.sum().item() for shard in shards] == [4, 4, 2, 0]
    assert layout.join(shards)[0].shape == (5, 2)


def test_an_embedding_of_another_size_than_the_config_says_is_refused() -> None:
    with pytest.raises(ValueError, match="8 rows, the config says vocab_size=7"):
        VocabularyRows(7).shard([torch.ones(8, 2)], 0, 1)


def test_what_cannot_be_cut_evenly_is_refused() -> None:
    with pytest.raises(ValueError, match="3 equal pieces"):
        Split(0).shard([torch.ones(4, 2)], 0, 3)
