"""Exact values of plainly written numbers. No SymPy here: most answers never need more than this."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from da3po.reward.number_words import parse_words

MAX_DIGITS = 4000
# A decimal stands for a value that has no such decimal if it is that value, rounded, to this many digits.
MIN_ROUNDED_DIGITS = 5

_GROUPED = r"\d{1,3}(?:[ ,]\s?\d{3})+(?:\.\d+)?"
_PLAIN = r"\d+(?:\.\d*)?|\.\d+"
_NUMBER = rf"(?:{_GROUPED}|{_PLAIN})"
_SIGN = r"(?P<sign>(?:[-+]\s*)*)"
_BRACED = r"\{\s*([-+]?\s*" + _NUMBER + r")\s*\}"
_DECIMAL = re.compile(rf"{_SIGN}(?P<number>{_NUMBER})")
_DECIMAL_COMMA = re.compile(rf"{_SIGN}(?P<number>(?:\d+|\d{{1,3}}(?:\.\d{{3}})+|\d{{1,3}}(?: \d{{3}})+),\d+)")
_SCIENTIFIC = re.compile(
    rf"{_SIGN}(?P<number>{_PLAIN})\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{{\s*)?(?P<power>-?\d{{1,3}})\s*\}}?"
)
_E_NOTATION = re.compile(rf"{_SIGN}(?P<number>{_PLAIN})[eE](?P<power>[-+]?\d{{1,3}})")
_POWER = re.compile(rf"{_SIGN}(?P<base>\d{{1,20}})\s*\^\s*(?:(?P<digit>\d)|\{{\s*(?P<power>-?\d{{1,3}})\s*\}})")
# 0.1\overline{6}, 0.1\bar{6}, 0.1\dot{6}, 0.\dot{1}4\dot{2}
_RECURRING = re.compile(
    rf"{_SIGN}(?P<whole>\d*)\.(?P<fixed>\d*)(?:\\(?:overline|bar|dot)\s*(?:\{{(?P<period>\d+)\}}|(?P<one>\d))"
    r"|\\dot\s*\{?(?P<first>\d)\}?(?P<inner>\d*)\\dot\s*\{?(?P<last>\d)\}?)"
)
# 0.(6), and digits that repeat themselves up to an ellipsis: 0.1666..., 0.1212\dots
_BRACKETED_PERIOD = re.compile(rf"{_SIGN}(?P<whole>\d*)\.(?P<fixed>\d*)\((?P<period>\d+)\)")
_ELLIPSIS = r"\s*\\(?:dots|cdots|ldots)"
_REPEATED = re.compile(
    rf"{_SIGN}(?P<whole>\d*)\.(?P<fixed>\d{{0,20}}?)(?:(?P<digit>\d)(?P=digit){{2,}}|(?P<period>\d{{2,20}}?)(?P=period)+)"
    + _ELLIPSIS
)
_CUT_OFF = re.compile(rf"{_SIGN}(?P<number>\d*\.\d+){_ELLIPSIS}")
_SLASHED = re.compile(rf"{_SIGN}\(?(?P<top>{_NUMBER})\)?\s*/\s*\(?(?P<bottom>[-+]?{_NUMBER})\)?")
_FRACTION = re.compile(rf"{_SIGN}\\frac\s*{_BRACED}\s*{_BRACED}")
_MIXED = re.compile(rf"{_SIGN}(?P<whole>\d+)\s*\\frac\s*\{{\s*(?P<top>\d+)\s*\}}\s*\{{\s*(?P<bottom>\d+)\s*\}}")
_MIXED_SLASHED = re.compile(rf"{_SIGN}(?P<whole>\d+)\s+(?P<top>\d+)\s*/\s*(?P<bottom>\d+)")


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value and, for one written as a decimal, its number of decimal places."""

    value: Fraction
    places: int | None = None

    def matches(self, other: Number) -> bool:
        """Equal; or one is a decimal, the other is not, and the decimal is the other one rounded."""
        if self.value == other.value:
            return True
        if (self.places is None) == (other.places is None):
            return False
        decimal, exact = (self, other) if self.places is not None else (other, self)
        return decimal.rounds(exact.value)

    def rounds(self, exact: Fraction) -> bool:
        """Whether this decimal, of MIN_ROUNDED_DIGITS significant digits or more, is `exact` rounded to its places."""
        if self.places is None:
            return False
        scaled = self.value * 10**self.places
        return abs(scaled) >= 10 ** (MIN_ROUNDED_DIGITS - 1) and abs(scaled - exact * 10**self.places) * 2 <= 1


