from __future__ import annotations

import json

import pytest

from da3po.data.cursor import Cursor
from da3po.data.problems import DataError
from da3po.types import Prompt


def prompts(n: int, gold: str = "1") -> list[Prompt]:
    return [Prompt(uid=f"u{i}", draw=i, epoch=0, text=f"p{i}", token_ids=(i,), gold=gold, source="s") for i in range(n)]


def drawn(cursor: Cursor, steps: int, size: int = 2) -> list[str]:
    return [prompt.uid for _ in range(steps) for prompt in cursor.draw(size)]


def test_draws_are_numbered_and_epochs_counted_across_a_batch() -> None:
    batch = Cursor(prompts(3), seed=1, shuffle=False).draw(5)
    assert [p.uid for p in batch] == ["u0", "u1", "u2", "u0", "u1"]
    assert [p.draw for p in batch] == [0, 1, 2, 3, 4]
    assert [p.epoch for p in batch] == [0, 0, 0, 1, 1]


def test_an_epoch_has_every_prompt_once_and_a_new_order() -> None:
    cursor = Cursor(prompts(12), seed=1, shuffle=True)
    first, second = drawn(cursor, 6), drawn(cursor, 6)
    assert sorted(first) == sorted(second) == sorted(p.uid for p in prompts(12))
    assert first != second
    assert first != drawn(Cursor(prompts(12), seed=2, shuffle=True), 6)


@pytest.mark.parametrize("stop", [1, 5, 6, 7])
def test_a_resumed_cursor_draws_what_an_uninterrupted_one_would(stop: int) -> None:
    """C05: 12 prompts, batch 2, stops around the end of the first epoch; the state goes through JSON."""
    whole = drawn(Cursor(prompts(12), seed=1, shuffle=True), 12)
    before = Cursor(prompts(12), seed=1, shuffle=True)
    ids = drawn(before, stop)
    after = Cursor(prompts(12), seed=1, shuffle=True)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.num_drawn == 2 * stop
    assert ids + drawn(after, 12 - stop) == whole


def test_the_order_is_pinned() -> None:
    """The same on every machine and in every process: a change here changes what resumed runs train on."""
    assert drawn(Cursor(prompts(6), seed=1, shuffle=True), 3) == ["u2", "u1", "u0", "u4", "u3", "u5"]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Cursor(prompts(5), seed=1, shuffle=True), "another data set"),
        (Cursor(prompts(6, gold="2"), seed=1, shuffle=True), "another data set, template or tokenizer"),
        (Cursor(prompts(6), seed=2, shuffle=True), r"another seed \(run.seed\)"),
        (Cursor(prompts(6), seed=1, shuffle=False), r"another order \(data.shuffle\)"),
    ],
)
def test_a_state_of_other_data_is_refused(other: Cursor, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        Cursor(prompts(6), seed=1, shuffle=True).load_state_dict(other.state_dict())


def test_a_state_is_cheap_the_data_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    monkeypatch.setattr("da3po.data.cursor.fingerprint", lambda data: counted.append(data) or "f")
    cursor = Cursor(prompts(3), seed=1, shuffle=False)
    states = [cursor.state_dict(), cursor.state_dict()]
    cursor.load_state_dict(states[0])
    assert len(counted) == 1


def test_no_prompts_is_an_error() -> None:
    with pytest.raises(DataError, match="at least one prompt"):
        Cursor([], seed=1, shuffle=True)
