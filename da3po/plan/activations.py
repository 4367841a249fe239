"""Memory of the forward pass that the backward pass needs, by the accounting of Korthikanti et al. 2022, "Reducing
Activation Recomputation in Large Transformer Models" (https://arxiv.org/abs/2205.05198), section 4 and 5.

Their count per layer, s b h (34 + 5 a s / h) bytes in 16 bits, is that of a GPT layer. A layer of the families here has
no dropout, a gated feed-forward of its own width, fewer key/value heads, norms of queries and keys, and flash attention
in place of the s x s matrices (Dao 2023), so its terms are counted one by one below, in elements for each token:

    norm inputs 2 h, inputs of qkv and gate-up 2 h            whole on each tensor-parallel rank, or 1/tp of them with
                                                              sequence parallelism (their section 4.2.2)
    q, k, v into attention; q, k before their norms;          1/tp
    attention output (also the input of its projection)
    gate, up, and their product                               3 ffn / tp
    log-sum-exp of attention, fp32                            heads / tp

Recomputing a whole layer keeps its input alone (their section 5). Pipelines: rank p of P keeps P - p micro-batches in
flight, and interleaving with V virtual stages multiplies what the first rank keeps by 1 + (P - 1) / (P V) (section
4.2.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from da3po.config.schema import LearnerConfig, ParallelConfig
from da3po.models.hf_config import ModelSpec
from da3po.plan.layout import rank_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """layers: of a rank's layers that keep their input alone. group: how many of those share one kept input."""

    layers: int
    group: int

    @classmethod
    def of(cls, fields: Mapping[str, Any], num_layers: int) -> Recompute:
        """From Megatron's recompute_* fields. `selective` recomputes attention's matrices, which flash attention never
        keeps, so it saves nothing here."""
        if fields.get("recompute_granularity") != "full":
            return cls(layers=0, group=1)
        number = int(fields.get("recompute_num_layers") or 1)
        if fields.get("recompute_method") == "block":
            return cls(layers=min(number, num_layers), group=1)
        return cls(layers=num_layers, group=min(number, max(1, num_layers)))


def element_bytes(learner: LearnerConfig) -> int:
    """Of one weight, activation or published value."""
    return 4 if learner.precision == "fp32" else 2


def layer_bytes(spec: ModelSpec, parallel: ParallelConfig, element: int) -> float:
    """Kept for one token of one layer on one rank. element: bytes of an activation.

    With fp8 the inputs of products take half of this; it is left out, as headroom.
    """
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    whole = 4 * spec.hidden_size / (parallel.tp if parallel.sequence_parallel else 1)
    attention = query + 2 * key + (query + key if spec.qk_norm else 0) + query
    split = (attention + 3 * spec.ffn_hidden_size) / parallel.tp
    return element * (whole + split) + 4 * spec.num_heads / parallel.tp


def input_bytes(spec: ModelSpec, parallel: ParallelConfig, element: int) -> float:
    """Of one token's hidden state between layers, on one rank."""
    return element * spec.hidden_size / (parallel.tp if parallel.sequence_parallel else 1)


def rank_activation_bytes(
    spec: ModelSpec, parallel: ParallelConfig, learner: LearnerConfig, tokens: int, *, pp: int
) -> float:
    """Most that pipeline rank `pp` keeps at once. tokens: of the largest micro-batch, before context parallelism."""
    element = element_bytes(learner)
    shares = rank_layers(spec.num_layers, parallel) or [spec.num_layers]
    num_layers = shares[pp]
    recompute = Recompute.of(learner.megatron.transformer, num_layers)
    of_layer, of_input = layer_bytes(spec, parallel, element), input_bytes(spec, parallel, element)
    kept = (num_layers - recompute.layers) * of_layer + recompute.layers / recompute.group * of_input
    # While a recomputed group runs backward, all of it is there.
    working = of_layer * recompute.group if recompute.layers else 0.0
    of_tokens = tokens / parallel.cp
    return of_tokens * (kept * in_flight(parallel, pp) + working + 2 * of_input)


def in_flight(parallel: ParallelConfig, pp: int) -> float:
    """Micro-batches, each through all of a rank's layers, whose activations rank `pp` keeps at once."""
    if parallel.vpp == 1:
        return parallel.pp - pp
    # Rank 0's, in units of whole micro-batches over its layers; later ranks start their backward passes sooner.
    first = parallel.pp * (1 + (parallel.pp - 1) / (parallel.pp * parallel.vpp))
    return first - 2 * pp / parallel.vpp
