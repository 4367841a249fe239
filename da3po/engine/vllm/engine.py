"""The Engine protocol over vLLM. Lives in a process of its own, where it is the first to import vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from da3po.engine.protocol import EngineError
from da3po.engine.spec import EngineSpec
from da3po.engine.vllm.batch import Batch, GroupInFlight, Sample
from da3po.engine.vllm.environment import apply_environment
from da3po.engine.vllm.thread import SteppingThread
from da3po.types import Completion, GroupRequest, GroupResult, WeightManifest

if TYPE_CHECKING:
    from da3po.engine.vllm.running import RunningEngine

CLOSE_SECONDS = 30.0


class VllmEngine:
    """One engine; nothing heavy happens before `start`."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._name = f"engine {spec.engine_index}"
        self._thread: SteppingThread[RunningEngine] = SteppingThread(self._name, lambda: _make_engine(spec))
        self._decode: Callable[[list[int]], str]

    async def start(self) -> None:
        """Set the environment, import vLLM, load the model. Raises EngineError."""
        apply_environment(self._spec)
        await asyncio.wrap_future(self._thread.start())
        self._decode = await self._call("start", lambda engine: engine.decode)

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        """Sample all groups; each is yielded when its last sample ends. Leaving early aborts the rest."""
        arrived: asyncio.Queue[GroupInFlight | EngineError] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        batch = Batch(requests, lambda item: loop.call_soon_threadsafe(arrived.put_nowait, item))
        num_left = len(batch.groups)
        try:
            await self._call("generate", lambda engine: engine.add(batch))
            while num_left:
                group = await arrived.get()
                if isinstance(group, EngineError):
                    num_left = 0
                    raise group
                num_left -= 1
                yield self._result(group)
        finally:
            if num_left:
                await self._call("abort", lambda engine: engine.abort(batch))

    async def open_channel(self, address: str, rank: int) -> None:
        await self._call("open_channel", lambda engine: engine.open_channel(address, rank))

    async def receive(self, version: int) -> WeightManifest:
        return await self._call("receive", lambda engine: engine.receive(version))

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.close, CLOSE_SECONDS)

    async def _call(self, what: str, function: Callable[[RunningEngine], Any]) -> Any:
        try:
            return await asyncio.wrap_future(self._thread.call(function))
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"{self._name}: {what} failed: {type(error).__name__}: {error}") from error

    def _result(self, group: GroupInFlight) -> GroupResult:
        completions = tuple(self._completion(sample, group.weight_version) for sample in group.samples)
        return GroupResult(key=group.request.key, completions=completions)

    def _completion(self, sample: Sample, weight_version: int) -> Completion:
        if sample.finish is None or len(sample.token_ids) != len(sample.logprobs):
            raise EngineError(
                f"{self._name}: a sample ended as {sample.finish} with {len(sample.token_ids)} tokens "
                f"and {len(sample.logprobs)} log-probs"
            )
        return Completion(
            token_ids=tuple(sample.token_ids),
            logprobs=tuple(sample.logprobs),
            text=self._decode(sample.token_ids),
            finish=sample.finish,
            weight_version=weight_version,
        )


def _make_engine(spec: EngineSpec) -> RunningEngine:
    # Imported here, in the engine's own thread and after its environment has been set.
    from da3po.engine.vllm.running import RunningEngine

    return RunningEngine(spec)
