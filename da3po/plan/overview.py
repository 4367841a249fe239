"""A run's plan: everything that can be said of it before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from da3po.config.schema import Config, ConfigError, OpenSection, ParallelConfig
from da3po.models.hf_config import ModelSpec
from da3po.plan.engine import EngineMemory, engine_memory
from da3po.plan.hardware import GIB, GPUS, Gpu
from da3po.plan.host import host_bytes
from da3po.plan.layout import check_layout, pack_multiples
from da3po.plan.learner import LearnerMemory, learner_memory, publication_bytes
from da3po.plan.placement import NodeShare, place
from da3po.plan.rates import Rates, data_sheet_rates, read_rates
from da3po.plan.step import StepTime, step_time
from da3po.plan.work import Work, step_work


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run takes and how long.

    problems: why it cannot run, each with the numbers and what would do; none if it can.
    notes: what is legal and worth knowing.
    learner: of each pipeline rank; empty if the layout is illegal, and then nothing after it is known either.
    host: bytes on the fullest node; None if the cluster's size is left open.
    publication: bytes of one weight publication to one receiver.
    sequences: that an engine runs at once, of mean length (half of the response drawn) and of the longest.
    time: None without rates, that is on CPU unless plan.rates names measured ones.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]
    num_gpus: int
    gpu_memory: int | None
    learner: tuple[LearnerMemory, ...] = ()
    engine: EngineMemory | None = None
    nodes: tuple[NodeShare, ...] = ()
    host: int | None = None
    publication: int = 0
    sequences: tuple[int, int] = (0, 0)
    work: Work | None = None
    rates: Rates | None = None
    time: StepTime | None = None

    @property
    def fits(self) -> bool:
        return not self.problems

    @property
    def learner_free(self) -> float | None:
        """Share of a learner GPU's memory that is free at its peak."""
        if not self.learner or self.gpu_memory is None:
            return None
        return 1 - max(one.peak for one in self.learner) / self.gpu_memory

    def to_json(self) -> dict[str, Any]:
        tree = asdict(self)
        for one, rank in zip(tree["learner"], self.learner, strict=True):
            one["phases"] = rank.phases
        if self.time is not None:
            tree["time"] |= {
                name: getattr(self.time, name)
                for name in ("total", "learner", "rollout", "waits", "engines_wait", "learner_wait")
            }
        if self.engine is not None:
            tree["engine"]["kv_tokens"] = self.engine.kv_tokens
        if self.work is not None:
            tree["work"]["learner_flops"] = self.work.learner_flops
        return tree | {"fits": self.fits, "learner_free": self.learner_free}


def make_plan(spec: ModelSpec, config: Config, longest: int, problems: tuple[str, ...] = ()) -> Plan:
    """longest: tokens of the longest sequence, of evaluations too. problems: found already.

    Raises ConfigError if plan.rates cannot be read.
    """
    gpu = planned_gpu(config)
    num_gpus = config.parallel.num_ranks + config.engine.num_engines * config.engine.tp if gpu else 0
    illegal = [*problems, *_layout_problems(spec, config)]
    memory = gpu.memory if gpu else None
    if illegal:
        return Plan(problems=tuple(illegal), notes=(), num_gpus=num_gpus, gpu_memory=memory)
    nodes, unplaced = _nodes(config, gpu)
    learner = learner_memory(spec, config, largest_micro_batch(config))
    engine = engine_memory(spec, config.engine, gpu)
    work = step_work(spec, config)
    rates = _rates(spec, config, gpu)
    found = [
        *unplaced,
        *_learner_problems(spec, config, learner, gpu),
        *_engine_problems(spec, config, engine, longest),
    ]
    return Plan(
        problems=tuple(found),
        notes=tuple(_notes(config, work)),
        num_gpus=num_gpus,
        gpu_memory=memory,
        learner=tuple(learner),
        engine=engine,
        nodes=nodes,
        host=max((host_bytes(spec, config, work, learner, node) for node in nodes), default=None),
        publication=publication_bytes(spec, config.parallel, config.learner),
        sequences=(
            engine.sequences(work.prompt_tokens + work.response_tokens / 2, config.engine),
            engine.sequences(longest, config.engine),
        ),
        work=work,
        rates=rates,
        time=step_time(config, work, rates, engine) if rates and engine.kv_tokens >= longest else None,
    )


