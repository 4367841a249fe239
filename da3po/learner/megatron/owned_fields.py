"""Fields of Megatron-Core's config classes that a run cannot set, since something else decides them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_MODEL = "the model's config.json"
_LOSS = "the loss, which has its normaliser in the data"

OWNED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "transformer": {
            "num_layers": _MODEL,
            "hidden_size": _MODEL,
            "ffn_hidden_size": _MODEL,
            "num_attention_heads": _MODEL,
            "num_query_groups": _MODEL,
            "kv_channels": _MODEL,
            "normalization": _MODEL,
            "layernorm_epsilon": _MODEL,
            "qk_layernorm": _MODEL,
            "add_bias_linear": _MODEL,
            "add_qkv_bias": _MODEL,
            "gated_linear_unit": _MODEL,
            "activation_func": _MODEL,
            "deterministic_mode": "learner.deterministic",
            "perform_initialization": "the checkpoint, from which every parameter is read",
            "params_dtype": "learner.precision",
            "pipeline_dtype": "learner.precision",
            "bf16": "learner.precision",
            "fp16": "learner.precision",
            "fp8": "learner.precision",
            "fp8_recipe": "learner.precision",
            "tensor_model_parallel_size": "parallel.tp",
            "pipeline_model_parallel_size": "parallel.pp",
            "virtual_pipeline_model_parallel_size": "parallel.vpp",
            "context_parallel_size": "parallel.cp",
            "sequence_parallel": "parallel.sequence_parallel",
            "num_layers_in_first_pipeline_stage": "parallel.first_stage_layers",
            "num_layers_in_last_pipeline_stage": "parallel.last_stage_layers",
            "pipeline_model_parallel_layout": "parallel.first_stage_layers and parallel.last_stage_layers",
            "variable_seq_lengths": "packing: micro-batches differ in length",
            "overlap_p2p_comm": "parallel.vpp",
            "batch_p2p_comm": "parallel.vpp",
            "calculate_per_token_loss": _LOSS,
        },
        "ddp": {
            "use_distributed_optimizer": "the checkpoint's format",
            "use_megatron_fsdp": "the weight stream, which reads whole parameters",
            "overlap_param_gather": "weight publication, which comes right after an update",
        },
        "optimizer": {
            "optimizer": "optim, which is AdamW",
            "lr": "optim.lr",
            "min_lr": "optim.min_lr",
            "weight_decay": "optim.weight_decay",
            "adam_beta1": "optim.beta1",
            "adam_beta2": "optim.beta2",
            "adam_eps": "optim.eps",
            "clip_grad": "optim.clip_grad",
            "bf16": "learner.precision",
            "fp16": "learner.precision",
            "params_dtype": "learner.precision",
            "use_distributed_optimizer": "the checkpoint's format",
            "decoupled_lr": "optim.lr, which is that of all parameters",
            "decoupled_min_lr": "optim.min_lr, which is that of all parameters",
            "overlap_param_gather_with_optimizer_step": "weight publication, which comes right after an update",
        },
    }
)
"""Section -> field -> what decides it already."""
