"""Answers that are words."""

from __future__ import annotations

import re

from da3po.reward.quantities import parse_quantity

_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_LONGEST_PRODUCT = 3
_LONGEST_SYMBOL = 12  # longer runs of letters are no product that has a number's value
# Words as short as a product of symbols, in which a capital letter changes nothing.
_SHORT_WORDS = frozenset((
    "yes", "no", "odd", "all", "any", "red", "tie", "win", "tom", "bob",
    "mon", "tue", "wed", "thu", "fri", "sat", "sun",
))  # fmt: skip
_WORDS = re.compile(r"[^\W\d_]+(?:[\s\-',]+[^\W\d_]+)*[.!]?")


def same_words(gold: str, answer: str) -> bool | None:
    """The verdict if one of the two is text; None if both may be mathematics."""
    if len(answer) > _LONGEST_SYMBOL and is_words(answer) and parse_quantity(gold):
        return False
    if not (_TEXT.search(gold) or _TEXT.search(answer) or (is_words(gold) and is_words(answer))):
        return None
    left, right = (_TEXT.sub(r"\1", text).strip().rstrip(".") for text in (gold, answer))
    if not (is_words(left) and is_words(right)):
        return None
    if max(len(left), len(right)) <= _LONGEST_PRODUCT and left != right and not _TEXT.search(gold + answer):
        # ab and ba may be products of symbols
        return True if left.casefold() == right.casefold() and left.casefold() in _SHORT_WORDS else None
    if max(len(left), len(right)) > 1:
        left, right = (re.sub(r"[\s\-',]+|\b(?:the|an?)\s", "", text.casefold()) for text in (left, right))
    return left == right


def is_words(text: str) -> bool:
    """Whether a text is words and no mathematics."""
    return bool(_WORDS.fullmatch(text.strip()))
