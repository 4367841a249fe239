"""Units of measure: what they measure and how many of the base unit they are. Exact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

ANY = "any"
"""A unit that contradicts none, such as "units"."""

_FACTORS: Mapping[str, Mapping[str, Fraction | int]] = {
    "m": {
        "m": 1, "meter": 1, "metre": 1, "cm": Fraction(1, 100), "centimeter": Fraction(1, 100),
        "centimetre": Fraction(1, 100), "mm": Fraction(1, 1000), "millimeter": Fraction(1, 1000),
        "millimetre": Fraction(1, 1000), "dm": Fraction(1, 10), "km": 1000, "kilometer": 1000, "kilometre": 1000,
    },
    "ft": {
        "ft": 1, "foot": 1, "feet": 1, "in": Fraction(1, 12), "inch": Fraction(1, 12), "inche": Fraction(1, 12),
        "yd": 3, "yard": 3, "mi": 5280, "mile": 5280,
    },
    "s": {
        "sec": 1, "second": 1, "ms": Fraction(1, 1000), "min": 60, "minute": 60, "hr": 3600, "hour": 3600, "day": 86400,
        "week": 604800,
    },
    "g": {"g": 1, "gram": 1, "kg": 1000, "kilogram": 1000, "mg": Fraction(1, 1000), "milligram": Fraction(1, 1000)},
    "lb": {"lb": 1, "pound": 1, "oz": Fraction(1, 16), "ounce": Fraction(1, 16)},
    "L": {
        "l": 1, "liter": 1, "litre": 1, "ml": Fraction(1, 1000), "milliliter": Fraction(1, 1000),
        "millilitre": Fraction(1, 1000),
    },
    "$": {"dollar": 1, "cent": Fraction(1, 100)},
    "m/s": {"m/s": 1, "meterspersecond": 1, "meterpersecond": 1, "metrespersecond": 1},
    "mi/h": {"mph": 1, "milesperhour": 1, "mileperhour": 1},
    "km/h": {"kph": 1, "km/h": 1, "kmh": 1, "kilometersperhour": 1},
}  # fmt: skip
_KNOWN = {name: (base, Fraction(factor)) for base, names in _FACTORS.items() for name, factor in names.items()}
_POWER_WORD = re.compile(r"(square|sq\.?|cubic|cu\.?)\s*(?=[a-z])")
_POWERS = {"s": 2, "c": 3}


def read_unit(name: str, power: int = 1) -> tuple[str, Fraction]:
    """(what is measured, size of the unit): cm to the second power is ("m^2", 1/10000).

    A unit that is not known measures itself.
    """
    word = name.lower().strip()
    if match := _POWER_WORD.match(word):
        word, power = word[match.end() :], _POWERS[match[1][0]]
    word = re.sub(r"[\s~]", "", word).rstrip(".").removesuffix("s") if word not in ("ms", "s") else word
    if word in ("", "unit", "point"):
        return ANY, Fraction(1)
    base, factor = _KNOWN.get(word, (word, Fraction(1)))
    return (base if power == 1 else f"{base}^{power}"), factor**power
