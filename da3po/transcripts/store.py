"""Every response of a run's last steps, a compressed parquet file for each step.

RUN/rollouts/step_000012.parquet: a row for each response (see `da3po.transcripts.rows`).
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from da3po.config.schema import ConfigError
from da3po.transcripts.rows import batch_rows
from da3po.types import StepBatch, StepStats

logger = logging.getLogger(__name__)

FOLDER = "rollouts"
MAX_WRITES = 2
_NAME = re.compile(r"step_(\d+)\.parquet")

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("prompt_uid", pa.string()),
        ("draw", pa.int64()),
        ("epoch", pa.int32()),
        ("source", pa.string()),
        ("prompt", pa.string()),
        ("gold", pa.string()),
        ("p_hat", pa.float64()),
        ("dropped", pa.string()),
        ("sample", pa.int32()),
        ("response", pa.string()),
        ("outcome", pa.string()),
        ("answer", pa.string()),
        ("grading", pa.string()),
        ("finish", pa.string()),
        ("num_tokens", pa.int32()),
        ("mean_logprob", pa.float64()),
        ("versions", pa.list_(pa.list_(pa.int64()))),
        ("reward", pa.float64()),
        ("advantage_before_daa", pa.float64()),
        ("advantage", pa.float64()),
    ]
)


class Transcripts:
    """Writes each step's responses beside the run, keeps the newest steps, and reads them again."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / FOLDER

    def steps(self) -> list[int]:
        """Those that are there, oldest first."""
        if not self._folder.is_dir():
            return []
        names = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in names if match)

    def write(self, batch: StepBatch, keep: int) -> None:
        """keep: steps that are left, this one included. A file under its final name is whole."""
        self._folder.mkdir(exist_ok=True)
        table = pa.Table.from_pylist([_storable(row) for row in batch_rows(batch)], schema=SCHEMA)
        writing = self._folder / ".writing"
        pq.write_table(table, writing, compression="zstd")
        writing.rename(self._path(batch.step))
        self.drop(lambda step: step <= batch.step - keep)

    def drop(self, which: Callable[[int], bool]) -> None:
        for step in filter(which, self.steps()):
            self._path(step).unlink()

    def read(self, step: int | None) -> Iterator[dict[str, Any]]:
        """The rows of a step, of the newest if it is None. Raises ConfigError naming the steps that there are."""
        stored = self.steps()
        if not stored:
            raise ConfigError(f"there are no rollouts in {self._folder} (logging.keep_rollouts)")
        if step is not None and step not in stored:
            raise ConfigError(f"{self._folder} has no step {step}; it has {_ranges(stored)}")
        # A file at a time and a batch of rows at a time: responses may be long.
        for rows in pq.ParquetFile(self._path(stored[-1] if step is None else step)).iter_batches(1024):
            yield from rows.to_pylist()

    def _path(self, step: int) -> Path:
        return self._folder / f"step_{step:06d}.parquet"


class Recorder(Protocol):
    def step(self, samples: StepBatch, stats: StepStats) -> None: ...


class StoringRecorder:
    """Records a step, and has its responses written while training goes on.

    Two writes may be under way; a step waits for the older of them. What went wrong with one is raised at a later step
    and at the end.
    """

    def __init__(self, recorder: Recorder, transcripts: Transcripts, *, keep: int, after: int) -> None:
        """
        Args:
            keep: newest steps kept.
            after: the step that the run goes on from; later ones, of a run that was cut back to it, go.
        """
        self._recorder = recorder
        self._transcripts = transcripts
        self._keep = keep
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="transcripts")
        self._writing: deque[Future[None]] = deque()
        transcripts.drop(lambda step: step > after)

    def step(self, samples: StepBatch, stats: StepStats) -> None:
        self._recorder.step(samples, stats)
        self._settle(MAX_WRITES - 1)
        self._writing.append(self._threads.submit(self._transcripts.write, samples, self._keep))

    def __enter__(self) -> StoringRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for what is under way. Where a run ends by an error already, that stays its error."""
        self._threads.shutdown()
        try:
            self._settle(0)
        except OSError as error:
            if kind is None:
                raise
            logger.warning("rollouts could not be stored: %s", error)

    def _settle(self, left: int) -> None:
        """Wait until so many are under way. A write that failed stays, and is raised again whenever it is looked at."""
        while self._writing and (len(self._writing) > left or self._writing[0].done()):
            self._writing[0].result()
            self._writing.popleft()


def _storable(row: dict[str, Any]) -> dict[str, Any]:
    """A model may print half a surrogate pair, which UTF-8 does not have: it is written as an escape."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
        for name, value in row.items()
    }


def _ranges(steps: Sequence[int]) -> str:
    """`4 to 9`, or `4 to 9 and 12`."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    return " and ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)
