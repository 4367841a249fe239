"""A run of fakes as a command, for signals from outside. A script that the tests start.

python signalled.py FOLDER PHASE STEP SECONDS [OVERRIDE ...]     it stays there for so long, and says so
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from resumable import Run

from da3po.command import run_command, run_main_task
from da3po.resume import where_it_goes_on
from da3po.runtime.interruption import Interrupted


def main(folder: Path, phase: str, step: int, seconds: float, overrides: list[str]) -> int:
    async def enters(now: str, at: int) -> None:
        if (now, at) == (phase, step):
            print("here", file=sys.stderr, flush=True)
            await asyncio.sleep(seconds)

    run = Run(folder, *overrides, enters=enters)

    def body() -> int:
        try:
            run.go(lambda work: run_main_task(work, run.interruption))
        except Interrupted:
            print(where_it_goes_on(run.checkpoints), flush=True)
            raise
        return 0

    return run_command(body)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]))
