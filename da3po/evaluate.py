"""`da3po eval`: sample a model on a set of problems and say how good it is, with intervals.

The result goes to RUN/eval/<model>-<data>.json, a row per sample to the .jsonl beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from da3po.checkpoint.run_directory import RunDirectory
from da3po.cluster.session import ClusterError, Session
from da3po.cluster.workers import start_within
from da3po.command import run_command, run_main_task
from da3po.config.load import load
from da3po.config.rules import EVALUATION, check
from da3po.config.schema import Config
from da3po.data.prompts import load_prompts
from da3po.data.tokenizer import load_tokenizer
from da3po.engine.protocol import EngineError
from da3po.eval.during import write_result
from da3po.eval.runner import evaluate
from da3po.launch import Engines, check_length, num_gpus
from da3po.models.hf_config import read_model_spec
from da3po.models.locate import locate_model
from da3po.reward.pool import GraderPool
from da3po.runtime.logs import set_up_logging
from da3po.runtime.platform import Platform, resolve
from da3po.types import Prompt

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Evaluate as the overrides say; the exit code is described in `da3po.command`."""
    set_up_logging("main")
    return run_command(lambda: _evaluate(load(arguments)), failures=(ClusterError, EngineError))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What an evaluation needs and can be checked without starting anything."""

    platform: Platform
    model: Path
    prompts: Sequence[Prompt]


def prepare(config: Config) -> Prepared:
    check(config, EVALUATION)
    model = locate_model(config.model.path)
    check_length(config, read_model_spec(model), training=False)
    platform = resolve(config.learner.device)
    tokenizer = load_tokenizer(str(model), config.model.trust_remote_code)
    prompts = load_prompts(config.data.eval, config.data, tokenizer)
    return Prepared(platform=platform, model=model, prompts=prompts)


def _evaluate(config: Config) -> int:
    run_dir = RunDirectory(config.run.dir)
    prepared = prepare(config)
    with run_dir.open(), Session(config.cluster, num_gpus(config, prepared.platform, training=False)):
        return run_main_task(_run(config, prepared, run_dir))


async def _run(config: Config, prepared: Prepared, run_dir: RunDirectory) -> int:
    async with AsyncExitStack() as stack:
        graders = GraderPool(config.reward)
        stack.callback(graders.close)
        engines = Engines(config, prepared.platform, prepared.model, run_dir.logs, training=False)
        stack.push_async_callback(engines.close)
        logger.info("starting engines ...")
        await start_within(config.cluster.start_timeout, "engines", [engines.start()])
        result = await evaluate(engines.pool.generate, graders.grade, prepared.prompts, config.eval, config.run.seed)
    stem = run_dir.evaluations / f"{prepared.model.name}-{Path(config.data.eval.removeprefix('package:')).stem}"
    write_result(stem, result, prepared.prompts)
    settings = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    print(f"{prepared.model} on {config.data.eval} ({settings})\n{result}\nwritten to {stem}.json")
    return 0
