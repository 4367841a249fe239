"""All that an engine process needs to know to start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from da3po.config.schema import EngineConfig, SyncConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine.

    model_path: Hugging Face directory; the weights in it are version 0.
    max_model_len: prompt and response tokens of the longest sequence.
    seed: of the engine itself; every sample brings its own.
    engine_index: which engine of the pool; errors name it.
    num_threads: CPU threads for its matrix products.
    trust_remote_code: let a tokenizer that comes with the model run its own code.
    in_flight_updates: take weights while samples are in flight, whose tokens each keep the log-prob and the version of
        the weights that drew them; otherwise that is an error.
    """

    model_path: str
    config: EngineConfig
    max_model_len: int
    seed: int
    device: Literal["cpu", "cuda"]
    engine_index: int
    sync: SyncConfig
    num_threads: int
    trust_remote_code: bool = False
    in_flight_updates: bool = False
