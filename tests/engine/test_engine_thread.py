"""The stepping thread with an engine that counts. No vLLM."""

from __future__ import annotations

import threading

import pytest

from da3po.engine.protocol import EngineError
from da3po.engine.vllm.environment import STALE, apply_environment
from da3po.engine.vllm.thread import SteppingThread

SECONDS = 10


class Counter:
    """Has `work` steps to do; the step numbered `breaks_at` raises."""

    def __init__(self, breaks_at: int = -1) -> None:
        self.thread = threading.current_thread()
        self.work = 0
        self.log: list[str] = []
        self.breaks_at = breaks_at
        self.failed_with: EngineError | None = None
        self.closed = threading.Event()
        self.gate = threading.Event()

    @property
    def busy(self) -> bool:
        return self.work > 0

    def add(self, name: str, work: int) -> None:
        assert threading.current_thread() is self.thread
        self.log.append(name)
        self.work += work

    def step(self) -> None:
        assert self.gate.wait(SECONDS)
        if self.work == self.breaks_at:
            raise ValueError("bad step")
        self.work -= 1
        self.log.append("step")

    def fail(self, error: EngineError) -> None:
        self.failed_with = error

    def close(self) -> None:
        self.closed.set()


def started(engine: Counter) -> SteppingThread[Counter]:
    def make() -> Counter:
        engine.thread = threading.current_thread()
        return engine

    thread: SteppingThread[Counter] = SteppingThread("engine 7", make)
    thread.start().result(SECONDS)
    return thread


def test_calls_that_wait_run_before_the_next_step_and_in_order() -> None:
    engine = Counter()
    thread = started(engine)
    thread.call(lambda e: e.add("a", 2))
    calls = [thread.call(lambda e, n=name: e.add(n, 0)) for name in "bcd"]
    done = thread.call(lambda e: e.log.append("e"))
    engine.gate.set()
    for call in [*calls, done]:
        call.result(SECONDS)
    thread.close(SECONDS)
    letters = [entry for entry in engine.log if entry != "step"]
    assert letters == ["a", "b", "c", "d", "e"]
    assert engine.log.index("e") - engine.log.index("b") == 3  # no step among them


def test_an_error_of_a_call_goes_to_its_caller_alone() -> None:
    thread = started(Counter())
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda _: 1 / 0).result(SECONDS)
    assert thread.call(lambda _: "fine").result(SECONDS) == "fine"
    thread.close(SECONDS)


def test_an_error_of_a_step_fails_work_in_flight_and_all_later_calls() -> None:
    engine = Counter(breaks_at=1)
    thread = started(engine)
    engine.gate.set()
    thread.call(lambda e: e.add("a", 3)).result(SECONDS)
    assert engine.closed.wait(SECONDS)
    assert str(engine.failed_with) == "engine 7 died: ValueError: bad step"
    with pytest.raises(EngineError, match="engine 7 died: ValueError: bad step"):
        thread.call(lambda _: None)
    thread.close(SECONDS)


def test_an_engine_that_cannot_be_made_fails_start_and_calls() -> None:
    def make() -> Counter:
        raise FileNotFoundError("config.json")

    thread: SteppingThread[Counter] = SteppingThread("engine 7", make)
    with pytest.raises(EngineError, match=r"engine 7 did not start: FileNotFoundError: config\.json"):
        thread.start().result(SECONDS)
    with pytest.raises(EngineError, match="engine 7 did not start"):
        thread.call(lambda _: None)
    thread.close(SECONDS)


def test_close_fails_work_in_flight_and_closes_the_engine() -> None:
    engine = Counter()
    engine.gate.set()
    thread = started(engine)
    thread.call(lambda e: e.add("a", 1_000_000_000)).result(SECONDS)
    thread.close(SECONDS)
    assert str(engine.failed_with) == "engine 7 was closed"
    assert engine.closed.is_set()
    with pytest.raises(EngineError, match="engine 7 was closed"):
        thread.call(lambda _: None)


def test_a_step_that_hangs_makes_close_say_so() -> None:
    engine = Counter()
    thread = started(engine)
    thread.call(lambda e: e.add("a", 1)).result(SECONDS)
    with pytest.raises(EngineError, match=r"engine 7 did not end within 0\.1 s"):
        thread.close(0.1)
    engine.gate.set()


def test_stale_ports_and_ranks_are_taken_out_of_the_environment(monkeypatch, tmp_path) -> None:
    from engine_host import make_spec

    for name in STALE:
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "VLLM_HOST_IP", "VLLM_PLUGINS"):
        monkeypatch.setenv(name, "before")
    import os

    monkeypatch.setattr(os, "environ", dict(os.environ))
    apply_environment(make_spec(tmp_path))
    assert not set(STALE) & os.environ.keys()
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["VLLM_HOST_IP"] == "127.0.0.1"
