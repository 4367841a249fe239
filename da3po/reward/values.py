"""Equality of expressions: by bounds where those tell them apart, else by SymPy.

SymPy takes a second to import and milliseconds for an answer; most answers never need it.
"""

from __future__ import annotations

import functools
from fractions import Fraction

from da3po.reward.estimates import Interval, Reading, apart, around, read
from da3po.reward.grammar import is_rejected
from da3po.reward.limits import MAX_GOLDS
from da3po.reward.quantities import parse_quantity


def equal(gold: str, answer: str) -> bool:
    """symbolic.equal, which is not asked where its answer is known to be no."""
    if _differ(gold, answer):
        return False
    from da3po.reward import symbolic

    return symbolic.equal(gold, answer)


def rounded(decimal: str, expression: str) -> bool:
    """Whether `decimal` is the value of `expression`, rounded to the places it is written with."""
    quantity = parse_quantity(decimal)
    if quantity is None or quantity.number.places is None or _is_far(quantity.number.value, expression):
        return False
    from da3po.reward.symbolic import value_of

    value = value_of(expression)
    return value is not None and quantity.number.rounds(value)


def _is_far(number: Fraction, expression: str) -> bool:
    """Whether `expression` surely has no value, because of its letters, or none that rounds to `number`."""
    reading, bounds = read(expression), around(number)
    return reading is not None and (bool(reading.names) or (bounds is not None and apart(bounds, reading)))


def _differ(gold: str, answer: str) -> bool:
    """Whether the two surely differ. Nothing is parsed or evaluated that symbolic.equal would not."""
    plain = _read_gold(gold)
    if plain is not None and is_rejected(answer):
        return True
    reading = read(answer)
    known = plain if plain is not None or reading is None else _gold_bounds(gold)
    return known is not None and reading is not None and apart(known, reading)


@functools.lru_cache(maxsize=MAX_GOLDS)
def _read_gold(gold: str) -> Reading | None:
    """One reference is compared with every response of its group."""
    return read(gold)


@functools.lru_cache(maxsize=MAX_GOLDS)
def _gold_bounds(gold: str) -> Interval | None:
    from da3po.reward.symbolic import value_of

    value = value_of(gold)
    return None if value is None else around(value)
