"""Workers in a real local Ray session."""

import os
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from da3po.cluster.errors import ClusterError
from da3po.cluster.session import Session
from da3po.cluster.workers import RankGroup, Worker, WorkerError, WorkerSpec, start_within
from da3po.config.schema import ClusterConfig

pytestmark = pytest.mark.distributed
ENV = {"PYTHONPATH": str(Path(__file__).parents[1])}


USUAL_PORTS = (6379, 8265, 10001, 10002)
"""What another Ray on this machine has by default; everything here goes on beside it."""


@pytest.fixture(scope="module")
def started_before():
    """Processes that other tests have started, such as multiprocessing's own."""
    return set(_children())


@pytest.fixture(scope="module")
def session(started_before):
    with ExitStack() as stack:
        for port in USUAL_PORTS:
            with suppress(OSError):  # in use already
                stack.enter_context(socket.create_server(("", port)))
        yield stack.enter_context(Session(ClusterConfig()))


def start(logs, name, entry="cluster_target:Target", args=(0,), *, concurrent=False, **env):
    spec = WorkerSpec(name=name, entry=entry, args=args, env=ENV | env)
    return Worker(spec, logs, concurrent=concurrent)


async def test_calls_environment_and_log(session, tmp_path):
    worker = start(tmp_path, "rank-3", args=(3,), OMP_NUM_THREADS="1", DA3PO_PROBE="yes")
    assert await worker.call("add", 4) == 7
    assert await worker.call("environment", "OMP_NUM_THREADS") == "1"
    assert await worker.call("environment", "DA3PO_PROBE") == "yes"
    assert "target 3 is up" in (tmp_path / "rank-3.log").read_text()
    loaded = {name.partition(".")[0] for name in await worker.call("modules")}
    assert not loaded & {"vllm", "megatron", "torch"}
    worker.kill()


async def test_an_exception_arrives_with_its_message_and_the_workers_name(session, tmp_path):
    worker = start(tmp_path, "rank-0")
    with pytest.raises(WorkerError, match=r"rank-0: fail failed: ValueError: target 0 does not like this"):
        await worker.call("fail")
    assert "in fail\n    raise ValueError" in (tmp_path / "rank-0.log").read_text()
    assert await worker.call("add", 1) == 1  # the worker itself goes on
    worker.kill()


async def test_a_class_that_cannot_be_made_says_so(session, tmp_path):
    worker = start(tmp_path, "nobody", entry="cluster_target:Nobody")
    with pytest.raises(WorkerError, match="Nobody"):
        await worker.call("add", 1)


async def test_death_is_reported_with_the_last_lines_of_the_log(session, tmp_path):
    worker = start(tmp_path, "rank-0")
    with pytest.raises(WorkerError, match=r"(?s)rank-0 died.*last words"):
        await worker.call("die")


async def test_the_first_failure_ends_the_wait_for_peers_that_hang(session, tmp_path):
    workers = [start(tmp_path, f"rank-{i}", args=(i,)) for i in range(2)]
    ranks = RankGroup(workers)
    assert await ranks.call_all("add", 10) == [10, 11]
    assert await ranks.call_each("add", [(1,), (2,)]) == [1, 3]
    begun = time.monotonic()
    with pytest.raises(WorkerError, match="rank 1 broke"):
        await ranks.call_all("fail_or_hang")
    assert time.monotonic() - begun < 20
    ranks.kill()


async def test_streams_and_their_failures(session, tmp_path):
    worker = start(tmp_path, "engine-0", entry="cluster_target:AsyncTarget", args=(), concurrent=True)
    assert [i async for i in worker.stream("count", 3)] == [0, 1, 2]
    assert await worker.call("name") == "async"
    stream = worker.stream("count_and_fail", 2)
    assert [await anext(stream), await anext(stream)] == [0, 1]
    with pytest.raises(WorkerError, match=r"engine-0: count_and_fail failed: ValueError: no more numbers"):
        await anext(stream)
    worker.kill()


async def test_a_start_that_takes_too_long_is_named(session, tmp_path):
    worker = start(tmp_path, "rank-0")
    await worker.call("add", 1)
    with pytest.raises(ClusterError, match=r"learner did not come up within 0\.5 s"):
        await start_within(0.5, "learner", [worker.call("hang")])
    worker.kill()


async def test_nothing_is_left_after_the_session(session, started_before, tmp_path):
    """Runs last in this module: ends the session itself."""
    worker = start(tmp_path, "rank-0")
    await worker.call("add", 1)
    session.__exit__(None, None, None)
    deadline = time.monotonic() + 20
    while (left := set(_children()) - started_before) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


def _children():
    return [p for p in psutil.Process(os.getpid()).children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
