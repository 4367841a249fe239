from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_host import EngineHost, make_spec
from fixtures_hf import VOCAB_SIZE, make_qwen3

# Everything that would spoil sampling if it were obeyed; and two stop ids, of which config.json names the first only.
GENERATION = {
    "eos_token_id": [2, 3],
    "temperature": 0.6,
    "top_k": 1,
    "top_p": 0.1,
    "repetition_penalty": 1.3,
    "do_sample": True,
    "max_new_tokens": 3,
}
# Left over from other launches; none of them may reach the engine.
STALE_ENVIRONMENT = {
    "VLLM_PORT": "7",
    "VLLM_DP_MASTER_PORT": "7",
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "7",
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "3",
}


def make_tokenizer(directory: Path) -> None:
    """Bytes as tokens, four special ones before them; the ids above them, which the model can sample, have names."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<bos>", "<eos>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"<{i}>" for i in range(len(names), VOCAB_SIZE)]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
    fast.add_special_tokens({"additional_special_tokens": ["<end>"]})
    fast.save_pretrained(directory)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_qwen3(tmp_path_factory.mktemp("qwen3"))
    make_tokenizer(directory)
    (directory / "generation_config.json").write_text(json.dumps(GENERATION))
    return directory


@pytest.fixture(scope="session")
def engine(model_path: Path) -> Iterator[EngineHost]:
    """One real engine for all tests; each leaves it idle and holding the model's own weights or says which."""
    host = EngineHost(make_spec(model_path), STALE_ENVIRONMENT)
    host.start()
    yield host
    host.kill()
