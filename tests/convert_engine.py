"""Stock vLLM on a model directory, as a program of its own: prints what it makes of some tokens, as JSON.

logprobs: of each token after the first, given those before. stopped: what ended a response that may consist of one
token alone (`only`), and its length.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}


def run_engine(model: Path, ids: list[int], only: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, str(model), json.dumps(ids), str(only)],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(model: str, ids: list[int], only: int) -> None:
    from vllm import LLM, SamplingParams

    engine = LLM(
        model,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=256,
        enforce_eager=True,
        kv_cache_memory_bytes=2**27,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        enable_chunked_prefill=False,
        disable_log_stats=True,
    )
    read = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    (output,) = engine.generate([{"prompt_token_ids": ids}], read, use_tqdm=False)
    logprobs = [entry[token].logprob for entry, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)]
    one_token = engine.get_default_sampling_params()
    one_token.max_tokens, one_token.allowed_token_ids, one_token.detokenize = 8, [only], False
    (output,) = engine.generate([{"prompt_token_ids": ids}], one_token, use_tqdm=False)
    stopped = {"reason": output.outputs[0].finish_reason, "length": len(output.outputs[0].token_ids)}
    print(json.dumps({"logprobs": logprobs, "stopped": stopped}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
