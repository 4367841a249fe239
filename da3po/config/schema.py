"""Every option of da3po, its default and the rules that it must meet on its own.

This is the only place where a default lives. A room takes its own section, never the whole tree. Nothing here imports
anything heavy. Rules that need two sections are in `da3po.config.rules`.

A field whose name ends in an underscore (`lambda_`) is spelt without it in YAML and in overrides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal


class ConfigError(ValueError):
    """A setting that cannot be used; the message names the key."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Where a run lives and how it starts.

    dir: run directory; the same command finds the same directory again, so a second start resumes.
    name: shown in logs.
    seed: everything random derives from it.
    resume: auto = from the newest complete checkpoint if there is one; never = refuse a directory that has one;
        must = refuse one that has none.
    """

    dir: str = "runs/${run.name}"
    name: str = "da3po"
    seed: int = 1
    resume: Literal["auto", "never", "must"] = "auto"

    def __post_init__(self) -> None:
        _require(0 <= self.seed < 2**32, f"run.seed must lie between 0 and {2**32 - 1}, got {self.seed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """path: HF directory (or `package:tiny` for the model that ships with da3po)."""

    path: str = "package:tiny"
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """One of several sources of training problems.

    path: as data.train.
    weight: how often each of its problems comes in an epoch; 0.5 takes one half of them in one epoch and the other half
        in the next.
    """

    path: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        _require(
            self.weight > 0 and math.isfinite(self.weight),
            f"data.train: the weight of {self.path} must be positive, got {self.weight}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultyConfig:
    """Train on problems of a known difficulty only: those with low <= p_hat <= high in an earlier run.

    record: a run directory, an evaluation's .jsonl (uid, outcome) or a .jsonl of (uid, p_hat); null keeps everything.
    unknown: what happens to problems that the record does not have.
    """

    record: str | None = None
    low: float = 0.0
    high: float = 1.0
    unknown: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        _require(
            0 <= self.low <= self.high <= 1,
            f"data.difficulty.low and .high must satisfy 0 <= low <= high <= 1, got {self.low} and {self.high}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Problems for training and for evaluation.

    train, eval: a .parquet or .jsonl file, `hub:OWNER/NAME[:SPLIT]` for a data set of the Hugging Face Hub, or
        `package:quickstart-train` / `package:quickstart-eval`. Training takes several, too:
        `data.train=[{path: a.parquet, weight: 2}, b.jsonl]`.
    dir: folder with the benchmarks' files; null takes them from the Hub.
    template: how a problem becomes a prompt. `problem` = the text as it is; `answer_line` = problem and an "Answer:"
        line to complete; `dapo` = the DAPO recipe's instructions around it; `chat` = the tokenizer's chat template;
        `messages` = the row's own prompt messages through the chat template.
    problem_key, answer_key: fields of a plain row ({problem, answer}); DAPO-Math-17K's schema is recognised by itself.
    max_prompt_tokens: longer prompts are left out, and counted.
    dedup: keep one row of equal problems.
    shuffle: a new order every epoch, a function of run.seed.
    """

    train: str | tuple[SourceConfig, ...] = "package:quickstart-train"
    eval: str = "package:quickstart-eval"
    dir: str | None = None
    template: Literal["problem", "answer_line", "dapo", "chat", "messages"] = "answer_line"
    problem_key: str = "problem"
    answer_key: str = "answer"
    max_prompt_tokens: int = 2048
    dedup: bool = True
    shuffle: bool = True
    difficulty: DifficultyConfig = field(default_factory=DifficultyConfig)

    def __post_init__(self) -> None:
        _require(self.max_prompt_tokens > 0, f"data.max_prompt_tokens must be positive, got {self.max_prompt_tokens}")
        _require(bool(self.train), "data.train must name at least one source")

    @property
    def sources(self) -> tuple[SourceConfig, ...]:
        """Where training problems come from, however it was written."""
        return (SourceConfig(path=self.train),) if isinstance(self.train, str) else self.train


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig:
    """Group advantage (Eq. 3): (R - mean) / (std + eps), std unbiased (`sample`) or `population`."""

    std: Literal["sample", "population"] = "sample"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        _require(self.eps > 0, f"algo.advantage.eps must be positive, got {self.eps}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaaConfig:
    """Direct Advantage Amplification (Eq. 14).

    kind: off | constant (lambda everywhere) | adaptive (lambda = clip(1/gamma(p, G), 1, lambda_max) from the prompt's
        own history).
    lambda_: amplification factor.
    tau: a group is hard if p_hat < tau (strict).
    only_positive: leave a correct sample alone if its advantage is negative (an overlong one's can be).
    lambda_max, prior: of `adaptive`: the cap, and the weight (in samples) of the Beta prior centred on 1/2.
    """

    kind: Literal["off", "constant", "adaptive"] = "off"
    lambda_: float = 2.0
    tau: float = 0.5
    only_positive: bool = False
    lambda_max: float = 4.0
    prior: float = 2.0

    def __post_init__(self) -> None:
        _require(
            self.lambda_ >= 1 and math.isfinite(self.lambda_),
            f"algo.daa.lambda must be >= 1 (1 is DAPO), got {self.lambda_}",
        )
        _require(0 < self.tau < 1, f"algo.daa.tau must lie between 0 and 1, got {self.tau}")
        _require(self.lambda_max >= 1, f"algo.daa.lambda_max must be >= 1, got {self.lambda_max}")
        _require(self.prior > 0, f"algo.daa.prior must be positive, got {self.prior}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSamplingConfig:
    """Keep groups with low < p_hat < high until the batch has its number of prompts.

    min_graded: a group with fewer graded samples is dropped.
    max_rounds: generation rounds for one step before `on_starvation` decides.
    on_starvation: raise | short_batch (train on what there is) | widen_band (take dropped groups whose rewards differ).
    max_empty_steps: consecutive steps without a single group that end the run.
    max_surplus_age: steps that a good group left over from a full batch may wait; 0 throws it away.
    """

    enabled: bool = True
    low: float = 0.0
    high: float = 1.0
    min_graded: int = 2
    max_rounds: int = 10
    on_starvation: Literal["raise", "short_batch", "widen_band"] = "short_batch"
    max_empty_steps: int = 1
    max_surplus_age: int = 1

    def __post_init__(self) -> None:
        _require(
            0 <= self.low < self.high <= 1,
            f"algo.dynamic_sampling.low and .high must satisfy 0 <= low < high <= 1, got {self.low} and {self.high}",
        )
        _require(self.min_graded >= 2, f"algo.dynamic_sampling.min_graded must be >= 2, got {self.min_graded}")
        _require(self.max_rounds >= 1, f"algo.dynamic_sampling.max_rounds must be >= 1, got {self.max_rounds}")
        _require(self.max_empty_steps >= 1, "algo.dynamic_sampling.max_empty_steps must be >= 1")
        _require(self.max_surplus_age >= 0, "algo.dynamic_sampling.max_surplus_age must be >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongConfig:
    """Soft overlong punishment (Eq. 8): L_m is rollout.max_tokens, L_c is `cache`; cache 0 switches the slope off."""

    enabled: bool = True
    cache: int = 1024

    def __post_init__(self) -> None:
        _require(self.cache >= 0, f"algo.overlong.cache must be >= 0, got {self.cache}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Policy loss (Eq. 5, 11, 16).

    ratio: token | sequence (GSPO).
    clip_low, clip_high: eps_l and eps_h.
    dual_clip: c > 1 bounds the loss of tokens with negative advantage; null is off.
    aggregation: token_mean (Eq. 9) | sequence_mean (Eq. 4: mean over a sample's tokens, then over samples).
    normalizer: global = one denominator per optimizer update | reference = the 2025 recipe's (mean per micro-batch
        and rank, weighted by sequence count).
    """

    ratio: Literal["token", "sequence"] = "token"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    normalizer: Literal["global", "reference"] = "global"

    def __post_init__(self) -> None:
        _require(0 < self.clip_low < 1, f"algo.loss.clip_low must lie between 0 and 1, got {self.clip_low}")
        _require(self.clip_high > 0, f"algo.loss.clip_high must be positive, got {self.clip_high}")
        _require(
            self.dual_clip is None or self.dual_clip > 1,
            f"algo.loss.dual_clip must be > 1 or null, got {self.dual_clip}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgoConfig:
    """An algorithm is these parts put together; conf/algo names the known ones."""

    name: str = "da3po"
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    daa: DaaConfig = field(default_factory=DaaConfig)
    dynamic_sampling: DynamicSamplingConfig = field(default_factory=DynamicSamplingConfig)
    overlong: OverlongConfig = field(default_factory=OverlongConfig)
    loss: LossConfig = field(default_factory=LossConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """grader: math | dapo_v1 | a dotted path to a callable(gold, response) -> Grade | bool.

    timeout: seconds one answer may take before its worker is killed.
    num_workers: grader processes.
    max_failure_rate: share of timeouts and errors in a step above which a warning is logged.
    """

    grader: str = "math"
    timeout: float = 5.0
    num_workers: int = 1
    memory_mb: int = 2048
    max_failure_rate: float = 0.05

    def __post_init__(self) -> None:
        _require(self.timeout > 0, f"reward.timeout must be positive, got {self.timeout}")
        _require(self.num_workers >= 1, f"reward.num_workers must be >= 1, got {self.num_workers}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """How training responses are sampled.

    num_prompts: prompts (groups) of one training step, after dynamic sampling.
    num_samples: G, responses per prompt.
    prompts_per_round: prompts sent out in the first round; null takes num_prompts x 1.5 with dynamic sampling and
        num_prompts without.
    """

    num_prompts: int = 512
    num_samples: int = 16
    prompts_per_round: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 4096

    def __post_init__(self) -> None:
        _require(self.num_prompts >= 1, f"rollout.num_prompts must be >= 1, got {self.num_prompts}")
        _require(
            self.num_samples >= 2, f"rollout.num_samples must be >= 2 for a group advantage, got {self.num_samples}"
        )
        _require(self.temperature > 0, f"rollout.temperature must be positive, got {self.temperature}")
        _require(0 < self.top_p <= 1, f"rollout.top_p must lie in (0, 1], got {self.top_p}")
        _require(self.top_k == -1 or self.top_k >= 1, f"rollout.top_k must be -1 (off) or >= 1, got {self.top_k}")
        _require(self.max_tokens >= 1, f"rollout.max_tokens must be >= 1, got {self.max_tokens}")
        _require(
            self.prompts_per_round is None or self.prompts_per_round >= 1,
            f"rollout.prompts_per_round must be >= 1 or null, got {self.prompts_per_round}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """steps: training steps. prompts_per_update: prompts of one optimizer update; null is one update a step."""

    steps: int = 200
    prompts_per_update: int | None = None

    def __post_init__(self) -> None:
        _require(self.steps >= 1, f"train.steps must be >= 1, got {self.steps}")
        _require(
            self.prompts_per_update is None or self.prompts_per_update >= 1,
            f"train.prompts_per_update must be >= 1 or null, got {self.prompts_per_update}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """AdamW. warmup_steps and the schedule count training (rollout) steps.

    schedule: constant | cosine (from lr to min_lr at train.steps).
    max_skipped: consecutive updates skipped for a non-finite gradient that end the run.
    """

    lr: float = 1e-6
    min_lr: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 10
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip_grad: float = 1.0
    max_skipped: int = 3

    def __post_init__(self) -> None:
        _require(self.lr > 0 and math.isfinite(self.lr), f"optim.lr must be positive, got {self.lr}")
        _require(0 <= self.min_lr <= self.lr, f"optim.min_lr must lie between 0 and optim.lr, got {self.min_lr}")
        _require(self.warmup_steps >= 0, f"optim.warmup_steps must be >= 0, got {self.warmup_steps}")
        _require(0 < self.eps < 1, f"optim.eps must lie between 0 and 1, got {self.eps}")
        _require(
            self.weight_decay >= 0 and math.isfinite(self.weight_decay),
            f"optim.weight_decay must be >= 0, got {self.weight_decay}",
        )
        _require(0 <= self.beta1 < 1 and 0 <= self.beta2 < 1, "optim.beta1 and optim.beta2 must lie in [0, 1)")
        _require(self.clip_grad > 0, f"optim.clip_grad must be positive, got {self.clip_grad}")
        _require(self.max_skipped >= 1, f"optim.max_skipped must be >= 1, got {self.max_skipped}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Learner layout.

    tp, cp, pp, dp: tensor, context, pipeline and data parallel sizes; their product is the number of ranks.
    sequence_parallel: the tensor ranks share out the tokens between their matrix products.
    vpp: virtual stages of each pipeline rank (interleaved schedule); 1 is off.
    first_stage_layers, last_stage_layers: layers of the first and last pipeline rank, which have the embedding and the
        output layer to carry too; null gives them an equal share of what the other leaves.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    sequence_parallel: bool = False
    vpp: int = 1
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None

    def __post_init__(self) -> None:
        for name in ("tp", "cp", "pp", "dp", "vpp"):
            _require(getattr(self, name) >= 1, f"parallel.{name} must be >= 1, got {getattr(self, name)}")
        _require(not self.sequence_parallel or self.tp > 1, "parallel.sequence_parallel needs parallel.tp > 1")
        _require(self.vpp == 1 or self.pp > 1, f"parallel.vpp={self.vpp} needs parallel.pp > 1, got {self.pp}")
        for name in ("first_stage_layers", "last_stage_layers"):
            layers = getattr(self, name)
            _require(layers is None or layers >= 1, f"parallel.{name} must be >= 1 or null, got {layers}")
            _require(layers is None or self.pp > 1, f"parallel.{name}={layers} needs parallel.pp > 1, got {self.pp}")

    @property
    def num_ranks(self) -> int:
        return self.tp * self.cp * self.pp * self.dp


Precision = Literal["fp32", "bf16", "fp8_delayed", "fp8_tensorwise", "fp8_blockwise", "mxfp8"]
Scalar = bool | int | float | str | None
OpenSection = dict[str, Scalar | list[Scalar]]
"""A section whose keys another library defines: any key is taken here, and checked where that library is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronConfig:
    """Fields of Megatron-Core's own config classes, passed on as they are (`learner.megatron.transformer.FIELD=VALUE`).

    A field that Megatron does not have, or that another option decides, is refused by name.

    transformer: of TransformerConfig (recompute_granularity, cpu_offloading, deterministic_mode, ...).
    ddp: of DistributedDataParallelConfig (overlap_grad_reduce, bucket_size, ...).
    optimizer: of OptimizerConfig (optimizer_cpu_offload, ...).
    """

    transformer: OpenSection = field(default_factory=dict)
    ddp: OpenSection = field(default_factory=dict)
    optimizer: OpenSection = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """device: auto takes CUDA where there is one.

    max_tokens_per_micro_batch: token budget of a packed micro-batch; a longer sequence travels alone.
    num_threads: CPU threads of each rank; 0 shares the cores among the ranks.
    precision: fp32 | bf16 (fp32 main weights and gradients) | bf16 with matrix products in fp8, by one of Transformer
        Engine's recipes: fp8_delayed | fp8_tensorwise | fp8_blockwise | mxfp8.
    megatron: fields of Megatron-Core's own config classes.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Precision = "fp32"
    max_tokens_per_micro_batch: int = 16384
    num_threads: int = 0
    megatron: MegatronConfig = field(default_factory=MegatronConfig)

    def __post_init__(self) -> None:
        _require(self.max_tokens_per_micro_batch >= 1, "learner.max_tokens_per_micro_batch must be >= 1")
        _require(self.num_threads >= 0, "learner.num_threads must be >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The pool of vLLM engines.

    num_engines, tp: engines, and GPUs (or CPU workers) of each.
    dtype: of the engine's weights and activations.
    max_num_seqs, max_num_batched_tokens: sequences and tokens of one engine step.
    max_model_len: prompt + response; null = data.max_prompt_tokens + the longest response.
    memory_fraction: of GPU memory; kv_cache_gb: on CPU.
    num_threads: CPU threads of each engine; 0 shares the cores among the engines.
    """

    num_engines: int = 1
    tp: int = 1
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    memory_fraction: float = 0.9
    kv_cache_gb: float = 1.0
    enforce_eager: bool = True
    prefix_caching: bool = True
    num_threads: int = 0

    def __post_init__(self) -> None:
        _require(self.num_engines >= 1, f"engine.num_engines must be >= 1, got {self.num_engines}")
        _require(self.tp >= 1, f"engine.tp must be >= 1, got {self.tp}")
        _require(self.max_num_seqs >= 1, f"engine.max_num_seqs must be >= 1, got {self.max_num_seqs}")
        _require(0 < self.memory_fraction <= 1, "engine.memory_fraction must lie in (0, 1]")
        _require(self.kv_cache_gb > 0, "engine.kv_cache_gb must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncConfig:
    """Weight publication. backend: auto = nccl on CUDA, gloo on CPU. bucket_mb: tensors are bundled up to it."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    bucket_mb: float = 128.0
    timeout: float = 300.0

    def __post_init__(self) -> None:
        _require(self.bucket_mb > 0, f"sync.bucket_mb must be positive, got {self.bucket_mb}")
        _require(self.timeout > 0, f"sync.timeout must be positive, got {self.timeout}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchConfig:
    """Limits on |log-prob of the engine - log-prob of the learner| over fresh samples; null logs only."""

    max_mean: float | None = None

    def __post_init__(self) -> None:
        _require(self.max_mean is None or self.max_mean > 0, f"mismatch.max_mean must be > 0, got {self.max_mean}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """num_samples: n of avg@n. every: steps between evaluations, 0 for none. limit: first problems only; null all."""

    num_samples: int = 8
    every: int = 0
    before: bool = True
    after: bool = True
    limit: int | None = None
    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = -1
    max_tokens: int = 4096

    def __post_init__(self) -> None:
        _require(self.num_samples >= 1, f"eval.num_samples must be >= 1, got {self.num_samples}")
        _require(self.every >= 0, f"eval.every must be >= 0, got {self.every}")
        _require(self.limit is None or self.limit >= 1, f"eval.limit must be >= 1 or null, got {self.limit}")
        _require(self.temperature >= 0, f"eval.temperature must be >= 0, got {self.temperature}")
        _require(
            self.temperature > 0 or self.num_samples == 1,
            f"eval.temperature=0 gives {self.num_samples} equal samples; set eval.num_samples=1",
        )
        _require(0 < self.top_p <= 1, f"eval.top_p must lie in (0, 1], got {self.top_p}")
        _require(self.top_k == -1 or self.top_k >= 1, f"eval.top_k must be -1 (off) or >= 1, got {self.top_k}")
        _require(self.max_tokens >= 1, f"eval.max_tokens must be >= 1, got {self.max_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkConfig:
    """A benchmark: a file of conf/benchmark, chosen with `benchmark=NAME[,NAME...]` or `benchmark=all`.

    name, title: in commands and file names, and in tables.
    file: its name in data.dir. hub: where it comes from if data.dir is null, `hub:OWNER/NAME[:SPLIT]`.
    problem_key, answer_key: fields of the Hub's rows; files in data.dir have those of data.problem_key and .answer_key.
    num_samples: n of avg@n; eval.num_samples on the command line goes before it.
    num_problems: how many different problems it should have; another number is warned of.
    """

    name: str
    title: str
    file: str
    hub: str | None = None
    problem_key: str = "problem"
    answer_key: str = "answer"
    num_samples: int = 8
    num_problems: int | None = None

    def __post_init__(self) -> None:
        _require(self.num_samples >= 1, f"benchmark {self.name}: num_samples must be >= 1, got {self.num_samples}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """every: steps between checkpoints, 0 for the last step only. keep: newest ones kept."""

    every: int = 10
    keep: int = 2

    def __post_init__(self) -> None:
        _require(self.every >= 0, f"checkpoint.every must be >= 0, got {self.every}")
        _require(self.keep >= 1, f"checkpoint.keep must be >= 1, got {self.keep}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """kind: local = a Ray of our own on this machine | existing = the cluster that RAY_ADDRESS names.

    start_timeout: seconds within which all learner ranks and engines must be up.
    """

    kind: Literal["local", "existing"] = "local"
    start_timeout: float = 600.0

    def __post_init__(self) -> None:
        _require(self.start_timeout > 0, f"cluster.start_timeout must be positive, got {self.start_timeout}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig:
    """console: auto = live display on a terminal, plain lines elsewhere. num_rollouts: samples shown each step."""

    console: Literal["auto", "rich", "plain"] = "auto"
    tensorboard: bool = True
    num_rollouts: int = 2

    def __post_init__(self) -> None:
        _require(self.num_rollouts >= 0, f"logging.num_rollouts must be >= 0, got {self.num_rollouts}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole of a run's options."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    mismatch: MismatchConfig = field(default_factory=MismatchConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    benchmarks: tuple[BenchmarkConfig, ...] = ()
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
