"""Whether two answers say the same. From the cheap and certain to the costly: text, numbers, structure, symbols."""

from __future__ import annotations

import functools
import re
from fractions import Fraction

from da3po.reward import structure
from da3po.reward.brackets import max_depth, split
from da3po.reward.limits import MAX_DEPTH, MAX_GOLDS, MAX_LENGTH, TooComplexError
from da3po.reward.nodes import Items, Leaf, Node, Ordered
from da3po.reward.normalize import normalize
from da3po.reward.quantities import parse_comma_quantity, parse_quantity, split_unit
from da3po.reward.relations import same_relation, split_modulus
from da3po.reward.structure import assignment
from da3po.reward.units import ANY
from da3po.reward.values import equal, rounded
from da3po.reward.words import same_words

MAX_ITEMS = 100

_DIGITS = re.compile(r"\s*[-+]?[\d,.]+\s*")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+")
_LONG_SYMBOL = re.compile(r"\s+(?:cm|mm|km|kg|mg|ft|mph|min|hrs?|sec|lbs?|inches|feet|miles)(?![A-Za-z])")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:[ ,]\d{3})+(?:\.\d+)?")
_SEGMENT = re.compile(r"\\(?:overline|overleftrightarrow|widehat|triangle)\s*(?:\{\s*([A-Z]{2,3})\s*\}|([A-Z]{2,3}))")
_NAME_DECORATION = re.compile(r"\\(?:overline|angle|text)(?![A-Za-z])|[|{}\s]|^m(?=\\angle)")


def same(gold: str, answer: str) -> bool:
    """Whether `answer` gives `gold`. Raises TooComplexError for what must not be evaluated."""
    if squeeze(gold) == squeeze(answer):
        return True
    if len(answer) > MAX_LENGTH or max_depth(answer) > MAX_DEPTH:
        if _DIGITS.fullmatch(answer):
            return False
        raise TooComplexError(f"an answer of {len(answer)} characters, brackets {max_depth(answer)} deep")
    return _same_text(_normal_gold(gold), _infinity(normalize(answer)))


@functools.lru_cache(maxsize=MAX_GOLDS)
def _normal_gold(gold: str) -> str:
    """One reference is compared with every response of its group."""
    return _infinity(normalize(gold))


def _infinity(text: str) -> str:
    return re.sub(r"\+\s*\\infty", r"\\infty", text)


def _same_text(gold: str, answer: str) -> bool:
    if squeeze(gold) == squeeze(answer):
        return bool(squeeze(gold))
    if _unwrapped(gold) == _unwrapped(answer):
        return True
    (bare_gold, gold_modulus), (bare_answer, modulus) = split_modulus(gold), split_modulus(answer)
    if modulus or gold_modulus:
        return _same_residue(bare_gold, gold_modulus, bare_answer, modulus)
    numbers = _same_number(gold, answer)
    if numbers is not None:
        return numbers
    if _same_node(structure.parse(gold), structure.parse(answer)):
        return True
    plain_gold, plain_answer = _ungrouped(gold), _ungrouped(answer)
    return (plain_gold, plain_answer) != (gold, answer) and _same_node(Leaf(plain_gold), Leaf(plain_answer))


def _same_residue(gold: str, gold_modulus: str, answer: str, modulus: str) -> bool:
    """A modulus that only one of the two states is a remark; with the same one, numbers are equal by it."""
    if gold_modulus and modulus and gold_modulus != modulus:
        return False
    left, right = (parse_quantity((assignment(text) or ("", text))[1]) for text in (gold, answer))
    if gold_modulus and modulus and left and right and modulus.isdigit() and int(modulus):
        return (left.number.value - right.number.value) % int(modulus) == 0
    return _same_text(gold, answer)


def _ungrouped(text: str) -> str:
    """`1,000,000` as 1000000; where it is no list, it is one number."""
    return re.sub("[ ,]", "", text) if _GROUPED.fullmatch(text) else text


def squeeze(text: str) -> str:
    """Without white space, but for that between digits, which keeps two numbers apart."""
    return re.sub(r"\s+", "", re.sub(r"(?<=\d)\s+(?=\d)", "_", text))


def _unwrapped(text: str) -> str:
    """Without `\\text{}` around its words, and without the stroke over a segment."""
    return squeeze(_SEGMENT.sub(lambda name: name[1] or name[2], _TEXT.sub(r"\1", text)))


def _same_number(gold: str, answer: str) -> bool | None:
    """The verdict if both are numbers, with or without unit; None if one is not."""
    left, right = parse_quantity(gold), parse_quantity(answer)
    if left and right:
        return left.matches(right)
    for number, text in ((left, answer), (right, gold)):
        other = parse_comma_quantity(text) if number else None
        if number and other:
            return number.matches(other)
    return None


def _same_node(gold: Node, answer: Node) -> bool:
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return _same_leaf(gold.text, answer.text)
    if isinstance(gold, Ordered) and isinstance(answer, Ordered):
        return _same_ordered(gold, answer)
    if isinstance(gold, Items) and isinstance(answer, Items):
        return _same_items(gold.parts, answer.parts)
    if isinstance(gold, Items | Ordered) and isinstance(answer, Items | Ordered):
        return _same_across(gold, answer)
    return _leaf_against_structure(gold, answer)


def _same_ordered(gold: Ordered, answer: Ordered) -> bool:
    if len(gold.parts) != len(answer.parts):
        return False
    if len(gold.names) == len(answer.names) == len(gold.parts) > 1:
        if sorted(gold.names) != sorted(answer.names):
            return False
        by_name = dict(zip(answer.names, answer.parts, strict=True))
        return all(_same_node(part, by_name[name]) for name, part in zip(gold.names, gold.parts, strict=True))
    if gold.names and answer.names and gold.names != answer.names:
        return False
    if gold.brackets and answer.brackets and gold.brackets != answer.brackets:
        return False
    return all(_same_node(left, right) for left, right in zip(gold.parts, answer.parts, strict=True))


