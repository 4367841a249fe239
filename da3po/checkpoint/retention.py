"""Which checkpoints stay: the newest, every so many steps for ever, and the best."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from da3po.checkpoint.manifest import write_durably

BEST = "best.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The step whose evaluation had the best value of a metric so far; what best.json holds."""

    step: int
    metric: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """keep: newest ones. every: multiples of it stay for ever; 0 for none."""

    keep: int
    every: int = 0

    def retired(self, steps: Sequence[int], best: int | None) -> list[int]:
        """Of the complete checkpoints' steps, those to remove."""
        old = sorted(steps)[: -self.keep]
        return [step for step in old if step != best and not (self.every and step % self.every == 0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRule:
    """Which metric of an evaluation says what is best, and whether more (max) or less (min) of it is."""

    metric: str
    mode: Literal["max", "min"]

    def improves(self, value: float, on: Best | None) -> bool:
        """A tie is no improvement, and neither is not-a-number. A best of another metric does not count."""
        if on is None or on.metric != self.metric:
            return value == value
        return value > on.value if self.mode == "max" else value < on.value


def read_best(folder: Path) -> Best | None:
    """None if there is no pointer, or none that can be read."""
    try:
        return Best(**json.loads((folder / BEST).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_best(folder: Path, best: Best) -> None:
    """Replace the pointer; it is whole at every moment."""
    partial = folder / f".{BEST}.partial"
    write_durably(partial, json.dumps(asdict(best)))
    partial.rename(folder / BEST)
