"""Answers of a form of their own: ratios, times of day, chains of inequalities, numbers in a base, residues."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

from da3po.reward.brackets import split, tokens
from da3po.reward.quantities import parse_quantity

Same = Callable[[str, str], bool]

_RATIO = re.compile(r"\s*[^:=<>]+(?::[^:=<>]+)+")
_CLOCK = re.compile(r"\s*(\d{1,2}):(\d\d)(?::(\d\d))?\s*([ap]m)?\s*")
_BASED = re.compile(r"(?:\(|\\text\{)?([0-9A-Za-z]+)[)}]?_(?:\{\(?(\d{1,2})\)?\}|(\d{1,2}))")
_SYMBOL = re.compile(r"[A-Za-z]")  # one letter with an index is a symbol, in which R and r differ
_LITERAL = re.compile(r"[0-9A-Z]+")  # and a small one is never a digit of a number
_MODULUS = re.compile(
    r"\s*(?:\\pmod\s*(?:\{\s*(\w+)\s*\}|(\w))|\(\s*(?:\\(?:bmod|mod)|mod)\s*\{?\s*(\w+)\s*\}?\s*\))\s*$"
)
_MOD_IN_TEXT = re.compile(r"\\text\{\s*\(?\s*mod\s*\}|\\text\{\s*\(\s*mod\s*(\w+)\s*\)\s*\}")
_ORDER = ("<", ">", r"\le", r"\ge")
_REVERSED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


def same_relation(gold: str, answer: str, same: Same) -> bool | None:
    """The verdict on two ratios, times, chains or numbers in a base, by `same` for their parts; None if they are not.

    A number in a base is compared with a plain one by its value or, if the plain one is the answer, by its digits.
    """
    for rule in (_same_clock, _same_ratio, _same_based, _same_chain):
        verdict = rule(gold, answer, same)
        if verdict is not None:
            return verdict
    return None


def split_modulus(text: str) -> tuple[str, str]:
    """`3 \\pmod{7}` as (3, 7); the modulus is "" if there is none."""
    text = _MOD_IN_TEXT.sub(lambda mod: f"(mod {mod[1]})" if mod[1] else "(mod ", text)
    match = _MODULUS.search(text)
    if not match or not text[: match.start()].strip():
        return text, ""
    return text[: match.start()].replace(r"\equiv", "="), next(group for group in match.groups() if group)


def _same_clock(gold: str, answer: str, same: Same) -> bool | None:
    """12-hour and 24-hour times agree if the half of the day is said; without it, times are as they are written."""
    left, right = _CLOCK.fullmatch(gold), _CLOCK.fullmatch(answer)
    if not (left and right and (left[4] or right[4])):
        return None
    if left[4] and right[4]:
        return _minutes(left, left[4]) == _minutes(right, right[4])
    return left.groups()[:3] == right.groups()[:3] or _minutes(left, left[4]) == _minutes(right, right[4])


def _minutes(clock: re.Match[str], half: str | None) -> tuple[int, int, int]:
    hour = int(clock[1])
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
    return hour, int(clock[2]), int(clock[3] or 0)


def _same_ratio(gold: str, answer: str, same: Same) -> bool | None:
    if not (_RATIO.fullmatch(gold) and _RATIO.fullmatch(answer)):
        return None
    left, right = split(gold, (":",)), split(answer, (":",))
    if len(left) != len(right):
        return False
    numbers = None if _are_times(gold, answer) else [_terms(side) for side in (left, right)]
    if numbers and numbers[0] and numbers[1]:
        return all(a * numbers[1][0] == b * numbers[0][0] for a, b in zip(*numbers, strict=True))
    return all(same(a, b) for a, b in zip(left, right, strict=True))


def _are_times(gold: str, answer: str) -> bool:
    """Whether two of the form a:b are times of day. A ratio as reference is in lowest terms; 9:05 is no ratio."""
    if any(re.search(r":\s*(?:0\d|00)(?!\d)|^\s*0\d", text) for text in (gold, answer)):
        return True
    clock = _CLOCK.fullmatch(gold)
    if not clock or int(clock[1]) >= 24 or int(clock[2]) >= 60:
        return False
    return math.gcd(int(clock[1]), int(clock[2])) > 1


def _terms(side: list[str]) -> list[Fraction] | None:
    """The terms of a ratio, in one unit where they measure the same; None if one is no number or 0."""
    quantities = [quantity for part in side if (quantity := parse_quantity(part)) and quantity.number.value]
    if len(quantities) != len(side):
        return None
    in_one_unit = len({quantity.unit for quantity in quantities}) == 1
    return [quantity.number.value * (quantity.size if in_one_unit else 1) for quantity in quantities]


def _same_based(gold: str, answer: str, same: Same) -> bool | None:
    left, right = (_BASED.fullmatch(re.sub(r"\s+", "", text)) for text in (gold, answer))
    if left and right:
        as_symbols = _SYMBOL.fullmatch(left[1]) or _SYMBOL.fullmatch(right[1])
        digits = [side[1] if as_symbols else side[1].upper() for side in (left, right)]
        return digits[0] == digits[1] and _base_of(left) == _base_of(right)
    if right and gold.isdigit() and _LITERAL.fullmatch(right[1]):
        return _value(right) == int(gold)
    return None


def _base_of(number: re.Match[str]) -> int:
    return int(number[2] or number[3])


def _value(number: re.Match[str]) -> int | None:
    try:
        return int(number[1], _base_of(number))
    except ValueError:
        return None


def _same_chain(gold: str, answer: str, same: Same) -> bool | None:
    """`a < b \\le c` and `c \\ge b > a`, whatever a, b and c are."""
    left, right = _chain(gold), _chain(answer)
    if not (left and right):
        return None
    if left[0] != right[0]:
        right = [_REVERSED[operator] for operator in right[0][::-1]], right[1][::-1]
    return left[0] == right[0] and all(same(a, b) for a, b in zip(left[1], right[1], strict=True))


def _chain(text: str) -> tuple[list[str], list[str]] | None:
    """(relations, sides) if there are two relations or more."""
    if not any(operator in text for operator in _ORDER):
        return None
    relations = [token for token, _, depth in tokens(text) if depth == 0 and token in _ORDER]
    return (relations, split(text, _ORDER)) if len(relations) > 1 else None
