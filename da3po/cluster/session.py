"""A Ray session of the run's own, or a place in one that is already there."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import ray

from da3po.cluster.errors import ClusterError
from da3po.cluster.network import LOOPBACK
from da3po.cluster.ray_node import RAY_ENVIRONMENT
from da3po.config.schema import ClusterConfig
from da3po.runtime.cores import usable_cores

logger = logging.getLogger(__name__)

# Micro-batches and completions are small; Ray's own default would reserve a third of the machine.
LOCAL_OBJECT_STORE_BYTES = 1 << 30


class Session:
    """Connects to Ray on entering and leaves nothing of its own behind on leaving.

    A local session listens on loopback only, without a dashboard, on ports that Ray finds free.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    def __enter__(self) -> Session:
        if self._config.kind == "existing":
            self._join()
        else:
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ray.shutdown()

    def _start(self) -> None:
        # An address left over from another cluster would make ray.init join it instead.
        os.environ.pop("RAY_ADDRESS", None)
        _init(
            "Ray did not start",
            address="local",
            num_cpus=usable_cores().num_cores,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=LOCAL_OBJECT_STORE_BYTES,
            _node_ip_address=LOOPBACK,
        )

    def _join(self) -> None:
        address = os.environ.get("RAY_ADDRESS", "")
        if not address:
            raise ClusterError("cluster.kind=existing needs RAY_ADDRESS in the environment")
        if "://" in address:
            raise ClusterError(
                f"RAY_ADDRESS={address}: the run must itself be on a node of the cluster, with RAY_ADDRESS=HOST:PORT; "
                "`ray job submit` starts it there"
            )
        _init(
            f"the Ray cluster at {address} cannot be joined (with one that asks for a token, set RAY_AUTH_MODE=token)",
            address=address,
            namespace=f"da3po-{os.getpid()}",
            log_to_driver=False,
            logging_level=logging.ERROR,
        )


# A signal to all processes of a job or group asks the controller to end the run, which needs the others until then.
CONTROLLERS_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Ray's processes, and workers after them, inherit what is blocked here, as Ray itself sees to for SIGINT. The
    handlers are the command's own again afterwards: Ray puts one in place that exits."""
    handlers = {number: signal.getsignal(number) for number in CONTROLLERS_SIGNALS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, CONTROLLERS_SIGNALS)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _init(failure: str, **options: Any) -> None:
    """failure: how the error begins."""
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        with _signals_held():
            ray.init(**options)
    except Exception as error:  # Ray has no class of its own for a start that fails or takes too long
        ray.shutdown()
        raise ClusterError(f"{failure}: {str(error).strip()}") from error
