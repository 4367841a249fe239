"""Several engines that start at once, while someone else takes every port that comes free (field case E01)."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine_host import EngineHost, make_spec
from test_engine_vllm import requests

from da3po.engine.protocol import EngineError

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]

NUM_ENGINES = 4
NUM_SQUATTED = 400


class Squatter(threading.Thread):
    """Asks the system for one port after another and keeps the last few hundred."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._held: list[socket.socket] = []
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.002):
            self._held.append(socket.create_server(("127.0.0.1", 0)))
            if len(self._held) > NUM_SQUATTED:
                self._held.pop(0).close()

    def close(self) -> None:
        self._ended.set()
        self.join()
        for one in self._held:
            one.close()


def test_four_engines_start_at_once_among_taken_ports(model_path: Path) -> None:
    squatter = Squatter()
    squatter.start()
    hosts = [EngineHost(make_spec(model_path), {}) for _ in range(NUM_ENGINES)]
    try:
        with ThreadPoolExecutor(NUM_ENGINES) as threads:
            ends = list(threads.map(_start, hosts))
        for host, error in zip(hosts, ends, strict=True):
            if error is None:
                assert len(host.generate(*requests())) == 3
            else:  # then a replacement is started, and the message says what for
                assert "engine 3 did not start" in str(error) and "in use" in str(error)
        assert ends.count(None) >= NUM_ENGINES - 1
    finally:
        squatter.close()
        for host in hosts:
            host.kill()


def _start(host: EngineHost) -> EngineError | None:
    try:
        host.start()
    except EngineError as error:
        return error
    return None
