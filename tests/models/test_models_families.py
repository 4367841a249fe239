"""The tables against the checkpoints that transformers writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fixtures_hf
import pytest

from da3po.models.families import Stage, hf_shapes, owned_weights, stage_weights, whole_model
from da3po.models.hf_config import read_model_spec
from da3po.models.safetensors_io import CheckpointReader

MAKERS: list[tuple[Callable[..., Path], dict[str, Any]]] = [
    (fixtures_hf.make_qwen3, {}),
    (fixtures_hf.make_qwen3, {"tie_word_embeddings": False}),
    (fixtures_hf.make_llama, {}),
    (fixtures_hf.make_llama, {"tie_word_embeddings": True}),
    (fixtures_hf.make_qwen2, {}),
]


@pytest.mark.parametrize(("make", "changes"), MAKERS)
def test_the_table_names_every_tensor_of_the_file_with_its_shape(
    make: Callable[..., Path], changes: dict[str, Any], tmp_path: Path
) -> None:
    spec = read_model_spec(make(tmp_path, **changes))
    shapes = hf_shapes(spec, whole_model(spec))
    reader = CheckpointReader(tmp_path)
    assert set(shapes) == reader.names()
    for name, shape in shapes.items():
        assert tuple(reader.read(name, shape).shape) == shape


def test_stages_own_every_tensor_once_and_number_layers_from_the_start_of_the_model(tmp_path: Path) -> None:
    """H02, H06."""
    spec = read_model_spec(fixtures_hf.make_qwen3(tmp_path))
    first = Stage(first_layer=0, num_layers=1, embedding=True, head=False)
    second = Stage(first_layer=1, num_layers=3, embedding=False, head=True)
    owned = [*hf_shapes(spec, first), *hf_shapes(spec, second)]
    assert len(owned) == len(set(owned))
    assert set(owned) == set(hf_shapes(spec, whole_model(spec)))
    assert "model.layers.3.mlp.down_proj.weight" in hf_shapes(spec, second)
    names = {weight.megatron for weight in owned_weights(spec, second)}
    assert "decoder.layers.2.mlp.linear_fc2.weight" in names
    assert "decoder.layers.3.mlp.linear_fc2.weight" not in names


def test_the_last_stage_of_a_tied_model_fills_its_copy_from_the_embedding(tmp_path: Path) -> None:
    """H02: the file has no lm_head.weight."""
    spec = read_model_spec(fixtures_hf.make_qwen3(tmp_path))
    last = Stage(first_layer=2, num_layers=2, embedding=False, head=True)
    heads = [weight for weight in stage_weights(spec, last) if weight.megatron == "output_layer.weight"]
    assert [list(weight.hf) for weight in heads] == [["model.embed_tokens.weight"]]
