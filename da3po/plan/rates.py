"""How fast learner and engines go: from a GPU's data sheet, or measured."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from da3po.config.schema import Config, ConfigError
from da3po.models.families import hf_shapes, whole_model
from da3po.models.hf_config import ModelSpec
from da3po.plan.engine import DTYPE_BYTES
from da3po.plan.hardware import Gpu
from da3po.plan.learner import publication_bytes
from da3po.plan.rollouts import EngineRates
from da3po.plan.state import rank_state
from da3po.plan.work import forward_flops, prompt_tokens, response_lengths

KERNELS_SECONDS = {True: 12e-3, False: 3e-3}
"""Of an engine's step beside its work: scheduling, sampling and starting kernels; eager, and with captured graphs."""
FP8_SHARE = 0.7
"""Of the efficiency in 16 bits that products in fp8 reach, since quantising takes time and no matrix unit."""
OPTIMIZER_BYTES = 28
"""That Adam reads and writes for each parameter: gradient, main weight and two moments in fp32."""
LATENCY_SECONDS = 15e-6
"""Of a reduction over the GPUs of one engine, however little it moves."""
NETWORK_SHARE = 0.5
"""Of a link's rate that a collective reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerRates:
    """Seconds of one data-parallel replica. forward, train: a token's forward pass, and forward and backward.
    micro_batch: more for each micro-batch and pass. update: of each optimizer update, gradients' reduction included."""

    forward: float
    train: float
    micro_batch: float
    update: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """source: where they are from. sync: seconds of one publication. grade: of one answer on one worker. step: of
    everything else in a step."""

    source: str
    engine: EngineRates
    learner: LearnerRates
    sync: float
    grade: float
    step: float


def read_rates(path: str) -> Rates:
    """Measured rates from a JSON file. Raises ConfigError, naming plan.rates and what is missing in it."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"plan.rates={path}: {error}") from error
    if isinstance(found, dict) and "rates" in found:
        found = found["rates"]
    own = _numbers(found, Rates, path, "", leave=("source", "engine", "learner"))
    return Rates(
        source=path,
        engine=EngineRates(**_numbers(found.get("engine"), EngineRates, path, "engine.")),
        learner=LearnerRates(**_numbers(found.get("learner"), LearnerRates, path, "learner.")),
        **own,
    )


def _numbers(found: Any, kind: Any, path: str, prefix: str, leave: tuple[str, ...] = ()) -> dict[str, Any]:
    names = [field.name for field in fields(kind) if field.name not in leave]
    for name in names:
        value = found.get(name) if isinstance(found, dict) else None
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"plan.rates={path}: {prefix}{name} must be a number of seconds, got {value!r}")
    return {name: float(found[name]) for name in names}


def data_sheet_rates(spec: ModelSpec, config: Config, gpu: Gpu) -> Rates:
    """A product is as slow as its FLOPs or its bytes, whichever takes longer, at the assumed share of the peak."""
    return Rates(
        source=f"data sheet of {config.cluster.gpu}",
        engine=_engine_rates(spec, config, gpu),
        learner=_learner_rates(spec, config, gpu),
        sync=publication_bytes(spec, config.parallel, config.learner) / (NETWORK_SHARE * gpu.network),
        grade=0.02,
        step=1.0,
    )


def _engine_rates(spec: ModelSpec, config: Config, gpu: Gpu) -> EngineRates:
    engine, share = config.engine, config.plan.engine_efficiency
    element = DTYPE_BYTES[engine.dtype]
    parameters = _num_parameters(spec)
    bandwidth, flops = share * gpu.bandwidth * engine.tp, share * gpu.bf16 * engine.tp
    kv_token = 2 * spec.num_layers * max(engine.tp, spec.num_kv_heads) * spec.head_dim * element
    reductions = 2 * spec.num_layers if engine.tp > 1 else 0
    token = 2 * parameters / flops + reductions * _reduction_seconds(spec, engine.tp, element, gpu)
    return EngineRates(
        step=KERNELS_SECONDS[engine.enforce_eager] + parameters * element / bandwidth + reductions * LATENCY_SECONDS,
        sequence=token,
        context=kv_token / bandwidth,
        prompt=token,
    )


def _reduction_seconds(spec: ModelSpec, tp: int, element: int, gpu: Gpu) -> float:
    """One token's hidden state summed over a tensor-parallel group in a ring. Two of them make up a layer's forward
    pass, and as many its backward pass (Shoeybi et al. 2019, section 3); with sequence parallelism a scatter and a
    gather, which move as much (Korthikanti et al. 2022, section 4.2.2)."""
    return 2 * (tp - 1) / tp * spec.hidden_size * element / (NETWORK_SHARE * gpu.link)


def _learner_rates(spec: ModelSpec, config: Config, gpu: Gpu) -> LearnerRates:
    parallel, learner = config.parallel, config.learner
    linear, attention = forward_flops(spec, prompt_tokens(config), response_lengths(config))
    head = 2.0 * spec.vocab_size * spec.hidden_size
    products = gpu.bf16 if learner.precision in ("fp32", "bf16") else max(gpu.bf16, FP8_SHARE * gpu.fp8)
    replica = config.plan.learner_efficiency * parallel.tp * parallel.cp * parallel.pp
    layers = ((linear - head) / products + attention / gpu.bf16) / replica
    of_head = head / gpu.bf16 / replica
    # Context parallelism shares out tokens, so that each rank talks about its own only.
    talk = 2 * spec.num_layers / parallel.pp / parallel.cp * _reduction_seconds(spec, parallel.tp, 2, gpu)
    passes = 4 if learner.megatron.transformer.get("recompute_granularity") == "full" else 3
    return LearnerRates(
        forward=layers + of_head + talk,
        train=passes * layers + 4 * of_head + (passes - 1) * talk,
        micro_batch=0.02,
        update=_update_seconds(spec, config, gpu),
    )


def _update_seconds(spec: ModelSpec, config: Config, gpu: Gpu) -> float:
    """Gradients scattered and weights gathered in a ring over the ranks that share them, and Adam on this rank's."""
    parallel = config.parallel
    state = rank_state(spec, parallel, config.learner, pp=0, dp=0)
    size = parallel.dp * parallel.cp
    inside = parallel.num_ranks <= (config.cluster.gpus_per_node or parallel.num_ranks)
    wire = NETWORK_SHARE * (gpu.link if inside else gpu.network)
    return (size - 1) / size * (state.gradients + state.weights) / wire + state.num_owned * OPTIMIZER_BYTES / (
        NETWORK_SHARE * gpu.bandwidth
    )


def _num_parameters(spec: ModelSpec) -> int:
    return sum(map(math.prod, hf_shapes(spec, whole_model(spec)).values()))
