"""Numbers with what may follow them: a percent sign, degrees, a unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from da3po.reward.numbers import Number, parse_decimal_comma, parse_number
from da3po.reward.units import ANY, read_unit

PERCENT = "%"
DEGREE = "°"

_PERCENT = re.compile(r"\s*(?:\\?%|per\s?cent(?:age)?|pct)\.?$", re.IGNORECASE)
_DEGREE = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|degrees?|\\degree)$")
_TEXT_UNIT = re.compile(r"\s*\\text\{([^{}]*)\}(?:\s*\^\s*\{?\s*-?\d+\s*\}?)?$")
# Bare units: words after a space, and short symbols that no one takes for a variable.
_WORD_UNIT = re.compile(r"(?:\s+([A-Za-z][A-Za-z/. ]*[A-Za-z])|\s*([^\W\d_a-zA-Z]+))(?:\s*\^\s*\{?\s*\d+\s*\}?)?$")
_SYMBOL_UNIT = re.compile(
    r"\s*(cm|mm|km|dm|m|kg|mg|g|ml|mL|L|ft|mph|kph|km/h|m/s|Hz|kHz|MHz|eV|kJ|min|hrs?|sec|ms|in|lbs?|oz)"
    r"(?:\s*\^\s*\{?\s*\d+\s*\}?)?$"
)
_MULTIPLES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_MULTIPLE = re.compile(rf"(.{{1,30}}?)\s*(?:\\text\{{\s*)?({'|'.join(_MULTIPLES)})\s*\}}?", re.IGNORECASE)
_EXPONENT = re.compile(r"\^\s*\{?\s*(-?\d)")
_NOT_UNITS = frozenset(["and", "or", "to", "through", "i", "am", "pm"])


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and its unit: what it measures ("" if there is none) and how large it is."""

    number: Number
    unit: str
    size: Fraction = Fraction(1)

    def matches(self, other: Quantity) -> bool:
        """Equal numbers whose units do not contradict each other: a missing unit is any unit.

        A percent sign counts as a unit, so 28% is 28; and since it is the same number, 28% is 0.28 too.
        """
        if not {self.unit, other.unit} & {"", ANY}:
            if self.unit != other.unit:
                return False
            if self.size != other.size:
                return self.number.value * self.size == other.number.value * other.size
        if self.number.matches(other.number):
            return True
        if (self.unit == PERCENT) == (other.unit == PERCENT):
            return False
        percent, plain = (self, other) if self.unit == PERCENT else (other, self)
        return percent.number.value / 100 == plain.number.value


def parse_quantity(text: str) -> Quantity | None:
    """A number with or without a unit; None if `text` is anything else."""
    number = parse_number(text) or _parse_multiple(text)
    if number is not None:
        return Quantity(number, "")
    bare, unit, size = split_unit(text)
    number = parse_number(bare) if unit else None
    return Quantity(number, unit, size) if number is not None else None


def _parse_multiple(text: str) -> Number | None:
    """`1.5 million`."""
    match = _MULTIPLE.fullmatch(text)
    number = parse_number(match[1]) if match else None
    return Number(number.value * _MULTIPLES[match[2].lower()]) if match and number is not None else None


def parse_comma_quantity(text: str) -> Quantity | None:
    """The same for a decimal comma: `2,74 cm`."""
    bare, unit, size = split_unit(text)
    number = parse_decimal_comma(bare)
    return Quantity(number, unit, size) if number is not None else None


def split_unit(text: str) -> tuple[str, str, Fraction]:
    """The expression without its unit, what that measures ("" if there is none), and its size."""
    for pattern, unit in ((_PERCENT, PERCENT), (_DEGREE, DEGREE)):
        bare = pattern.sub("", text)
        if bare != text and bare.strip():
            return bare.strip(), unit, Fraction(1)
    for pattern in (_TEXT_UNIT, _WORD_UNIT, _SYMBOL_UNIT):
        match = pattern.search(text)
        if match and text[: match.start()].strip():
            name = next((group for group in match.groups() if group), "").strip()
            if name.split(" ", 1)[0] not in _NOT_UNITS:
                power = _EXPONENT.search(match.group())
                return text[: match.start()].strip(), *read_unit(name, int(power[1]) if power else 1)
    return text, "", Fraction(1)
