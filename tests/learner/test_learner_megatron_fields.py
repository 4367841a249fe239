"""Megatron's own fields: what is passed on, what is refused; and what a precision means to it and to the machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from da3po.config.schema import ConfigError, MegatronConfig, Precision
from da3po.learner.megatron.fields import (
    CLASSES,
    check_device_fields,
    check_fields,
    enum_members,
    field_types,
    is_settable,
    leaf_types,
)
from da3po.learner.megatron.owned_fields import OWNED
from da3po.learner.megatron.precision import check_device, check_machine


def run(code: str) -> None:
    """Run `code` in a fresh interpreter with Megatron fit for CPU."""
    prepare = "from megatron_patches import cpu_device\ncpu_device.apply()\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", prepare + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    "config",
    [
        MegatronConfig(transformer={"recompute_granularity": "full", "recompute_method": None}),
        MegatronConfig(transformer={"recompute_modules": ["core_attn"], "attention_dropout": 0}),
        MegatronConfig(ddp={"overlap_grad_reduce": True, "bucket_size": 1000}),
        MegatronConfig(optimizer={"optimizer_cpu_offload": True}),
        MegatronConfig(transformer={"attention_backend": "flash", "window_size": [128, 0]}),
        MegatronConfig(optimizer={"exp_avg_dtype": "bfloat16"}),
    ],
)
def test_fields_of_megatron_are_taken(config: MegatronConfig) -> None:
    check_fields(config)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            MegatronConfig(transformer={"recompute_granularty": "full"}),
            "TransformerConfig has no field 'recompute_granularty'; did you mean 'recompute_granularity'?",
        ),
        (MegatronConfig(transformer={"xyzzy": 1}), "has no field 'xyzzy'"),
        (MegatronConfig(transformer={"tensor_model_parallel_size": 2}), "is decided by parallel.tp"),
        (MegatronConfig(transformer={"fp8": "hybrid"}), "is decided by learner.precision"),
        (MegatronConfig(ddp={"use_distributed_optimizer": False}), "is decided by the checkpoint's format"),
        (MegatronConfig(optimizer={"lr": 0.1}), "learner.megatron.optimizer.lr is decided by optim.lr"),
        (MegatronConfig(transformer={"recompute_granularity": "ful"}), "must be of type Optional[Literal['full', 'sel"),
        (MegatronConfig(ddp={"bucket_size": "big"}), "must be of type Optional[int], got 'big'"),
        (MegatronConfig(ddp={"overlap_grad_reduce": 1}), "must be of type bool, got 1"),
        (MegatronConfig(ddp={"bucket_size": True}), "must be of type Optional[int], got True"),
        (MegatronConfig(transformer={"init_method": "normal"}), "takes a Optional[Callable], which no value of"),
        (
            MegatronConfig(transformer={"attention_backend": "flahs"}),
            "attention_backend must be one of flash, fused, unfused, local, auto, got 'flahs'",
        ),
        (
            MegatronConfig(optimizer={"exp_avg_dtype": "float8"}),
            "exp_avg_dtype must be one of float32, bfloat16, float16, uint8, got 'float8'",
        ),
        (MegatronConfig(transformer={"window_size": [1]}), "must be of type Optional[Tuple[int, int]], got [1]"),
        (MegatronConfig(optimizer={"decoupled_lr": 0.1}), "is decided by optim.lr, which is that of all parameters"),
        (MegatronConfig(transformer={"deterministic_mode": True}), "is decided by learner.deterministic"),
    ],
)
def test_a_wrong_field_is_refused_by_name(config: MegatronConfig, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        check_fields(config)


UNNAMEABLE = {"Callable", "ContextManager", "RecipeConfig"}
"""Types that no option can hold: functions, and objects that only code can make."""


def example(annotation: ast.expr) -> Any:
    """Some value of a type other than None; None if there is none."""
    if isinstance(annotation, ast.Subscript):
        arguments = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        match ast.unparse(annotation.value):
            case "Literal":
                return ast.literal_eval(arguments[0])
            case "Optional" | "Union":
                return next((found for found in map(example, arguments) if found is not None), None)
            case "List" | "list":
                return [example(arguments[0])]
            case "Tuple":
                return [example(argument) for argument in arguments if ast.unparse(argument) != "..."]
    name = ast.unparse(annotation)
    plain = {"bool": True, "int": 1, "float": 0.5, "str": "text", "torch.dtype": "bfloat16"}
    return plain.get(name) or next(iter(enum_members(name)), None)


@pytest.mark.parametrize("section", CLASSES)
def test_every_field_is_taken_or_refused_with_a_reason(section: str) -> None:
    """Of Megatron's own classes, whole: what something else decides is refused by the name of that, what only code can
    make by its type, and all others are taken."""
    settable = 0
    for name, annotation in field_types(section).items():
        value = example(annotation)
        config = MegatronConfig(**{section: {name: value}})
        if name in OWNED[section]:
            with pytest.raises(ConfigError, match=re.escape(f"{section}.{name} is decided by {OWNED[section][name]}")):
                check_fields(config)
        elif is_settable(annotation):
            assert value is not None, name
            check_fields(config)
            settable += 1
        else:
            assert leaf_types(annotation) - {"None"} <= UNNAMEABLE, name
            with pytest.raises(ConfigError, match=re.escape(f"{section}.{name} takes a {ast.unparse(annotation)}")):
                check_fields(MegatronConfig(**{section: {name: "a name"}}))
    assert settable > len(field_types(section)) / 2


@pytest.mark.parametrize(
    ("field", "value"), [("attention_dropout", 0.1), ("window_size", [64, 0]), ("attention_backend", "flash")]
)
def test_what_the_attention_on_cpu_would_ignore_is_refused_there(field: str, value: Any) -> None:
    config = MegatronConfig(transformer={field: value})
    check_fields(config)
    check_device_fields(config, "cuda")
    with pytest.raises(ConfigError, match=f"transformer.{field}="):
        check_device_fields(config, "cpu")
    check_device_fields(MegatronConfig(transformer={"attention_dropout": 0}), "cpu")


def test_a_wrong_field_is_refused_without_importing_megatron_or_torch() -> None:
    code = """
        import sys
        from da3po.config.schema import ConfigError, MegatronConfig
        from da3po.learner.megatron.fields import check_fields
        try:
            check_fields(MegatronConfig(transformer={"hiden_size": 1}))
        except ConfigError:
            pass
        heavy = {name.split(".")[0] for name in sys.modules} & {"torch", "megatron", "ray"}
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.mark.distributed
def test_names_are_those_of_the_installed_megatron_and_every_precision_builds_its_config() -> None:
    """Also: what da3po passes to TransformerConfig is marked as its own, so that a run cannot pass it twice."""
    run("""
        import dataclasses
        from megatron.core.distributed import DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig
        from megatron.core.transformer import TransformerConfig
        from da3po.config.schema import LearnerConfig, MegatronConfig, ParallelConfig, Precision
        from da3po.learner.megatron.backend import CpuBackend
        from da3po.learner.megatron.context import WholeSequences
        from da3po.learner.megatron.field_values import megatron_values
        from da3po.learner.megatron.fields import field_types
        from da3po.learner.megatron.model import owned_transformer_fields, transformer_config
        from da3po.learner.megatron.owned_fields import OWNED
        from da3po.learner.megatron.precision import parameter_dtype
        from da3po.models.hf_config import ModelSpec
        from typing import get_args
        import torch

        named = {"attention_backend": "fused", "window_size": [8, 0], "cuda_graph_impl": "none", "num_moe_experts": 2}
        assert megatron_values("transformer", named) == {
            **named, "attention_backend": TransformerConfig.attention_backend.__class__.fused, "window_size": (8, 0)
        }
        assert megatron_values("optimizer", {"exp_avg_dtype": "float16"}) == {"exp_avg_dtype": torch.float16}
        OptimizerConfig(**megatron_values("optimizer", {"exp_avg_dtype": "float32"}))

        classes = {
            "transformer": TransformerConfig, "ddp": DistributedDataParallelConfig, "optimizer": OptimizerConfig
        }
        for section, cls in classes.items():
            assert {f.name for f in dataclasses.fields(cls)} == set(field_types(section)), section
            assert set(OWNED[section]) <= set(field_types(section)), section

        spec = ModelSpec(
            family="qwen3", num_layers=6, hidden_size=128, ffn_hidden_size=256, num_heads=8, num_kv_heads=4,
            head_dim=32, vocab_size=1003, tied=True, norm_eps=1e-6, max_positions=2048, rope_theta=1e6,
            rope_scaling=None, dtype="float32",
        )
        expected = {
            "fp32": (None, None), "bf16": (None, None), "fp8_delayed": ("hybrid", "delayed"),
            "fp8_tensorwise": ("hybrid", "tensorwise"), "fp8_blockwise": ("e4m3", "blockwise"),
            "mxfp8": ("e4m3", "mxfp8"),
        }
        assert set(expected) == set(get_args(Precision))
        for precision, (format, recipe) in expected.items():
            learner = LearnerConfig(
                precision=precision, megatron=MegatronConfig(transformer={"attention_dropout": 0.1})
            )
            assert set(owned_transformer_fields(spec, ParallelConfig(), learner)) <= set(OWNED["transformer"])
            config = transformer_config(spec, ParallelConfig(), learner, CpuBackend(WholeSequences()))
            assert config.fp8 == format and (format is None or config.fp8_recipe == recipe), precision
            assert config.params_dtype == parameter_dtype(precision) and config.bf16 == (precision != "fp32")
            assert config.attention_dropout == 0.1 and config.hidden_dropout == 0.0
    """)


@pytest.mark.parametrize("precision", ["fp8_delayed", "fp8_tensorwise", "fp8_blockwise", "mxfp8"])
def test_fp8_is_refused_on_cpu(precision: Precision) -> None:
    with pytest.raises(ConfigError, match=f"{precision} needs a CUDA device; this learner runs on cpu"):
        check_device(precision, "cpu")
    check_device(precision, "cuda")


def test_a_machine_that_cannot_run_a_precision_hears_what_is_missing() -> None:
    check_device("bf16", "cpu")
    check_machine("bf16", (7, 0), has_te=False)
    check_machine("fp8_blockwise", (9, 0), has_te=True)
    with pytest.raises(ConfigError, match=r"capability 10\.0 or more; this one has 9\.0"):
        check_machine("mxfp8", (9, 0), has_te=True)
    with pytest.raises(ConfigError, match="fp8_delayed needs Transformer Engine"):
        check_machine("fp8_delayed", (9, 0), has_te=False)
