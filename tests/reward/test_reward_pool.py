"""The pool with real processes: deadlines, memory, order, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from da3po.config.schema import RewardConfig
from da3po.reward.graders import GraderError
from da3po.reward.pool import GraderPool
from da3po.types import Outcome

pytestmark = pytest.mark.timeout(120)

TIMEOUT = 1.0


RAISES = {"raise": ZeroDivisionError("on purpose"), "exit": SystemExit(0), "interrupt": KeyboardInterrupt()}


def scripted(gold: str, response: str) -> bool | None:
    """A grader that does what the response says."""
    if response == "hang":
        while True:
            pow(10, 10_000_000)
    if response == "die":
        os._exit(7)
    if response == "eat memory":
        bytearray(8 * 2**30)
    if response in RAISES:
        raise RAISES[response]
    if response == "nothing":
        return None
    if response == "heavy imports":
        return not {"torch", "ray", "vllm", "megatron", "numpy"} & set(sys.modules)
    if response == "threads":
        return os.environ["OMP_NUM_THREADS"] == "1"
    return gold == response


@pytest.fixture(scope="module")
def strangers() -> set[int | None]:
    """What other tests of this process have left running, and is no worker of `pool`."""
    return {child.pid for child in multiprocessing.active_children()}


@pytest.fixture(scope="module")
def pool(strangers: set[int | None]) -> Iterator[GraderPool]:
    config = RewardConfig(grader=f"{__name__}.scripted", timeout=TIMEOUT, num_workers=2, memory_mb=512)
    made = GraderPool(config)
    yield made
    made.close()


@pytest.fixture(scope="module")
def math_pool() -> Iterator[GraderPool]:
    made = GraderPool(RewardConfig(timeout=TIMEOUT, num_workers=2, memory_mb=512))
    yield made
    made.close()


async def wait_for_workers(count: int, strangers: set[int | None]) -> None:
    """Until that many are alive, neither more nor fewer; a killed one takes a moment to be replaced."""
    async with asyncio.timeout(30):
        while len({child.pid for child in multiprocessing.active_children()} - strangers) != count:
            await asyncio.sleep(0.1)


async def outcomes(pool: GraderPool, gold: str, responses: list[str]) -> list[str]:
    return [grade.outcome.value for grade in await pool.grade(gold, responses)]


async def test_one_hostile_answer_costs_only_itself(pool: GraderPool) -> None:
    responses = ["1", "hang", "2", "die", "eat memory", "raise", "1"]
    expected = ["correct", "timeout", "wrong", "error", "error", "error", "correct"]
    begin = time.monotonic()
    assert await outcomes(pool, "1", responses) == expected
    assert time.monotonic() - begin < 60


async def test_normal_answers_are_graded_after_many_hostile_ones(pool: GraderPool, strangers: set[int | None]) -> None:
    """R03: 6 hostile answers, then 4 normal ones, 2 workers; then 2 workers are there and idle."""
    await outcomes(pool, "1", ["1"])
    await wait_for_workers(2, strangers)
    hostile = asyncio.gather(*(outcomes(pool, "1", ["hang"]) for _ in range(6)))
    normal = await asyncio.gather(*(outcomes(pool, "1", ["1"]) for _ in range(4)))
    assert normal == [["correct"]] * 4
    assert await hostile == [["timeout"]] * 6
    await wait_for_workers(2, strangers)


async def test_failures_have_details_and_too_many_raise_an_alarm(
    pool: GraderPool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("da3po.reward.pool.ALARM_WINDOW", 1)
    await pool.grade("1", ["1"])  # whatever other tests have left is judged with this one
    caplog.clear()
    monkeypatch.setattr("da3po.reward.pool.ALARM_WINDOW", 4)
    [died, raised, hung] = [(await pool.grade("1", [response]))[0] for response in ("die", "raise", "hang")]
    assert "process died" in died.detail
    assert raised.detail == "ZeroDivisionError: on purpose"
    assert hung.detail == "no grade within 1 s"
    assert not caplog.text
    await pool.grade("1", ["1"])
    assert "75.0 % of 4 responses could not be graded (1 timeouts, 2 errors)" in caplog.text
    caplog.clear()
    await pool.grade("1", ["1"] * 4)
    assert not caplog.text


async def test_a_run_that_begins_without_a_right_answer_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """R21: two batches of 16 whose answers stand where this grader does not look."""
    silent = GraderPool(RewardConfig(grader="dapo_v1", num_workers=1), watch_first=32)
    try:
        await silent.grade("13", [r"The answer is \boxed{13}"] * 16)
        assert not caplog.text
        for _ in range(2):
            await silent.grade("13", [r"The answer is \boxed{13}"] * 16)
    finally:
        silent.close()
    assert caplog.text.count("none of the first 32 responses is correct (32 no_answer)") == 1


@pytest.mark.parametrize(("watch_first", "responses"), [(0, ["2"] * 64), (64, ["2"] * 63 + ["1"] + ["2"] * 64)])
async def test_nothing_is_warned_of_without_a_watch_or_with_one_right_answer(
    watch_first: int, responses: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Answers of a file or of an evaluation may all be wrong."""
    watched = GraderPool(RewardConfig(grader=f"{__name__}.scripted", num_workers=1), watch_first=watch_first)
    try:
        for response in responses:
            await watched.grade("1", [response])
    finally:
        watched.close()
    assert not caplog.text


