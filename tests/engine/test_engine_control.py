"""A control call that answers something instead of doing its work stops the engine (field case W02).

A RunningEngine over a stand-in for vLLM's LLMEngine, in a process of its own, since naming vLLM changes a process.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

import pytest

from da3po.config.schema import EngineConfig, SyncConfig
from da3po.engine.protocol import EngineError
from da3po.engine.spec import EngineSpec
from da3po.types import BucketSum, WeightManifest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

MANIFEST = WeightManifest(version=5, buckets=(BucketSum(names=("w",), num_bytes=16, checksum="ab"),))
OTHER = WeightManifest(version=5, buckets=(BucketSum(names=("w",), num_bytes=16, checksum="cd"),))
CONTROLS = ["init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"]
SPEC = EngineSpec(
    model_path="unused",
    config=EngineConfig(tp=2),
    max_model_len=32,
    seed=0,
    device="cpu",
    engine_index=3,
    sync=SyncConfig(),
    num_threads=1,
)


@dataclass
class StandIn:
    """Two workers that answer as told: `answers` by the name of the call, None (done) to all others."""

    answers: Mapping[str, list[Any]]
    reset_answer: Any
    calls: list[str] = field(default_factory=list)
    engine_core: Any = field(
        default_factory=lambda: SimpleNamespace(
            engine_core=SimpleNamespace(batch_queue=None, scheduler=SimpleNamespace(has_requests=lambda: False))
        )
    )

    def get_tokenizer(self) -> None:
        return None

    def collective_rpc(self, method: str, kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        self.calls.append(method)
        done = [MANIFEST, MANIFEST] if method == "take_manifest" else [None, None]
        return self.answers.get(method, done)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> Any:
        self.calls.append("reset_prefix_cache")
        return self.reset_answer


@dataclass(frozen=True)
class Outcome:
    """error: of opening the channel and receiving version 5. usable: whether the engine lets samples in afterwards."""

    error: str | None
    usable: bool
    calls: list[str]


def publication(answers: Mapping[str, list[Any]], reset_answer: Any = True) -> Outcome:
    """In the other process."""
    from da3po.engine.vllm import running
    from da3po.engine.vllm.batch import Batch, Pulse

    llm = StandIn(answers, reset_answer)
    with (
        mock.patch.object(running.LLMEngine, "from_engine_args", return_value=llm),
        mock.patch.object(running, "engine_arguments"),
        mock.patch.object(running, "stop_token_ids", return_value=()),
    ):
        engine = running.RunningEngine(SPEC, Pulse())

    def error_of(call: Any, *args: Any) -> str | None:
        try:
            call(*args)
        except EngineError as error:
            return str(error)
        return None

    error = error_of(engine.open_channel, "127.0.0.1:1", 0) or error_of(engine.receive, 5)
    return Outcome(error=error, usable=error_of(engine.add, Batch((), lambda _: None)) is None, calls=list(llm.calls))


@pytest.fixture(scope="module")
def other_process() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_calls_that_do_their_work_leave_a_usable_engine(other_process: ProcessPoolExecutor) -> None:
    outcome = other_process.submit(publication, {}).result()
    assert outcome == Outcome(error=None, usable=True, calls=[*CONTROLS, "take_manifest", "reset_prefix_cache"])


@pytest.mark.parametrize("answer", [{"status": "todo"}, False])
@pytest.mark.parametrize("method", CONTROLS)
def test_a_control_call_that_answers_stops_the_engine(
    other_process: ProcessPoolExecutor, method: str, answer: object
) -> None:
    outcome = other_process.submit(publication, {method: [None, answer]}).result()
    assert outcome.error == f"engine 3: {method} answered {[None, answer]} instead of doing its work"
    assert outcome.calls[-1] == method
    assert outcome.usable == (method == CONTROLS[0])  # no weights have been touched yet


@pytest.mark.parametrize("answer", [{"status": "todo"}, False, None])
def test_a_prefix_cache_that_was_not_dropped_stops_the_engine(
    other_process: ProcessPoolExecutor, answer: object
) -> None:
    outcome = other_process.submit(publication, {}, answer).result()
    assert outcome.error == "engine 3 did not drop its cached prefixes after version 5"
    assert not outcome.usable


def test_workers_that_received_different_weights_stop_the_engine(other_process: ProcessPoolExecutor) -> None:
    outcome = other_process.submit(publication, {"take_manifest": [MANIFEST, OTHER]}).result()
    assert outcome.error == "engine 3: its workers received different weights for version 5"
    assert not outcome.usable


def trusts_code(of_model: bool) -> bool:
    from da3po.engine.vllm.arguments import engine_arguments

    spec = replace(SPEC, model_path=".", trust_remote_code=of_model)  # any folder, which vLLM does not look into yet
    return bool(engine_arguments(spec).trust_remote_code)


@pytest.mark.parametrize("of_model", [True, False])
def test_a_models_own_code_runs_only_where_it_is_trusted(other_process: ProcessPoolExecutor, of_model: bool) -> None:
    assert other_process.submit(trusts_code, of_model).result() == of_model


def block_size(device: Literal["cpu", "cuda"], vllm: dict[str, Any]) -> int | None:
    from da3po.engine.vllm.arguments import engine_arguments

    spec = replace(SPEC, model_path=".", device=device, config=EngineConfig(vllm=vllm))
    return engine_arguments(spec).block_size


def test_blocks_of_the_cache_are_small_on_cpu_unless_a_user_says_otherwise(other_process: ProcessPoolExecutor) -> None:
    for device, vllm, expected in (("cpu", {}, 32), ("cpu", {"block_size": 64}, 64), ("cuda", {}, None)):
        assert other_process.submit(block_size, device, vllm).result() == expected
