from __future__ import annotations

import json

import pytest
from builders import group

from da3po.rollout.serialize import group_from_dict, group_to_dict


def test_a_group_survives_json_exactly() -> None:
    original = group("CWNTEA", draw=7, lengths=[0, 1, 2, 3, 4, 5], weight_version=3)
    assert group_from_dict(json.loads(json.dumps(group_to_dict(original)))) == original


def test_a_missing_field_is_named() -> None:
    state = group_to_dict(group("CW"))
    del state["prompt"]["gold"]
    with pytest.raises(TypeError, match="gold"):
        group_from_dict(state)
