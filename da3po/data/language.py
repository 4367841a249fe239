"""The language of a problem, well enough to see that a data set has two: by script, and Latin script by its words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_SCRIPTS: Mapping[str, re.Pattern[str]] = {
    "Japanese": re.compile(r"[\u3040-\u30ff]"),
    "Chinese": re.compile(r"[\u4e00-\u9fff]"),
    "Korean": re.compile(r"[\uac00-\ud7af]"),
    "Russian": re.compile(r"[\u0400-\u04ff]"),
    "Arabic": re.compile(r"[\u0600-\u06ff]"),
    "Hindi": re.compile(r"[\u0900-\u097f]"),
}
# A few characters of another script are a symbol or a name.
_MIN_CHARACTERS = 4
# Different words of a language that a text must have; a single "de" or "in" may be a name.
_MIN_WORDS = 2
_FREQUENT_WORDS: Mapping[str, str] = {
    "English": "the of is and an find what how if that with for are let be in to compute many",
    "French": "le la les des est une et un dans que pour quel soit si on du combien trouver",
    "German": "der die das und ist ein eine von mit wie den sei bestimme wenn für man dem",
    "Spanish": "el los las de es una un que en para con cuál si sea del por cuántos",
    "Portuguese": "os as de uma um que em para com qual se seja do da quantos",
    "Italian": "il lo gli di una un che per con quale se sia del della quanti",
}
_WORDS = {name: frozenset(words.split()) for name, words in _FREQUENT_WORDS.items()}
_LATIN_WORD = re.compile(r"(?<![\\\w])[^\W\d_]+")
NO_LANGUAGE = "formulas only"
OTHER = "other Latin"


def language_of(text: str) -> str:
    """A language's name, `other Latin`, or `formulas only`."""
    for name, script in _SCRIPTS.items():
        if len(script.findall(text)) >= _MIN_CHARACTERS:
            return name
    words = Counter(word.lower() for word in _LATIN_WORD.findall(text) if len(word) > 1)
    scores = {name: len(known & words.keys()) for name, known in _WORDS.items()}
    best = max(scores, key=lambda name: scores[name])
    if scores[best] >= (1 if best == "English" else _MIN_WORDS):
        return best
    return OTHER if any(len(word) > 3 for word in words) else NO_LANGUAGE
