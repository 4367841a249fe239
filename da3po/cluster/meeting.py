"""A folder that the nodes of a job share, through which they learn of each other. Standard library only.

    head      address of the head's Ray                    written by the head, awaited by all others
    up-K      node K has joined                            written by node K, awaited by the head
    ended     exit code of the run                         written by the head; the others then leave

That a node sees `head`, and the head `up-K`, also shows that the file system is one that all nodes share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

POLL_SECONDS = 0.5
HEAD, ENDED = "head", "ended"


class MeetingError(RuntimeError):
    """Some nodes did not come; the message names them."""


class Meeting:
    """One attempt of a job; a requeued job meets in another folder."""

    def __init__(self, folder: Path, timeout: float) -> None:
        """timeout: seconds within which the others must come."""
        self._folder = folder
        self._timeout = timeout

    def announce(self, address: str) -> None:
        self._write(HEAD, address)

    def arrive(self, node: int, name: str) -> None:
        self._write(f"up-{node}", name)

    def end(self, exit_code: int) -> None:
        self._write(ENDED, str(exit_code))

    def has_ended(self) -> bool:
        return ENDED in self._names()

    def head(self, check: Callable[[], None]) -> str:
        """The head's address, once it is there. `check` is called while waiting and may raise."""

        def objection() -> str:
            if not self._folder.is_dir():
                return f"{self._folder} is not visible here: it must lie on a file system that all nodes share"
            return "" if HEAD in self._names() else f"the head of the cluster wrote no address to {self._folder}"

        self._wait(objection, check)
        return (self._folder / HEAD).read_text(encoding="utf-8")

    def wait_for_nodes(self, nodes: range, names: list[str], check: Callable[[], None]) -> None:
        """Return once all of `nodes` have arrived; `names` are what to call them in an error."""

        def objection() -> str:
            missing = [names[node] for node in nodes if f"up-{node}" not in self._names()]
            return (
                f"did not join the cluster: {', '.join(missing)} (their logs lie in {self._folder})" if missing else ""
            )

        self._wait(objection, check)

    def _wait(self, objection: Callable[[], str], check: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._timeout
        while said := objection():
            check()
            if time.monotonic() > deadline:
                raise MeetingError(f"{said}, within {self._timeout:g} s")
            time.sleep(POLL_SECONDS)

    def _names(self) -> set[str]:
        """What is in the folder. Listing it makes a network file system look; asking for one name may not."""
        try:
            return {path.name for path in self._folder.iterdir()}
        except OSError:
            return set()

    def _write(self, name: str, text: str) -> None:
        """Under another name first: a reader never sees half a file."""
        writing = self._folder / f".{name}.writing"
        writing.write_text(text, encoding="utf-8")
        writing.rename(self._folder / name)
