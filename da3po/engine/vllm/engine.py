"""The Engine protocol over vLLM. Lives in a process of its own, where it is the first to import vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from da3po.engine.protocol import EngineError
from da3po.engine.spec import EngineSpec
from da3po.engine.vllm.batch import Batch, GroupInFlight, Pulse, Sample
from da3po.engine.vllm.environment import apply_environment
from da3po.engine.vllm.thread import SteppingThread
from da3po.types import Completion, GroupRequest, GroupResult, WeightManifest

if TYPE_CHECKING:
    from da3po.engine.vllm.running import RunningEngine

CLOSE_SECONDS = 30.0

Arrivals = asyncio.Queue[GroupInFlight | EngineError | None]
"""What a generate call waits for: whole groups, the error that ended the engine, or None if it was aborted."""


class VllmEngine:
    """One engine; nothing heavy happens before `start`."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._name = f"engine {spec.engine_index}"
        self._pulse = Pulse()
        self._thread: SteppingThread[RunningEngine] = SteppingThread(
            self._name, lambda: _make_engine(spec, self._pulse)
        )
        self._decode: Callable[[list[int]], str]
        self._running: dict[int | None, tuple[Batch, Arrivals]] = {}  # by the number of the generate call
        self._ended_early: set[int] = set()  # calls that were aborted before they came
        self.num_aborted_tokens = 0

    async def start(self) -> None:
        """Set the environment, import vLLM, load the model. Raises EngineError."""
        apply_environment(self._spec)
        await asyncio.wrap_future(self._thread.start())
        self._decode = await self._call("start", lambda engine: engine.decode)

    async def generate(self, requests: Sequence[GroupRequest], call: int | None = None) -> AsyncIterator[GroupResult]:
        """Sample all groups; each is yielded when its last sample ends. Leaving early aborts the rest.

        call: a number by which `abort` finds it, for a caller in another process.
        """
        arrived: Arrivals = asyncio.Queue()
        loop = asyncio.get_running_loop()
        batch = Batch(requests, lambda item: loop.call_soon_threadsafe(arrived.put_nowait, item))
        num_left = 0 if call in self._ended_early else len(batch.groups)
        if call is not None:
            self._running[call] = batch, arrived
        try:
            if num_left:
                await self._call("generate", lambda engine: engine.add(batch))
            while num_left:
                group = await arrived.get()
                if group is None or isinstance(group, EngineError):
                    num_left = 0
                    if group is not None:
                        raise group
                    return
                num_left -= 1
                yield self._result(group)
        finally:
            self._running.pop(call, None)
            if num_left:
                self.num_aborted_tokens += await self._call("abort", lambda engine: engine.abort(batch))

    async def abort(self, call: int) -> int:
        """End the generate call of that number; return the response tokens that were drawn in vain."""
        if call not in self._running:
            self._ended_early.add(call)
            return 0
        batch, arrived = self._running.pop(call)
        num_tokens = await self._call("abort", lambda engine: engine.abort(batch))
        arrived.put_nowait(None)
        return num_tokens

    async def open_channel(self, address: str, rank: int) -> None:
        await self._call("open_channel", lambda engine: engine.open_channel(address, rank))

    async def receive(self, version: int) -> WeightManifest:
        return await self._call("receive", lambda engine: engine.receive(version))

    async def heartbeat(self) -> int:
        return self._pulse.num_tokens

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
        return GroupResult(key=group.request.key, completions=tuple(map(self._completion, group.samples)))

    def _completion(self, sample: Sample) -> Completion:
        if sample.finish is None or len(sample.token_ids) != len(sample.logprobs):
            raise EngineError(
                f"{self._name}: a sample ended as {sample.finish} with {len(sample.token_ids)} tokens "
                f"and {len(sample.logprobs)} log-probs"
            )
        versions = sample.versions
        return Completion(
            token_ids=tuple(sample.token_ids),
            logprobs=tuple(sample.logprobs),
            text=self._decode(sample.token_ids),
            finish=sample.finish,
            weight_version=min(version for version, _ in versions),
            versions=versions if len(versions) > 1 else (),
        )


def _make_engine(spec: EngineSpec, pulse: Pulse) -> RunningEngine:
    # Imported here, in the engine's own thread and after its environment has been set.
    from da3po.engine.vllm.running import RunningEngine

    return RunningEngine(spec, pulse)
