"""A VllmEngine in a process of its own, as in a run, driven from the test process."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing as mp
import os
import threading
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from da3po.config.schema import EngineConfig, SyncConfig
from da3po.engine.spec import EngineSpec
from da3po.types import Completion, GroupRequest, GroupResult, WeightManifest

MAX_MODEL_LEN = 128
SYNC_TIMEOUT = 20.0
START_SECONDS = 240
CALL_SECONDS = 120


def make_spec(model_path: Path) -> EngineSpec:
    return EngineSpec(
        model_path=str(model_path),
        config=EngineConfig(max_num_seqs=64, max_num_batched_tokens=512, kv_cache_gb=0.25, vllm={"max_logprobs": 7}),
        max_model_len=MAX_MODEL_LEN,
        seed=0,
        device="cpu",
        engine_index=3,
        sync=SyncConfig(timeout=SYNC_TIMEOUT),
        num_threads=1,
    )


class EngineHost:
    """Calls go to the engine side by side; each returns a future, or waits for it."""

    def __init__(self, spec: EngineSpec, environment: dict[str, str]) -> None:
        context = mp.get_context("spawn")
        self._wire, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, spec, environment), daemon=True)
        self.process.start()
        theirs.close()
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers = itertools.count()
        threading.Thread(target=self._read, daemon=True).start()

    def submit(self, method: str, *args: Any) -> Future[Any]:
        number = next(self._numbers)
        waiting: Future[Any] = Future()
        self._waiting[number] = waiting
        self._wire.send((number, method, args))
        return waiting

    def start(self) -> None:
        self.submit("start").result(START_SECONDS)

    def generate(self, *requests: GroupRequest) -> dict[int, tuple[Completion, ...]]:
        results: list[GroupResult] = self.submit("generate", requests).result(CALL_SECONDS)
        assert len(results) == len(requests)
        return {result.key: result.completions for result in results}

    def open_channel(self, address: str, rank: int) -> None:
        self.submit("open_channel", address, rank).result(CALL_SECONDS)

    def receive(self, version: int) -> Future[WeightManifest]:
        return self.submit("receive", version)

    def effective_weights(self) -> dict[str, Tensor]:
        """What every layer of the engine computes with."""
        return self.submit("effective_weights").result(CALL_SECONDS)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def _read(self) -> None:
        try:
            while True:
                number, is_error, value = self._wire.recv()
                waiting = self._waiting.pop(number)
                waiting.set_exception(value) if is_error else waiting.set_result(value)
        except (EOFError, OSError):
            for waiting in self._waiting.values():
                waiting.set_exception(RuntimeError("the engine's process is gone"))


def _serve(wire: Connection, spec: EngineSpec, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    asyncio.run(_answer_calls(wire, spec))


async def _answer_calls(wire: Connection, spec: EngineSpec) -> None:
    from da3po.engine.vllm.engine import VllmEngine

    engine = VllmEngine(spec)
    calls: set[asyncio.Task[None]] = set()
    closed = False
    while not closed:
        number, method, args = await asyncio.to_thread(wire.recv)
        calls.add(asyncio.create_task(_answer(wire, engine, number, method, args)))
        closed = method == "close"
    await asyncio.gather(*calls)


async def _answer(wire: Connection, engine: Any, number: int, method: str, args: tuple[Any, ...]) -> None:
    try:
        if method == "generate":
            value: Any = [result async for result in engine.generate(*args)]
        elif method == "generate_one":  # leaves after the first group
            value = await _first(engine.generate(*args))
        elif method == "effective_weights":
            value = await engine._call(method, _effective_weights)
        elif method == "vllm_config":
            value = await engine._call(method, _vllm_config)
        elif method == "break_next_step":
            value = await engine._call(method, _break_next_step)
        else:
            value = await getattr(engine, method)(*args)
        wire.send((number, False, value))
    except Exception as error:  # noqa: BLE001 - the test process raises it
        wire.send((number, True, error))


async def _first(results: Any) -> GroupResult:
    async for result in results:
        await results.aclose()
        return result
    raise AssertionError("no group came")


def _break_next_step(running: Any) -> None:
    def fail() -> None:
        raise MemoryError("out of KV cache")

    running._core.get_output = fail


def _vllm_config(running: Any) -> dict[str, int]:
    config = running._llm.vllm_config
    return {"block_size": config.cache_config.block_size, "max_logprobs": config.model_config.max_logprobs}


def _effective_weights(running: Any) -> dict[str, Tensor]:
    """On CPU vLLM packs linear weights away and leaves an empty parameter: what such a layer really holds is what it
    makes of the identity, exactly, since every product is with 1 or 0."""
    worker = running._core.engine_core.model_executor.driver_worker.worker
    weights = {}
    for name, layer in worker.get_model().named_modules():
        for key, parameter in layer.named_parameters(recurse=False):
            weights[f"{name}.{key}"] = parameter.detach().clone()
        if hasattr(layer, "cpu_linear"):
            num_inputs = getattr(layer, "input_size_per_partition", getattr(layer, "embedding_dim", None))
            identity = torch.eye(num_inputs)
            weights[f"{name}.weight"] = layer.quant_method.apply(layer, identity).T.clone()
    return weights
