"""What a person watching a run sees: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from typing import Literal, Protocol, TextIO

from rich.console import Console as RichTerminal
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

MISSING = "-"
# Label, metric and format of each figure of a step's line, in order; a metric that a step lacks shows as "-".
FIGURES = (
    ("acc", "rollout/accuracy", ".3f"),
    ("reward", "reward/mean", "+.2f"),
    ("loss", "loss/policy", "+.4f"),
    ("grad", "actor/grad_norm", ".2f"),
    ("lr", "actor/lr", ".1e"),
    ("entropy", "actor/entropy", ".2f"),
    ("mismatch", "mismatch/mean_abs_logprob", ".1e"),
)
PHASES = (("gen", "time/generate"), ("learn", "time/learn"), ("sync", "time/sync"))


class Console(Protocol):
    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Show the metrics of a finished step."""
        ...

    def event(self, message: str) -> None:
        """Show something worth knowing that is no metric."""
        ...

    def close(self) -> None: ...


class PlainConsole:
    """One line for each step or event, flushed, as logs and pipes want it."""

    def __init__(self, stream: TextIO, *, last_step: int) -> None:
        self._stream = stream
        self._last_step = last_step

    def step(self, step: int, values: Mapping[str, float]) -> None:
        self.event(step_line(step, self._last_step, values))

    def event(self, message: str) -> None:
        print(message, file=self._stream, flush=True)

    def close(self) -> None:
        self._stream.flush()


class RichConsole:
    """The same lines, with a bar below them that tells how far the run is and how long it will take."""

    def __init__(self, terminal: RichTerminal, *, first_step: int, last_step: int) -> None:
        self._last_step = last_step
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=terminal,
        )
        self._task = self._progress.add_task("training", total=last_step, completed=first_step - 1)
        self._progress.start()

    def step(self, step: int, values: Mapping[str, float]) -> None:
        head, _, rest = step_line(step, self._last_step, values).partition("  ")
        self._print(Text.assemble((head, "bold cyan"), "  ", rest))
        self._progress.update(self._task, completed=step)

    def event(self, message: str) -> None:
        self._print(Text(message))  # a Text, since a message may hold brackets that are no markup

    def close(self) -> None:
        self._progress.stop()

    def _print(self, text: Text) -> None:
        self._progress.console.print(text, soft_wrap=True, highlight=False)


def build_console(
    mode: Literal["auto", "rich", "plain"], *, first_step: int, last_step: int, stream: TextIO | None = None
) -> Console:
    """The console for `logging.console`, on standard output unless another stream is given."""
    stream = sys.stdout if stream is None else stream
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # a model's text has characters that a terminal may lack
    if mode == "plain" or (mode == "auto" and not stream.isatty()):
        return PlainConsole(stream, last_step=last_step)
    return RichConsole(RichTerminal(file=stream, force_terminal=True), first_step=first_step, last_step=last_step)


def step_line(step: int, last_step: int, values: Mapping[str, float]) -> str:
    """`step 3/30  acc 0.341  reward -0.32  kept 64/96  loss ...  5.4 s (gen 3.1 learn 1.9 sync 0.1)`."""

    def shown(metric: str, form: str) -> str:
        return format(values[metric], form) if metric in values else MISSING

    kept = f"kept {shown('rollout/num_prompts_kept', '.0f')}/{shown('rollout/num_prompts_generated', '.0f')}"
    figures = [f"{label} {shown(metric, form)}" for label, metric, form in FIGURES]
    phases = " ".join(f"{label} {shown(metric, '.1f')}" for label, metric in PHASES)
    time = f"{shown('time/step', '.1f')} s ({phases})"
    return "  ".join([f"step {step}/{last_step}", *figures[:2], kept, *figures[2:], time])
