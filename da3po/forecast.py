"""`da3po plan`: what a run would take, before anything is started."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from da3po.command import run_command, split_flags, wants_help
from da3po.config.load import dump, help_text, load
from da3po.config.rules import PLANNING, cluster_size, longest_sequence, problems
from da3po.config.schema import FP8_CAPABILITY, Config, ConfigError
from da3po.models.hf_config import ModelSpec
from da3po.models.published import find_model_spec
from da3po.plan.hardware import GB, GIB
from da3po.plan.overview import Plan, make_plan, planned_gpu
from da3po.plan.search import Proposal, search

DOES_NOT_FIT = 1
USAGE = "da3po plan [--json] [--search] [GROUP=CHOICE ...] [KEY=VALUE ...]"
FLAGS = {"--json", "--search"}


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: it fits. 1: it does not, and why is said. 2: the overrides cannot be read."""
    if wants_help(arguments):
        print(help_text(USAGE))
        return 0
    return run_command(lambda: _plan(*split_flags(arguments, FLAGS, USAGE)))


def _plan(overrides: Sequence[str], flags: set[str]) -> int:
    config = load(overrides)
    spec = find_model_spec(config.model.path)
    if "--search" in flags:
        return _search(spec, config, as_json="--json" in flags)
    plan = plan_of(spec, config)
    if "--json" in flags:
        print(json.dumps(plan.to_json(), indent=2))
    else:
        show(plan, config)
    return 0 if plan.fits else DOES_NOT_FIT


def dry_run(overrides: Sequence[str]) -> int:
    """What `da3po train --dry-run` does: the plan and the resolved options, and nothing else. Exit codes as above."""

    def run() -> int:
        config = load(overrides)
        plan = plan_of(find_model_spec(config.model.path), config)
        show(plan, config)
        print(f"\n{dump(config)}", end="")
        return 0 if plan.fits else DOES_NOT_FIT

    return run_command(run)


def plan_of(spec: ModelSpec, config: Config) -> Plan:
    """With every rule that needs no file."""
    longest = longest_sequence(config, training=True)
    return make_plan(spec, config, longest, (*problems(config, PLANNING), *_machine_problems(spec, config, longest)))


def _machine_problems(spec: ModelSpec, config: Config, longest: int) -> Iterator[str]:
    if longest > spec.max_positions:
        yield (
            f"data.max_prompt_tokens={config.data.max_prompt_tokens} and the longest response make {longest} tokens, "
            f"the model has {spec.max_positions} positions; {spec.max_positions - config.data.max_prompt_tokens} for "
            "the response would do"
        )
    gpu, needed = planned_gpu(config), FP8_CAPABILITY.get(config.learner.precision)
    if needed and (gpu is None or gpu.capability < needed):
        has = "a CPU" if gpu is None else f"cluster.gpu={config.cluster.gpu}"
        yield f"learner.precision={config.learner.precision} cannot run on {has}; precision=bf16 would do"


def _search(spec: ModelSpec, config: Config, *, as_json: bool) -> int:
    longest = longest_sequence(config, training=True)
    sized_by_search = [rule for rule in PLANNING if rule is not cluster_size]
    if broken := [*problems(config, sized_by_search), *_machine_problems(spec, config, longest)]:
        raise ConfigError("\n".join(broken))
    found = search(spec, config, longest)
    if as_json:
        print(json.dumps([{"overrides": one.overrides, "plan": one.plan.to_json()} for one in found], indent=2))
    elif found:
        _show_proposals(found)
    else:
        print("no layout of learner and engines on this cluster fits")
    return 0 if found else DOES_NOT_FIT


def show(plan: Plan, config: Config, console: Console | None = None) -> None:
    """The readable form."""
    console = console or Console()
    for problem in plan.problems:
        console.print(f"does not fit: {problem}", style="bold red", markup=False, soft_wrap=True)
    for note in plan.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if not plan.learner:
        return
    console.print(_summary(plan, config))
    console.print(_memory(plan))
    if plan.time is not None:
        console.print(_times(plan))
    else:
        console.print(f"no step time: {_why_no_time(plan)}")


