"""Rows of a data set of the Hugging Face Hub, through the `datasets` library (the extra `hub`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from da3po.data.problems import DataError

HUB_PREFIX = "hub:"
DEFAULT_SPLIT = "train"

_NAME = re.compile(r"(?P<path>[\w.-]+/[\w.-]+)(?::(?P<split>[\w.-]+))?")


def read_hub(name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows of `hub:OWNER/NAME[:SPLIT]`, numbered from 1. The split is `train` if none is named.

    What has been fetched once is read from the Hub's cache afterwards, also without a network (HF_HUB_OFFLINE=1).

    Raises:
        DataError: there is no such data set or split, no network, or no `datasets` library.
    """
    match = _NAME.fullmatch(name.removeprefix(HUB_PREFIX))
    if not match:
        raise DataError(f"{name}: expected hub:OWNER/NAME or hub:OWNER/NAME:SPLIT")
    split = match["split"] or DEFAULT_SPLIT
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{name}: data sets of the Hub need the `datasets` library: pip install 'da3po[hub]', "
            "or name a .parquet or .jsonl file"
        ) from None
    try:
        rows = datasets.load_dataset(match["path"], split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"{name}: {str(error).splitlines()[0]}; without a network, fetch it before (hf download "
            f"--repo-type dataset {match['path']}) or name a local .parquet or .jsonl file"
        ) from error
    yield from enumerate(rows, start=1)
