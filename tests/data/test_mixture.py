from __future__ import annotations

from collections import Counter

import pytest

from da3po.data.cursor import Cursor
from da3po.data.mixture import Mixture
from da3po.data.problems import DataError
from da3po.types import Prompt


def prompts(num: int) -> list[Prompt]:
    return [Prompt(uid=str(i), draw=0, epoch=0, text=str(i), token_ids=(i,), gold="1", source="s") for i in range(num)]


def test_whole_weights_repeat_and_fractions_alternate() -> None:
    mixture = Mixture([1, 1, 2, 0.5, 0.5, 0.5, 0.5], seed=1)
    epochs = [mixture.members(epoch) for epoch in range(4)]
    assert [len(epoch) for epoch in epochs] == [6] * 4
    for epoch in epochs:
        counts = Counter(epoch)
        assert (counts[0], counts[1], counts[2]) == (1, 1, 2)
    halves = [{place for place in epoch if place >= 3} for epoch in epochs]
    assert halves[0] | halves[1] == {3, 4, 5, 6} == halves[2] | halves[3]
    assert not halves[0] & halves[1]


def test_long_run_shares_are_the_weights_exactly() -> None:
    mixture = Mixture([0.3] * 7 + [1.7] * 3, seed=2)
    counts = Counter(place for epoch in range(10) for place in mixture.members(epoch))
    assert [counts[place] for place in range(10)] == [3] * 7 + [17] * 3
    assert mixture.start(10) == sum(counts.values()) == 72


def test_draws_fall_into_their_epochs() -> None:
    mixture = Mixture([0.3] * 7 + [1.7] * 3, seed=2)
    numbers = [mixture.epoch_of(draw) for draw in range(72)]
    assert Counter(numbers) == {epoch: len(mixture.members(epoch)) for epoch in range(10)}
    assert numbers == sorted(numbers)


def test_a_tiny_weight_skips_epochs_that_hold_nothing() -> None:
    mixture = Mixture([0.25], seed=1)
    assert [mixture.epoch_of(draw) for draw in range(3)] == [3, 7, 11]


def test_a_cursor_with_weights_resumes_as_if_it_had_not_stopped() -> None:
    weights = [1, 1, 2, 0.5, 0.5]
    whole = [prompt.uid for prompt in Cursor(prompts(5), 3, True, weights).draw(40)]
    for stop in (1, 5, 12, 13):
        first = Cursor(prompts(5), 3, True, weights)
        first.draw(stop)
        second = Cursor(prompts(5), 3, True, weights)
        second.load_state_dict(first.state_dict())
        assert [prompt.uid for prompt in second.draw(40 - stop)] == whole[stop:]


def test_other_weights_are_another_run() -> None:
    state = Cursor(prompts(2), 1, True, [1, 2]).state_dict()
    with pytest.raises(DataError, match="mixture"):
        Cursor(prompts(2), 1, True).load_state_dict(state)


def test_equal_weights_draw_as_no_weights_do() -> None:
    plain, weighted = Cursor(prompts(9), 1, True), Cursor(prompts(9), 1, True, [1.0] * 9)
    assert [prompt.uid for prompt in plain.draw(30)] == [prompt.uid for prompt in weighted.draw(30)]
