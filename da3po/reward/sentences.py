"""The number that a sentence gives as its answer, with all that belongs to it."""

from __future__ import annotations

import re

from da3po.reward.number_words import MULTIPLES
from da3po.reward.units import is_known

HEDGES = "about|approximately|around|roughly|exactly|only"
"""Words before a value that leave it what it is."""
NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.,])[-+−]?\s?[$€£¥]?"
    r"(?:\d{1,3}(?:\{?,\}?\d{3})+(?:\.\d+)?|\d+\s(?=\d+/\d)\d+|\d+(?:[.,]\d+)?|\.\d+)(?:\s?/\s?\d+)?(?:\s?\\?%)?"
    rf"(?:\s(?:(?:{'|'.join(MULTIPLES)})(?![a-z-]))+)?"
)
# Words right before a number that make another statement of it: `more than 5`, `not equal to 5`, `half of 12`. A sum
# may add `up to` its value, a triangle have `a base of` so much, and what a half or a root `equals` is a value as well.
# A bound (`he needs at least 5 coins`) is what many problems ask for.
_QUALIFIER = re.compile(
    r"(?:(?:\b(?:not|never|cannot)|n't)(?:\s+(?:be|been|equals?|to|exactly|possibly))*"
    r"|(?<!\\)\b(?:(?<!no more )(?<!no less )(?<!no fewer )than|different\s+from|twice|thrice"
    r"|double|times|exceeds?|exceeding|over|under|above|below|beyond|base(?=\s*$)|(?:square|cube|cubic)\s+root(?:\s+of)?|half(?:\s+of)?"
    r"|(?:anything|everything|all|any)\s+(?:\w+\s+)?(?:but|except)"
    r"|(?:third|quarter|triple|square|cube|root|factorial|reciprocal|inverse|opposite|multiple)\s+of))"
    r"(?:\s+(?:the|a|an|exactly))*\s*$",
    re.IGNORECASE,
)
_CONTRAST = re.compile(r"\s*,?\s*(?:and\s+|but\s+)?not\s*", re.IGNORECASE)  # `7, not 5`
_NEGATIVE = re.compile(r"(?:\bnegative|\b(?:is|are|equals|be)\s+minus)\s*$", re.IGNORECASE)
_NAME = r"(?:[A-Za-z](?:_\{?\w+\}?)?\s*=\s*)?"
_AND = re.compile(rf"\s*,?\s*(?:and|or|und|et|y|和)\s*{_NAME}")
_COMMA = re.compile(rf"\s*,\s*{_NAME}")
_PART = r"[-+−]?\s?\d[\d./]*"
# `(3, 4)`, `3:4`, `5:30 pm`, `3 to 4` where that is a ratio, and `3 out of 4`
_SEVERAL = re.compile(
    rf"[(\[]\s*{_PART}(?:\s*,\s*{_PART})+\s*[)\]]|(?<!\S)\d+(?:(?::| : )\d+)+(?:\s?[ap]\.?\s?m\b\.?)?"
    r"|(?<!\S)\d+\sout\sof\s\d+|(?<=ratio is )\d+\sto\s\d+",
    re.IGNORECASE,
)
# A number that is only a piece of a formula without delimiters: `12π`, `x^2`, `2n+1`, `\frac{3}{4}`.
_FORMULA = re.compile(r"[\^√π]|_\{?\d|\\[A-Za-z]|sqrt|\w[+*]\d")
_TERMS = re.compile(r"(?:(?<!\S)(?:[A-Za-z]|\S*[\d^√π\\]\S*)\s(?:[-+−*·×÷]|\\(?:times|cdot|div))\s)+$")
_POWER_OF_UNIT = re.compile(r"\d\s*([A-Za-z]+)\^\{?$")
_LONGEST_QUALIFIER = 60
_LONGEST_JOINT = 20
_LONGEST_FORMULA = 200


def last_number(sentence: str) -> str | None:
    """The last number, with those that "and" joins to it."""
    found = list(NUMBER.finditer(sentence))
    while len(found) > 1 and _is_aside(sentence, found[-2], found[-1]):
        found.pop()
    if not found:
        return None
    if words := qualifier(sentence, found[-1].start()):
        return f"{words} {found[-1].group().strip()}"
    numbers, joint = [_whole(sentence, found[-1])], _AND
    for left, right in zip(reversed(found[:-1]), reversed(found[1:]), strict=True):
        between = sentence[left.end() : right.start()]
        if len(between) > _LONGEST_JOINT or not joint.fullmatch(between):
            break
        numbers.insert(0, left.group().strip())
        joint = _COMMA
    return ", ".join(numbers)


def first_number(sentence: str) -> str | None:
    found = NUMBER.search(sentence)
    if found is None:
        return None
    return f"{qualifier(sentence, found.start())} {_whole(sentence, found)}".lstrip()


def qualifier(text: str, end: int) -> str:
    """The words that change what the number at `end` says, "" if there are none."""
    found = _QUALIFIER.search(text, max(0, end - _LONGEST_QUALIFIER), end)
    return found.group().strip() if found else ""


def _is_aside(sentence: str, before: re.Match[str], number: re.Match[str]) -> bool:
    """Whether a number is no answer beside the one before: `7, not 5`, and the power in `12 cm^2`."""
    if _CONTRAST.fullmatch(sentence, before.end(), number.start()):
        return True
    unit = _POWER_OF_UNIT.fullmatch(sentence, before.end() - 1, number.start())
    return unit is not None and is_known(unit[1])


def _whole(sentence: str, number: re.Match[str]) -> str:
    """A number with the signs and terms without which it is not what the sentence says."""
    for several in _SEVERAL.finditer(sentence):
        if several.start() <= number.start() and number.end() <= several.end():
            return several.group()
    plain = number.group().strip()
    if _NEGATIVE.search(sentence, max(0, number.start() - _LONGEST_QUALIFIER), number.start()):
        return f"-{plain}"
    start = max((sentence.rfind(space, 0, number.end()) for space in " \n\t"), default=-1) + 1
    end = number.end() + len(re.split(r"\s", sentence[number.end() :], maxsplit=1)[0])
    terms = _TERMS.search(sentence, max(0, start - _LONGEST_FORMULA), start)
    formula = sentence[terms.start() if terms else start : end].rpartition("=")[2].strip(".,;:!?*\"'")
    if not (terms or _FORMULA.search(formula)):
        return plain
    if formula.count("(") != formula.count(")"):
        formula = formula.strip("()")
    return formula if formula.count("{") == formula.count("}") else plain
