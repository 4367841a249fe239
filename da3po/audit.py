"""`da3po data audit FILE... [--against FILE...] [--json OUT]`: what is in a data set, before it is trained on."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from da3po.command import run_command
from da3po.config.schema import DataConfig
from da3po.data.audit import Audit, audit
from da3po.data.overlap import Overlap
from da3po.data.sources import load_problems, scan_problems
from da3po.reward.compare import same
from da3po.reward.golds import objection
from da3po.reward.limits import TooComplexError
from da3po.reward.math import gold_answer
from da3po.runtime.logs import set_up_logging

_NUM_SHOWN = 10
_WIDTH = 100


def main(arguments: Sequence[str]) -> int:
    set_up_logging("main")
    options = _parser().parse_args(arguments)
    return run_command(lambda: _audit(options))


def _parser() -> argparse.ArgumentParser:
    default = DataConfig()
    parser = argparse.ArgumentParser(prog="da3po data", description="Look at data before it is trained on.")
    commands = parser.add_subparsers(required=True, metavar="audit")
    command = commands.add_parser("audit", help="count, compare and check the rows of files")
    command.add_argument("files", nargs="+", metavar="FILE", help=".parquet, .jsonl or package:NAME")
    command.add_argument("--against", nargs="+", default=[], metavar="FILE", help="benchmarks that must not be in it")
    command.add_argument("--json", metavar="OUT", help="write everything that was found to this file")
    command.add_argument("--problem-key", default=default.problem_key, help="field of a plain row (%(default)s)")
    command.add_argument("--answer-key", default=default.answer_key, help="field of a plain row (%(default)s)")
    return parser


def audit_file(name: str, against: Sequence[str] = (), config: DataConfig | None = None) -> Audit:
    """Audit one file with the default grader; the files in `against` are benchmarks that must not be in it."""
    return audit(
        name,
        scan_problems(name, config or DataConfig(dedup=False)),
        check_gold=objection,
        same_answer=_same_answer,
        benchmarks={Path(other).stem: load_problems(other, DataConfig()) for other in against},
    )


def _audit(options: argparse.Namespace) -> int:
    config = DataConfig(problem_key=options.problem_key, answer_key=options.answer_key, dedup=False)
    audits = [audit_file(name, options.against, config) for name in options.files]
    if options.json:
        text = json.dumps([dataclasses.asdict(one) for one in audits], ensure_ascii=False, indent=1)
        Path(options.json).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    console = Console(width=_WIDTH, soft_wrap=True)
    for one in audits:
        _show(one, console)
    return 0


def _same_answer(gold: str, other: str) -> bool:
    try:
        return same(gold_answer(gold), gold_answer(other))
    except TooComplexError:
        return gold == other


def _show(found: Audit, console: Console) -> None:
    """The findings for people: counts first, then the first few rows of each kind."""
    counts = Table(title=found.name, title_justify="left", show_header=False, width=_WIDTH)
    counts.add_row("rows", str(found.num_rows))
    counts.add_row("different problems (as text)", str(found.num_distinct))
    counts.add_row("different problems (letters and digits)", str(found.num_distinct_normalized))
    counts.add_row("problems with contradictory answers", str(len(found.contradictions)))
    counts.add_row("rows that cannot be used", str(len(found.unusable)))
    counts.add_row("answers that the grader cannot read", str(len(found.bad_golds)))
    counts.add_row("instructions left in the problem", str(len(found.leftover_instructions)))
    counts.add_row("problems without a word", str(len(found.no_question)))
    counts.add_row("languages", ", ".join(f"{name} {count}" for name, count in found.languages.items()))
    for overlap in found.overlaps:
        counts.add_row(f"also in {overlap.benchmark}", _overlap_line(overlap))
    console.print(counts)
    _show_lengths(found, console)
    for contradiction in found.contradictions[:_NUM_SHOWN]:
        rows, answers = (", ".join(map(str, many)) for many in (contradiction.rows, contradiction.answers))
        _line(console, f"rows {rows} answer {answers}: {contradiction.problem}")
    for finding in (*found.unusable[:_NUM_SHOWN], *found.bad_golds[:_NUM_SHOWN]):
        _line(console, f"row {finding.row}: {finding.reason}")
    for what, odd in (("instructions left", found.leftover_instructions), ("no word", found.no_question)):
        if odd:
            _line(console, f"{what} in rows {', '.join(map(str, odd[:_NUM_SHOWN]))}{' ...' * (len(odd) > _NUM_SHOWN)}")


def _overlap_line(overlap: Overlap) -> str:
    return f"{len(overlap.verbatim)} of {overlap.num_problems} as text, {len(overlap.alike)} by letters and digits" + (
        f", {len(overlap.rows)} by either" if len(overlap.rows) > max(len(overlap.verbatim), len(overlap.alike)) else ""
    )


def _show_lengths(found: Audit, console: Console) -> None:
    most = max(found.lengths.values(), default=0) or 1
    table = Table("characters", "problems", "", title="length of a problem", title_justify="left")
    for name, count in found.lengths.items():
        table.add_row(name, str(count), "█" * round(30 * count / most))
    console.print(table)


def _line(console: Console, text: str) -> None:
    short = " ".join(text.split())
    console.print(short if len(short) <= _WIDTH else short[: _WIDTH - 3] + "...", markup=False, highlight=False)
