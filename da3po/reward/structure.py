"""What an answer is made of: a list, a tuple, an interval, a set, a matrix, or one expression."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from da3po.reward.brackets import OPENING, enclosed, split
from da3po.reward.intervals import interval, joint_interval
from da3po.reward.nodes import Items, Leaf, Node, Ordered

_CONNECTIVE = re.compile(r"(?<![A-Za-z\\{])(?:and|or)(?![a-z])|\\(?:wedge|vee)(?![A-Za-z])")
_MATRIX = re.compile(
    r"\\begin\{(?P<kind>[pbB]?matrix\*?|smallmatrix|array)\}(?:\s*\{[lcr| ]*\})?"
    r"(?P<body>(?:(?!\\begin).)*?)\\end\{(?P=kind)\}",
    re.DOTALL,
)
_ROW_END = re.compile(r"\\\\(?:\s*\[\s*-?[\d.]+\s*(?:mm|cm|pt|ex|em|in)\s*\])?")
_TRANSPOSED = re.compile(r"(.+?)\s*\^\s*(?:T|\\top|\{\s*(?:T|\\top|\\intercal)\s*\})", re.DOTALL)
_VECTOR = re.compile(r"\\langle(?![A-Za-z])(.*)\\rangle", re.DOTALL)
_SIGN = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_MAX_SIGNS = 3
_OUTWARD = re.compile(r"([\[\](])([^\[\](),]+[,;][^\[\](),]+)([\[\])])")
_NAME = r"(?:\\?[A-Za-z]+(?:_\s*(?:\{[^{}]*\}|\w))?'*)"
_SIMPLE = re.compile(
    rf"(?:m?\s*\\angle\s*)?(?:{_NAME}(?:\s*\^\s*\{{?\s*-1\s*\}}?)?(?:\([^()=<>]*\))?|\|\s*[A-Z]{{2}}\s*\||\\overline\s*\{{[A-Z]+\}}"
    rf"|\\frac\s*\{{{_NAME}\}}\s*\{{{_NAME}\}}|{_NAME}(?:\s*:\s*{_NAME})+|\(\s*{_NAME}(?:\s*,\s*{_NAME})+\s*\))"
)
_MEMBERSHIP = re.compile(rf"\s*{_SIMPLE.pattern}\s*\\in(?![A-Za-z])\s*")
_BUILDER = re.compile(
    rf"\\\{{\s*(?P<name>{_NAME})\s*(?:\\in\s*\\mathbb\s*\{{?R\}}?\s*)?(?:\\mid|\\vert|\||:)\s*"
    r"(?P<condition>(?=.*(?:<|>|\\le|\\ge|\\ne)).*)\\\}"
)


def parse(text: str) -> Node:
    """The structure of a normalised answer."""
    text = _MEMBERSHIP.sub("", text.strip(), count=1) if _MEMBERSHIP.match(text.strip()) else text.strip()
    text = _OUTWARD.sub(lambda ends: _facing(ends), text) if text[:1] == "]" or text[-1:] == "[" else text
    matrix = _MATRIX.fullmatch(_unwrapped(text))
    if matrix:
        return _matrix(matrix["body"])
    text = _VECTOR.sub(r"(\1)", text) if _VECTOR.fullmatch(text) else text
    if joint := joint_interval(text) or _transposed(text):
        return joint
    groups = [group for group in split(_CONNECTIVE.sub(";", text), (";",)) if group]
    lists = [[part for part in split(group, (",",)) if part] for group in groups]
    if len(lists) > 1 or (lists and len(lists[0]) > 1):
        return _list(lists)
    united = split(text, (r"\cup",))
    if len(united) > 1:
        return Items(tuple(parse(part) for part in united))
    return _named_tuple(text) or _signs(text) or _enclosed(text) or interval(text) or Leaf(text)


def _facing(ends: re.Match[str]) -> str:
    """`]0, 1[` as (0, 1): brackets that are turned away leave their end out."""
    left, inner, right = ends.groups()
    return ("(" if left == "]" else left) + inner + (")" if right == "[" else right)


def _unwrapped(text: str) -> str:
    return text[1:-1].strip() if enclosed(text) and text[0] == "(" and r"\begin" in text else text


def _matrix(body: str) -> Node:
    rows = [row for row in _ROW_END.split(body) if row.strip()]
    return Ordered(tuple(Ordered(tuple(parse(cell) for cell in split(row, ("&",))), "row") for row in rows), "matrix")


def _transposed(text: str) -> Node | None:
    """`(1, 2)^T` as a column, a matrix with its rows as columns."""
    match = _TRANSPOSED.fullmatch(text)
    node = parse(match[1]) if match else None
    if not isinstance(node, Ordered):
        return None
    if node.brackets == "()":
        return Ordered(tuple(Ordered((part,), "row") for part in node.parts), "matrix")
    rows = [row.parts for row in node.parts if isinstance(row, Ordered)]
    if node.brackets != "matrix" or len({len(row) for row in rows}) != 1:
        return None
    return Ordered(tuple(Ordered(column, "row") for column in zip(*rows, strict=True)), "matrix")


def _list(groups: list[list[str]]) -> Node:
    if len(groups) > 1 and any(len(group) > 1 and _names(group) for group in groups):
        return Items(tuple(_group(group) for group in groups))
    flat = [part for group in groups for part in group]
    return _group(flat)


def _group(parts: list[str]) -> Node:
    names = _names(parts)
    if names and len(parts) > 1 and len({re.sub(r"_.*|\d", "", name) for name in names}) == len(names):
        return Ordered(tuple(parse(_value(part)) for part in parts), "", names)
    if len(parts) > 1:
        return Items(tuple(parse(_value(part) if assignment(part) else part) for part in parts))
    return parse(parts[0])


def _names(parts: list[str]) -> tuple[str, ...]:
    """The left-hand sides if every part is an assignment, else none."""
    assigned = [assignment(part) for part in parts]
    return tuple(pair[0] for pair in assigned if pair) if all(assigned) else ()


def _value(part: str) -> str:
    pair = assignment(part)
    return pair[1] if pair else part


def assignment(text: str) -> tuple[str, str] | None:
    """(name, value) of `name = ... = value`, where the name is a symbol, f(x), a ratio or the like; else None.

    A chain of equalities means its last value; `\\approx` after an equality is a remark, alone it assigns.
    """
    approximate = split(text, (r"\approx",))
    if len(approximate) > 1 and "=" not in approximate[0]:
        sides = [approximate[0], approximate[-1]]
    else:
        sides = split(approximate[0], ("=",))
    if len(sides) < 2 or not sides[-1]:
        return None
    name = re.sub(r"\s+", "", sides[0])
    if not _SIMPLE.fullmatch(sides[0].strip()) and not (len(sides) > 2 and _SIMPLE.fullmatch(sides[-2].strip())):
        return None
    return name, sides[-1]


def _named_tuple(text: str) -> Node | None:
    """`(x, y) = (1, 2)`: a tuple whose places have names."""
    pair = assignment(text)
    if pair is None or not (enclosed(pair[0]) and enclosed(pair[1])):
        return None
    names = tuple(split(pair[0][1:-1], (",",)))
    node = _enclosed(pair[1])
    if not isinstance(node, Ordered) or len(node.parts) != len(names) or node.brackets != "()":
        return None
    return Ordered(node.parts, "()", names)


def _enclosed(text: str) -> Node | None:
    if not enclosed(text):
        return None
    if builder := _BUILDER.fullmatch(text):
        return parse(builder["condition"])
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return _as_items(parse(text[2:-2]))
    inner = split(text[1:-1], (",", ";"))
    if text[0] == "{" and text[-1] == "}":
        return _as_items(parse(text[1:-1])) if len(inner) > 1 else parse(text[1:-1])
    if text[0] not in OPENING:
        return None
    if len(inner) == 1:
        return parse(inner[0]) if inner[0] and text[0] + text[-1] in ("()", "[]") else None
    return Ordered(tuple(parse(part) for part in inner), text[0] + text[-1])


def _as_items(node: Node) -> Node:
    return node if isinstance(node, Items) else Items((node,))


def _signs(text: str) -> Node | None:
    """`a \\pm b` is two answers."""
    value = _value(text)
    num_signs = len(_SIGN.findall(value))
    if not 0 < num_signs <= _MAX_SIGNS or value.startswith((r"\{", "{", "[")):
        return None
    linked = num_signs > 1 and r"\mp" in value  # upper signs together, lower signs together
    choices = ("+" * num_signs, "-" * num_signs) if linked else itertools.product("+-", repeat=num_signs)
    return Items(tuple(parse(_signed(value, signs)) for signs in choices))


def _signed(value: str, signs: Iterable[str]) -> str:
    """`value` with each \\pm as its sign says and each \\mp against it."""
    left = iter(signs)
    opposite = {"+": "-", "-": "+"}

    def write(sign: re.Match[str]) -> str:
        upper = next(left)
        return upper if sign[1] == "pm" else opposite[upper]

    return re.sub(r"([({])\s*\+", r"\1", _SIGN.sub(write, value).lstrip("+ "))