def planned_gpu(config: Config) -> Gpu | None:
    """The kind of GPU that is planned for; None is a CPU."""
    if config.learner.device == "cpu" or config.cluster.gpus_per_node is None:
        return None
    return GPUS[config.cluster.gpu]


def largest_micro_batch(config: Config) -> int:
    """Tokens; a sequence above the budget travels alone."""
    return max(config.learner.max_tokens_per_micro_batch, config.data.max_prompt_tokens + config.rollout.max_tokens)


def _rates(spec: ModelSpec, config: Config, gpu: Gpu | None) -> Rates | None:
    if config.plan.rates is not None:
        return read_rates(config.plan.rates)
    return data_sheet_rates(spec, config, gpu) if gpu else None


def _layout_problems(spec: ModelSpec, config: Config) -> Iterator[str]:
    try:
        check_layout(spec, config.parallel)
    except ConfigError as error:
        yield str(error)
    yield from _engine_layout(spec, config.engine.tp)
    budget, multiple = (
        config.learner.max_tokens_per_micro_batch,
        pack_multiples(config.parallel, config.learner.precision).tokens,
    )
    if budget < multiple:
        yield f"learner.max_tokens_per_micro_batch={budget} is less than the layout's multiple; {multiple} would do"


def _engine_layout(spec: ModelSpec, tp: int) -> Iterator[str]:
    """vLLM cuts the query heads into equal parts; it pads the vocabulary, and shares key/value heads as the learner."""

    def legal(size: int) -> bool:
        heads = spec.num_kv_heads
        return spec.num_heads % size == 0 and (heads % size == 0 or size % heads == 0)

    if not legal(tp):
        near = [size for size in range(1, spec.num_heads + 1) if legal(size)]
        best = min(near, key=lambda size: (abs(size - tp), size))
        yield (
            f"engine.tp={tp} does not share out the model's {spec.num_heads} attention heads and {spec.num_kv_heads} "
            f"key/value heads equally; {best} would do"
        )


def _nodes(config: Config, gpu: Gpu | None) -> tuple[tuple[NodeShare, ...], list[str]]:
    if gpu is None:
        return (), []
    try:
        return place(config.parallel, config.engine, config.cluster), []
    except ConfigError as error:
        return (), [str(error)]


def _learner_problems(spec: ModelSpec, config: Config, learner: list[LearnerMemory], gpu: Gpu | None) -> Iterator[str]:
    if gpu is None or _leaves_room(config, learner, gpu):
        return
    free = config.plan.headroom
    fullest = max(learner, key=lambda one: one.peak)
    phase = max(fullest.phases, key=lambda name: fullest.phases[name])
    remedy = next((text for text, changed in _remedies(config) if _would_fit(spec, changed, gpu)), "a larger layout")
    yield (
        f"the learner needs {fullest.peak / GIB:.1f} GiB in phase {phase!r} on pipeline rank {fullest.pp}; a GPU has "
        f"{gpu.memory / GIB:.1f}, of which plan.headroom={free} stays free; {remedy} would fit"
    )


def _leaves_room(config: Config, learner: list[LearnerMemory], gpu: Gpu) -> bool:
    return max(one.peak for one in learner) <= (1 - config.plan.headroom) * gpu.memory


def _would_fit(spec: ModelSpec, config: Config, gpu: Gpu) -> bool:
    if any(_layout_problems(spec, config)):
        return False
    return _leaves_room(config, learner_memory(spec, config, largest_micro_batch(config)), gpu)


FULL_RECOMPUTE: OpenSection = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


