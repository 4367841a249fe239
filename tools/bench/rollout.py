"""Rollout tokens/s: engine pool against vLLM alone in its process, on the same prompts and settings.

    python tools/bench/rollout.py MODEL_DIR [--num-prompts 64] [--num-samples 16] [--max-tokens 64] [--repeat 3]
                                  [--alone ARGUMENT=JSON]

Two sides, each in a process of its own, with the same number of threads. Both are started and warmed up, and then take
turns, so that whatever else the machine does meets them alike. `pool` is what a run uses: EnginePool -> RemoteEngine ->
Ray actor -> VllmEngine, completions brought back to the controller. `alone` is `vllm.LLM.generate` with the same engine
arguments and sampling parameters, results as vLLM gives them, text included; `--alone block_size=128` gives it another
value of an engine argument. The ratio is the median of the rounds'. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from da3po.config.schema import ClusterConfig, EngineConfig, SyncConfig
from da3po.engine.spec import EngineSpec
from da3po.types import GroupRequest, SamplingParams

WARMUP_TOKENS = 8
MARK = "bench tokens/s: "


def engine_spec(args: argparse.Namespace) -> EngineSpec:
    return EngineSpec(
        model_path=args.model,
        config=EngineConfig(max_num_seqs=args.max_num_seqs),
        max_model_len=args.prompt_tokens + args.max_tokens,
        seed=0,
        device="cpu",
        engine_index=0,
        sync=SyncConfig(),
        num_threads=args.num_threads,
    )


def requests(args: argparse.Namespace, turn: int, max_tokens: int) -> list[GroupRequest]:
    """Every turn other seeds, so that nothing can be remembered; full length, so that turns are equal."""
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=max_tokens, ignore_eos=True)
    return [
        GroupRequest(
            key=key,
            prompt_ids=tuple(4 + (key + i) % 200 for i in range(args.prompt_tokens)),
            seeds=tuple(((turn * args.num_prompts + key) * args.num_samples) + i for i in range(args.num_samples)),
            sampling=sampling,
        )
        for key in range(args.num_prompts)
    ]


def take_turns(args: argparse.Namespace, generate: Callable[[list[GroupRequest]], int]) -> None:
    """One side: warm up, then answer every turn number that comes in with the tokens/s of that turn."""
    generate(requests(args, 0, WARMUP_TOKENS))
    print(f"{MARK}0", flush=True)
    for line in sys.stdin:
        batch = requests(args, int(line), args.max_tokens)
        start = time.perf_counter()
        num_tokens = generate(batch)
        print(f"{MARK}{num_tokens / (time.perf_counter() - start)}", flush=True)


class Side:
    """The other end of `take_turns`."""

    def __init__(self, name: str, num_threads: int) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--only", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(num_threads)},
        )

    def answer(self) -> float:
        """The next answer; other lines are the libraries' own."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return float(line.removeprefix(MARK))
        raise RuntimeError(f"{self.name} ended with code {self._process.wait()}")

    def rate(self, turn: int) -> float:
        assert self._process.stdin is not None
        print(turn, file=self._process.stdin, flush=True)
        return self.answer()

    def close(self) -> None:
        """Let it end by itself; its standard input is its life line."""
        self._process.communicate()


def run_alone(args: argparse.Namespace) -> None:
    from da3po.engine.vllm.environment import apply_environment

    spec = engine_spec(args)
    apply_environment(spec)
    from dataclasses import fields

    import torch
    from vllm import LLM

    from da3po.engine.vllm.arguments import engine_arguments, sampling_parameters

    torch.set_num_threads(spec.num_threads)
    arguments = engine_arguments(spec)
    of_pool = {field.name: getattr(arguments, field.name) for field in fields(arguments)}
    others = {name: json.loads(value) for name, value in (argument.split("=", 1) for argument in args.alone)}
    llm = LLM(**{**of_pool, **others})

    def generate(batch: list[GroupRequest]) -> int:
        prompts, parameters = [], []
        for request in batch:
            for seed in request.seeds:
                one = sampling_parameters(request.sampling, seed, ())
                one.detokenize = True
                prompts.append({"prompt_token_ids": list(request.prompt_ids)})
                parameters.append(one)
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    take_turns(args, generate)


def run_pool(args: argparse.Namespace) -> None:
    from da3po.cluster.session import Session
    from da3po.cluster.workers import Worker, WorkerSpec
    from da3po.engine.pool import EnginePool
    from da3po.engine.remote import RemoteEngine

    spec = engine_spec(args)
    worker = WorkerSpec(
        name="engine-0",
        entry="da3po.engine.vllm.engine:VllmEngine",
        args=(spec,),
        env={"OMP_NUM_THREADS": str(args.num_threads)},
    )
    with tempfile.TemporaryDirectory() as logs, Session(ClusterConfig()), asyncio.Runner() as runner:

        async def start() -> RemoteEngine:
            engine = RemoteEngine(Worker(worker, Path(logs), concurrent=True))
            await engine.start()
            return engine

        engine = runner.run(start())
        pool = EnginePool([engine])

        async def collect(batch: list[GroupRequest]) -> int:
            return sum([len(c.token_ids) async for result in pool.generate(batch) for c in result.completions])

        take_turns(args, lambda batch: runner.run(collect(batch)))
        runner.run(pool.close())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="Hugging Face directory")
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--num-samples", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--num-threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--alone", action="append", default=[], metavar="ARGUMENT=JSON", help="of vLLM alone")
    parser.add_argument("--only", choices=["alone", "pool"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        {"alone": run_alone, "pool": run_pool}[args.only](args)
        return
    alone, pool = sides = [Side(name, args.num_threads) for name in ("alone", "pool")]
    for side in sides:
        side.answer()
    rounds = [(alone.rate(turn), pool.rate(turn)) for turn in range(1, args.repeat + 1)]
    for side in sides:
        side.close()
    print(json.dumps(summary(args, rounds)))


def summary(args: argparse.Namespace, rounds: list[tuple[float, float]]) -> dict[str, object]:
    """rounds: tokens/s of vLLM alone and of the pool, turn by turn."""
    return {
        "num_sequences": args.num_prompts * args.num_samples,
        "prompt_tokens": args.prompt_tokens,
        "max_tokens": args.max_tokens,
        "alone": args.alone,
        "num_threads": args.num_threads,
        "ratio": median(pool / alone for alone, pool in rounds),
        "pool_tokens_per_s": median(pool for _, pool in rounds),
        "vllm_alone_tokens_per_s": median(alone for alone, _ in rounds),
        "rounds": [{"alone": round(alone), "pool": round(pool)} for alone, pool in rounds],
    }


if __name__ == "__main__":
    main()
