"""Rules that need more than one section: what is legal in every part and makes no sense together.

Each rule is a function that yields what is wrong; all are reported at once. Stdlib only.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from da3po.config.schema import Config, ConfigError

# A PPO clip is some tenths; GSPO's sequence ratio moves by thousandths, and such a clip would never act.
LARGEST_SEQUENCE_CLIP = 0.05


Rule = Callable[[Config], Iterator[str]]


def check(config: Config, rules: Sequence[Rule]) -> None:
    """Raises ConfigError listing every broken rule of TRAINING or EVALUATION."""
    broken = problems(config, rules)
    if broken:
        raise ConfigError("\n".join(broken))


def problems(config: Config, rules: Sequence[Rule]) -> list[str]:
    """Every broken rule in words. PLANNING has those of TRAINING that look at no file."""
    return [problem for rule in rules for problem in rule(config)]


def _sequence_clip(config: Config) -> Iterator[str]:
    loss = config.algo.loss
    if loss.ratio == "sequence" and max(loss.clip_low, loss.clip_high) > LARGEST_SEQUENCE_CLIP:
        yield (
            f"algo.loss.ratio=sequence with algo.loss.clip_low={loss.clip_low} and clip_high={loss.clip_high}: "
            "a sequence ratio needs a far smaller clip (GSPO: 3e-4 and 4e-4)"
        )


def _on_policy_sampling(config: Config) -> Iterator[str]:
    rollout = config.rollout
    if rollout.top_p != 1 or rollout.top_k != -1:
        yield (
            f"rollout.top_p={rollout.top_p} and rollout.top_k={rollout.top_k}: training samples must come from the "
            "whole distribution (1.0 and -1), or their log-probs are not the learner's; use eval.top_p for evaluation"
        )


def _updates(config: Config) -> Iterator[str]:
    per_update, prompts = config.train.prompts_per_update, config.rollout.num_prompts
    if per_update is not None and prompts % per_update:
        yield (
            f"train.prompts_per_update={per_update} does not divide rollout.num_prompts={prompts}; "
            f"{_nearest_divisor(prompts, per_update)} does"
        )


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return min(divisors, key=lambda d: abs(d - wanted))


def _overlong(config: Config) -> Iterator[str]:
    overlong = config.algo.overlong
    if overlong.enabled and overlong.cache > config.rollout.max_tokens:
        yield f"algo.overlong.cache={overlong.cache} is longer than rollout.max_tokens={config.rollout.max_tokens}"


def _group_size(config: Config) -> Iterator[str]:
    sampling, num_samples = config.algo.dynamic_sampling, config.rollout.num_samples
    if sampling.min_graded > num_samples:
        yield f"algo.dynamic_sampling.min_graded={sampling.min_graded} is more than rollout.num_samples={num_samples}"


def _surplus_age(config: Config) -> Iterator[str]:
    age, lag = config.algo.dynamic_sampling.max_surplus_age, config.rollout.max_lag
    if 0 < age <= lag:
        yield (
            f"algo.dynamic_sampling.max_surplus_age={age} is not above rollout.max_lag={lag}: groups can be that old "
            f"when they are made, and would be kept to be thrown away; take {lag + 1} or more, or 0 to keep none"
        )


def _training_length(config: Config) -> Iterator[str]:
    yield from _too_long(config, longest_sequence(config, training=True))


def _evaluation_length(config: Config) -> Iterator[str]:
    yield from _too_long(config, longest_sequence(config, training=False))


def _too_long(config: Config, needed: int) -> Iterator[str]:
    limit = config.engine.max_model_len
    if limit is not None and limit < needed:
        yield (
            f"engine.max_model_len={limit} is less than data.max_prompt_tokens={config.data.max_prompt_tokens} + the "
            f"longest response={needed - config.data.max_prompt_tokens}"
        )


def _warmup(config: Config) -> Iterator[str]:
    if config.optim.schedule == "cosine" and config.optim.warmup_steps >= config.train.steps:
        yield (
            f"optim.warmup_steps={config.optim.warmup_steps} leaves nothing of train.steps={config.train.steps} "
            "for the cosine"
        )


def cluster_size(config: Config) -> Iterator[str]:
    have, ranks = config.cluster.num_gpus, config.parallel.num_ranks
    taken = ranks + config.engine.num_engines * config.engine.tp
    if have is None or taken == have or config.learner.device == "cpu":
        return
    yield (
        f"cluster.num_nodes={config.cluster.num_nodes} x cluster.gpus_per_node={config.cluster.gpus_per_node} are "
        f"{have} GPUs, and {ranks} learner ranks (parallel.tp x cp x pp x dp) with engine.num_engines="
        f"{config.engine.num_engines} x engine.tp={config.engine.tp} take {taken}; {_way_to_fill(config, have)} fits"
    )


def _way_to_fill(config: Config, have: int) -> str:
    """One option and its value with which learner and engines take `have` GPUs."""
    engine, parallel = config.engine, config.parallel
    replica = parallel.num_ranks // parallel.dp
    for_ranks, for_engines = have - engine.num_engines * engine.tp, have - parallel.num_ranks
    if for_ranks >= replica and for_ranks % replica == 0:
        return f"parallel.dp={for_ranks // replica}"
    if for_engines >= engine.tp and for_engines % engine.tp == 0:
        return f"engine.num_engines={for_engines // engine.tp}"
    num_engines = max(1, (have - parallel.num_ranks) // engine.tp)
    rest = have - num_engines * engine.tp
    if rest >= replica and rest % replica == 0:
        return f"engine.num_engines={num_engines} with parallel.dp={rest // replica}"
    taken = parallel.num_ranks + engine.num_engines * engine.tp
    return f"one node of cluster.gpus_per_node={taken}"


def _best(config: Config) -> Iterator[str]:
    best = config.checkpoint.best
    if best is None:
        return
    if not config.eval.every and not config.eval.after:
        yield f"checkpoint.best={best} and nothing is evaluated (eval.every=0, eval.after=false)"
    names = evaluated_metrics(config.eval.num_samples)
    if best not in names:
        (nearest,) = difflib.get_close_matches(best, names, n=1, cutoff=0)
        yield f"checkpoint.best={best} is not evaluated with eval.num_samples={config.eval.num_samples}; {nearest} is"


def evaluated_metrics(num_samples: int) -> list[str]:
    """What an evaluation with so many samples per problem logs."""
    counts = sorted({2**power for power in range(num_samples.bit_length())} | {num_samples})
    scores = [f"avg@{num_samples}", *(f"pass@{k}" for k in counts), f"maj@{num_samples}"]
    return [f"eval/{name}" for name in (*scores, "avg_low", "avg_high", "truncated_fraction", "num_failed")]


def _train_file(config: Config) -> Iterator[str]:
    for source in config.data.sources:
        yield from _missing("data.train", source.path)


def _eval_file(config: Config) -> Iterator[str]:
    yield from _missing("data.eval", config.data.eval)


def _missing(key: str, name: str) -> Iterator[str]:
    if not name.startswith(("package:", "hub:")) and not Path(name).is_file():
        yield f"{key}={name}: there is no such file"


def _difficulty_record(config: Config) -> Iterator[str]:
    record = config.data.difficulty.record
    if record is not None and not Path(record).exists():
        yield f"data.difficulty.record={record}: there is no such file or run directory"


def _evaluated_files(config: Config) -> Iterator[str]:
    """The benchmarks' files if there are benchmarks, else data.eval."""
    if not config.benchmarks:
        yield from _eval_file(config)
    for benchmark in config.benchmarks:
        if config.data.dir is not None and not (Path(config.data.dir) / benchmark.file).is_file():
            yield f"data.dir={config.data.dir}: there is no {benchmark.file} for benchmark {benchmark.name}"
        elif config.data.dir is None and benchmark.hub is None:
            yield f"benchmark {benchmark.name} is not on the Hub; name the folder of {benchmark.file} with data.dir"


EVALUATION: tuple[Rule, ...] = (_evaluation_length, _evaluated_files)
PLANNING: tuple[Rule, ...] = (
    _sequence_clip,
    _on_policy_sampling,
    _updates,
    _overlong,
    _group_size,
    _surplus_age,
    _warmup,
    _best,
    _training_length,
    cluster_size,
)
TRAINING: tuple[Rule, ...] = (*PLANNING, _train_file, _eval_file, _difficulty_record)


def longest_sequence(config: Config, *, training: bool) -> int:
    """Tokens of the longest prompt with the longest response, of evaluation and, if `training`, of rollouts."""
    responses = [config.eval.max_tokens] + ([config.rollout.max_tokens] if training else [])
    return config.data.max_prompt_tokens + max(responses)
