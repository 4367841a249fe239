"""The default grader: reads the final answer and compares it exactly. Its conventions are in docs/grading.md."""

from __future__ import annotations

import functools

from da3po.reward.choices import choice_of_gold, choice_of_response
from da3po.reward.compare import same, squeeze
from da3po.reward.extract import boxed_answer, final_answer
from da3po.types import Grade, Outcome


def grade(gold: str, response: str) -> Grade:
    """The argument order is fixed: the reference answer first."""
    if _letters(gold) == _letters(response):
        return Grade(outcome=Outcome.CORRECT, answer=response.strip())
    answer = final_answer(response)
    wanted = choice_of_gold(gold)
    if wanted is not None:
        chosen = choice_of_response(response)
        if chosen is not None:
            return Grade(outcome=Outcome.CORRECT if chosen == wanted else Outcome.WRONG, answer=chosen)
    if answer is None:
        return Grade(outcome=Outcome.NO_ANSWER)
    correct = _letters(gold) == _letters(answer) or same(gold_answer(gold), answer)
    return Grade(outcome=Outcome.CORRECT if correct else Outcome.WRONG, answer=answer)


def _letters(text: str) -> str:
    """All but white space and dollar signs: a reference that cannot be read is matched by the very same text."""
    return squeeze(text.replace("$", "").strip())


@functools.lru_cache(maxsize=4096)
def gold_answer(gold: str) -> str:
    """The answer in a reference: its boxes, or what a short solution ends with, or all of it."""
    return boxed_answer(gold, unclosed=True) or final_answer(gold) or gold
