"""Errors of concurrent tasks, as one error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def first_error() -> Iterator[None]:
    """Around an asyncio.TaskGroup: raise the first error of its tasks itself, not a group that holds it.

    The others are consequences of it, or say the same again; callers can catch it by its own type.
    """
    try:
        yield
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__
