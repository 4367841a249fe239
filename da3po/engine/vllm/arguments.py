"""What vLLM is told: engine arguments from an EngineSpec, sampling parameters from a GroupRequest.

Every option that changes what is sampled is given explicitly. `generation_config="vllm"` keeps the model's own
generation_config.json out of it, but for the stop ids, which are read here and passed on by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vllm import EngineArgs
from vllm import SamplingParams as VllmSamplingParams
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.sampling_params import RequestOutputKind

from da3po.engine.spec import EngineSpec
from da3po.engine.vllm.plugin import BACKEND
from da3po.engine.vllm_arguments import parsed
from da3po.types import SamplingParams

GIB = 2**30
# Tokens in a block of the cache; whole blocks are what the samples of a prompt share. vLLM's kernels for CPU take no
# smaller ones, and with the 128 that it would choose most prompts would be computed once for every sample.
CPU_BLOCK_SIZE = 32


def engine_arguments(spec: EngineSpec) -> EngineArgs:
    """vLLM's arguments for `spec`."""
    config = spec.config
    others = {**_device_arguments(spec), **{name: parsed(value) for name, value in config.vllm.items()}}
    return EngineArgs(
        model=spec.model_path,
        trust_remote_code=spec.trust_remote_code,
        dtype=config.dtype,
        seed=spec.seed,
        max_model_len=spec.max_model_len,
        max_num_seqs=config.max_num_seqs,
        tensor_parallel_size=config.tp,
        # Left to itself vLLM asks Ray for more workers, when the devices are this process's already.
        distributed_executor_backend="mp" if config.tp > 1 else "uni",
        enforce_eager=config.enforce_eager,
        enable_prefix_caching=config.prefix_caching,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        worker_extension_cls="da3po.engine.vllm.receiver.ManifestReport",
        **others,
    )


def _device_arguments(spec: EngineSpec) -> dict[str, Any]:
    config = spec.config
    if spec.device == "cuda":
        return {
            "gpu_memory_utilization": config.memory_fraction,
            "max_num_batched_tokens": max(config.max_num_batched_tokens, config.max_num_seqs),
            "enable_chunked_prefill": True,
            "async_scheduling": True,
        }
    # A prompt cut in two makes vLLM rewind the request's random generator, which CPU generators cannot do: the step
    # raises "CPU Generator does not use offset". So prompts stay whole, and a step must have room for the longest.
    return {
        "kv_cache_memory_bytes": int(config.kv_cache_gb * GIB),
        "block_size": CPU_BLOCK_SIZE,
        "max_num_batched_tokens": max(config.max_num_batched_tokens, config.max_num_seqs, spec.max_model_len),
        "enable_chunked_prefill": False,
        "async_scheduling": False,
    }


def sampling_parameters(sampling: SamplingParams, seed: int, stop_ids: tuple[int, ...]) -> VllmSamplingParams:
    """One sample's parameters. Only the sampled token's log-prob is asked for, and no text is made per token."""
    return VllmSamplingParams(
        n=1,
        seed=seed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        max_tokens=sampling.max_tokens,
        min_tokens=0,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=[] if sampling.ignore_eos else list(stop_ids),
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def stop_token_ids(model_path: str) -> tuple[int, ...]:
    """All end-of-sequence ids that the model's own files name, generation_config.json before config.json."""
    for name in ("generation_config.json", "config.json"):
        file = Path(model_path) / name
        found = json.loads(file.read_text()).get("eos_token_id") if file.exists() else None
        if found is not None:
            return (found,) if isinstance(found, int) else tuple(found)
    return ()
