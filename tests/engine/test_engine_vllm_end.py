"""The ends of an engine. Each test here uses up one of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_host import EngineHost, make_spec
from test_engine_vllm import requests

from da3po.engine.protocol import EngineError

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_a_step_that_fails_ends_all_that_waits_and_close_ends_the_process(model_path: Path) -> None:
    host = EngineHost(make_spec(model_path), {})
    try:
        host.start()
        generating = host.submit("generate", requests())
        host.submit("break_next_step")
        with pytest.raises(EngineError, match="engine 3 died: MemoryError: out of KV cache"):
            generating.result(60)
        with pytest.raises(EngineError, match="engine 3 died: MemoryError: out of KV cache"):
            host.generate(*requests())
        host.submit("close").result(60)
        host.process.join(30)
        assert host.process.exitcode == 0
    finally:
        host.kill()


def test_a_model_that_cannot_be_loaded_is_an_engine_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    host = EngineHost(make_spec(tmp_path), {})
    try:
        with pytest.raises(EngineError, match="engine 3 did not start"):
            host.start()
    finally:
        host.kill()
