"""What runs inside a grader process. It imports no torch, ray or vllm, so that a killed one is replaced in a moment."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from da3po.reward.graders import GRADERS, Grader, GraderError, load_grader
from da3po.types import Grade, Outcome

# A library that starts a thread per core would make one grader as heavy as the learner beside it.
_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PARENT_CHECK = 2.0  # seconds between looks at whether the run is still there
_process_grader: list[Grader] = []  # the one grader of this process, set by `start`


def start(name: str, memory_mb: int, parent: int) -> None:
    """Make this process a grader: load it, then limit what it may add to its memory, and end with `parent`."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Python handler would wait for a long C call to end
    for variable in _THREAD_COUNTS:
        os.environ.setdefault(variable, "1")
    load(name)
    if name in GRADERS:
        grade_chunk("x + 1", ["y"])  # SymPy and its parser load now, and not on some answer's time
    if sys.platform == "linux":
        _limit_memory(memory_mb)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def load(name: str) -> None:
    """Make `name` the grader of this process."""
    _process_grader[:] = [load_grader(name)]


def grade_chunk(gold: str, responses: Sequence[str]) -> list[Grade]:
    """One grade per response, in order. A failure of the grader on a response is that response's outcome."""
    [grader] = _process_grader
    return [_grade_one(grader, gold, response) for response in responses]


def _grade_one(grader: Grader, gold: str, response: str) -> Grade:
    try:
        return grader(gold, response)
    except GraderError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - it is the outcome "error", and counted
        return Grade(outcome=Outcome.ERROR, detail=f"{type(error).__name__}: {str(error)[:200]}")


def _limit_memory(memory_mb: int) -> None:
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a file of ours
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    limit = mapped + memory_mb * 2**20
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK)
    os._exit(1)
