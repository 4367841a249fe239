"""`da3po doctor`: whether this machine, or every node of a cluster, can do the run, and what is missing if not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from da3po.cluster.errors import ClusterError
from da3po.cluster.network import NetworkError, choose_ports, interfaces
from da3po.command import run_command, split_flags, wants_help
from da3po.config.load import help_text, load
from da3po.config.schema import ClusterConfig, Config, ConfigError
from da3po.data.problems import DataError, Problem
from da3po.data.sources import load_problems
from da3po.data.templates import TEMPLATES
from da3po.data.tokenizer import load_tokenizer
from da3po.health.finding import Finding, Need, Status
from da3po.health.node import check_node
from da3po.models.locate import is_hub_name, locate_model
from da3po.reward.graders import GraderError, check_grader
from da3po.types import Outcome

USAGE = "da3po doctor [--json] [--cluster] [GROUP=CHOICE ...] [KEY=VALUE ...]"
FLAGS = {"--json", "--cluster"}
SICK = 1
SAMPLE = 32
"""Problems of the run's data that tokenizer and grader are tried on."""
NODE_SECONDS = 300.0
STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: nothing stands in the way of the run. 1: something does. 2: the command line cannot be read."""
    if wants_help(arguments):
        print(help_text(USAGE))
        return 0
    return run_command(lambda: _examine(*split_flags(arguments, FLAGS, USAGE)), failures=(ClusterError, ImportError))


def _examine(overrides: Sequence[str], flags: set[str]) -> int:
    config = load(overrides)
    nodes = (
        _every_node(config)
        if "--cluster" in flags
        else {socket.gethostname(): check_this_node(need_of(config), config.cluster.num_nodes)}
    )
    nodes["the run"] = list(check_run(config))
    if "--json" in flags:
        tree = {name: [asdict(one) for one in findings] for name, findings in nodes.items()}
        print(json.dumps({"healthy": _healthy(nodes), "nodes": tree}, indent=2))
    else:
        _show(nodes)
    return 0 if _healthy(nodes) else SICK


def _healthy(nodes: dict[str, list[Finding]]) -> bool:
    return all(one.status != "problem" for findings in nodes.values() for one in findings)


def need_of(config: Config) -> Need:
    """On CPU if the run is not given GPUs: with learner.device=auto and no cluster.gpus_per_node, both will do."""
    cluster, learner = config.cluster, config.learner
    gpus = cluster.gpus_per_node or (1 if learner.device == "cuda" else 0)
    processes = config.parallel.num_ranks + config.engine.num_engines * config.engine.tp
    return Need(
        gpus=0 if learner.device == "cpu" else gpus,
        precision=learner.precision,
        folder=config.run.dir,
        processes=-(-processes // cluster.num_nodes),
    )


def check_this_node(need: Need, num_nodes: int) -> list[Finding]:
    """Whichever node it is called on."""
    return [*check_node(need, num_nodes), *_network()]


def _network() -> Iterator[Finding]:
    addresses = ", ".join(f"{name} {address}" for name, address in interfaces().items())
    yield Finding(topic="network", name="IPv4 addresses", value=addresses or "none")
    try:
        ports = choose_ports(job=0, node=0, environ={})
    except NetworkError as error:
        yield Finding(topic="network", name="ports", value="none free", status="problem", meaning=str(error))
        return
    yield Finding(
        topic="network",
        name="ports",
        value=f"{min(ports.values())} to {max(ports.values())} are free",
        meaning="a node's Ray takes such a block",
    )


def _every_node(config: Config) -> dict[str, list[Finding]]:
    """Through Ray: the cluster at RAY_ADDRESS, whatever cluster.kind says."""
    from da3po.cluster.everywhere import on_every_node  # Ray may be what is missing here
    from da3po.cluster.session import Session

    with Session(ClusterConfig(kind="existing")):
        answers = asyncio.run(
            on_every_node(
                "da3po.doctor:check_this_node", need_of(config), config.cluster.num_nodes, timeout=NODE_SECONDS
            )
        )
    nodes = {name: _findings(answer) for name, answer in answers.items()}
    nodes["the cluster"] = list(_compare(nodes, config.cluster.num_nodes))
    return nodes


def _findings(answer: Any) -> list[Finding]:
    if isinstance(answer, BaseException):
        said = str(answer).strip().splitlines()[-1] if str(answer).strip() else type(answer).__name__
        return [Finding(topic="host", name="answer", value="none", status="problem", meaning=said)]
    return list(answer)


def _compare(nodes: dict[str, list[Finding]], wanted: int) -> Iterator[Finding]:
    """Nodes are to be enough, and to have the same versions: what one process writes another one reads."""
    yield Finding(
        topic="host",
        name="nodes",
        value=str(len(nodes)),
        status="ok" if len(nodes) >= wanted else "problem",
        meaning="" if len(nodes) >= wanted else f"cluster.num_nodes={wanted}",
    )
    for name in dict.fromkeys(one.name for findings in nodes.values() for one in findings if one.topic == "packages"):
        values = {node: one.value for node, findings in nodes.items() for one in findings if one.name == name}
        if len(set(values.values())) > 1:
            said = ", ".join(f"{node}: {value}" for node, value in values.items())
            yield Finding(topic="packages", name=name, value="differs", status="problem", meaning=said)


def check_run(config: Config) -> Iterator[Finding]:
    """The run's model, data, tokenizer and grader, tried on some of its own problems."""
    try:
        problems = [one for source in config.data.sources for one in load_problems(source.path, config.data)][:SAMPLE]
    except (DataError, ConfigError, ImportError, OSError) as error:
        yield _problem("data.train", "cannot be read", str(error))
        return
    yield Finding(topic="run", name="data.train", value=f"{len(problems)} problems tried")
    yield from _tokenizer(config, problems)
    yield _grader(config, problems)


