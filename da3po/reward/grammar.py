"""What the LaTeX grammar is sure to reject, told without running its parser, which takes a millisecond to say so.

The rule is sound because it asks for what every text must have that PS.g4 of latex2sympy2_extended derives. Without a
backslash in the text, each of `+ - * / : ^ ( ) ! , ; < = >` is a token of its own, but for a sign in `5E+3`, which a
digit follows, for relations such as `<=`, and `<->`, which only a matrix has; and wherever a rule has one of those on
the left below, what it has next is an expression, a set or, for `^`, an atom or a brace, none of which begins with one
on the right. Round and square brackets close each other alone. A few characters begin no token at all, and no rule has
the point that no digit follows.
"""

from __future__ import annotations

import re

# Nested ones are parsed by recursion. Text with more of them may end in a RecursionError, an error and no rejection.
MAX_SIGNS = 200
MAX_GROUPS = 8

_DANGLING = re.compile(
    r"(?:^|[-+*/:(])\s*(?:[*/:^)!,;<=>}\]]|$)|[<=>]\s*(?:[*/:^)!,;}\]]|$)|\^\s*(?:[-+*/:^()!,;<=>}\]]|$)"
)
_NO_TOKEN = re.compile('[\x00-\x08\x0b\x0c\x0e-\x1f"#$?@`\x7f-\xb0\u0400-\u2101\u2300-\U0010ffff]|\\.(?!\\d)')


def is_rejected(text: str) -> bool:
    """Whether the grammar surely rejects `text`: False where only its parser can tell."""
    if "\\" in text or not is_shallow(text):
        return False
    return _is_unbalanced(text) or bool(_DANGLING.search(text) or _NO_TOKEN.search(text))


def _is_unbalanced(text: str) -> bool:
    return text.count("(") + text.count("[") != text.count(")") + text.count("]")


def is_shallow(text: str) -> bool:
    """Whether brackets and signs in `text` are too few to nest deep."""
    return text.count("+") + text.count("-") <= MAX_SIGNS and text.count("(") + text.count("{") <= MAX_GROUPS
