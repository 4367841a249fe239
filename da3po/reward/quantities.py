"""Numbers with what may follow them: a percent sign, degrees, a unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from da3po.reward.numbers import Number, parse_decimal_comma, parse_number

PERCENT = "%"
DEGREE = "°"

_PERCENT = re.compile(r"\s*(?:\\?%|percent(?:age)?|pct)\.?$", re.IGNORECASE)
_DEGREE = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|degrees?|\\degree)$")
_TEXT_UNIT = re.compile(r"\s*\\text\{([^{}]*)\}(?:\s*\^\s*\{?\s*-?\d+\s*\}?)?$")
# Bare units: words after a space, and short symbols that no one takes for a variable.
_WORD_UNIT = re.compile(r"(?:\s+([A-Za-z][A-Za-z/ ]*[A-Za-z])|\s*([^\W\d_a-zA-Z]+))(?:\s*\^\s*\{?\s*\d+\s*\}?)?$")
_SYMBOL_UNIT = re.compile(
    r"\s*(cm|mm|km|dm|m|kg|mg|g|ml|mL|L|ft|mph|kph|km/h|m/s|Hz|kHz|MHz|eV|kJ|min|hrs?|sec|ms|in|lbs?|oz)"
    r"(?:\s*\^\s*\{?\s*\d+\s*\}?)?$"
)
_NOT_UNITS = frozenset(["and", "or", "i"])


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and its unit, "" if it has none."""

    number: Number
    unit: str

    def matches(self, other: Quantity) -> bool:
        """Equal numbers whose units do not contradict each other: a missing unit is any unit.

        A percent sign counts as a unit, so 28% is 28; and since it is the same number, 28% is 0.28 too.
        """
        if self.unit and other.unit and self.unit != other.unit:
            return False
        if self.number.matches(other.number):
            return True
        if (self.unit == PERCENT) == (other.unit == PERCENT):
            return False
        percent, plain = (self, other) if self.unit == PERCENT else (other, self)
        return percent.number.value / 100 == plain.number.value


def parse_quantity(text: str) -> Quantity | None:
    """A number with or without a unit; None if `text` is anything else."""
    number = parse_number(text)
    if number is not None:
        return Quantity(number, "")
    bare, unit = split_unit(text)
    number = parse_number(bare) if unit else None
    return Quantity(number, unit) if number is not None else None


def parse_comma_quantity(text: str) -> Quantity | None:
    """The same for a decimal comma: `2,74 cm`."""
    bare, unit = split_unit(text)
    number = parse_decimal_comma(bare)
    return Quantity(number, unit) if number is not None else None


def split_unit(text: str) -> tuple[str, str]:
    """The expression without its unit, and the unit ("" if there is none)."""
    for pattern, unit in ((_PERCENT, PERCENT), (_DEGREE, DEGREE)):
        bare = pattern.sub("", text)
        if bare != text and bare.strip():
            return bare.strip(), unit
    for pattern in (_TEXT_UNIT, _SYMBOL_UNIT, _WORD_UNIT):
        match = pattern.search(text)
        if match and text[: match.start()].strip():
            name = next((group for group in match.groups() if group), "").strip()
            if name not in _NOT_UNITS:
                return text[: match.start()].strip(), _singular(name) or "text"
    return text, ""


def _singular(unit: str) -> str:
    return unit.lower().rstrip("s.").replace(" ", "")
