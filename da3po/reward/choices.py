"""Multiple choice: answers that are one letter of A to J."""

from __future__ import annotations

import re

from da3po.reward.extract import marked_answer, visible

_GOLD = re.compile(r"(?:\(([A-J])\)(?:\s+.*)?|([A-J])[.:)]?(?:\s+[^\W\d_]{2,}.*)?|([A-J])[.:)]\s+\S.*)", re.DOTALL)
_GOLD_SENTENCE = re.compile(r"answer is\s*:?\s*\(?([A-J])\)?(?![\w])", re.IGNORECASE)
_DECORATION = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}")
_LETTER = re.compile(r"(?<![A-Za-zÀ-ɏ0-9_'’\\])\(?([A-J])\)?(?![A-Za-zÀ-ɏ0-9_^'’])")
# Naming one letter after another is no answer.
_ALTERNATIVE = re.compile(r"\s*\)?\s*(?:,?\s*(?:or|and)|,|/)\s*\(?[A-HJ](?![\w'’])")
_ONLY_LETTERS = re.compile(r"\W*[A-J](?:\W+(?:or|and)?\W*[A-J])+\W*")
_ANCHOR = re.compile(r"(?i:answer|choice|option)\s*(?:is|:)?[^A-J\n]{0,30}?\(?(?<![A-Za-z])([A-J])\)?(?![\w^'’])")

_NEGATION = re.compile(r"\b(?:not|never|cannot|neither|nor|except|other than|anything but)\b|n't", re.IGNORECASE)
_NEGATED = re.compile(
    rf"(?:{_NEGATION.pattern})(?:\s+(?:be|equal|to|the|answer|choice|option|correct))*[\s(*]*$", re.IGNORECASE
)
_LONGEST_NEGATION = 60


def choice_of_gold(gold: str) -> str | None:
    """The letter that a reference such as `C`, `(C) Cecile` or `... the answer is (C)` names; else None."""
    text = _DECORATION.sub(r"\1", gold).strip().strip("$").strip()
    sentence = _GOLD_SENTENCE.search(text)
    if sentence:
        return sentence[1].upper()
    match = _GOLD.fullmatch(text)
    return next(group for group in match.groups() if group) if match else None


def names_choice(answer: str, letter: str) -> bool:
    """Whether a final answer is that letter alone, small or large, with or without brackets."""
    return _DECORATION.sub(r"\1", answer).strip("() .$").upper() == letter


def choice_of_response(response: str) -> str | None:
    """The letter that a response settles on; None if it names none, "" if it names several or only rules some out."""
    text = visible(response)
    if text is None:
        return None
    marked = marked_answer(text)
    if marked is not None:
        marked = _DECORATION.sub(r"\1", marked)
        named = list(_LETTER.finditer(marked))
        letters = {letter[1] for letter in named if not _is_negated(marked, letter.start())}
        return letters.pop() if len(letters) == 1 else "" if named else None
    anchored = [anchor for anchor in _ANCHOR.finditer(text) if not _NEGATION.search(anchor.group())]
    if anchored:
        return "" if _ALTERNATIVE.match(text, anchored[-1].end()) else anchored[-1][1]
    if _ONLY_LETTERS.fullmatch(text):
        return ""
    named = list(_LETTER.finditer(text))
    chosen = [letter[1] for letter in named if not _is_negated(text, letter.start())]
    return chosen[-1] if chosen else "" if named else None


def _is_negated(text: str, end: int) -> bool:
    return bool(_NEGATED.search(text, max(0, end - _LONGEST_NEGATION), end))
