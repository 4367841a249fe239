"""What every subcommand does around its own work: logging, expected errors as messages, exit codes, signals."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from da3po.checkpoint.directory import CheckpointError
from da3po.config.schema import ConfigError
from da3po.data.problems import DataError
from da3po.runtime.interruption import SIGNAL_OFFSET, Interrupted, Interruption

__all__ = ["Interrupted", "Interruption", "run_command", "run_main_task", "split_flags", "wants_help"]

FAILURE = 1
USAGE_ERROR = 2
STARVED = 3
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def run_command(body: Callable[[], int], *, failures: tuple[type[Exception], ...] = ()) -> int:
    """Run a command's body and turn the errors that a user can act on into a message and an exit code.

    failures: errors of a run's parts whose message is all that a user needs.

    2: the command line, the data or the run directory cannot be used; nothing was started. 1: the run failed.
    3: prompts ran dry. 128 + n: ended by signal n. Anything unexpected keeps its traceback and ends with 1.
    """
    try:
        with _signals_raise():
            return body()
    except (ConfigError, DataError, CheckpointError) as error:
        return _say(error, USAGE_ERROR)
    except failures as error:
        return _say(error, FAILURE)
    except Interrupted as error:
        return _say(f"stopped by {error}", error.exit_code)
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        return SIGNAL_OFFSET + signal.SIGPIPE


def _nobody_reads() -> bool:
    """Whether stdout is a pipe that was closed (`da3po plan | head`). Python must then not try it again at its end."""
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in stdout.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def wants_help(arguments: Sequence[str]) -> bool:
    return any(argument in ("-h", "--help", "help") for argument in arguments)


def split_flags(arguments: Sequence[str], known: set[str], usage: str) -> tuple[list[str], set[str]]:
    """Overrides and flags of a command line. Raises ConfigError for a flag that is not known, with the usage."""
    flags = {argument for argument in arguments if argument.startswith("--")}
    if unknown := flags - known:
        raise ConfigError(f"no option {', '.join(sorted(unknown))}; usage: {usage}")
    return [argument for argument in arguments if argument not in flags], flags


def _say(what: object, code: int) -> int:
    print(f"da3po: {what}", file=sys.stderr, flush=True)
    return code


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Before and after the main task a signal unwinds the command. SIGINT too: Python raises nothing for it in a
    process that a script started in the background."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_main_task(coroutine: Coroutine[Any, Any, int], interruption: Interruption | None = None) -> int:
    """Run a command's one coroutine so that every way to end it unwinds through its `finally` blocks.

    A first SIGINT, SIGTERM or SIGUSR1 asks `interruption`, and cancels the task when its grace time is over: at once,
    if none is given. A second signal ends the process at once; Ray then takes its workers down by itself. Call it after
    Ray is up: Ray sets a handler of its own. When it returns, signals go where they went before.

    Raises:
        Interrupted: a signal came.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        return asyncio.run(_watch(coroutine, interruption or Interruption()))
    finally:  # asyncio leaves the system's own, which end the process without its `finally` blocks
        for number, handler in before.items():
            if handler is not None:  # one that Python did not set
                signal.signal(number, handler)


async def _watch(coroutine: Coroutine[Any, Any, int], interruption: Interruption) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(coroutine)

    def stop(number: int) -> None:
        if interruption.asked:
            os._exit(SIGNAL_OFFSET + number)
        interruption.ask(number)
        loop.call_later(interruption.grace_seconds, task.cancel)

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        interruption.check()
        raise
