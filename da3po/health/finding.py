"""What a check found, in a form that people and programs read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from da3po.config.schema import Precision

Status = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """topic: packages | gpus | host | network | slurm | run. name: what was looked at. value: what was found.

    status: ok, or worth knowing, or a reason why the run cannot work. meaning: what it enables, or what to do.
    """

    topic: str
    name: str
    value: str
    status: Status = "ok"
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the run asks of a machine.

    gpus: of this node; 0 is a run on CPU. precision: of the learner. folder: where the run writes.
    processes: learner ranks and engines that one node may have.
    """

    gpus: int
    precision: Precision
    folder: str
    processes: int
