"""Where the time of one step went."""

from __future__ import annotations

import time

from da3po.types import StepStats


class Laps:
    """A stop watch whose laps add up to the step: every second between two laps belongs to exactly one of them."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """End the lap `name` now; a name used twice adds up."""
        now = time.perf_counter()
        self._laps[name] = self._laps.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        return sum(self._laps.values())

    def stats(self) -> StepStats:
        """time/<lap> in seconds for every lap, and time/step for their sum."""
        return StepStats({f"time/{name}": seconds for name, seconds in self._laps.items()} | {"time/step": self.total})
