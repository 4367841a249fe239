"""A Ray session of the run's own, or a place in one that is already there."""

from __future__ import annotations

import logging
import os
from types import TracebackType
from typing import Any

import ray

from da3po.config.schema import ClusterConfig

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
# Micro-batches and completions are small; Ray's own default would reserve a third of the machine.
LOCAL_OBJECT_STORE_BYTES = 1 << 30


class ClusterError(RuntimeError):
    """The cluster cannot give what the run needs; the message says what was asked and what is there."""


class Session:
    """Connects to Ray on entering and leaves nothing of its own behind on leaving.

    A local session listens on loopback only, without a dashboard, on ports that Ray finds free.
    """

    def __init__(self, config: ClusterConfig, num_gpus: int) -> None:
        self._config = config
        self._num_gpus = num_gpus

    def __enter__(self) -> Session:
        if self._config.kind == "existing":
            self._join()
        else:
            self._start()
        self._check_gpus()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ray.shutdown()

    def _start(self) -> None:
        # An address left over from another cluster would make ray.init join it instead.
        os.environ.pop("RAY_ADDRESS", None)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Workers run under the interpreter and packages of this environment, whatever tool launched it.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        _init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=LOCAL_OBJECT_STORE_BYTES,
            _node_ip_address=LOOPBACK,
        )

    def _join(self) -> None:
        if not os.environ.get("RAY_ADDRESS"):
            raise ClusterError("cluster.kind=existing needs RAY_ADDRESS in the environment")
        _init(address="auto", log_to_driver=False, logging_level=logging.ERROR)

    def _check_gpus(self) -> None:
        have = int(ray.cluster_resources().get("GPU", 0))
        if have < self._num_gpus:
            raise ClusterError(f"the run needs {self._num_gpus} GPUs for learner and engines, the cluster has {have}")


def _init(**options: Any) -> None:
    try:
        ray.init(**options)
    except (RuntimeError, ConnectionError, ValueError) as error:
        ray.shutdown()
        raise ClusterError(f"Ray did not start: {str(error).strip()}") from error
