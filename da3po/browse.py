"""`da3po rollouts RUN [--step N] [--prompt UID] [--jsonl]`: what a run's model answered, and what was made of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from da3po.command import run_command
from da3po.config.schema import ConfigError
from da3po.runtime.logs import set_up_logging
from da3po.transcripts.store import Transcripts

Row = dict[str, Any]

_NUM_PROMPTS = 5
_SHOWN_CHARACTERS = 160
_COLORS = {"correct": "green", "wrong": "red", "no_answer": "yellow"}


def main(arguments: Sequence[str]) -> int:
    set_up_logging("main")
    options = _parser().parse_args(arguments)
    return run_command(lambda: _browse(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="da3po rollouts",
        description="Show the responses of a training step: grades, p_hat, rewards, advantages before and after DAA, "
        "and the versions of the weights that made them.",
    )
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("--step", type=int, metavar="N", help="training step (the newest that is stored)")
    parser.add_argument("--prompt", metavar="UID", help="one prompt, by the beginning of its uid; its texts are whole")
    parser.add_argument("--jsonl", action="store_true", help="all rows of the step as JSON, one a line")
    parser.add_argument(
        "--limit", type=int, default=_NUM_PROMPTS, metavar="N", help="most prompts to show, 0 for all (%(default)s)"
    )
    return parser


def _browse(options: argparse.Namespace) -> int:
    run = Path(options.run)
    if not run.is_dir():
        raise ConfigError(f"{run} is no run directory")
    rows = Transcripts(run).read(options.step)
    if options.prompt:
        rows = _of_prompt(rows, options.prompt)
    if options.jsonl:
        for row in rows:
            sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
        return 0
    console = Console(highlight=False)
    groups = (list(group) for _, group in groupby(rows, key=lambda row: row["draw"]))
    shown = None if options.prompt or options.limit == 0 else options.limit
    for group in islice(groups, shown):
        _show(group, console, whole=bool(options.prompt))
    if left := sum(1 for _ in groups):
        console.print(f"{left} more prompts in this step: --limit 0 shows all, --prompt UID one of them whole")
    return 0


def _of_prompt(rows: Iterator[Row], uid: str) -> Iterator[Row]:
    """Raises ConfigError if the step has none."""
    found = False
    for row in rows:
        if row["prompt_uid"].startswith(uid):
            found = True
            yield row
    if not found:
        raise ConfigError(f"no prompt of this step has a uid that begins with {uid}")


def _show(group: Sequence[Row], console: Console, *, whole: bool) -> None:
    first = group[0]
    p_hat = "none graded" if first["p_hat"] is None else f"p_hat {first['p_hat']:.2f}"
    fate = f"dropped: {first['dropped'].replace('_', ' ')}" if first["dropped"] else "trained"
    console.rule(f"step {first['step']}  prompt {escape(first['prompt_uid'])}  {p_hat}  {fate}", align="left")
    console.print(_text(first["prompt"], whole), markup=False)
    console.print(f"gold: {first['gold']}", markup=False)
    table = Table("", "grade", "answer", "reward", "advantage", "after DAA", "tokens", "version", "response")
    for row in group:
        color = _COLORS.get(row["outcome"], "magenta")
        table.add_row(
            str(row["sample"]),
            f"[{color}]{row['outcome'].replace('_', ' ')}[/{color}]",
            escape(_text(row["answer"] or "", whole)),
            _number(row["reward"]),
            _number(row["advantage_before_daa"]),
            _number(row["advantage"]),
            str(row["num_tokens"]) + " cut" * (row["finish"] == "length"),
            _versions(row["versions"]),
            escape(_text(row["response"], whole)),
        )
    console.print(table)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def _versions(stretches: Sequence[Sequence[int]]) -> str:
    """`4`, or `4 (17 tokens), 5 (83 tokens)`."""
    if len(stretches) == 1:
        return str(stretches[0][0])
    return ", ".join(f"{version} ({count} tokens)" for version, count in stretches)


def _text(text: str, whole: bool) -> str:
    if whole:
        return text
    text = " ".join(text.split())
    half = _SHOWN_CHARACTERS // 2
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:half]} ... {text[-half:]}"