def parse_number(text: str) -> Number | None:
    """The value of an integer, decimal, fraction, mixed number or power of ten; thousands separators are understood."""
    if len(text) > MAX_DIGITS:
        return None
    text = text.strip()
    if match := _DECIMAL.fullmatch(text):
        return _decimal(match["sign"], re.sub(r"[ ,]", "", match["number"]))
    if match := _FRACTION.fullmatch(text):
        return _ratio(match["sign"], Fraction(_clean(match[2])), Fraction(_clean(match[3])))
    if match := _SLASHED.fullmatch(text):
        return _ratio(match["sign"], Fraction(_clean(match["top"])), Fraction(_clean(match["bottom"])))
    if match := _MIXED.fullmatch(text) or _MIXED_SLASHED.fullmatch(text):
        if int(match["bottom"]) == 0:
            return None
        value = int(match["whole"]) + Fraction(int(match["top"]), int(match["bottom"]))
        return Number(_signed(match["sign"], value))
    if match := _SCIENTIFIC.fullmatch(text):
        return Number(_signed(match["sign"], Fraction(match["number"]) * Fraction(10) ** int(match["power"])))
    return _parse_rare(text)


def _parse_rare(text: str) -> Number | None:
    """1.5e-3, 2^{10}, recurring decimals, and numbers as words."""
    if match := _E_NOTATION.fullmatch(text):
        return Number(_signed(match["sign"], Fraction(match["number"]) * Fraction(10) ** int(match["power"])))
    if match := _POWER.fullmatch(text):
        base, power = int(match["base"]), int(match["digit"] or match["power"])
        if power < 0 and not base:
            return None
        if abs(power) * len(match["base"]) <= MAX_DIGITS:
            return Number(_signed(match["sign"], Fraction(base) ** power))
    if match := _RECURRING.fullmatch(text):
        period = match["period"] or match["one"] or match["first"] + match["inner"] + match["last"]
        return _recurring(match, period)
    return _parse_open_ended(text) if r"\dots" in text or "(" in text else _parse_word(text)


def _parse_open_ended(text: str) -> Number | None:
    """A decimal that goes on: for ever in the same way, or as the reader knows."""
    if match := _BRACKETED_PERIOD.fullmatch(text):
        return _recurring(match, match["period"])
    if match := _REPEATED.fullmatch(text):
        return _recurring(match, match["digit"] or match["period"])
    match = _CUT_OFF.fullmatch(text)
    return _decimal(match["sign"], match["number"]) if match else None


def _parse_word(text: str) -> Number | None:
    value = parse_words(text)
    return Number(value) if value is not None else None


def _recurring(match: re.Match[str], period: str) -> Number:
    fixed = match["fixed"]
    value = Fraction(int((match["whole"] or "0") + fixed)) + Fraction(int(period), 10 ** len(period) - 1)
    return Number(_signed(match["sign"], value / 10 ** len(fixed)))


def parse_decimal_comma(text: str) -> Number | None:
    """`2,74` read as 2.74, `1.234,5` and `1 234,5` as 1234.5."""
    match = _DECIMAL_COMMA.fullmatch(text.strip()) if len(text) <= MAX_DIGITS else None
    return _decimal(match["sign"], re.sub("[. ]", "", match["number"]).replace(",", ".")) if match else None


def _clean(number: str) -> str:
    return re.sub(r"[ ,]", "", number)


def _ratio(sign: str, top: Fraction, bottom: Fraction) -> Number | None:
    return Number(_signed(sign, top / bottom)) if bottom else None


def _decimal(sign: str, number: str) -> Number:
    places = len(number.rpartition(".")[2]) if "." in number else None
    return Number(_signed(sign, Fraction(number)), places)


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign.count("-") % 2 else value
