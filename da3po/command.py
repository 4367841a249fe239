"""What every subcommand does around its own work: logging, expected errors as messages, exit codes, signals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from da3po.checkpoint.directory import CheckpointError
from da3po.config.schema import ConfigError
from da3po.data.problems import DataError

FAILURE = 1
USAGE_ERROR = 2
STARVED = 3
SIGNAL_OFFSET = 128


class Interrupted(BaseException):
    """The command was asked to stop by a signal; `exit_code` follows the shell's convention, 128 + its number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = SIGNAL_OFFSET + number


def run_command(body: Callable[[], int], *, failures: tuple[type[Exception], ...] = ()) -> int:
    """Run a command's body and turn the errors that a user can act on into a message and an exit code.

    failures: errors of a run's parts whose message is all that a user needs.

    2: the command line, the data or the run directory cannot be used; nothing was started. 1: the run failed.
    3: prompts ran dry. 128 + n: ended by signal n. Anything unexpected keeps its traceback and ends with 1.
    """
    try:
        return body()
    except (ConfigError, DataError, CheckpointError) as error:
        return _say(error, USAGE_ERROR)
    except failures as error:
        return _say(error, FAILURE)
    except Interrupted as error:
        return _say(f"stopped by {error}", error.exit_code)
    except KeyboardInterrupt:
        return _say("stopped by SIGINT", SIGNAL_OFFSET + signal.SIGINT)


def wants_help(arguments: Sequence[str]) -> bool:
    return any(argument in ("-h", "--help", "help") for argument in arguments)


def _say(what: object, code: int) -> int:
    print(f"da3po: {what}", file=sys.stderr, flush=True)
    return code


def run_main_task(coroutine: Coroutine[Any, Any, int]) -> int:
    """Run a command's one coroutine so that every way to end it unwinds through its `finally` blocks.

    A second signal ends the process at once; Ray then takes its workers down by itself. Call it after Ray is up: Ray
    sets a handler of its own.

    Raises:
        Interrupted: SIGINT or SIGTERM came.
    """
    return asyncio.run(_watch(coroutine))


async def _watch(coroutine: Coroutine[Any, Any, int]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(coroutine)
    received: list[int] = []

    def stop(number: int) -> None:
        if received:
            os._exit(SIGNAL_OFFSET + number)
        received.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            raise Interrupted(received[0]) from None
        raise
