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
MULTIPLES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {
    "half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10, "eleventh": 11, "twelfth": 12, "fifteenth": 15, "sixteenth": 16, "twentieth": 20,
    "thirtieth": 30, "fortieth": 40, "fiftieth": 50, "sixtieth": 60, "hundredth": 100, "thousandth": 1000,
    "millionth": 10**6,
}  # fmt: skip
_ARTICLES = (["a"], ["an"])
_LARGEST_OF_ONE = 19  # behind twenty and more, a part in the singular is an ordinal: `twenty-fifth`
_LONGEST_DIGITS = 12
_PARTS_ALONE = ("half", "quarter")
MAX_LENGTH = 60
MAX_WORDS = 10


def parse_words(text: str) -> Fraction | None:
    """`forty-two`, `one hundred and five`, `a dozen`, `three quarters`, `two and a half`, `minus two`, `5 halves`.

    None for anything else, also for digits alone.
    """
    if len(text) > MAX_LENGTH:
        return None
    words = re.split(r"[\s-]+", text.lower().strip())
    sign = -1 if words[:1] in (["minus"], ["negative"]) else 1
    value = _value(words[1:] if sign < 0 else words)
    return None if value is None else sign * value


def split_words(text: str) -> tuple[str, str] | None:
    """(number, what is behind it) of `two and a half hours`; None if no number of more than digits stands first."""
    words = text.split()
    if not words or not (words[0].isdecimal() or _is_number_word(words[0])):
        return None
    for end in range(min(len(words) - 1, MAX_WORDS), 0, -1):
        if parse_words(" ".join(words[:end])) is not None:
            return " ".join(words[:end]), " ".join(words[end:])
    return None


def _is_number_word(word: str) -> bool:
    first = word.lower().partition("-")[0]
    return first in _VALUES or first in MULTIPLES or first in _PARTS_ALONE or first in ("a", "an", "minus", "negative")


def _value(words: list[str]) -> Fraction | None:
    """With a part at its end, what stands behind the last "and" is a fraction, which is added: 20 1/3."""
    if not words or words[-1].removesuffix("s") not in _PARTS:
        whole = _whole(words)
        return None if whole is None else Fraction(whole)
    if "and" not in words:
        is_coins = words[0].isdecimal() and words[-1].startswith("quarter")
        return None if is_coins else _fraction(words)
    last = len(words) - 1 - words[::-1].index("and")
    whole, fraction = _count(words[:last]), _fraction(words[last + 1 :])
    return None if whole is None or fraction is None or fraction >= 1 else whole + fraction


def _fraction(words: list[str]) -> Fraction | None:
    """`three quarters`, `a third`, `half`. A part without a count is an ordinal: `fourth` is no quarter."""
    *count, part = words
    if not count:
        return Fraction(1, _PARTS[part]) if part in _PARTS_ALONE else None
    number = 1 if count in _ARTICLES else _count(count)
    if number is None or (number > _LARGEST_OF_ONE and part in _PARTS):
        return None
    return Fraction(number, _PARTS[part.removesuffix("s")])


def _count(words: list[str]) -> int | None:
    """Digits as well as words."""
    if len(words) == 1 and words[0].isdecimal() and len(words[0]) <= _LONGEST_DIGITS:
        return int(words[0])
    return _whole(words)


def _whole(words: list[str]) -> int | None:
    """`one hundred five thousand three`: units and tens add up, a multiple multiplies what stands before it."""
    total, current, last = 0, 0, 0
    words = [word for word in words if word != "and"]
    if words[:1] in _ARTICLES and words[1:2] and words[1] in MULTIPLES:
        words = words[1:]
    for word in words:
        if (multiple := MULTIPLES.get(word)) is not None:
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
