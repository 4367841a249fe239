"""What a Megatron distributed checkpoint calls the parameters of the tables in `da3po.models.families`.

The layers of a model are one tensor there, stacked along a first axis, whatever pipeline stage each was in; and norms
have the names that they have where Transformer Engine keeps them, whichever modules wrote them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FORMAT = 1
"""Of what is in a checkpoint; goes up when it changes in a way that older code cannot read."""

COMPANIONS = "hf"
"""Folder in a checkpoint with the files that its model directory had beside the weights."""

FUSED_NORM_NAMES = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}
"""Transformer Engine keeps these norms in the linear layer that follows: part of a name -> what it is there."""

_LAYER = re.compile(r"(decoder\.layers)\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Place:
    """name: of a tensor in the checkpoint. layer: index along its first axis; None if the whole tensor is meant."""

    name: str
    layer: int | None


def place_in_checkpoint(megatron: str) -> Place:
    """Where a parameter of the whole model (`decoder.layers.3. ...` is the model's fourth layer) is kept."""
    match = _LAYER.fullmatch(megatron)
    if match is None:
        return Place(megatron, None)
    layers, layer, rest = match.groups()
    for alone, fused in FUSED_NORM_NAMES.items():
        rest = re.sub(rf"^{re.escape(alone)}", fused, rest)
    return Place(f"{layers}.{rest}", int(layer))
