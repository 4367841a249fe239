"""`engine.vllm.*` against the arguments of the installed vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from da3po.config.load import load
from da3po.config.schema import ConfigError
from da3po.engine.vllm_arguments import OWNED, OWNED_ON_CPU, argument_types, check_arguments, parsed


@pytest.mark.parametrize(
    "arguments",
    [
        {"kv_cache_dtype": "fp8"},
        {"quantization": None},
        {"watermark": 0.02, "block_size": 32},
        {"kv_cache_dtype_skip_layers": ["0", "1"]},
        {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 4}'},
        {"enable_chunked_prefill": False, "async_scheduling": False},
    ],
)
def test_arguments_of_vllm_pass(arguments: dict[str, Any]) -> None:
    check_arguments(arguments, "cuda")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quantisation": "fp8"}, r"engine\.vllm\.quantisation: .* no argument 'quantisation'; did you mean 'quantiz"),
        ({"tensor_parallel_size": 2}, r"engine\.vllm\.tensor_parallel_size is decided by engine\.tp"),
        ({"weight_transfer_config": "{}"}, "is decided by the weight channel"),
        ({"block_size": "many"}, r"engine\.vllm\.block_size must be of type int \| None, got 'many'"),
        ({"use_tqdm_on_load": 1}, "must be of type bool, got 1"),
        ({"kv_cache_dtype_skip_layers": [1]}, r"must be of type list\[str\]"),
        ({"jit_monitor_mode": "loud"}, r"must be of type Literal\['warn', 'error'\]"),
        ({"speculative_config": "ngram"}, "must be of type dict"),
        ({"speculative_config": "{'method': 1}"}, "is no JSON"),
        ({"enable_chunked_prefill": True}, "is decided by the CPU"),
    ],
)
def test_others_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_arguments(arguments, "cpu")


def test_what_is_owned_exists() -> None:
    assert not (OWNED.keys() | OWNED_ON_CPU.keys()) - argument_types().keys()


def test_they_come_from_the_command_line() -> None:
    config = load(["engine.vllm.kv_cache_dtype=fp8", 'engine.vllm.speculative_config="{\\"method\\": \\"ngram\\"}"'])
    assert config.engine.vllm["kv_cache_dtype"] == "fp8"
    assert parsed(config.engine.vllm["speculative_config"]) == {"method": "ngram"}
