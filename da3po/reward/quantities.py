"""Numbers with what may follow them: a percent sign, degrees, a unit."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

from da3po.reward.number_words import MULTIPLES, split_words
from da3po.reward.numbers import Number, parse_decimal_comma, parse_number
from da3po.reward.units import ANY, is_known, is_name, read_unit

MAX_TEXTS = 1024  # whose reading is kept: comparing a pair asks for its two several times
PERCENT = "%"
DEGREE = "°"

_PERCENT = re.compile(
    r"\s*(?:(?:\\?%|per\s?cent(?:age)?|pct)\.?|\\text\{\s*(?:\\?%|per\s?cent|pct\.?)\s*\})$", re.IGNORECASE
)
_DEGREE = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|degrees?|\\degree)$")
_TEXT_UNIT = re.compile(r"\s*\\text\{([^{}]*)\}(?:\s*\^\s*\{?\s*-?\d+\s*\}?)?$")
# Bare units: words after a space, and short symbols that no one takes for a variable.
_WORD_UNIT = re.compile(r"(?:\s+([A-Za-z][A-Za-z/. ]*[A-Za-z])|\s*([^\W\d_a-zA-Z]+))(?:\s*\^\s*\{?\s*\d+\s*\}?)?$")
_SYMBOL_UNIT = re.compile(
    r"\s*(cm|mm|km|dm|m|kg|mg|g|ml|mL|L|ft|mph|kph|km/h|m/s|Hz|kHz|MHz|eV|kJ|min|hrs?|sec|ms|in|lbs?|oz)"
    r"(?:\s*\^\s*\{?\s*\d+\s*\}?)?$"
)
_MULTIPLE = re.compile(
    rf"(?P<count>.{{1,30}}?)\s*(?P<text>\\text\{{\s*)?(?P<multiple>{'|'.join(MULTIPLES)})(?![A-Za-z])\s*(?P<unit>.{{0,60}})",
    re.IGNORECASE,
)
_TEMPERATURE = re.compile(
    r"\s*(?:(?:\^\s*\{?\s*\\circ\s*\}?\s*)(?:\\text\{\s*)?|(?:\\text\{\s*)?degrees?\s+)(C|F|celsius|fahrenheit)\s*\}?$",
    re.IGNORECASE,
)
# `5 (cm)`; one letter in brackets is a factor.
_BRACKETED_UNIT = re.compile(
    r"\s*(?:\(\s*(?:\\text\s*\{\s*)?|\\text\s*\{\s*\(\s*)([A-Za-z][A-Za-z/ ]*[A-Za-z])\s*(?:\}\s*\)|\)\s*\}|\))$"
)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_EXPONENT = re.compile(r"\^\s*\{?\s*(-?\d)")
_NOT_UNITS = frozenset((
    "and", "or", "to", "through", "i", "am", "pm", "at", "if", "when", "where", "whenever", "unless", "over", "by",
    "except", "but", "not", "is", "are", *MULTIPLES,
))  # fmt: skip
# Words that go on reckoning with the number before them.
_RECKONING = re.compile(
    r"^(?:squared|cubed|factorial)(?![A-Za-z])|(?:^|\s)(?:plus|minus|times\s+\S|than|divided|multiplied|modulo|mod|base|choose|point|half|halves|thirds?"
    r"|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?|thousandths?|percentage)(?![A-Za-z])",
    re.IGNORECASE,
)


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


@functools.lru_cache(maxsize=MAX_TEXTS)
def parse_quantity(text: str) -> Quantity | None:
    """A number with or without a unit; None if `text` is anything else."""
    words = _TEXT.fullmatch(text)
    number = parse_number(words[1] if words else text)
    if number is not None:
        return Quantity(number, "")
    multiple = _parse_multiple(text)
    if multiple is not None:
        return multiple
    bare, unit, size = _split_words(text) or split_unit(text)
    number = parse_number(bare) if unit else None
    return Quantity(number, unit, size) if number is not None else None


def _split_words(text: str) -> tuple[str, str, Fraction] | None:
    """`two and a half hours`: the unit begins where the words of the number end."""
    parts = split_words(_TEXT.sub(r"\1", text))
    if parts is None:
        return None
    number, name = parts
    is_unit = _WORD_UNIT.fullmatch(f" {name}") and _can_be_unit(name) and not name.startswith("of ") and is_name(name)
    return (number, *read_unit(name)) if is_unit else (text, "", Fraction(1))


def _parse_multiple(text: str) -> Quantity | None:
    """`1.5 million`, `2 million dollars`: the multiple belongs to the number, what follows it is the unit."""
    match = _MULTIPLE.fullmatch(text)
    number = parse_number(match["count"]) if match else None
    if not match or number is None:
        return None
    unit = match["unit"].strip()
    if match["text"]:
        unit = rf"\text{{{unit}" if unit.strip("} ") else unit.replace("}", "", 1)
    rest = parse_quantity(f"1 {unit}".strip())
    if rest is None:
        return None
    value = number.value * MULTIPLES[match["multiple"].lower()] * rest.number.value
    return Quantity(Number(value), rest.unit, rest.size)


def parse_comma_quantity(text: str) -> Quantity | None:
    """The same for a decimal comma: `2,74 cm`."""
    bare, unit, size = split_unit(text)
    number = parse_decimal_comma(bare)
    return Quantity(number, unit, size) if number is not None else None


def split_unit(text: str) -> tuple[str, str, Fraction]:
    """The expression without its unit, what that measures ("" if there is none), and its size."""
    temperature = _TEMPERATURE.search(text)
    if temperature and text[: temperature.start()].strip():
        return text[: temperature.start()].strip(), temperature[1][0].upper(), Fraction(1)
    bracketed = _BRACKETED_UNIT.search(text)
    if bracketed and is_known(bracketed[1]) and text[: bracketed.start()].strip():
        return text[: bracketed.start()].strip(), *read_unit(bracketed[1])
    for pattern, unit in ((_PERCENT, PERCENT), (_DEGREE, DEGREE)):
        bare = pattern.sub("", text)
        if bare != text and bare.strip():
            return bare.strip(), unit, Fraction(1)
    for pattern in (_TEXT_UNIT, _WORD_UNIT, _SYMBOL_UNIT):
        match = pattern.search(text)
        if match and text[: match.start()].strip():
            name = next((group for group in match.groups() if group), "").strip()
            if _can_be_unit(name) and (pattern is not _WORD_UNIT or is_name(name)):
                power = _EXPONENT.search(match.group())
                return text[: match.start()].strip(), *read_unit(name, int(power[1]) if power else 1)
    return text, "", Fraction(1)


def _can_be_unit(name: str) -> bool:
    return name.split(" ", 1)[0].lower() not in _NOT_UNITS and not _RECKONING.search(name)