async def test_a_broken_contract_stops_the_run(pool: GraderPool) -> None:
    with pytest.raises(GraderError, match="must return one Grade or bool, got None"):
        await pool.grade("1", ["1", "nothing"])


async def test_workers_are_slim_and_single_threaded(pool: GraderPool) -> None:
    assert await outcomes(pool, "1", ["heavy imports", "threads"]) == ["correct", "correct"]


async def test_no_responses_is_no_work(pool: GraderPool) -> None:
    assert await pool.grade("1", []) == []


async def test_order_is_kept_over_chunks(pool: GraderPool) -> None:
    responses = ["1" if i % 3 else "2" for i in range(500)]
    assert await outcomes(pool, "1", responses) == ["correct" if i % 3 else "wrong" for i in range(500)]


def test_from_threads_with_loops_of_their_own(pool: GraderPool) -> None:
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append(asyncio.run(outcomes(pool, "1", ["1", "2"])))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert found == [["correct", "wrong"]] * 4


HOSTILE = [
    r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}",
    r"\boxed{(10^{9})!}",
    r"\boxed{" + "1+" * 20_000 + "1}",
    r"\boxed{" + "(" * 3_000 + "1" + ")" * 3_000 + "}",
    r"\boxed{" + "9" * 50_000 + "}",
    r"\boxed{2^{16^{8^{4}}}}",
    r"\boxed{\log_{2^5}(\log_{2^4}(\log_{2^3}(2^{2^{2^{2^{2^x}}}})))}",
    r"\boxed{\prod_{k=1}^{100000000} k}",
    "\x00\x01\ud800\uffff binary \x7f",
    "{" * 100_000,
    "$" * 50_001,
    r"\boxed{" * 5_000,
    "answer is " * 20_000,
]


@pytest.mark.parametrize("response", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_answers_end_in_time(math_pool: GraderPool, response: str) -> None:
    """R04, R05: bounded time and memory, never correct, and the next answer is graded."""
    await math_pool.grade("7", ["7"])
    begin = time.monotonic()
    [grade] = await math_pool.grade("7", [response])
    assert time.monotonic() - begin < TIMEOUT + 10  # the machine may be busy
    assert grade.outcome is not Outcome.CORRECT
    assert await outcomes(math_pool, "7", [r"\boxed{7}"]) == ["correct"]


CODE = "__import__('os').system('touch pwned')"


@pytest.mark.parametrize(
    "response",
    [
        rf"\boxed{{{CODE}}}",
        f"Answer: {CODE}",
        f"The answer is ${CODE}$",
        CODE,
        f"<answer>{CODE}</answer>",
        f"#### {CODE}",
        rf"\boxed{{({CODE}, 1)}}",
        rf"\boxed{{x = {CODE}}}",
        rf"\boxed{{\text{{{CODE}}}}}",
        rf"\boxed{{\sqrt{{{CODE}}}}}",
        rf"\boxed{{1 + {CODE}}}",
    ],
)
@pytest.mark.parametrize("gold", ["7", "x^2+1", "(1, 2)"])
def test_model_text_is_never_run(response: str, gold: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, where a trace would be seen; eval and exec are watched as well as the file."""
    import builtins

    from da3po.reward import worker

    called: list[object] = []
    worker.load("math")
    worker.grade_chunk("x", ["y+1"])  # imports happen before the watch begins
    monkeypatch.chdir(tmp_path)
    real = builtins.eval
    monkeypatch.setattr(builtins, "eval", lambda source, *rest: called.append(source) or real(source, *rest))
    worker.grade_chunk(gold, [response])
    worker.grade_chunk(response, [gold])
    assert not [source for source in called if "import" in str(source)]
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_grader_stops_at_once() -> None:
    with pytest.raises(GraderError, match="no grader named"):
        GraderPool(RewardConfig(grader="mth"))


async def test_close_ends_busy_workers() -> None:
    pool = GraderPool(RewardConfig(grader=f"{__name__}.scripted", timeout=60, num_workers=2))
    before = {child.pid for child in multiprocessing.active_children()}
    assert await outcomes(pool, "1", ["1"]) == ["correct"]
    hanging = asyncio.ensure_future(pool.grade("1", ["hang"]))
    await asyncio.sleep(0.5)
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 5
    assert {child.pid for child in multiprocessing.active_children()} <= before - {None}
    hanging.cancel()


async def test_a_grader_that_exits_is_an_error_of_that_response_alone(pool: GraderPool) -> None:
    assert await outcomes(pool, "1", ["exit", "interrupt", "1"]) == ["error", "error", "correct"]
