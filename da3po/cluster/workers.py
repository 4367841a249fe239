"""Processes of a run: learner ranks and engines, each a Ray actor that hosts one object of a named class.

The class is named by its import path and imported in the actor only, so the controller never loads Megatron or vLLM,
and an engine never loads what the learner needs.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import traceback
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from da3po.cluster.errors import ClusterError
from da3po.cluster.network import LOOPBACK, free_port, interface_of
from da3po.cluster.placement import Slot
from da3po.cluster.stacks import Place

LOG_TAIL_LINES = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One process to start.

    name: unique in the run; messages and the log file carry it.
    entry: `module:Class` of the object it hosts, and `args` for its constructor.
    env: environment variables, in place before anything is imported.
    slot: where it goes and what it is given there; anywhere and nothing by itself.
    """

    name: str
    entry: str
    args: tuple[Any, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    slot: Slot = field(default_factory=Slot)


class _Host:
    """Lives in the actor: makes the object and passes calls on to it."""

    def __init__(self, entry: str, args: tuple[Any, ...], log_file: str) -> None:
        _redirect_output(log_file)
        _talk_through(ray.util.get_node_ip_address())
        module, _, name = entry.partition(":")
        self._target = getattr(importlib.import_module(module), name)(*args)

    def call(self, method: str, *args: Any) -> Any:
        with _traceback_in_log():
            return getattr(self._target, method)(*args)

    def place(self) -> Place:
        return Place(node_id=ray.get_runtime_context().get_node_id(), pid=os.getpid())

    def free_address(self) -> tuple[str, int]:
        """This node's address and a port of it that nobody listens on now."""
        return ray.util.get_node_ip_address(), free_port()


class _AsyncHost(_Host):
    """The same for an object whose methods are coroutines and async generators; calls run side by side."""

    async def call_async(self, method: str, *args: Any) -> Any:
        with _traceback_in_log():
            return await getattr(self._target, method)(*args)

    async def stream(self, method: str, *args: Any) -> AsyncIterator[Any]:
        with _traceback_in_log():
            async for item in getattr(self._target, method)(*args):
                yield item


@contextmanager
def _traceback_in_log() -> Iterator[None]:
    """The controller is told what went wrong, the worker's log where."""
    try:
        yield
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        raise


def _talk_through(address: str) -> None:
    """Let gloo and NCCL use the interface of Ray's address: what a host's name stands for may lead nowhere."""
    name = interface_of(address)
    if name is None:
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    if address != LOOPBACK:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _redirect_output(log_file: str) -> None:
    """Send everything this process prints, C libraries included, to its log file."""
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


class WorkerError(ClusterError):
    """A worker raised or died; the message names it and ends with what it last logged if it died.

    cause: what it raised; None if it died.
    """

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class Worker:
    """The controller's handle of one process."""

    def __init__(self, spec: WorkerSpec, logs: Path, *, concurrent: bool) -> None:
        """Start the process; it is up when the first call returns.

        Args:
            concurrent: whether its methods are coroutines that may run side by side.
        """
        self.name = spec.name
        self._log_file = logs / f"{spec.name}.log"
        host = ray.remote(_AsyncHost if concurrent else _Host)
        self._method = "call_async" if concurrent else "call"
        self._actor = host.options(
            **spec.slot.options, runtime_env={"env_vars": dict(spec.env)}, max_restarts=0
        ).remote(spec.entry, spec.args, str(self._log_file))
        self._calls: list[str] = []
        self._place = self._actor.place.remote()

    @property
    def calls(self) -> tuple[str, ...]:
        """Methods that it has been asked for and has not finished."""
        return tuple(self._calls)

    @property
    def place(self) -> Place | None:
        """Where its process is; None before it is up."""
        ready, _ = ray.wait([self._place], timeout=0)
        try:
            return ray.get(self._place) if ready else None
        except RayError:
            return None

    async def call(self, method: str, *args: Any) -> Any:
        """Run a method there. Raises WorkerError with the worker's own message."""
        with self._counted(method):
            return await self._call(method, *args)

    async def _call(self, method: str, *args: Any) -> Any:
        try:
            return await getattr(self._actor, self._method).remote(method, *args)
        except RayTaskError as error:
            raise self._raised(method, error) from error
        except RayError as error:  # its own death, its node's, or for want of memory
            raise self._died(error) from error

    async def free_address(self) -> tuple[str, int]:
        """Host and a free port on the worker's node."""
        return await self._actor.free_address.remote()

    async def stream(self, method: str, *args: Any) -> AsyncIterator[Any]:
        """Run an async generator there and yield its items as they come."""
        try:
            with self._counted(method):
                async for item in self._actor.stream.options(num_returns="streaming").remote(method, *args):
                    yield await item
        except RayTaskError as error:
            raise self._raised(method, error) from error
        except RayError as error:  # its own death, its node's, or for want of memory
            raise self._died(error) from error

    def kill(self) -> None:
        ray.kill(self._actor, no_restart=True)

    @contextmanager
    def _counted(self, method: str) -> Iterator[None]:
        self._calls.append(method)
        try:
            yield
        finally:
            self._calls.remove(method)

    def _raised(self, method: str, error: RayTaskError) -> WorkerError:
        cause = error.cause if isinstance(error.cause, BaseException) else error
        message = f"{self.name}: {method} failed: {type(cause).__name__}: {cause}\n(log: {self._log_file})"
        return WorkerError(message, cause)

    def _died(self, error: RayError) -> WorkerError:
        tail = "\n".join(self._log_tail())
        reason = str(error).strip().splitlines()
        return WorkerError(
            f"{self.name} died: {reason[0] if reason else 'no reason given'}\n"
            f"its last lines (of {self._log_file}):\n{tail}"
        )

    def _log_tail(self) -> list[str]:
        if not self._log_file.exists():
            return ["(it logged nothing)"]
        return self._log_file.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]


async def all_or_first_error(calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The results in order; the first failure at once, whatever the other calls are still waiting for."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def start_within(seconds: float, what: str, calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The same with a deadline; Raises ClusterError naming `what` did not come up."""
    try:
        async with asyncio.timeout(seconds):
            return await all_or_first_error(calls)
    except TimeoutError as error:
        raise ClusterError(f"{what} did not come up within {seconds:g} s (cluster.start_timeout)") from error


class RankGroup:
    """The learner's processes, called together."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = tuple(workers)

    async def call_all(self, method: str, *args: Any) -> list[Any]:
        """The same call on every rank. The first rank that raises ends the wait: its peers may hang in a collective."""
        return await all_or_first_error([worker.call(method, *args) for worker in self._workers])

    async def free_address(self) -> tuple[str, int]:
        """Host and a free port on the node of rank 0."""
        return await self._workers[0].free_address()

    async def call_each(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A call with its own arguments on every rank."""
        return await all_or_first_error(
            [worker.call(method, *own) for worker, own in zip(self._workers, args, strict=True)]
        )

    def kill(self) -> None:
        for worker in self._workers:
            worker.kill()
