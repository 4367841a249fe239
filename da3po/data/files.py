"""Rows of a .parquet or .jsonl file, each with its number."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from da3po.data.hub import HUB_PREFIX, read_hub
from da3po.data.problems import DataError

logger = logging.getLogger(__name__)

Row = tuple[int, Mapping[str, Any]]
CutOff = Callable[[DataError], None]

PACKAGE_PREFIX = "package:"


def resolve_path(name: str) -> Path:
    """The file that `name` means: a path, or `package:NAME` for the data that ships with da3po."""
    if not name.startswith(PACKAGE_PREFIX):
        path = Path(name).expanduser()
        if not path.is_file():
            raise DataError(f"no such data file: {name}")
        return path
    folder = resources.files("da3po.data") / "package"
    path = Path(str(folder / f"{name.removeprefix(PACKAGE_PREFIX)}.parquet"))
    if not path.is_file():
        known = sorted(f"{PACKAGE_PREFIX}{file.stem}" for file in path.parent.glob("*.parquet"))
        raise DataError(f"da3po ships no data named {name}; there are {known}")
    return path


def open_rows(name: str) -> Iterator[Row]:
    """Rows of a file, of `package:NAME` or of `hub:OWNER/NAME[:SPLIT]`."""
    return read_hub(name) if name.startswith(HUB_PREFIX) else read_rows(resolve_path(name))


def short_name(name: str) -> str:
    """What rows without a `source` of their own come from: the file's stem, or the Hub's name."""
    if name.startswith(HUB_PREFIX):
        return name.removeprefix(HUB_PREFIX).partition(":")[0].rpartition("/")[2]
    return Path(name.removeprefix(PACKAGE_PREFIX)).stem


def _warn(cut_off: DataError) -> None:
    logger.warning("%s; it is the last line and was left out", cut_off)


def read_rows(path: Path, on_cut_off: CutOff = _warn) -> Iterator[Row]:
    """Rows in file order, numbered from 1 (jsonl: by line). Raises DataError for a file that cannot be read.

    on_cut_off: is told of a last line that is not whole, as an interrupted writer leaves it; no row comes of it.
    """
    try:
        reader = READERS[path.suffix.lower()]
    except KeyError:
        raise DataError(f"{path}: expected a file that ends in {' or '.join(READERS)}") from None
    return reader(path, on_cut_off)


def _read_parquet(path: Path, on_cut_off: CutOff) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path}: not a parquet file ({error})") from None
    number = 0
    with file:
        batches = file.iter_batches()
        while True:
            try:
                rows = next(batches).to_pylist()
            except StopIteration:
                return
            except (pyarrow.ArrowException, OSError) as error:
                raise DataError(f"{path}: damaged after row {number} ({error})") from None
            for row in rows:
                number += 1
                yield number, row


def _read_jsonl(path: Path, on_cut_off: CutOff) -> Iterator[Row]:
    """Lines end at \\n only, since U+2028 and the like are legal inside a JSON string; blank lines are skipped.

    A bad line anywhere but at the end is an error.
    """
    bad: DataError | None = None
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            if bad is not None:
                raise bad
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                bad = DataError(f"{path}, line {number}: not valid JSON ({error})")
                continue
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {number}: expected an object, got {type(row).__name__}")
            yield number, row
    if bad is not None:
        on_cut_off(bad)


READERS: Mapping[str, Callable[[Path, CutOff], Iterator[Row]]] = {".parquet": _read_parquet, ".jsonl": _read_jsonl}
