"""The table of each model family: which HF tensors make up which Megatron parameter, and how.

Import, export and weight sync all read it, so a new family is one more table here and a test. Megatron names are those
of a model whose norms stand on their own; a layer index in them counts from the first layer of the pipeline stage,
while in HF names it counts from the first layer of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from da3po.models.hf_config import ModelSpec
from da3po.models.layouts import GateUp, Layout, QkvByGroup, Replicated, Split, VocabularyRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One Megatron parameter.

    megatron: its name in the stage's model.
    hf: name -> whole shape of each HF tensor that it is made of, in the order that `layout` expects.
    """

    megatron: str
    hf: Mapping[str, tuple[int, ...]]
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The part of a model that one pipeline stage holds: layers [first_layer, first_layer + num_layers)."""

    first_layer: int
    num_layers: int
    embedding: bool
    head: bool


def whole_model(spec: ModelSpec) -> Stage:
    return Stage(first_layer=0, num_layers=spec.num_layers, embedding=True, head=True)


def stage_weights(spec: ModelSpec, stage: Stage) -> Iterator[Weight]:
    """Every parameter of a stage, in the order of the model.

    A tied output layer is listed by the last stage too if that does not hold the embedding, since Megatron keeps a
    second copy there; `owned_weights` leaves the copy out.
    """
    if stage.embedding:
        yield _embedding(spec)
    for local in range(stage.num_layers):
        yield from _layer(spec, local, stage.first_layer + local)
    if stage.head:
        yield Weight(
            megatron="decoder.final_layernorm.weight",
            hf={"model.norm.weight": (spec.hidden_size,)},
            layout=Replicated(),
        )
        if not (spec.tied and stage.embedding):
            yield _head(spec)


def owned_weights(spec: ModelSpec, stage: Stage) -> Iterator[Weight]:
    """The parameters of a stage that belong in a file or on an engine: each HF tensor once over all stages."""
    embedding_of_copy = EMBEDDING if spec.tied else None
    for weight in stage_weights(spec, stage):
        if stage.embedding or embedding_of_copy not in weight.hf:
            yield weight


def hf_shapes(spec: ModelSpec, stage: Stage) -> dict[str, tuple[int, ...]]:
    """Name and shape of every HF tensor of a stage, in the order of `owned_weights`."""
    return {name: shape for weight in owned_weights(spec, stage) for name, shape in weight.hf.items()}


EMBEDDING = "model.embed_tokens.weight"


def _embedding(spec: ModelSpec) -> Weight:
    return Weight(
        megatron="embedding.word_embeddings.weight",
        hf={EMBEDDING: (spec.vocab_size, spec.hidden_size)},
        layout=VocabularyRows(spec.vocab_size),
    )


def _head(spec: ModelSpec) -> Weight:
    return Weight(
        megatron="output_layer.weight",
        hf={EMBEDDING if spec.tied else "lm_head.weight": (spec.vocab_size, spec.hidden_size)},
        layout=VocabularyRows(spec.vocab_size),
    )


def _layer(spec: ModelSpec, local: int, layer: int) -> Iterator[Weight]:
    """A decoder layer. The supported families differ in the norms of query and key, and in the bias of q, k and v."""
    hidden, ffn = spec.hidden_size, spec.ffn_hidden_size
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    by_group = QkvByGroup(spec.num_heads, spec.num_kv_heads, spec.head_dim)

    def weight(megatron: str, hf: Mapping[str, tuple[int, ...]], layout: Layout) -> Weight:
        named = {f"model.layers.{layer}.{name}": shape for name, shape in hf.items()}
        return Weight(megatron=f"decoder.layers.{local}.{megatron}", hf=named, layout=layout)

    yield weight("input_layernorm.weight", {"input_layernorm.weight": (hidden,)}, Replicated())
    qkv = {"self_attn.q_proj": query, "self_attn.k_proj": key, "self_attn.v_proj": key}
    yield weight(
        "self_attention.linear_qkv.weight", {f"{name}.weight": (rows, hidden) for name, rows in qkv.items()}, by_group
    )
    if spec.qkv_bias:
        yield weight(
            "self_attention.linear_qkv.bias", {f"{name}.bias": (rows,) for name, rows in qkv.items()}, by_group
        )
    if spec.qk_norm:
        yield weight("self_attention.q_layernorm.weight", {"self_attn.q_norm.weight": (spec.head_dim,)}, Replicated())
        yield weight("self_attention.k_layernorm.weight", {"self_attn.k_norm.weight": (spec.head_dim,)}, Replicated())
    yield weight("self_attention.linear_proj.weight", {"self_attn.o_proj.weight": (hidden, query)}, Split(1))
    yield weight("pre_mlp_layernorm.weight", {"post_attention_layernorm.weight": (hidden,)}, Replicated())
    gate_up = {"mlp.gate_proj.weight": (ffn, hidden), "mlp.up_proj.weight": (ffn, hidden)}
    yield weight("mlp.linear_fc1.weight", gate_up, GateUp())
    yield weight("mlp.linear_fc2.weight", {"mlp.down_proj.weight": (hidden, ffn)}, Split(1))
