"""Where metrics go: a JSON line a step, and TensorBoard files. Each sink continues after the step it is opened at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from da3po.runtime.jsonl import JsonlFile, read_rows


class MetricsSink(Protocol):
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of one step; whatever was recorded survives the end of the process."""
        ...

    def close(self) -> None: ...


class JsonlSink:
    """One object a step in one file; after a resume too, each step is there once, with its final values."""

    def __init__(self, path: Path, *, after: int) -> None:
        self._path = path
        self._file = JsonlFile(path, after=after)
        self._steps = {row["step"] for row in read_rows(path)}

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if step in self._steps:  # a resumed run evaluates once more the weights that it starts with
            self._file.close()
            self._file = JsonlFile(self._path, after=step - 1)
        self._steps.add(step)
        self._file.write(step, values)

    def close(self) -> None:
        self._file.close()


class TensorBoardSink:
    """Scalars in TensorBoard's event files. A resumed run writes a new file that hides later steps of older ones.

    What is there of earlier steps stays, as no file can hide it: a resumed run that evaluates once more the weights it
    starts with does not add a second point.
    """

    def __init__(self, folder: Path, *, after: int) -> None:
        # Takes a second to import, and most processes and commands write no events.
        from torch.utils.tensorboard.writer import SummaryWriter

        self._folder = folder
        self._after = after
        self._writer = SummaryWriter(str(folder), purge_step=after + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        there = self._names_at(step) if step <= self._after else set()
        for name, value in values.items():
            if name not in there:
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def _names_at(self, step: int) -> set[str]:
        from tensorboard.backend.event_processing import event_accumulator

        board = event_accumulator.EventAccumulator(str(self._folder), {event_accumulator.SCALARS: 0})
        board.Reload()
        names = board.Tags()["scalars"]
        return {name for name in names if any(event.step == step for event in board.Scalars(name))}

    def close(self) -> None:
        self._writer.close()
