"""Rollout tokens/s: engine pool against vLLM alone in its process, on the same prompts and settings.

    python tools/bench/rollout.py MODEL_DIR [--num-prompts 64] [--num-samples 16] [--max-tokens 64] [--repeat 3]

Two processes, one after the other, each first warms up. `pool` is what a run uses: EnginePool -> RemoteEngine -> Ray
actor -> VllmEngine, completions brought back to the controller. `alone` is `vllm.LLM.generate` with the same engine
arguments and sampling parameters, results as vLLM gives them, text included. The best of `--repeat` counts for each.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from da3po.config.schema import ClusterConfig, EngineConfig, SyncConfig
from da3po.engine.spec import EngineSpec
from da3po.types import GroupRequest, SamplingParams

WARMUP_TOKENS = 8


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


def best_rate(args: argparse.Namespace, generate: Callable[[list[GroupRequest]], int]) -> float:
    """Tokens/s of the best turn."""
    generate(requests(args, 0, WARMUP_TOKENS))
    rates = []
    for turn in range(1, args.repeat + 1):
        batch = requests(args, turn, args.max_tokens)
        start = time.perf_counter()
        num_tokens = generate(batch)
        rates.append(num_tokens / (time.perf_counter() - start))
    return max(rates)


def measure_alone(args: argparse.Namespace) -> float:
    from da3po.engine.vllm.environment import apply_environment

    spec = engine_spec(args)
    apply_environment(spec)
    from dataclasses import fields

    import torch
    from vllm import LLM

    from da3po.engine.vllm.arguments import engine_arguments, sampling_parameters

    torch.set_num_threads(spec.num_threads)
    arguments = engine_arguments(spec)
    llm = LLM(**{field.name: getattr(arguments, field.name) for field in fields(arguments)})

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

    return best_rate(args, generate)


def measure_pool(args: argparse.Namespace) -> float:
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
    with tempfile.TemporaryDirectory() as logs, Session(ClusterConfig(), num_gpus=0), asyncio.Runner() as runner:

        async def start() -> RemoteEngine:
            engine = RemoteEngine(Worker(worker, Path(logs), concurrent=True))
            await engine.start()
            return engine

        engine = runner.run(start())
        pool = EnginePool([engine])

        async def collect(batch: list[GroupRequest]) -> int:
            return sum([len(c.token_ids) async for result in pool.generate(batch) for c in result.completions])

        rate = best_rate(args, lambda batch: runner.run(collect(batch)))
        runner.run(pool.close())
        return rate


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
    parser.add_argument("--only", choices=["alone", "pool"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        rate = measure_alone(args) if args.only == "alone" else measure_pool(args)
        print(json.dumps({"tokens_per_s": rate}))
        return
    rates = {}
    for only in ("alone", "pool"):
        command = [sys.executable, __file__, *sys.argv[1:], "--only", only]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        rates[only] = json.loads(output.strip().splitlines()[-1])["tokens_per_s"]
    print(
        json.dumps(
            {
                "num_sequences": args.num_prompts * args.num_samples,
                "max_tokens": args.max_tokens,
                "pool_tokens_per_s": rates["pool"],
                "vllm_alone_tokens_per_s": rates["alone"],
                "ratio": rates["pool"] / rates["alone"],
            }
        )
    )


if __name__ == "__main__":
    main()
