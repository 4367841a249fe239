"""How much an answer may ask of the grader. What asks for more is an error of that answer, counted as such."""

from __future__ import annotations

MAX_LENGTH = 2000  # characters of an answer that is more than digits
MAX_DEPTH = 60  # brackets open at once
MAX_GOLDS = 4096  # references whose reading is kept, for all responses of a group


class TooComplexError(ValueError):
    """An answer that would take unbounded time or memory to compare."""
