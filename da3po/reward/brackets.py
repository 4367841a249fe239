"""Splitting an expression where no bracket is open."""

from __future__ import annotations

import re
from collections.abc import Iterator

OPENING = {"(": ")", "[": "]", "{": "}"}

_TOKEN = re.compile(r"\\begin\{[a-z]*\*?\}|\\end\{[a-z]*\*?\}|\\[A-Za-z]+|\\.|[()\[\]{}]|.", re.DOTALL)


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """(token, where it starts, bracket depth before it); brackets of any kind close any kind, as (0, 1] needs."""
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        closing = token in (")", "]", "}", r"\}") or token.startswith(r"\end{")
        if closing:
            depth = max(0, depth - 1)
        yield token, match.start(), depth
        if token in ("(", "[", "{", r"\{") or token.startswith(r"\begin{"):
            depth += 1


def split(text: str, separators: tuple[str, ...]) -> list[str]:
    """The parts between separators (characters or commands such as `\\cup`) at depth 0."""
    if not any(separator in text for separator in separators):
        return [text.strip()]
    parts, begin = [], 0
    for token, start, depth in tokens(text):
        if depth == 0 and token in separators:
            parts.append(text[begin:start])
            begin = start + len(token)
    parts.append(text[begin:])
    return [part.strip() for part in parts]


def enclosed(text: str) -> bool:
    """Whether the first character opens a bracket that the last one closes."""
    if len(text) < 2 or not (text[0] in OPENING or text.startswith(r"\{")):
        return False
    first_close = next((start + len(token) for token, start, depth in tokens(text) if start and depth == 0), len(text))
    return first_close == len(text) and text[-1] in ")]}"


def max_depth(text: str) -> int:
    if not any(bracket in text for bracket in OPENING):
        return 0
    return max((depth for _, _, depth in tokens(text)), default=0)