def _same_items(gold: tuple[Node, ...], answer: tuple[Node, ...]) -> bool:
    """Equal as sets: each answer matches a gold, and each gold is matched."""
    gold, answer = _flat(gold), _flat(answer)
    if max(len(gold), len(answer)) > MAX_ITEMS:
        return False
    left = list(gold)
    for part in answer:
        match = next((other for other in left if _same_node(other, part)), None)
        if match is None:
            if not any(_same_node(other, part) for other in gold):
                return False
        else:
            left.remove(match)
    return all(any(_same_node(other, part) for part in answer) for other in left)


def _flat(parts: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(leaf for part in parts for leaf in (_flat(part.parts) if isinstance(part, Items) else (part,)))


def _same_across(gold: Items | Ordered, answer: Items | Ordered) -> bool:
    """A list without brackets against named values: `3, 5` and `x = 3, y = 5`, in this order."""
    ordered, items = (gold, answer) if isinstance(gold, Ordered) else (answer, gold)
    if not isinstance(ordered, Ordered) or ordered.brackets or len(ordered.parts) != len(items.parts):
        return len(items.parts) == 1 and _same_node(items.parts[0], ordered)
    return all(_same_node(left, right) for left, right in zip(ordered.parts, items.parts, strict=True))


def _leaf_against_structure(gold: Node, answer: Node) -> bool:
    leaf, other = (gold, answer) if isinstance(gold, Leaf) else (answer, gold)
    assert isinstance(leaf, Leaf)
    pair = assignment(leaf.text)
    if pair is not None:
        return _same_node(structure.parse(pair[1]), other)
    if isinstance(other, Items) and leaf.text == r"\emptyset":
        return False
    if isinstance(other, Items) and not any(isinstance(part, Ordered) for part in other.parts):
        return all(_same_node(leaf, part) for part in other.parts)
    texts = (leaf.text, _source(other))
    return equal(*texts) if leaf is gold else equal(*reversed(texts))


def _source(node: Node) -> str:
    """LaTeX of a structure, for the parser behind."""
    if isinstance(node, Leaf):
        return node.text
    if isinstance(node, Items):
        inner = [_source(part) for part in node.parts]
        joint = r" \cup " if all(isinstance(part, Ordered) for part in node.parts) else ", "
        return joint.join(inner) if joint != ", " else r"\{" + ", ".join(inner) + r"\}"
    if node.brackets == "matrix":
        rows = (" & ".join(_source(cell) for cell in row.parts) for row in node.parts if isinstance(row, Ordered))
        return r"\begin{pmatrix}" + r" \\ ".join(rows) + r"\end{pmatrix}"
    brackets = node.brackets or "()"
    return brackets[0] + ", ".join(_source(part) for part in node.parts) + brackets[1]


def _same_leaf(gold: str, answer: str) -> bool:
    if squeeze(gold) == squeeze(answer):
        return True
    numbers = _same_number(gold, answer)
    if numbers is not None:
        return numbers
    if "=" not in gold and (result := _result(answer)) is not None:
        return _same_text(gold, result)
    left, right = assignment(gold), assignment(answer)
    if left and right and _same_name(left[0], right[0]):
        return _same_text(left[1], right[1])
    if left and not right and "=" not in answer:
        return _same_text(left[1], answer)
    if right and not left and "=" not in gold:
        return _same_text(gold, right[1])
    words = same_words(gold, answer)
    if words is not None:
        return words
    relation = same_relation(gold, answer, _same_text)
    return _same_expression(gold, answer) if relation is None else relation


def _result(answer: str) -> str | None:
    """The last side of a calculation such as `35 + 70 = 105`, which has no variables on the left."""
    sides = split(answer, ("=",))
    if len(sides) < 2 or any(re.search("[A-Za-z]", _COMMAND.sub("", side)) for side in sides[:-1]):
        return None
    return sides[-1]


def _same_name(left: str, right: str) -> bool:
    """`f` and `f(x)`, `AB` and `|AB|`, `y` and `f(x)` name the same thing."""
    names = [_NAME_DECORATION.sub("", name) for name in (left, right)]
    bare = [name.partition("(")[0] for name in names]
    return bare[0] == bare[1] or ("y" in names and any(name.endswith("(x)") for name in names))


def _same_expression(gold: str, answer: str) -> bool:
    (gold, gold_unit, gold_size), (answer, answer_unit, size) = _without_unit(gold), _without_unit(answer)
    stated = not {gold_unit, answer_unit} & {"", ANY}
    if stated and gold_unit != answer_unit:
        return False
    if stated and gold_size != size:
        gold, answer = (
            rf"({text}) \cdot \frac{{{of.numerator}}}{{{of.denominator}}}"
            for text, of in ((gold, gold_size), (answer, size))
        )
        return equal(gold, answer)
    if gold_unit or answer_unit:
        return _same_text(gold, answer)
    return rounded(gold, answer) or rounded(answer, gold) or equal(gold, answer)


def _without_unit(text: str) -> tuple[str, str, Fraction]:
    """Only units that are marked as such: letters at the end of an expression may be variables."""
    if _TRIGONOMETRY.search(text):
        return text, "", Fraction(1)  # the degrees of an angle, not of the value
    bare, unit, size = split_unit(text)
    ending = text[len(bare) :]
    marked = unit in ("%", "°") or r"\text" in ending or _LONG_SYMBOL.match(ending)
    return (bare, unit, size) if marked else (text, "", Fraction(1))
