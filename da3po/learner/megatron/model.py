"""The trained model: Megatron-Core's GPTModel, stopped before its output layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig
from torch import Tensor
from torch.nn.functional import silu

from da3po.config.schema import LearnerConfig, ParallelConfig
from da3po.learner.megatron import precision
from da3po.learner.megatron.backend import Backend
from da3po.learner.megatron.field_values import megatron_values
from da3po.learner.megatron.logprobs import VocabShard, token_logprobs
from da3po.learner.megatron.versions import known_fields
from da3po.models.families import Stage
from da3po.models.hf_config import Llama3Scaling, ModelSpec
from da3po.models.layouts import padded_vocab_size


class PolicyModel(GPTModel):
    """One pipeline stage, or one virtual stage of a rank that has several.

    The last stage returns hidden states, and `logprobs` goes from there to log-probabilities.
    """

    def __init__(self, spec: ModelSpec, config: TransformerConfig, backend: Backend, vp_stage: int | None) -> None:
        """vp_stage: which of this rank's virtual stages; None if it has one stage."""
        super().__init__(
            config=config,
            transformer_layer_spec=backend.block_spec(config, spec.qk_norm, vp_stage),
            vocab_size=padded_vocab_size(spec.vocab_size, config.tensor_model_parallel_size),
            max_sequence_length=spec.max_positions,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
            share_embeddings_and_output_weights=spec.tied,
            position_embedding_type=backend.rotary,
            rotary_base=spec.rope_theta,
            vp_stage=vp_stage,
        )
        self.spec = spec
        self.backend = backend
        # Ours in any case: Megatron has Llama 3's stretching with fixed numbers.
        self.inv_freq = inverse_frequencies(spec).to(backend.device)
        if backend.rotary == "rope":
            self.rotary_pos_emb.inv_freq = self.inv_freq

    def _postprocess(self, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        """Megatron would go on to full logits here."""
        return hidden_states

    def pack(self, batch: Any) -> PackedSeqParams:
        return self.backend.pack(batch, self.inv_freq, self.config.params_dtype)

    def logprobs(self, hidden: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """log p(label) and entropy of softmax(logits / temperature), [T] each, from the last stage's hidden states.

        hidden: [T, 1, h], or [T / tp, 1, h] under sequence parallel. labels: [T].
        """
        weight = self.output_weight()
        if self.config.sequence_parallel:
            # `token_logprobs` adds the gradient up over ranks itself.
            hidden = tensor_parallel.gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        shard = VocabShard.of_rank(parallel_state.get_tensor_model_parallel_group(), len(weight), self.spec.vocab_size)
        return token_logprobs(hidden.squeeze(1), weight, labels, temperature, shard)

    def output_weight(self) -> Tensor:
        if self.share_embeddings_and_output_weights:
            return self.shared_embedding_or_output_weight()
        return self.output_layer.weight

    def stage(self) -> Stage:
        """Which part of the model this is."""
        layers = self.decoder.layers
        return Stage(
            first_layer=layers[0].layer_number - 1,
            num_layers=len(layers),
            embedding=self.pre_process,
            head=self.post_process,
        )


def transformer_config(
    spec: ModelSpec, parallel: ParallelConfig, learner: LearnerConfig, backend: Backend
) -> TransformerConfig:
    """Megatron's own description of the model; `learner.megatron.transformer` may change what is no one else's."""
    defaults = {
        # Megatron's are 0.1, and a policy with dropout does not know its own log-probs.
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        # For experts, which there are none of; the default is refused together with variable lengths.
        "moe_token_dispatcher_type": "alltoall",
        **known_fields(TransformerConfig, backend.transformer_fields),
    }
    chosen = defaults | megatron_values("transformer", learner.megatron.transformer)
    return TransformerConfig(**owned_transformer_fields(spec, parallel, learner), **chosen)


def owned_transformer_fields(spec: ModelSpec, parallel: ParallelConfig, learner: LearnerConfig) -> dict[str, Any]:
    """What model, layout and precision decide. Every name is in `da3po.learner.megatron.owned_fields`."""
    return {
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "ffn_hidden_size": spec.ffn_hidden_size,
        "num_attention_heads": spec.num_heads,
        "num_query_groups": spec.num_kv_heads,
        "kv_channels": spec.head_dim,
        "normalization": "RMSNorm",
        "layernorm_epsilon": spec.norm_eps,
        "qk_layernorm": spec.qk_norm,
        "add_bias_linear": False,
        "add_qkv_bias": spec.qkv_bias,
        "gated_linear_unit": True,
        "activation_func": silu,
        # Every parameter is read from the checkpoint.
        "perform_initialization": False,
        "deterministic_mode": learner.deterministic,
        **precision.transformer_fields(learner.precision),
        "tensor_model_parallel_size": parallel.tp,
        "context_parallel_size": parallel.cp,
        "pipeline_model_parallel_size": parallel.pp,
        "virtual_pipeline_model_parallel_size": parallel.vpp if parallel.vpp > 1 else None,
        "num_layers_in_first_pipeline_stage": parallel.first_stage_layers,
        "num_layers_in_last_pipeline_stage": parallel.last_stage_layers,
        "sequence_parallel": parallel.sequence_parallel,
        # Packed micro-batches differ in length, and pipeline stages have to tell each other. With virtual stages they
        # are of one length, and both directions have channels of their own.
        "variable_seq_lengths": parallel.pp > 1 and parallel.vpp == 1,
        "overlap_p2p_comm": parallel.vpp > 1,
        "batch_p2p_comm": parallel.vpp == 1,
    }


def inverse_frequencies(spec: ModelSpec) -> Tensor:
    """[head_dim / 2] float32, radians per position of each pair of a rotary embedding: theta^(-2i / head_dim)."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    frequencies = 1.0 / spec.rope_theta**exponents
    return frequencies if spec.rope_scaling is None else _stretch(frequencies, spec.rope_scaling)


def _stretch(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1's rule: long wavelengths are stretched by `factor`, short ones kept, those between blended.

    With w = 2 pi / f and share = (original / w - low) / (high - low), clamped to [0, 1]:
    f' = (1 - share) f / factor + share f.
    """
    wavelengths = 2 * math.pi / frequencies
    share = scaling.original_max_positions / wavelengths - scaling.low_freq_factor
    share = (share / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0.0, 1.0)
    return (1 - share) * frequencies / scaling.factor + share * frequencies
