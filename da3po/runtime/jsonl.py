"""A file of JSON objects, one a line, each with its `step`, that a resumed run continues where it left off."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Valid inside a JSON string, but some readers end a line at them.
_LINE_BREAKS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\u0085\u2028\u2029"}


class JsonlFile:
    """Appends rows, each flushed as one whole line, so that a run that dies leaves all it wrote readable.

    Numbers that JSON cannot hold are written as the strings "nan", "inf" and "-inf", which float() reads back.
    """

    def __init__(self, path: Path, *, after: int) -> None:
        """Open for appending; rows of steps after `after`, left by a run that went on past its checkpoint, go."""
        self._path = path
        rewind(path, after)
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace")

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        row = {"step": step} | {name: _encodable(value) for name, value in values.items()}
        line = json.dumps(row, ensure_ascii=False, allow_nan=False).translate(_LINE_BREAKS)
        self._file.write(line + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def rewind(path: Path, step: int) -> None:
    """Drop rows of later steps, and a last line that was cut off while it was written. No file is an empty file."""
    if not path.exists():
        return
    kept = "".join(line for row, line in _whole_lines(path) if _step_of(path, row) <= step)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(kept, encoding="utf-8")
    partial.replace(path)


def _step_of(path: Path, row: dict[str, Any]) -> int:
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        raise ValueError(f"{path} has a row without a step: {row!r:.80}")
    return row["step"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows, in file order; "nan", "inf" and "-inf" stay strings."""
    return [row for row, _ in _whole_lines(path)]


def _whole_lines(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                return  # the write of the last line was cut off
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
            yield row, line


def _encodable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
