from __future__ import annotations

from typing import Any

import pytest

from da3po.config.schema import ConfigError, ParallelConfig
from da3po.models.hf_config import ModelSpec
from da3po.plan.layout import check_layout


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


@pytest.mark.parametrize("parallel", [ParallelConfig(), ParallelConfig(tp=4), ParallelConfig(tp=2, pp=3, dp=5)])
def test_a_layout_that_fits_passes_whatever_the_vocabulary(parallel: ParallelConfig) -> None:
    check_layout(spec(), parallel)


@pytest.mark.parametrize(
    ("changes", "parallel", "message"),
    [
        ({}, ParallelConfig(tp=3), r"parallel\.tp=3 does not divide the model's 8 attention heads; 2 or 4 would do"),
        ({}, ParallelConfig(tp=8), r"parallel\.tp=8 does not divide the model's 4 key/value heads; 4 would do"),
        ({"ffn_hidden_size": 250}, ParallelConfig(tp=4), r"feed-forward width of 250; 2 would do"),
        ({"hidden_size": 126}, ParallelConfig(tp=4), r"hidden size of 126; 2 would do"),
        ({}, ParallelConfig(pp=4), r"parallel\.pp=4 does not divide the model's 6 layers; 3 or 6 would do"),
        ({}, ParallelConfig(pp=7), r"parallel\.pp=7 does not divide the model's 6 layers; 6 would do"),
    ],
)
def test_a_layout_that_does_not_fit_names_both_numbers_and_a_neighbour(
    changes: dict[str, Any], parallel: ParallelConfig, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_layout(spec(**changes), parallel)
