"""`da3po eval`: sample a model on benchmarks and say how good it is, with intervals.

    da3po eval model=DIR benchmark=aime24,amc data.dir=FOLDER     the paper's protocol, or a part of it
    da3po eval model=DIR data.eval=FILE                           any file of problems
    da3po eval model.path=RUN ...                                 a run's newest checkpoint, or a step's folder
    da3po eval compare RUN_A RUN_B                                two evaluations, problem by problem
    da3po eval table RUN...                                       evaluations as the paper's tables

Each benchmark's summary goes to RUN/eval/<model>-<benchmark>.json and a row per sample to the .jsonl beside it, as soon
as a problem is graded: the same command goes on where an interrupted one ended.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3po.checkpoint.run_directory import RunDirectory
from da3po.cluster.errors import ClusterError
from da3po.cluster.session import Session
from da3po.cluster.workers import start_within
from da3po.command import USAGE_ERROR, run_command, run_main_task, wants_help
from da3po.config.load import help_text, load
from da3po.config.rules import EVALUATION, check
from da3po.config.schema import BenchmarkConfig, Config, DataConfig
from da3po.conversion.cached import exported
from da3po.conversion.convert import ProofError, Proving
from da3po.data.files import short_name
from da3po.data.overlap import TrainingTexts
from da3po.data.problems import DataError, Problem
from da3po.data.prompts import build_prompts, report_golds
from da3po.data.sources import load_problems
from da3po.data.templates import TEMPLATES
from da3po.data.tokenizer import Tokenizer, load_tokenizer
from da3po.engine.protocol import EngineError
from da3po.engine.vllm_arguments import check_arguments
from da3po.eval.record import weights_fingerprint
from da3po.eval.summaries import compare, describe, read_summaries
from da3po.eval.table import score_of, tables
from da3po.eval.task import Evaluation, Task, contamination_line
from da3po.launch import Engines, check_length, reserve
from da3po.learner.megatron.probe import ProbeError, learner_logprobs
from da3po.models.hf_config import read_model_spec
from da3po.models.locate import locate_model
from da3po.reward.golds import objection
from da3po.reward.graders import GraderError, check_grader
from da3po.reward.pool import GraderPool
from da3po.runtime.logs import set_up_logging
from da3po.runtime.platform import Platform, resolve
from da3po.types import Grade, GroupRequest, GroupResult

logger = logging.getLogger(__name__)

# Errors of an evaluation's parts whose own words are all that a user needs.
FAILURES = (ClusterError, EngineError, GraderError, ProbeError, ProofError)


def main(arguments: Sequence[str]) -> int:
    """Evaluate as the overrides say; the exit code is described in `da3po.command`."""
    set_up_logging("main")
    on_disk = {"compare": _compare, "table": _table}
    if arguments and arguments[0] in on_disk:
        return run_command(lambda: on_disk[arguments[0]](arguments[1:]))
    if wants_help(arguments) or not arguments:
        print(__doc__)
        print(help_text("da3po eval model=DIR [GROUP=CHOICE ...] [KEY=VALUE ...]"))
        return 0 if arguments else USAGE_ERROR
    return run_command(lambda: _evaluate(load(arguments)), failures=FAILURES)


def _compare(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="da3po eval compare", description="Compare evaluations problem by problem.")
    parser.add_argument("first", metavar="RUN_A", help="run directory, or a summary (.json)")
    parser.add_argument("second", metavar="RUN_B")
    options = parser.parse_args(arguments)
    print(f"{options.second} minus {options.first}, percentage points of avg@k, paired by problem\n")
    print(describe(compare(options.first, options.second)))
    return 0


def _table(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="da3po eval table", description="Evaluations as the paper's tables.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories, or summaries (.json)")
    options = parser.parse_args(arguments)
    print(tables([score_of(summary) for run in options.runs for summary in read_summaries(run)]))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What an evaluation needs and can be checked without starting anything."""

    platform: Platform
    model: Path
    tasks: Sequence[Task]


def prepare(config: Config) -> Prepared:
    check(config, EVALUATION)
    check_grader(config.reward)
    model = locate_model(exported(config.model.path, Proving(learner=learner_logprobs)))
    check_length(config, read_model_spec(model), training=False)
    platform = resolve(config.learner.device)
    check_arguments(config.engine.vllm, platform.device)
    tokenizer = load_tokenizer(str(model), config.model.trust_remote_code)
    benchmarks = config.benchmarks or (_own_benchmark(config),)
    trained = _training_texts(config.data)
    tasks = [_task(config, benchmark, model, tokenizer, trained) for benchmark in benchmarks]
    return Prepared(platform=platform, model=model, tasks=tasks)


