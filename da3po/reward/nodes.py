"""What the structure of an answer is put together from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leaf:
    """One expression, equation or text."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """Several answers whose order does not matter: a list or a set."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Ordered:
    """Several values whose order matters; `brackets` as written, "" for values named by `names` (x = 1, y = 2)."""

    parts: tuple[Node, ...]
    brackets: str
    names: tuple[str, ...] = ()


Node = Leaf | Items | Ordered
