"""The device seam: what differs between CPU with gloo and CUDA with NCCL and Transformer Engine, chosen once."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor

from da3po.learner.megatron.attention import PackedAttention, PackedSequences
from da3po.learner.megatron.context import Context
from da3po.learner.megatron.norm import RMSNorm
from da3po.learner.megatron.versions import local_block_spec, transformer_engine_spec
from da3po.learner.packed_attention import rotary_tables
from da3po.models.checkpoint_names import FUSED_NORM_NAMES
from da3po.types import MicroBatch


class Backend(Protocol):
    """rotary: the `position_embedding_type` of the GPT model: who turns queries and keys.

    transformer_fields: of TransformerConfig.
    """

    device: torch.device
    rotary: str
    transformer_fields: dict[str, Any]

    def block_spec(
        self, config: TransformerConfig, qk_norm: bool, vp_stage: int | None
    ) -> TransformerBlockSubmodules | ModuleSpec: ...

    def pack(self, batch: MicroBatch, inv_freq: Tensor, dtype: torch.dtype) -> PackedSeqParams:
        """Megatron's description of a micro-batch on this device. inv_freq: [D/2], of the rotary embedding."""
        ...

    def parameter_name(self, table_name: str) -> str:
        """What this backend's model calls the parameter that `da3po.models.families` names."""
        ...


class CpuBackend:
    """Megatron's own modules, with the norm and the packed attention that they lack on CPU."""

    rotary = "none"  # PackedAttention does it, from tables worked out once for all layers

    def __init__(self, context: Context) -> None:
        self._context = context
        self.device = torch.device("cpu")
        self.transformer_fields = {
            "use_cpu_initialization": True,
            "gradient_accumulation_fusion": False,
            "masked_softmax_fusion": False,
            "bias_dropout_fusion": False,
            "bias_activation_fusion": False,
            "persist_layer_norm": False,
        }

    def block_spec(self, config: TransformerConfig, qk_norm: bool, vp_stage: int | None) -> TransformerBlockSubmodules:
        return local_block_spec(config, RMSNorm, PackedAttention, qk_norm, vp_stage)

    def pack(self, batch: MicroBatch, inv_freq: Tensor, dtype: torch.dtype) -> PackedSequences:
        cos, sin = rotary_tables(inv_freq, batch.position_ids, dtype)
        plan, gather = self._context.attention(batch.cu_seqlens)
        return PackedSequences(**_thd(batch), cos=cos, sin=sin, plan=plan, gather=gather)

    def parameter_name(self, table_name: str) -> str:
        return table_name


class CudaBackend:
    """Transformer Engine's modules: fused norms, fused rotary embedding, variable-length attention."""

    rotary = "rope"

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.transformer_fields = {
            "gradient_accumulation_fusion": False,  # needs apex or Transformer Engine's kernels built for it
            "apply_rope_fusion": True,
            "bias_dropout_fusion": True,
            "bias_activation_fusion": True,
            "persist_layer_norm": True,
        }

    def block_spec(self, config: TransformerConfig, qk_norm: bool, vp_stage: int | None) -> ModuleSpec:
        return transformer_engine_spec(qk_norm)

    def pack(self, batch: MicroBatch, inv_freq: Tensor, dtype: torch.dtype) -> PackedSeqParams:
        return PackedSeqParams(**_thd(batch))

    def parameter_name(self, table_name: str) -> str:
        for alone, fused in FUSED_NORM_NAMES.items():
            table_name = table_name.replace(alone, fused)
        return table_name


def build_backend(device: str, context: Context) -> Backend:
    return CpuBackend(context) if device == "cpu" else CudaBackend()


def _thd(batch: MicroBatch) -> dict[str, Any]:
    return {
        "qkv_format": "thd",
        "cu_seqlens_q": batch.cu_seqlens,
        "cu_seqlens_kv": batch.cu_seqlens,
        "max_seqlen_q": batch.max_seqlen,
        "max_seqlen_kv": batch.max_seqlen,
    }
