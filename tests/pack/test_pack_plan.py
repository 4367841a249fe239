from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from da3po.pack.plan import Plan, _best_fit, _even_out, plan

Lengths = list[int]


def loads(result: Plan, lengths: Lengths) -> list[list[int]]:
    return [[sum(lengths[index] for index in bin_) for bin_ in rank] for rank in result.micro_batches]


@given(
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=80),
    dp=st.integers(1, 6),
    max_tokens=st.integers(1, 150),
)
def test_invariants(lengths: Lengths, dp: int, max_tokens: int) -> None:
    result = plan(lengths, dp, max_tokens)
    bins = [bin_ for rank in result.micro_batches for bin_ in rank]
    assert sorted(index for bin_ in bins for index in bin_) == list(range(len(lengths)))
    assert len(result.micro_batches) == dp
    assert {len(rank) for rank in result.micro_batches} == {result.num_micro_batches}
    assert all(len(bin_) <= 1 or sum(lengths[index] for index in bin_) <= max_tokens for bin_ in bins)
    for rank, of_rank in zip(result.micro_batches, loads(result, lengths), strict=True):
        assert all(rank) or all(len(bin_) <= 1 for bin_ in rank)
        assert of_rank == sorted(of_rank, reverse=True)
    assert plan(lengths, dp, max_tokens) == result


@given(lengths=st.lists(st.integers(1, 120), min_size=1, max_size=80), dp=st.integers(1, 6))
def test_ranks_differ_by_at_most_one_sequence(lengths: Lengths, dp: int) -> None:
    """What greedy balancing promises: the last sequence that a rank was given brought it past the others at most."""
    of_ranks = [sum(rank) for rank in loads(plan(lengths, dp, 200), lengths)]
    assert max(of_ranks) - min(of_ranks) <= max(lengths)


def test_even_work_is_split_evenly() -> None:
    lengths = [8, 8, 8, 8, 4, 4, 4, 4]
    assert loads(plan(lengths, 2, 12), lengths) == [[12, 12], [12, 12]]


def test_one_long_sequence_against_many_short_ones() -> None:
    """Case A13: lengths 10, 10, 10 and 200 on two ranks, and a rank with less to do still has as many micro-batches."""
    lengths = [10, 10, 10, 200]
    assert plan(lengths, 2, 20).micro_batches == (((3,), ()), ((0, 2), (1,)))


def test_fewer_sequences_than_ranks() -> None:
    assert plan([5, 7], 4, 100).micro_batches == (((1,),), ((0,),), ((),), ((),))


def test_tight_bins_are_kept_where_an_even_split_breaks_the_budget() -> None:
    """Evening out 7, 7, 6, 5, 5 gives 7+6 and 7+5+5, over a budget of 16; best fit finds 7+7 and 6+5+5."""
    assert plan([7, 7, 6, 5, 5], 1, 16).micro_batches == (((2, 3, 4), (0, 1)),)


def test_a_rank_that_needs_fewer_micro_batches_gets_as_many() -> None:
    """Best fit gives rank 0 (9, 7, 7) two bins and rank 1 (8, 8, 7) three; evening out (9, 7, 7) into three fits."""
    result = plan([9, 8, 8, 7, 7, 7], 2, 14)
    assert result.num_micro_batches == 3
    assert loads(result, [9, 8, 8, 7, 7, 7]) == [[9, 7, 7], [8, 8, 7]]


def test_where_evening_out_fails_the_fullest_tight_bins_are_halved() -> None:
    """Full bins of 17 into one bin more: greedy evening overfills one, which is rare, so the instance is given."""
    lengths = [13, 11, 10, 10, 10, 9, 9, 8, 8, 8, 7, 7, 7, 6, 6, 6, 6, 5, 4, 4, 4, 4, 4, 2, 1, 1]
    longest_first = list(range(len(lengths)))
    tight = _best_fit(longest_first, lengths, 17)
    assert len(tight) == 10
    bins = _even_out(longest_first, tight, lengths, 11, 17)
    assert sorted(index for bin_ in bins for index in bin_) == longest_first
    assert len(bins) == 11
    assert all(sum(lengths[index] for index in bin_) <= 17 for bin_ in bins)
    assert sum(bin_ in tight for bin_ in bins) == 9


@pytest.mark.parametrize(("lengths", "message"), [([], "no sequence"), ([3, 0, 2], "sequence 1 has 0 tokens")])
def test_what_cannot_be_packed(lengths: Lengths, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(lengths, 2, 10)


def test_a_step_of_the_paper_is_balanced_and_full() -> None:
    """8,192 sequences on 8 ranks at 16,384 tokens: imbalance and empty room below 2 %."""
    lengths = [300 + (index * 7919) % 3997 for index in range(8192)]
    result = plan(lengths, 8, 16384)
    of_ranks = [sum(rank) for rank in loads(result, lengths)]
    assert max(of_ranks) / (sum(of_ranks) / 8) - 1 < 0.02
    assert sum(lengths) / (8 * result.num_micro_batches * 16384) > 0.98


@given(
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=40),
    dp=st.integers(1, 3),
    multiple=st.integers(1, 4),
)
def test_micro_batches_come_in_whole_rounds(lengths: Lengths, dp: int, multiple: int) -> None:
    result = plan(lengths, dp, 150, multiple)
    assert result.num_micro_batches % multiple == 0
    assert result.num_micro_batches - plan(lengths, dp, 150).num_micro_batches < multiple
    bins = [bin_ for rank in result.micro_batches for bin_ in rank]
    assert sorted(index for bin_ in bins for index in bin_) == list(range(len(lengths)))
