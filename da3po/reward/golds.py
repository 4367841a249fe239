"""Whether a reference answer is one that the grader can compare with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from da3po.reward import structure
from da3po.reward.brackets import max_depth, split
from da3po.reward.choices import choice_of_gold
from da3po.reward.limits import MAX_DEPTH, MAX_LENGTH, TooComplexError
from da3po.reward.math import gold_answer
from da3po.reward.nodes import Leaf, Node
from da3po.reward.normalize import normalize
from da3po.reward.quantities import parse_comma_quantity, parse_quantity, split_unit
from da3po.reward.structure import assignment
from da3po.reward.words import is_words

_TEXT = re.compile(r"\\text\s*\{[^{}]*\}")


def objection(gold: str) -> str | None:
    """Why no differently written answer could ever be found equal to `gold`; None if the grader understands it."""
    text = normalize(gold_answer(gold))
    if not text:
        return f"{gold!r} is empty"
    if choice_of_gold(gold) or parse_quantity(text):
        return None
    if len(text) > MAX_LENGTH or max_depth(text) > MAX_DEPTH:
        return f"an answer of {len(text)} characters, brackets {max_depth(text)} deep"
    for leaf in _leaves(structure.parse(text)):
        reason = _leaf_objection(leaf)
        if reason:
            return reason
    return None


def _leaves(node: Node) -> Iterator[str]:
    if isinstance(node, Leaf):
        yield node.text
    else:
        for part in node.parts:
            yield from _leaves(part)


def _leaf_objection(text: str) -> str | None:
    if parse_quantity(text) or parse_comma_quantity(text) or is_words(text) or _TEXT.search(text):
        return None
    pair = assignment(text)
    if pair is not None:
        return objection(pair[1])
    from da3po.reward.symbolic import parse  # SymPy takes a second to import; most references never need it

    try:
        sides = [parse(side) for side in split(split_unit(text)[0], ("=", ":"))]
    except TooComplexError as error:
        return f"{text!r}: {error}"
    return None if all(side is not None for side in sides) else f"{text!r} cannot be read"
