"""What the controller's pool costs, with engines that only pretend: up to 512 of them and 100,000 requests.

    python tools/bench/pool.py [--engines 1 8 64 512] [--per-engine 196] [--rate 10] [--num-samples 16] [--tokens 256]

Every engine answers `rate` groups a second, so `efficiency`, the pool's groups a second over what its engines can do,
is 1 where the pool is in nobody's way. `us_per_completion` is what the controller's process computes for a response:
dispatch, checks, bookkeeping, watching, and the pretence itself. `core_at_1000_per_second` is the share of a core that
1,000 responses a second take. `publication_seconds` is what a publication takes beside the weights: these engines have
them at once, and the pool still asks each to join a channel and to receive. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from da3po.config.schema import EngineConfig
from da3po.engine.pool import EnginePool
from da3po.types import Completion, GroupRequest, GroupResult, SamplingParams, WeightManifest


class PretendedEngine:
    """Answers so many groups a second, with the same tokens each time; its weights are a number alone."""

    def __init__(self, rate: float, num_tokens: int) -> None:
        self._seconds = 1 / rate
        self._completion = Completion(
            token_ids=tuple(range(num_tokens)),
            logprobs=(-0.5,) * num_tokens,
            text="",
            finish="stop",
            weight_version=0,
        )
        self.num_tokens = 0
        self.num_aborted_tokens = 0

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        start = time.monotonic()
        for number, request in enumerate(requests, 1):
            await asyncio.sleep(max(0.0, start + number * self._seconds - time.monotonic()))
            self.num_tokens += len(request.seeds)
            yield GroupResult(key=request.key, completions=(self._completion,) * len(request.seeds))

    async def heartbeat(self) -> int:
        return self.num_tokens

    async def open_channel(self, address: str, rank: int) -> None:
        pass

    async def receive(self, version: int) -> WeightManifest:
        self._completion = replace(self._completion, weight_version=version)
        return WeightManifest(version=version, buckets=())

    async def close(self) -> None:
        pass

    def kill(self) -> None:
        pass


async def measure(num_engines: int, args: argparse.Namespace) -> dict[str, float]:
    engines = [PretendedEngine(args.rate, args.tokens) for _ in range(num_engines)]
    pool = EnginePool(engines, EngineConfig(num_engines=num_engines))
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=args.tokens)
    seeds = tuple(range(args.num_samples))
    num_requests = num_engines * args.per_engine
    publication_seconds = await publish(pool, version=1)
    requests = [GroupRequest(key=key, prompt_ids=(1,), seeds=seeds, sampling=sampling) for key in range(num_requests)]
    wall, cpu = time.perf_counter(), time.process_time()
    keys = [result.key async for result in pool.generate(requests)]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    await pool.close()
    if sorted(keys) != list(range(num_requests)):
        raise AssertionError("a request was lost, or answered twice")
    num_completions = num_requests * args.num_samples
    return {
        "num_engines": num_engines,
        "num_requests": num_requests,
        "completions_per_second": num_completions / wall,
        "efficiency": num_requests / wall / (num_engines * args.rate),
        "us_per_completion": cpu / num_completions * 1e6,
        "core_at_1000_per_second": cpu / num_completions * 1000,
        "publication_seconds": publication_seconds,
    }


async def publish(pool: EnginePool, version: int) -> float:
    """Seconds."""
    start = time.perf_counter()
    async with pool.everyone() as audience:
        await audience.open_channel("nowhere:0")
        manifests = await audience.receive(version)
        audience.confirm(version)
    if {manifest.version for manifest in manifests} != {version} or len(manifests) != audience.num_receivers:
        raise AssertionError("an engine was left out")
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--per-engine", type=int, default=196)
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--num-samples", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    args = parser.parse_args()
    print(json.dumps({"rounds": [asyncio.run(measure(num_engines, args)) for num_engines in args.engines]}))


if __name__ == "__main__":
    main()
