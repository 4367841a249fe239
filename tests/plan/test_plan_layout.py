from __future__ import annotations

from typing import Any

import pytest

from da3po.config.schema import ConfigError, ParallelConfig, Precision
from da3po.models.hf_config import ModelSpec
from da3po.plan.layout import Multiples, check_layout, pack_multiples, rank_layers


def spec(**changes: Any) -> ModelSpec:
    fields: dict[str, Any] = {
        "family": "qwen3",
        "num_layers": 6,
        "hidden_size": 128,
        "ffn_hidden_size": 256,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 32,
        "vocab_size": 1003,
        "tied": True,
        "norm_eps": 1e-6,
        "max_positions": 2048,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "dtype": "float32",
    }
    return ModelSpec(**{**fields, **changes})


@pytest.mark.parametrize(
    "parallel",
    [
        ParallelConfig(),
        ParallelConfig(tp=4),
        ParallelConfig(tp=8),  # two ranks share a key/value head
        ParallelConfig(tp=2, pp=3, dp=5, cp=7),
        ParallelConfig(pp=2, vpp=3),
        ParallelConfig(pp=4, first_stage_layers=1, last_stage_layers=1),
        ParallelConfig(pp=2, vpp=2, first_stage_layers=2),
    ],
)
def test_a_layout_that_fits_passes_whatever_the_vocabulary(parallel: ParallelConfig) -> None:
    check_layout(spec(), parallel)


@pytest.mark.parametrize(
    ("changes", "parallel", "message"),
    [
        ({}, ParallelConfig(tp=3), r"parallel\.tp=3 does not divide the model's 8 attention heads; 2 or 4 would do"),
        (
            {"num_heads": 12, "hidden_size": 96, "ffn_hidden_size": 96},
            ParallelConfig(tp=6),
            r"parallel\.tp=6 neither divides the model's 4 key/value heads nor is a multiple of them; 4 would",
        ),
        ({"ffn_hidden_size": 250}, ParallelConfig(tp=4), r"feed-forward width of 250; 2 would do"),
        ({"hidden_size": 126}, ParallelConfig(tp=4), r"hidden size of 126; 2 would do"),
        ({}, ParallelConfig(pp=4), r"parallel\.pp=4 does not divide the model's 6 layers; 3 or 6 would do"),
        ({}, ParallelConfig(pp=7), r"parallel\.pp=7 does not divide the model's 6 layers; 6 would do"),
        (
            {},
            ParallelConfig(pp=4, first_stage_layers=2),
            r"parallel\.first_stage_layers=2 leaves 4 of the model's 6 layers to 3 other pipeline ranks; 3 would do",
        ),
        (
            {},
            ParallelConfig(pp=2, first_stage_layers=2, last_stage_layers=2),
            r"parallel\.last_stage_layers=2 leaves 2 of the model's 6 layers to 0 other pipeline ranks; 4 would do",
        ),
        ({}, ParallelConfig(pp=2, vpp=2), r"parallel\.vpp=2 does not divide the 3 layers of a pipeline rank; 1 or 3"),
        (
            {},
            ParallelConfig(pp=2, vpp=2, first_stage_layers=5),
            r"parallel\.vpp=2 does not divide the 5 layers of a pipeline rank; 1 would do",
        ),
    ],
)
def test_a_layout_that_does_not_fit_names_both_numbers_and_a_neighbour(
    changes: dict[str, Any], parallel: ParallelConfig, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_layout(spec(**changes), parallel)


@pytest.mark.parametrize(
    ("parallel", "layers"),
    [
        (ParallelConfig(pp=3), [2, 2, 2]),
        (ParallelConfig(pp=2, first_stage_layers=4), [4, 2]),
        (ParallelConfig(pp=4, first_stage_layers=1, last_stage_layers=1), [1, 2, 2, 1]),
        (ParallelConfig(pp=2, first_stage_layers=1, last_stage_layers=5), [1, 5]),
        (ParallelConfig(pp=2, first_stage_layers=6), None),
    ],
)
def test_layers_of_each_pipeline_rank(parallel: ParallelConfig, layers: list[int] | None) -> None:
    assert rank_layers(6, parallel) == layers


@pytest.mark.parametrize(
    ("parallel", "precision", "expected"),
    [
        (ParallelConfig(tp=4), "bf16", (1, 1, 1, False)),
        (ParallelConfig(tp=4, sequence_parallel=True), "fp32", (4, 1, 1, False)),
        (ParallelConfig(cp=2), "fp32", (4, 4, 1, False)),
        (ParallelConfig(cp=3, tp=2, sequence_parallel=True), "fp32", (6, 6, 1, False)),
        (ParallelConfig(cp=2, tp=4, sequence_parallel=True), "fp8_delayed", (128, 4, 1, False)),
        (ParallelConfig(), "fp8_blockwise", (128, 1, 1, False)),
        (ParallelConfig(), "mxfp8", (32, 1, 1, False)),
        (ParallelConfig(pp=4, vpp=2), "fp32", (1, 1, 4, True)),
    ],
)
def test_what_a_layout_asks_of_packing(
    parallel: ParallelConfig, precision: Precision, expected: tuple[int, int, int, bool]
) -> None:
    tokens, sequence, micro_batches, equal_lengths = expected
    assert pack_multiples(parallel, precision) == Multiples(
        tokens=tokens, sequence=sequence, micro_batches=micro_batches, equal_lengths=equal_lengths
    )
