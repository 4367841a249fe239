"""Which sequence goes into which micro-batch of which data-parallel rank. Integers only.

`plan(lengths, dp, max_tokens, multiple)` promises, for any positive lengths:
1. every sequence is in exactly one micro-batch;
2. every rank has the same number of micro-batches, a multiple of `multiple`, as Megatron's schedules need;
3. a micro-batch holds at most `max_tokens` tokens, except that a longer sequence travels alone;
4. a rank has an empty micro-batch only if each of its other micro-batches holds a single sequence;
5. the same input gives the same plan, and a rank's micro-batches are ordered from the largest to the smallest, so that
   the peak of memory comes first.
Ranks are balanced before micro-batches are formed, since they wait for each other once per optimizer update only.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

Bin = list[int]
"""Indices of the sequences of one micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`micro_batches[d][m]`: indices of the sequences in micro-batch m of data-parallel rank d, in ascending order."""

    micro_batches: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def num_micro_batches(self) -> int:
        """Of each rank."""
        return len(self.micro_batches[0])


def plan(lengths: Sequence[int], dp: int, max_tokens: int, multiple: int = 1) -> Plan:
    """Pack sequences for one optimizer update; see the module for what holds.

    lengths: tokens of each sequence, >= 1. dp: data-parallel ranks. max_tokens: budget of a micro-batch.
    multiple: of which the number of micro-batches of a rank is one.
    """
    if not lengths:
        raise ValueError("there is no sequence to pack")
    if min(lengths) < 1:
        raise ValueError(f"sequence {lengths.index(min(lengths))} has {min(lengths)} tokens; at least 1 is needed")
    longest_first = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    ranks = _spread(longest_first, lengths, dp)
    tight = [_best_fit(rank, lengths, max_tokens) for rank in ranks]
    num_bins = -(-max(map(len, tight)) // multiple) * multiple
    return Plan(
        micro_batches=tuple(
            _ordered(_even_out(rank, bins, lengths, num_bins, max_tokens), lengths)
            for rank, bins in zip(ranks, tight, strict=True)
        )
    )


def _spread(longest_first: Sequence[int], lengths: Sequence[int], num_bins: int) -> list[Bin]:
    """Into `num_bins` bins of about equal load: each sequence, the longest first, joins the bin with the least load."""
    bins: list[Bin] = [[] for _ in range(num_bins)]
    heap = [(0, number) for number in range(num_bins)]
    for index in longest_first:
        load, number = heap[0]
        bins[number].append(index)
        heapq.heapreplace(heap, (load + lengths[index], number))
    return bins


def _best_fit(longest_first: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[Bin]:
    """Into few bins under the budget: each sequence joins the fullest bin that has room, or opens one."""
    bins: list[Bin] = []
    room: list[tuple[int, int]] = []  # (tokens left, bin), ascending
    for index in longest_first:
        length = lengths[index]
        position = bisect_left(room, (length, 0))
        if position == len(room):
            left, number = max_tokens, len(bins)
            bins.append([])
        else:
            left, number = room.pop(position)
        bins[number].append(index)
        if left > length:
            insort(room, (left - length, number))
    return bins


def _even_out(
    longest_first: Sequence[int], tight: list[Bin], lengths: Sequence[int], num_bins: int, max_tokens: int
) -> list[Bin]:
    """Exactly `num_bins` bins: evenly filled if the budget allows it, else the tight ones, the fullest halved."""
    even = _spread(longest_first, lengths, num_bins)
    if all(len(indices) <= 1 or _load(indices, lengths) <= max_tokens for indices in even):
        return even
    bins = list(tight)
    while len(bins) < num_bins:
        divisible = [number for number, indices in enumerate(bins) if len(indices) > 1]
        if not divisible:
            return bins + [[] for _ in range(num_bins - len(bins))]
        fullest = max(divisible, key=lambda number: _load(bins[number], lengths))
        bins.extend(_spread(bins.pop(fullest), lengths, 2))
    return bins


def _ordered(bins: list[Bin], lengths: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    by_load = sorted(bins, key=lambda indices: (-_load(indices, lengths), min(indices, default=0)))
    return tuple(tuple(sorted(indices)) for indices in by_load)


def _load(indices: Sequence[int], lengths: Sequence[int]) -> int:
    return sum(lengths[index] for index in indices)
