"""The model that a run starts from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """path: HF directory (or `package:tiny` for the model that ships with da3po)."""

    path: str = "package:tiny"
    trust_remote_code: bool = False