def _own_benchmark(config: Config) -> BenchmarkConfig:
    """data.eval as a benchmark of which nothing is known."""
    name = short_name(config.data.eval)
    return BenchmarkConfig(name=name, title=name, file=config.data.eval, num_samples=config.eval.num_samples)


def _task(
    config: Config, benchmark: BenchmarkConfig, model: Path, tokenizer: Tokenizer, trained: TrainingTexts | None
) -> Task:
    source, data = _where(config, benchmark)
    problems = load_problems(source, data)
    report_golds(problems, objection, source)
    prompts = build_prompts(problems, TEMPLATES[data.template], tokenizer, data.max_prompt_tokens, source)
    leaked = None
    if trained is not None:
        by_row = {problem.row: problem.uid for problem in problems}
        leaked = frozenset(by_row[row] for row, _ in trained.overlap(benchmark.title, problems).rows)
    task = Task(
        benchmark=benchmark,
        model=model.name,
        prompts=prompts,
        config=dataclasses.replace(config.eval, num_samples=benchmark.num_samples),
        seed=config.run.seed,
        settings={
            "template": data.template,
            "grader": config.reward.grader,
            "seed": config.run.seed,
            "weights": weights_fingerprint(model),
        },
        leaked=leaked,
    )
    task.check_size()
    return task


def _where(config: Config, benchmark: BenchmarkConfig) -> tuple[str, DataConfig]:
    """Where a benchmark's problems are, and how their rows are read."""
    if not config.benchmarks:
        return config.data.eval, config.data
    if config.data.dir is not None:
        return str(Path(config.data.dir) / benchmark.file), config.data
    data = dataclasses.replace(config.data, problem_key=benchmark.problem_key, answer_key=benchmark.answer_key)
    return str(benchmark.hub), data


def _training_texts(data: DataConfig) -> TrainingTexts | None:
    """What data.train has, for the look for leaks; None, with a remark, if it is not at hand."""
    problems: list[Problem] = []
    for source in data.sources:
        try:
            problems += load_problems(source.path, data)
        except DataError as error:
            logger.warning("contamination is not checked: data.train: %s", error)
            return None
    return TrainingTexts(problems)


def _evaluate(config: Config) -> int:
    run_dir = RunDirectory(config.run.dir)
    prepared = prepare(config)
    with run_dir.open():
        evaluations = [Evaluation(task, run_dir.evaluations) for task in prepared.tasks]
        pending = sum(evaluation.num_pending for evaluation in evaluations)
        if not pending:
            logger.info("every problem has its samples already; nothing is generated")
            return asyncio.run(_finish(evaluations, _nothing, _no_grades, run_dir))
        logger.info("%d problems to sample", pending)
        with Session(config.cluster):
            return run_main_task(_run(config, prepared, evaluations, run_dir))


async def _run(config: Config, prepared: Prepared, evaluations: Sequence[Evaluation], run_dir: RunDirectory) -> int:
    async with AsyncExitStack() as stack:
        graders = GraderPool(config.reward)
        stack.callback(graders.close)
        placement = await reserve(config, prepared.platform, prepared.model, run_dir.logs, training=False)
        stack.callback(placement.release)
        engines = Engines(config, prepared.platform, prepared.model, run_dir.logs, training=False, placement=placement)
        stack.push_async_callback(engines.close)
        logger.info("starting engines: %s ...", placement)
        await start_within(config.cluster.start_timeout, "engines", [engines.start()])
        return await _finish(evaluations, engines.pool.generate, graders.grade, run_dir)


async def _nothing(requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
    raise AssertionError(f"{len(requests)} requests, though every problem had its samples")
    yield


async def _no_grades(gold: str, responses: Sequence[str]) -> list[Grade]:
    raise AssertionError("nothing was generated")


async def _finish(evaluations: Sequence[Evaluation], generate: Any, grade: Any, run_dir: RunDirectory) -> int:
    summaries = [await evaluation.run(generate, grade) for evaluation in evaluations]
    model = evaluations[0].task.model
    notes = "\n".join(contamination_line(summary) for summary in summaries)
    settings = ", ".join(f"{name} {value}" for name, value in summaries[0]["settings"].items() if name != "num_samples")
    text = f"{model} ({settings})\n\n{tables([score_of(summary) for summary in summaries])}\n\n{notes}\n"
    table = run_dir.evaluations / f"{model}.md"
    table.write_text(text, encoding="utf-8")
    print(text)
    print("written to " + ", ".join(str(evaluation.summary_path) for evaluation in evaluations) + f" and {table}")
    return 0
