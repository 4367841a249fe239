"""The one thread that touches an engine. It steps while there is work and runs calls between steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from da3po.engine.protocol import EngineError


class Steppable(Protocol):
    """An engine as its thread sees it; used by no other thread."""

    @property
    def busy(self) -> bool:
        """Whether there is anything to step."""
        ...

    def step(self) -> None: ...

    def fail(self, error: EngineError) -> None:
        """Tell everyone who waits for work in flight that it will not come."""
        ...

    def close(self) -> None: ...


EngineT = TypeVar("EngineT", bound=Steppable)


class SteppingThread(Generic[EngineT]):
    """Makes the engine in its own thread, since thread pools and CUDA contexts belong to the thread that made them.

    All calls that wait when a step ends run before the next step begins. An error of `make` or of a step ends the
    thread: pending work and all later calls fail with an EngineError that names the engine and the cause. An error of
    a call goes to its caller alone.
    """

    def __init__(self, name: str, make: Callable[[], EngineT]) -> None:
        self._name = name
        self._make = make
        self._calls: queue.SimpleQueue[tuple[Callable[[EngineT], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._started: Future[None] = Future()
        self._lock = threading.Lock()  # orders call() against the end of the thread
        self._ended: EngineError | None = None
        # A daemon, so that a step that hangs cannot keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Future[None]:
        """Start; the future is done when the engine has been made."""
        self._thread.start()
        return self._started

    def call(self, function: Callable[[EngineT], Any]) -> Future[Any]:
        """Run `function(engine)` between two steps."""
        future: Future[Any] = Future()
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._calls.put((function, future))
        return future

    def close(self, timeout: float) -> None:
        """End after the calls that wait now; work in flight fails. Raises EngineError if that takes too long."""
        if not self._thread.is_alive():
            return
        self._calls.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise EngineError(f"{self._name} did not end within {timeout:g} s")

    def _run(self) -> None:
        try:
            engine = self._make()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to those who wait
            cause = self._end("did not start", error)
            self._started.set_exception(cause)
            return
        self._started.set_result(None)
        try:
            while self._run_calls(engine):
                if engine.busy:
                    engine.step()
        except BaseException as error:  # noqa: BLE001
            engine.fail(self._end("died", error))
        else:
            engine.fail(self._end("was closed", None))
        engine.close()

    def _run_calls(self, engine: EngineT) -> bool:
        """Run what waits, and wait for something if there is nothing to step; False if the thread is to end."""
        wait = not engine.busy
        while wait or not self._calls.empty():
            wait = False
            item = self._calls.get()
            if item is None:
                return False
            _run_call(engine, *item)
        return True

    def _end(self, how: str, error: BaseException | None) -> EngineError:
        cause = f": {type(error).__name__}: {error}" if error is not None else ""
        ended = EngineError(f"{self._name} {how}{cause}")
        ended.__cause__ = error
        with self._lock:
            self._ended = ended
        while not self._calls.empty():
            item = self._calls.get()
            if item is not None:
                item[1].set_exception(ended)
        return ended


def _run_call(engine: EngineT, function: Callable[[EngineT], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function(engine))
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        future.set_exception(error)
