"""Seeded texts for the tests of what spares the parser: expressions, some with a slip, and noise."""

from __future__ import annotations

import random

NOISE = [*"0123456789" * 2, *"++--**//^::!.()eixnAsEd,<=>;", " ", r"\cdot ", r"\times ", "^{2}", "^2"]
ATOMS = ("0", "1", "2", "7", "12", "305", "0.5", "1.25", "x", "n", "A", "s", "e", "E", "9x", "4e", "3n2")


def expression(draw: random.Random, depth: int) -> str:
    kind = draw.random()
    if depth == 0 or kind < 0.2:
        return draw.choice(ATOMS)
    left = expression(draw, depth - 1)
    if kind < 0.5:
        return left + draw.choice(("+", "-", " + ", "+-", "--")) + expression(draw, depth - 1)
    if kind < 0.8:
        return left + draw.choice(("*", "/", ":", r" \cdot ", r"\times ", "", " ")) + expression(draw, depth - 1)
    return f"({left})" if kind < 0.9 else left + draw.choice(("^2", "^{3}", "^{12}"))


def text(draw: random.Random) -> str:
    if draw.random() < 0.3:
        return "".join(draw.choices(NOISE, k=draw.randrange(1, 16))).strip()
    made = expression(draw, draw.randrange(1, 5))
    if draw.random() < 0.3:
        position = draw.randrange(len(made))
        made = made[:position] + draw.choice(NOISE) + made[position + draw.randrange(2) :]
    return made.strip()
