"""The default grader: reads the final answer and compares it exactly. Its conventions are in docs/grading.md."""

from __future__ import annotations

import functools

from da3po.reward.choices import choice_of_gold, choice_of_response, names_choice
from da3po.reward.compare import same, squeeze
from da3po.reward.extract import boxed_answer, final_answer
from da3po.reward.limits import MAX_GOLDS
from da3po.types import Grade, Outcome

SLACK = 64
"""White space and dollar signs that a response which repeats the reference may have, beyond twice its length."""


def grade(gold: str, response: str) -> Grade:
    """The argument order is fixed: the reference answer first."""
    if len(response) <= 2 * len(gold) + SLACK and _gold_letters(gold) == _letters(response):
        return Grade(outcome=Outcome.CORRECT, answer=response.strip())
    answer = final_answer(response)
    wanted = _gold_choice(gold)
    if wanted is not None:
        chosen = choice_of_response(response)
        if chosen is not None:
            return Grade(outcome=Outcome.CORRECT if chosen == wanted else Outcome.WRONG, answer=chosen)
    if answer is None:
        return Grade(outcome=Outcome.NO_ANSWER)
    correct = (
        _gold_letters(gold) == _letters(answer)
        or (wanted is not None and names_choice(answer, wanted))
        or same(gold_answer(gold), answer)
    )
    return Grade(outcome=Outcome.CORRECT if correct else Outcome.WRONG, answer=answer)


def _letters(text: str) -> str:
    """All but white space and dollar signs: a reference that cannot be read is matched by the very same text."""
    return squeeze(text.replace("$", "").strip())


@functools.lru_cache(maxsize=MAX_GOLDS)
def _gold_letters(gold: str) -> str:
    return _letters(gold)


@functools.lru_cache(maxsize=MAX_GOLDS)
def _gold_choice(gold: str) -> str | None:
    return choice_of_gold(gold)


@functools.lru_cache(maxsize=MAX_GOLDS)
def gold_answer(gold: str) -> str:
    """The answer in a reference: its boxes, or what a short solution ends with, or all of it."""
    return boxed_answer(gold, unclosed=True) or final_answer(gold) or gold
