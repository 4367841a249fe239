"""Numbers that are written as English words."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_VALUES = {word: value for value, word in enumerate(_UNITS)}
_VALUES |= {word: 10 * value for value, word in enumerate(_TENS, start=2)}
_MULTIPLES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {
    "half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10,
}  # fmt: skip
_PARTS_ALONE = ("half", "quarter")
MAX_LENGTH = 60


def parse_words(text: str) -> Fraction | None:
    """`forty-two`, `one hundred and five`, `three quarters`, `two and a half`, `minus two`; None for anything else."""
    if len(text) > MAX_LENGTH:
        return None
    words = re.split(r"[\s-]+", text.lower().strip())
    sign = -1 if words[:1] in (["minus"], ["negative"]) else 1
    value = _value(words[1:] if sign < 0 else words)
    return None if value is None else sign * value


def _value(words: list[str]) -> Fraction | None:
    """With a part at its end, what stands behind the last "and" is a fraction, which is added: 20 1/3."""
    if not words or words[-1].removesuffix("s") not in _PARTS:
        whole = _whole(words)
        return None if whole is None else Fraction(whole)
    if "and" not in words:
        return _fraction(words)
    last = len(words) - 1 - words[::-1].index("and")
    whole, fraction = _whole(words[:last]), _fraction(words[last + 1 :])
    return None if whole is None or fraction is None or fraction >= 1 else whole + fraction


def _fraction(words: list[str]) -> Fraction | None:
    """`three quarters`, `a third`, `half`. A part without a count is an ordinal: `fourth` is no quarter."""
    *count, part = words
    if count in ([], ["a"], ["an"]):
        number = 1 if count or part in _PARTS_ALONE else None
    else:
        number = _whole(count)
    return None if number is None else Fraction(number, _PARTS[part.removesuffix("s")])


def _whole(words: list[str]) -> int | None:
    """`one hundred five thousand three`: units and tens add up, a multiple multiplies what stands before it."""
    total, current, last = 0, 0, 0
    words = [word for word in words if word != "and"]
    for word in words:
        if (multiple := _MULTIPLES.get(word)) is not None:
            current = max(current, 1) * multiple
            if multiple > 100:
                total, current = total + current, 0
            last = 0
            continue
        value = _VALUES.get(word)
        if value is None or (last and not (last >= 20 and 0 < value < 10)):
            return None
        current, last = current + value, value
    return total + current if words else None
