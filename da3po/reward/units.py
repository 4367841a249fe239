"""Units of measure: what they measure and how many of the base unit they are. Exact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

ANY = "any"
"""A unit that contradicts none, such as "units"."""
THINGS = "things"
"""What is counted: people, ways, apples. Two words for it do not contradict each other."""

_FACTORS: Mapping[str, Mapping[str, Fraction | int]] = {
    "m": {
        "m": 1, "meter": 1, "metre": 1, "cm": Fraction(1, 100), "centimeter": Fraction(1, 100),
        "centimetre": Fraction(1, 100), "mm": Fraction(1, 1000), "millimeter": Fraction(1, 1000),
        "millimetre": Fraction(1, 1000), "dm": Fraction(1, 10), "km": 1000, "kilometer": 1000, "kilometre": 1000,
    },
    "ft": {
        "ft": 1, "foot": 1, "feet": 1, "in": Fraction(1, 12), "inch": Fraction(1, 12), "yd": 3, "yard": 3, "mi": 5280,
        "mile": 5280,
    },
    "s": {
        "s": 1, "sec": 1, "second": 1, "ms": Fraction(1, 1000), "min": 60, "minute": 60, "h": 3600, "hr": 3600,
        "hour": 3600, "day": 86400, "week": 604800,
    },
    "year": {"year": 1, "yr": 1, "years old": 1, "year old": 1, "month": Fraction(1, 12), "decade": 10, "century": 100},
    "g": {"g": 1, "gram": 1, "kg": 1000, "kilogram": 1000, "mg": Fraction(1, 1000), "milligram": Fraction(1, 1000)},
    "lb": {"lb": 1, "pound": 1, "oz": Fraction(1, 16), "ounce": Fraction(1, 16)},
    "L": {
        "l": 1, "liter": 1, "litre": 1, "ml": Fraction(1, 1000), "milliliter": Fraction(1, 1000),
        "millilitre": Fraction(1, 1000),
    },
    "gallon": {"gallon": 1, "gal": 1, "quart": Fraction(1, 4), "pint": Fraction(1, 8), "cup": Fraction(1, 16)},
    "$": {"dollar": 1, "usd": 1, "cent": Fraction(1, 100)},
    "€": {"euro": 1, "eur": 1},
    "yuan": {"yuan": 1, "rmb": 1},
    "yen": {"yen": 1},
    "rad": {"rad": 1, "radian": 1},
    "acre": {"acre": 1}, "hectare": {"hectare": 1}, "t": {"ton": 1, "tonne": 1}, "furlong": {"furlong": 1},
    "bushel": {"bushel": 1, "peck": Fraction(1, 4)}, "tsp": {"teaspoon": 1, "tablespoon": 3},
    "Hz": {"hz": 1, "hertz": 1, "khz": 1000, "kilohertz": 1000, "mhz": 10**6, "megahertz": 10**6},
    "N": {"newton": 1}, "J": {"joule": 1, "kj": 1000, "kilojoule": 1000}, "eV": {"ev": 1, "electronvolt": 1},
    "cal": {"calorie": 1, "kilocalorie": 1000}, "W": {"watt": 1, "kw": 1000, "kilowatt": 1000}, "V": {"volt": 1},
    "A": {"ampere": 1, "amp": 1}, "ohm": {"ohm": 1}, "C": {"coulomb": 1}, "F": {"farad": 1}, "T": {"tesla": 1},
    "Pa": {"pascal": 1, "kpa": 1000, "kilopascal": 1000}, "atm": {"atm": 1, "atmosphere": 1}, "K": {"kelvin": 1},
}  # fmt: skip
_KNOWN = {name: (base, Fraction(factor)) for base, names in _FACTORS.items() for name, factor in names.items()}
_PLURALS = {
    "people": "person", "men": "man", "women": "woman", "children": "child", "dice": "die", "bus": "bus", "gas": "gas",
    "buses": "bus", "mice": "mouse", "teeth": "tooth", "knives": "knife", "loaves": "loaf", "leaves": "leaf",
    "halves": "half", "shelves": "shelf", "lives": "life",
}  # fmt: skip
# Of letters so few that any other would be a product of symbols: `3 xy`.
_SHORT = frozenset((
    *_PLURALS, "man", "die", "way", "pts", "rpm", "mpg", "psi", "atm", "mol", "amp", "ohm", "fps", "bpm", "hz", "khz",
    "mhz", "ev", "box", "boy", "egg", "car", "pen", "bag", "cat", "dog", "toy", "cow", "pig", "hen", "bee", "row",
    "per", "cu", "sq", "kid", "pie", "job", "key", "hat", "ant", "jar", "bat", "cap", "pcs", "leg", "ear", "eye", "cub",
))  # fmt: skip
_LONGEST_SHORT = 3
# Behind a unit, what is measured by it or which way: `5 cups of flour`, `12 cm long`.
_BEHIND = re.compile(
    r"\s+(?:of|in|long|tall|wide|deep|high|thick|away|apart|left|remaining|more|less|later|earlier|each|altogether"
    r"|longer|taller|shorter|wider|faster|slower|farther|further|(?<!^in )total)(?:\s.*)?$"
)
_ALIASES = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "kmph": "km/h"}
_PER = re.compile(r"\s*/\s*|(?:^|\s+)per\s+|(?<=[a-z])per(?=hour|second|minute)")
# `cups` and `squares` are no powers.
_POWER_WORD = re.compile(r"(square|sq|cubic|cu)(?:\s+|\.\s*|(?=ft|in|cm|mi|yd))(?=[a-z])")
_POWERS = {"s": 2, "c": 3}
_SIBILANTS = ("sses", "xes", "zes", "ches", "shes")
_EXPONENT = re.compile(r"\s*\^\s*\{?\s*(\d)\s*\}?$")


def is_name(word: str) -> bool:
    """Whether a bare word behind a number can be a unit or a noun, and is no product of symbols."""
    parts = re.findall("[a-z]+", word.lower())
    if any(len(part) == 1 and part != "a" and not is_known(part) for part in parts):
        return False
    if not word.isascii() or max(map(len, parts), default=0) > _LONGEST_SHORT:
        return True
    return all(part in _SHORT or is_known(part) for part in parts)


def is_known(word: str) -> bool:
    """Whether a name is a unit of the table, in the singular or the plural, to a power or per another one."""
    factors = (_POWER_WORD.sub("", factor) for factor in _PER.split(word.lower().strip()))
    return all(any(one in _KNOWN or one in _ALIASES for one in _singulars(factor)) for factor in factors)


def read_unit(name: str, power: int = 1) -> tuple[str, Fraction]:
    """(what is measured, size of the unit): cm to the second power is ("m^2", 1/10000), km/h is ("m/s", 5/18).

    power: of the last factor. What stands behind a known unit is left out: cups of flour are cups. A word that is no
    known unit counts things, which one may call students and another people; short letters measure themselves.
    """
    word = re.sub(r"[\s~]+", " ", name.lower()).strip().rstrip(".")
    word = word.replace(" squared", "^2").replace(" cubed", "^3")
    if (behind := _BEHIND.search(word)) and is_known(unit := word[: behind.start()]):
        word = unit
    factors = _PER.split(_ALIASES.get(word, word))
    read = [_factor(factor, power if place == len(factors) - 1 else 1) for place, factor in enumerate(factors)]
    size = read[0][1]
    for _, divisor in read[1:]:
        size /= divisor
    return "/".join(base for base, _ in read), size


def _factor(word: str, power: int) -> tuple[str, Fraction]:
    if match := _EXPONENT.search(word):
        word, power = word[: match.start()], int(match[1])
    if match := _POWER_WORD.match(word):
        word, power = word[match.end() :], _POWERS[match[1][0]]
    word = word.strip().rstrip(".")
    if word in ("", "unit", "units", "point", "points"):
        return ANY, Fraction(1)
    for candidate in _singulars(word):
        if candidate in _KNOWN:
            base, factor = _KNOWN[candidate]
            return (base if power == 1 else f"{base}^{power}"), factor**power
    base = THINGS if _is_noun(word) else _singulars(word)[-1].replace(" ", "")
    return (base if power == 1 else f"{base}^{power}"), Fraction(1)


def _is_noun(word: str) -> bool:
    *_, noun = word.split(" ")
    return not word.isascii() or noun in _SHORT or (noun.isalpha() and len(noun) > _LONGEST_SHORT)


def _singulars(word: str) -> tuple[str, ...]:
    """What a noun may be the plural of, the likeliest last: boxes, cities, classes, people."""
    *before, noun = word.split(" ")
    found = [word, word.removesuffix("s"), word.removesuffix("es")]
    if noun in _PLURALS:
        found.append(" ".join((*before, _PLURALS[noun])))
    elif noun.endswith("ies") and len(noun) > 4:
        found.append(word.removesuffix("ies") + "y")
    elif not noun.endswith(_SIBILANTS):
        found.append(word if noun.endswith("ss") else word.removesuffix("s"))
    return tuple(found)
