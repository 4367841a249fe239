"""Answers of a form of their own: ratios, times of day, chains of inequalities, numbers in a base, residues."""

from __future__ import annotations

import re
from collections.abc import Callable

from da3po.reward.brackets import split, tokens
from da3po.reward.quantities import parse_quantity

Same = Callable[[str, str], bool]

_RATIO = re.compile(r"\s*[^:=<>]+(?::[^:=<>]+)+")
_CLOCK = re.compile(r"\s*(\d{1,2}):(\d\d)(?::(\d\d))?\s*([ap]m)?\s*")
_BASED = re.compile(r"(?:\(|\\text\{)?([0-9A-Za-z]+)[)}]?_(?:\{\(?(\d{1,2})\)?\}|(\d{1,2}))")
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
    values = [[parse_quantity(part) for part in side] for side in (left, right)]
    is_time = any(re.fullmatch(r"0\d|00", part.strip()) for part in (*left, *right))
    if not is_time and all(value and value.number.value for side in values for value in side):
        numbers = [[value.number.value for value in side if value] for side in values]
        return all(a * numbers[1][0] == b * numbers[0][0] for a, b in zip(*numbers, strict=True))
    return all(same(a, b) for a, b in zip(left, right, strict=True))


def _same_based(gold: str, answer: str, same: Same) -> bool | None:
    left, right = (_BASED.fullmatch(re.sub(r"\s+", "", text)) for text in (gold, answer))
    if left and right:
        return left[1].upper() == right[1].upper() and _base_of(left) == _base_of(right)
    if right and gold.isdigit():
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
    relations = [token for token, _, depth in tokens(text) if depth == 0 and token in _ORDER]
    return (relations, split(text, _ORDER)) if len(relations) > 1 else None
