"""vLLM's entry point into da3po: every vLLM process calls `register` as it starts. Nothing heavy is imported here."""

from __future__ import annotations

BACKEND = "da3po"


def register() -> None:
    """Name our receiver to vLLM's weight-transfer factory, which imports it when an engine asks for it."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    # vLLM may load plugins more than once in a process, and refuses a name that it knows.
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "da3po.engine.vllm.receiver", "WeightReceiver")