def _why_no_time(plan: Plan) -> str:
    if plan.rates is None:
        return "a CPU has no data sheet; measure with tools/bench/plan.py and give plan.rates"
    return "the engines hold no whole sequence"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_edge=False, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _summary(plan: Plan, config: Config) -> Table:
    parallel, engine, work = config.parallel, config.engine, plan.work
    assert work is not None
    table = _table("run", "what", "value")
    sizes = f"tp {parallel.tp} x cp {parallel.cp} x pp {parallel.pp} x dp {parallel.dp}"
    cluster = "CPU" if plan.gpu_memory is None else f"{plan.num_gpus} x {config.cluster.gpu}"
    rows = {
        "model": config.model.path,
        "hardware": cluster,
        "learner": f"{parallel.num_ranks} ranks: {sizes}; {config.learner.precision}",
        "engines": f"{engine.num_engines} of tp {engine.tp}; {engine.dtype}",
        "nodes (learner ranks, engines)": _nodes(plan),
        "sequences trained on in a step": f"{config.rollout.num_prompts * config.rollout.num_samples:,}",
        "tokens trained on in a step": f"{work.trained_tokens:,.0f}",
        "learner FLOPs in a step": f"{work.learner_flops:.3g}",
        "optimizer updates in a step": str(work.updates),
        "micro-batches of a replica in an update": str(work.micro_batches),
        "warm-up, in updates": str(work.warmup_updates),
        "bytes of a weight sync": f"{plan.publication:,} ({plan.publication / GB:.2f} GB)",
    }
    if plan.host is not None:
        rows["host memory of the fullest node"] = f"about {plan.host / GIB:.0f} GiB"
    for what, value in rows.items():
        table.add_row(what, value)
    return table


def _nodes(plan: Plan) -> str:
    """Nodes that are alike are counted."""
    kinds: dict[tuple[int, int], int] = {}
    for node in plan.nodes:
        kind = len(node.ranks), len(node.engines)
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} x ({ranks}, {engines})" for (ranks, engines), count in kinds.items()) or "-"


def _memory(plan: Plan) -> Table:
    table = _table("memory of one GPU, GiB" if plan.gpu_memory else "memory of one process, GiB", "part", "GiB")
    fullest = max(plan.learner, key=lambda one: one.peak)
    table.add_row(f"learner, pipeline rank {fullest.pp}: weights", _gib(fullest.state.weights))
    table.add_row("  gradients", _gib(fullest.state.gradients))
    table.add_row("  optimizer", _gib(fullest.state.optimizer))
    if fullest.fp8_copies:
        table.add_row("  fp8 copies of the weights", _gib(fullest.fp8_copies))
    table.add_row("  activations", _gib(fullest.activations))
    table.add_row("  output layer", _gib(fullest.head))
    for name, number in fullest.phases.items():
        table.add_row(f"  in all, {name}", _gib(number))
    if plan.learner_free is not None:
        table.add_row("  free at the peak", f"{plan.learner_free:.0%}")
    engine = plan.engine
    assert engine is not None
    table.add_row("engine: weights", _gib(engine.weights))
    table.add_row("  KV cache", _gib(engine.kv_cache))
    table.add_row("  tokens in it", f"{engine.kv_tokens:,}")
    table.add_row("  sequences at once, of mean and of longest length", "{} and {}".format(*plan.sequences))
    return table


def _times(plan: Plan) -> Table:
    time = plan.time
    assert time is not None and plan.rates is not None
    table = _table(f"a step, estimated from {plan.rates.source}", "part", "seconds")
    parts = {
        f"generation ({time.generation.groups:,} groups, {time.generation.tokens:,} tokens)": time.generation.seconds,
        "grading, beside it": time.grading,
        "log-probs of the opening weights": time.old_logprobs,
        "forward and backward": time.forward_backward,
        "optimizer updates": time.updates,
        "weight sync": time.sync,
        "other": time.other,
        "in all": time.total,
    }
    for name, seconds in parts.items():
        table.add_row(name, f"{seconds:.1f}")
    table.add_row("tail: generation below half of its sequences", f"{time.generation.tail:.0%}")
    table.add_row("learner's GPUs wait", f"{time.learner_wait:.0%}")
    table.add_row("engines' GPUs wait", f"{time.engines_wait:.0%}")
    table.add_row("the slower side is", "generation" if time.waits == "learner" else "the learner")
    return table


def _show_proposals(found: Sequence[Proposal]) -> None:
    table = _table(
        "layouts that fit, the fastest first", "overrides", "s/step", "learner waits", "engines wait", "free"
    )
    for one in found:
        time, free = one.plan.time, one.plan.learner_free
        assert time is not None and free is not None
        table.add_row(
            " ".join(one.overrides),
            f"{time.total:.0f}",
            f"{time.learner_wait:.0%}",
            f"{time.engines_wait:.0%}",
            f"{free:.0%}",
        )
    Console().print(table)


def _gib(number: int) -> str:
    return f"{number / GIB:.2f}"