def _remedies(config: Config) -> Iterator[tuple[str, Config]]:
    """Changes that take less memory, the cheapest first; none takes more GPUs than there are."""
    learner, parallel, transformer = config.learner, config.parallel, config.learner.megatron.transformer
    budget, shortest = learner.max_tokens_per_micro_batch, config.data.max_prompt_tokens + config.rollout.max_tokens
    while budget // 2 >= shortest:
        budget //= 2
        smaller = replace(learner, max_tokens_per_micro_batch=budget)
        yield f"learner.max_tokens_per_micro_batch={budget}", replace(config, learner=smaller)
    megatron = replace(learner.megatron, transformer={**transformer, **FULL_RECOMPUTE})
    frugal = replace(config, learner=replace(learner, megatron=megatron))
    recomputing = " ".join(f"learner.megatron.transformer.{name}={value}" for name, value in FULL_RECOMPUTE.items())
    yield f"recomputing all layers ({recomputing})", frugal
    for base, also in ((config, ""), (frugal, " with all layers recomputed")):
        for words, layout in _larger_layouts(parallel, config.cluster.gpus_per_node or 1):
            yield words + also, replace(base, parallel=layout)


def _larger_layouts(parallel: ParallelConfig, node: int) -> Iterator[tuple[str, ParallelConfig]]:
    """Each rank has less of the model, and as many fewer replicas of it are trained on."""
    for factor in (2, 4, 8):
        if parallel.dp % factor == 0:
            dp, tp, pp = parallel.dp // factor, parallel.tp * factor, parallel.pp * factor
            if tp <= node:
                words = f"parallel.tp={tp} with parallel.dp={dp} and parallel.sequence_parallel=true"
                yield words, replace(parallel, tp=tp, dp=dp, sequence_parallel=True)
            yield f"parallel.pp={pp} with parallel.dp={dp}", replace(parallel, pp=pp, dp=dp)


def _engine_problems(spec: ModelSpec, config: Config, memory: EngineMemory, longest: int) -> Iterator[str]:
    if memory.kv_tokens >= longest:
        return
    has = (
        f"after {memory.weights / GIB:.1f} GiB of weights the KV cache holds {memory.kv_tokens} tokens"
        if memory.budget is not None
        else f"engine.kv_cache_gb={config.engine.kv_cache_gb} holds {memory.kv_tokens} tokens"
    )
    needed = -(-longest * memory.kv_token * 100 // GIB) / 100
    remedy = _larger_engine(spec, config, longest) if memory.budget is not None else f"engine.kv_cache_gb={needed}"
    would_do = f"; {remedy} would do" if remedy else ": engine.memory_fraction is too small, or the GPU"
    yield f"{has} on each of an engine's workers, and the longest sequence has {longest}{would_do}"


def _larger_engine(spec: ModelSpec, config: Config, longest: int) -> str | None:
    """The smallest tensor-parallel size inside a node that has room for the longest sequence, as an override."""
    tp, node = config.engine.tp * 2, config.cluster.gpus_per_node or 1
    while tp <= node:
        larger = engine_memory(spec, replace(config.engine, tp=tp), planned_gpu(config))
        if larger.kv_tokens >= longest and not list(_engine_layout(spec, tp)):
            return f"engine.tp={tp}"
        tp *= 2
    return None


def _notes(config: Config, work: Work) -> Iterator[str]:
    longest, budget = (
        config.data.max_prompt_tokens + config.rollout.max_tokens,
        config.learner.max_tokens_per_micro_batch,
    )
    if longest > budget:
        yield f"sequences of up to {longest} tokens travel alone: learner.max_tokens_per_micro_batch is {budget}"
    sequences = (config.train.prompts_per_update or config.rollout.num_prompts) * config.rollout.num_samples
    if sequences < config.parallel.dp:
        yield f"an update has {sequences} sequences for parallel.dp={config.parallel.dp}: some ranks have none"
    if config.parallel.pp > 1 and work.micro_batches < 2 * config.parallel.pp:
        yield (
            f"an update has {work.micro_batches} micro-batches for parallel.pp={config.parallel.pp}: the pipeline is "
            "empty much of the time; fewer stages or a smaller learner.max_tokens_per_micro_batch fill it"
        )
