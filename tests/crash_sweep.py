"""Kills a run, as kill -9 does, at every single thing that it does to its run directory. Run as a script by the tests.

    python crash_sweep.py FOLDER FIRST STRIDE [OVERRIDE ...]

A process is forked for each death, so that modules are imported once. It prints, as a JSON line for each, the number of
the operation, what it was, and whether the run that was started again came to the same end as one that never died.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from resumable import Run

OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")


def in_child(work: Callable[[], None]) -> int:
    """The wait status of a child that does this and nothing else."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def die_at(number: int, folder: Path, note: Path) -> None:
    """Arrange that this process dies before its operation of this number under `folder`, which `note` then tells."""
    count = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in OPERATIONS or str(folder) not in str(arguments[0]) or _reads(event, arguments):
            return
        count += 1
        if count == number:
            descriptor = os.open("/dev/null", os.O_RDONLY)  # keeps the note out of the count
            os.close(descriptor)
            note.write_text(f"{event} {Path(str(arguments[0])).relative_to(folder)}")
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def _reads(event: str, arguments: tuple[Any, ...]) -> bool:
    return event == "open" and isinstance(arguments[1], str) and not set(arguments[1]) & set("wax+")


def finish(folder: Path, overrides: list[str], result: Path) -> None:
    result.write_text(json.dumps(Run(folder, *overrides).go().seen(), default=str))


def main(root: Path, first: int, stride: int, overrides: list[str]) -> None:
    assert in_child(lambda: finish(root / "whole", overrides, root / "whole.json")) == 0
    whole = (root / "whole.json").read_text()
    number = first
    while True:
        folder, note, result = (root / f"{number}{kind}" for kind in ("", ".note", ".json"))

        def run_and_die(number: int = number, folder: Path = folder, note: Path = note) -> None:
            die_at(number, folder, note)
            Run(folder, *overrides).go()

        status = in_child(run_and_die)
        if status == 0:
            return  # it does fewer things than that
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        ended = in_child(lambda folder=folder, result=result: finish(folder, overrides, result)) == 0
        same = ended and result.read_text() == whole
        print(json.dumps({"operation": number, "what": note.read_text(), "same": same}), flush=True)
        number += stride


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
