"""The learner: optimizer, layout, Megatron's own fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from da3po.config.schema.validation import require


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """AdamW. warmup_steps and the schedule count training (rollout) steps.

    schedule: constant | cosine (from lr to min_lr at train.steps).
    max_skipped: consecutive updates skipped for a non-finite gradient that end the run.
    layer_grad_norms: also measure the gradient norm of the embedding, each layer and the head (`grad_norm/...`).
    """

    lr: float = 1e-6
    min_lr: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 10
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip_grad: float = 1.0
    max_skipped: int = 3
    layer_grad_norms: bool = False

    def __post_init__(self) -> None:
        require(self.lr > 0 and math.isfinite(self.lr), f"optim.lr must be positive, got {self.lr}")
        require(0 <= self.min_lr <= self.lr, f"optim.min_lr must lie between 0 and optim.lr, got {self.min_lr}")
        require(self.warmup_steps >= 0, f"optim.warmup_steps must be >= 0, got {self.warmup_steps}")
        require(0 < self.eps < 1, f"optim.eps must lie between 0 and 1, got {self.eps}")
        require(
            self.weight_decay >= 0 and math.isfinite(self.weight_decay),
            f"optim.weight_decay must be >= 0, got {self.weight_decay}",
        )
        require(0 <= self.beta1 < 1 and 0 <= self.beta2 < 1, "optim.beta1 and optim.beta2 must lie in [0, 1)")
        require(self.clip_grad > 0, f"optim.clip_grad must be positive, got {self.clip_grad}")
        require(self.max_skipped >= 1, f"optim.max_skipped must be >= 1, got {self.max_skipped}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Learner layout.

    tp, cp, pp, dp: tensor, context, pipeline and data parallel sizes; their product is the number of ranks.
    sequence_parallel: the tensor ranks share out the tokens between their matrix products.
    vpp: virtual stages of each pipeline rank (interleaved schedule); 1 is off.
    first_stage_layers, last_stage_layers: layers of the first and last pipeline rank, which have the embedding and the
        output layer to carry too; null gives them an equal share of what the other leaves.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    sequence_parallel: bool = False
    vpp: int = 1
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None

    def __post_init__(self) -> None:
        for name in ("tp", "cp", "pp", "dp", "vpp"):
            require(getattr(self, name) >= 1, f"parallel.{name} must be >= 1, got {getattr(self, name)}")
        require(not self.sequence_parallel or self.tp > 1, "parallel.sequence_parallel needs parallel.tp > 1")
        require(self.vpp == 1 or self.pp > 1, f"parallel.vpp={self.vpp} needs parallel.pp > 1, got {self.pp}")
        for name in ("first_stage_layers", "last_stage_layers"):
            layers = getattr(self, name)
            require(layers is None or layers >= 1, f"parallel.{name} must be >= 1 or null, got {layers}")
            require(layers is None or self.pp > 1, f"parallel.{name}={layers} needs parallel.pp > 1, got {self.pp}")

    @property
    def num_ranks(self) -> int:
        return self.tp * self.cp * self.pp * self.dp


Precision = Literal["fp32", "bf16", "fp8_delayed", "fp8_tensorwise", "fp8_blockwise", "mxfp8"]
FP8_CAPABILITY: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"fp8_delayed": (8, 9), "fp8_tensorwise": (8, 9), "fp8_blockwise": (9, 0), "mxfp8": (10, 0)}
)
"""Precision -> the lowest CUDA compute capability whose matrix units have it (8.9 Ada, 9.0 Hopper, 10.0 Blackwell)."""
Scalar = bool | int | float | str | None
OpenSection = dict[str, Scalar | list[Scalar]]
"""A section whose keys another library defines: any key is taken here, and checked where that library is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronConfig:
    """Fields of Megatron-Core's own config classes, passed on as they are (`learner.megatron.transformer.FIELD=VALUE`).

    A field that Megatron does not have, or that another option decides, is refused by name.

    transformer: of TransformerConfig (recompute_granularity, cpu_offloading, ...).
    ddp: of DistributedDataParallelConfig (overlap_grad_reduce, bucket_size, ...).
    optimizer: of OptimizerConfig (optimizer_cpu_offload, ...).
    """

    transformer: OpenSection = field(default_factory=dict)
    ddp: OpenSection = field(default_factory=dict)
    optimizer: OpenSection = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """device: auto takes CUDA where there is one.

    max_tokens_per_micro_batch: token budget of a packed micro-batch; a longer sequence travels alone.
    num_threads: CPU threads of each rank; 0 shares the cores among the ranks.
    precision: fp32 | bf16 (fp32 main weights and gradients) | bf16 with matrix products in fp8, by one of Transformer
        Engine's recipes: fp8_delayed | fp8_tensorwise | fp8_blockwise | mxfp8.
    zero_advantage: what to do with samples that have no gradient, for they have no advantage (as all of a group whose
        rewards are equal) or no response: learn = as with the others | measure = a forward pass, for the metrics |
        skip = nothing, and metrics are about the others alone. The update is the same; only sums are added in another
        order.
    deterministic: take only kernels that give the same bits every time, and refuse an operation that has none; slower.
    megatron: fields of Megatron-Core's own config classes.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Precision = "fp32"
    max_tokens_per_micro_batch: int = 16384
    num_threads: int = 0
    zero_advantage: Literal["learn", "measure", "skip"] = "measure"
    deterministic: bool = False
    megatron: MegatronConfig = field(default_factory=MegatronConfig)

    def __post_init__(self) -> None:
        require(self.max_tokens_per_micro_batch >= 1, "learner.max_tokens_per_micro_batch must be >= 1")
        require(self.num_threads >= 0, "learner.num_threads must be >= 0")
