"""Memory by hand-computed numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from da3po.config.schema import Config, ConfigError, EngineConfig, LearnerConfig, MegatronConfig, ParallelConfig
from da3po.models.hf_config import ModelSpec
from da3po.models.published import PUBLISHED, find_model_spec
from da3po.plan.activations import in_flight, layer_bytes, rank_activation_bytes
from da3po.plan.engine import engine_memory
from da3po.plan.hardware import GIB, GPUS
from da3po.plan.learner import LOGPROB_CHUNK_ELEMENTS, learner_memory, publication_bytes
from da3po.plan.state import rank_state

# A layer of 2 query heads and 1 key/value head of width 4; hidden 8, feed-forward 16.
SPEC = ModelSpec(
    family="qwen3",
    num_layers=8,
    hidden_size=8,
    ffn_hidden_size=16,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    vocab_size=10,
    tied=False,
    norm_eps=1e-6,
    max_positions=100,
    rope_theta=1e4,
    rope_scaling=None,
    dtype="bfloat16",
)
BF16 = LearnerConfig(precision="bf16")


def recomputing(**fields: object) -> LearnerConfig:
    return LearnerConfig(
        precision="bf16", megatron=MegatronConfig(transformer={"recompute_granularity": "full", **fields})
    )


def test_a_layers_activations() -> None:
    # norm and product inputs 4 x 8; q 8, k and v 4 each, q and k before their norms 12, output 8; gate, up, product 48
    assert layer_bytes(SPEC, ParallelConfig(), 2) == 2 * (32 + 16 + 12 + 8 + 48) + 4 * 2
    assert layer_bytes(replace(SPEC, family="llama"), ParallelConfig(), 2) == 2 * (32 + 16 + 8 + 48) + 4 * 2
    assert layer_bytes(SPEC, ParallelConfig(tp=2), 2) == 2 * (32 + 84 / 2) + 4
    assert layer_bytes(SPEC, ParallelConfig(tp=2, sequence_parallel=True), 2) == 2 * (32 + 84) / 2 + 4


def test_micro_batches_in_flight() -> None:
    assert [in_flight(ParallelConfig(pp=4), pp) for pp in range(4)] == [4, 3, 2, 1]
    # Korthikanti et al.: interleaving multiplies the first rank's by 1 + (P - 1) / (P V)
    assert in_flight(ParallelConfig(pp=4, vpp=2), 0) == 4 * (1 + 3 / 8)


def test_activations_of_a_rank() -> None:
    of_layer, of_input = layer_bytes(SPEC, ParallelConfig(), 2), 16
    assert rank_activation_bytes(SPEC, ParallelConfig(), BF16, 10, pp=0) == 10 * (8 * of_layer + 2 * of_input)
    two = ParallelConfig(pp=2)
    assert rank_activation_bytes(SPEC, two, BF16, 10, pp=0) == 10 * (2 * 4 * of_layer + 2 * of_input)
    assert rank_activation_bytes(SPEC, two, BF16, 10, pp=1) == 10 * (4 * of_layer + 2 * of_input)
    assert rank_activation_bytes(SPEC, ParallelConfig(cp=2), BF16, 10, pp=0) == 5 * (8 * of_layer + 2 * of_input)


@pytest.mark.parametrize(
    ("fields", "layers_kept", "inputs_kept", "working"),
    [
        ({"recompute_method": "uniform", "recompute_num_layers": 1}, 0, 8, 1),
        ({"recompute_method": "uniform", "recompute_num_layers": 4}, 0, 2, 4),
        ({"recompute_method": "block", "recompute_num_layers": 3}, 5, 3, 1),
    ],
)
def test_recomputation(fields: dict[str, object], layers_kept: int, inputs_kept: int, working: int) -> None:
    of_layer, of_input = layer_bytes(SPEC, ParallelConfig(), 2), 16
    expected = 10 * ((layers_kept + working) * of_layer + (inputs_kept + 2) * of_input)
    assert rank_activation_bytes(SPEC, ParallelConfig(), recomputing(**fields), 10, pp=0) == expected


def test_the_chunk_of_logits_is_the_learners() -> None:
    logprobs = pytest.importorskip("da3po.learner.megatron.logprobs")
    assert logprobs.TILE_ELEMENTS["cuda"] == LOGPROB_CHUNK_ELEMENTS


def test_published_models_have_their_published_sizes() -> None:
    sizes = {"0.6B-Base": 596_049_920, "4B-Base": 4_022_468_096, "8B-Base": 8_190_735_360, "32B": 32_762_123_264}
    for name, size in sizes.items():
        spec = find_model_spec(f"Qwen/Qwen3-{name}")
        state = rank_state(spec, ParallelConfig(), BF16, pp=0, dp=0)
        assert state.num_parameters == size
        assert state.optimizer == 12 * size
        assert publication_bytes(spec, ParallelConfig(), BF16) == 2 * size


def test_a_folder_of_a_published_name_is_that_model() -> None:
    assert find_model_spec("/nowhere/Qwen3-8B-Base") == find_model_spec("Qwen/Qwen3-8B-Base")
    with pytest.raises(ConfigError, match="there is no such directory"):
        find_model_spec("/nowhere/Qwen3-9B-Base")
    with pytest.raises(ConfigError, match="a plan can be made for Qwen/"):
        find_model_spec("someone/unknown")
    assert set(PUBLISHED) >= {"Qwen/Qwen3-4B-Base", "Qwen/Qwen3-8B-Base", "Qwen/Qwen3-32B"}


def test_phases_of_the_learner() -> None:
    spec = find_model_spec("Qwen/Qwen3-4B-Base")
    config = Config(
        parallel=ParallelConfig(tp=2, dp=2, sequence_parallel=True), learner=LearnerConfig(precision="bf16")
    )
    (memory,) = learner_memory(spec, config, 16384)
    half = memory.state.num_parameters
    # 2 + 4 bytes for weights and gradients of every parameter here, 12 for the optimizer's half of them
    assert memory.state.total == pytest.approx(half * (6 + 12 / 2), rel=1e-4)
    assert memory.phases["forward and backward"] == memory.peak > memory.phases["weight sync"]
    fp8 = replace(config, learner=LearnerConfig(precision="fp8_blockwise"))
    assert learner_memory(spec, fp8, 16384)[0].fp8_copies == 2 * half


def test_an_engines_cache() -> None:
    spec = find_model_spec("Qwen/Qwen3-4B-Base")
    config = EngineConfig(dtype="bfloat16", memory_fraction=0.5)
    memory = engine_memory(spec, config, GPUS["h100_sxm_80gb"])
    assert memory.weights == 2 * 4_022_468_096
    assert memory.kv_token == 2 * 36 * 8 * 128 * 2
    assert memory.weights + memory.working + memory.other + memory.kv_cache == memory.budget
    two = engine_memory(spec, replace(config, tp=2), GPUS["h100_sxm_80gb"])
    assert two.kv_token == memory.kv_token // 2 and two.kv_tokens > 2 * memory.kv_tokens
    # More workers than key/value heads: each has one whole.
    assert engine_memory(spec, replace(config, tp=16), GPUS["h100_sxm_80gb"]).kv_token == memory.kv_token // 8


def test_an_engine_on_cpu() -> None:
    memory = engine_memory(SPEC, EngineConfig(kv_cache_gb=1.0, max_num_seqs=7), None)
    assert memory.kv_token == 2 * 8 * 1 * 4 * 4
    assert memory.kv_tokens == GIB // 256
    assert memory.sequences(1000.0, EngineConfig(max_num_seqs=7)) == 7
    assert memory.sequences(GIB / 256 / 3.5, EngineConfig(max_num_seqs=7)) == 3
