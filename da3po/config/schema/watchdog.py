"""How long each phase of a training step may take."""

from __future__ import annotations

from dataclasses import dataclass, fields

from da3po.config.schema.validation import require


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogConfig:
    """Seconds after which a phase is late: the stacks of all processes are written to the run's logs, and the late ones
    are named. 0 watches a phase not at all.

    generate, learn, sync, save, evaluate: the phases.
    grace: seconds that a late phase has left before the run is ended.
    """

    generate: float = 7200.0
    learn: float = 7200.0
    sync: float = 3600.0
    save: float = 3600.0
    evaluate: float = 14400.0
    grace: float = 600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            require(value >= 0, f"watchdog.{field.name} must be >= 0, got {value}")