def _tokenizer(config: Config, problems: Sequence[Problem]) -> Iterator[Finding]:
    path = config.model.path
    if is_hub_name(path):
        yield Finding(
            topic="run",
            name="model.path",
            value=path,
            status="note",
            meaning="not a directory here: it would be downloaded from the Hub when the run starts, on every node",
        )
        return
    try:
        tokenizer: Any = load_tokenizer(str(locate_model(path)), config.model.trust_remote_code)
        prompts = [TEMPLATES[config.data.template].render(problem, tokenizer) for problem in problems]
    except (ConfigError, ImportError, OSError, ValueError) as error:
        yield _problem("tokenizer", "cannot be loaded", str(error))
        return
    bad = [text for text in prompts if tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) != text]
    long = sum(
        len(tokenizer(text, add_special_tokens=False)["input_ids"]) > config.data.max_prompt_tokens for text in prompts
    )
    has_end = tokenizer.eos_token_id is not None
    yield Finding(
        topic="run",
        name="tokenizer",
        value=f"{len(prompts) - len(bad)} of {len(prompts)} prompts come back as they were, {long} are too long",
        status="problem" if long == len(prompts) or not has_end else "note" if bad or long else "ok",
        meaning="" if has_end else "it has no end-of-sequence token: no response would ever end",
    )


def _grader(config: Config, problems: Sequence[Problem]) -> Finding:
    """Each reference answer is right, boxed and as a last line; an answer to no problem is wrong."""
    try:
        check_grader(config.reward)
        right, wrong = asyncio.run(_grade(config, problems))
    except (ConfigError, GraderError, ImportError) as error:
        return _problem("grader", "cannot be used", str(error))
    missed = [problem.row for problem, grade in zip(problems, right, strict=True) if grade is not Outcome.CORRECT]
    fooled = sum(grade is Outcome.CORRECT for grade in wrong)
    status: Status = "problem" if fooled or len(missed) == len(problems) else "note" if missed else "ok"
    return Finding(
        topic="run",
        name=f"grader {config.reward.grader}",
        value=f"{len(right) - len(missed)} of {len(right)} reference answers are right, {fooled} made-up ones are",
        status=status,
        meaning=f"not right: rows {', '.join(map(str, missed[:8]))}" if missed else "",
    )


async def _grade(config: Config, problems: Sequence[Problem]) -> tuple[list[Outcome], list[Outcome]]:
    from da3po.reward.pool import GraderPool  # its library may be what is missing here

    pool = GraderPool(config.reward)
    try:
        answers = await asyncio.gather(
            *(pool.grade(one.gold, [_response(one.gold), _response("987654321")]) for one in problems)
        )
    finally:
        pool.close()
    return [pair[0].outcome for pair in answers], [pair[1].outcome for pair in answers]


def _response(answer: str) -> str:
    return f"So the answer is \\boxed{{{answer}}}.\n\nAnswer: {answer}"


def _problem(name: str, value: str, meaning: str) -> Finding:
    return Finding(topic="run", name=name, value=value, status="problem", meaning=meaning)


def _show(nodes: dict[str, list[Finding]]) -> None:
    console = Console()
    for node, findings in nodes.items():
        table = Table(title=node, title_justify="left", title_style="bold", show_edge=False, pad_edge=False)
        for column in ("topic", "what", "found", "", "meaning"):
            table.add_column(column, overflow="fold")
        for one in findings:
            style = STYLES[one.status]
            table.add_row(one.topic, one.name, one.value, f"[{style}]{one.status}[/]", one.meaning)
        console.print(table)
    bad = [
        f"{node}: {one.name}: {one.meaning or one.value}"
        for node, found in nodes.items()
        for one in found
        if one.status == "problem"
    ]
    for line in bad:
        console.print(line, style="bold red", markup=False, soft_wrap=True)
    console.print("nothing stands in the way of this run" if not bad else f"problems: {len(bad)}")
