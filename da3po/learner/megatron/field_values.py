"""Options of `learner.megatron` as the objects that Megatron's config classes want."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.transformer import enums

from da3po.learner.megatron.fields import enum_members, field_types, leaf_types


def megatron_values(section: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a section, which `fields.check_fields` has passed."""
    types = field_types(section)
    return {name: _value(types[name], value) for name, value in fields.items()}


def _value(annotation: ast.expr, value: Any) -> Any:
    leaves = leaf_types(annotation)
    if isinstance(value, list):
        values = [_one(leaves, one) for one in value]
        return tuple(values) if _is_tuple(annotation) else values
    return _one(leaves, value)


def _one(leaves: set[str], value: Any) -> Any:
    """What a name stands for. A field that takes text as well gets the text: Megatron reads it itself."""
    if not isinstance(value, str) or "str" in leaves or "Literal" in leaves:
        return value
    if "torch.dtype" in leaves:
        return getattr(torch, value)
    (enum,) = (leaf for leaf in leaves if value in enum_members(leaf))
    return getattr(enums, enum)[value]


def _is_tuple(annotation: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("Tuple", "tuple")
        for node in ast.walk(annotation)
    )
