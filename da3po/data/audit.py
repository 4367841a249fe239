"""What is in a file of problems: counts, copies, contradictions, unusable answers, languages, lengths, leaks."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from da3po.data.language import language_of
from da3po.data.overlap import Overlap, TrainingTexts, normalized
from da3po.data.problems import DataError, Problem

GoldCheck = Callable[[str], str | None]
"""Why a reference answer cannot be used, or None if it can."""
SameAnswer = Callable[[str, str], bool]

LENGTH_BOUNDS = (50, 100, 200, 500, 1000, 2000, 5000)
_INSTRUCTION = re.compile(r"\\boxed\s*\{|final_answer|answer\s*:|答案\s*[:：]|输出最终答案", re.IGNORECASE)
_QUESTION_WORD = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A row and what is wrong with it."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """One problem that stands in several rows with answers that are not the same."""

    rows: tuple[int, ...]
    answers: tuple[str, ...]
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """
    num_rows: all rows, unusable ones included.
    num_distinct: problems that differ as text, blind to white space. num_distinct_normalized: those that differ in
        their letters and digits.
    unusable: rows that loading refuses. bad_golds: answers that the grader cannot read.
    leftover_instructions: rows whose problem says how to write the answer, so that it contradicts the template.
    no_question: rows whose problem has no word in it.
    languages, lengths: name -> rows; lengths count characters of the problem.
    overlaps: what of each benchmark stands in this file.
    """

    name: str
    num_rows: int
    num_distinct: int
    num_distinct_normalized: int
    unusable: tuple[Finding, ...]
    bad_golds: tuple[Finding, ...]
    contradictions: tuple[Contradiction, ...]
    leftover_instructions: tuple[int, ...]
    no_question: tuple[int, ...]
    languages: Mapping[str, int]
    lengths: Mapping[str, int]
    overlaps: tuple[Overlap, ...]


def audit(
    name: str,
    rows: Iterable[Problem | DataError],
    *,
    check_gold: GoldCheck,
    same_answer: SameAnswer,
    benchmarks: Mapping[str, Sequence[Problem]],
) -> Audit:
    """Look at every row of a file.

    Args:
        check_gold, same_answer: the grader's word on a reference answer, and on two of them.
        benchmarks: title -> problems that should not be in the file.
    """
    everything = list(rows)
    problems = [row for row in everything if isinstance(row, Problem)]
    check = functools.cache(check_gold)
    reasons = [(problem.row, check(problem.gold)) for problem in problems]
    texts = TrainingTexts(problems)
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[normalized(problem.text) or problem.text].append(problem)
    return Audit(
        name=name,
        num_rows=len(everything),
        num_distinct=len({" ".join(problem.text.split()) for problem in problems}),
        num_distinct_normalized=len(groups),
        unusable=tuple(Finding(row=row.row, reason=str(row)) for row in everything if isinstance(row, DataError)),
        bad_golds=tuple(Finding(row=row, reason=reason) for row, reason in reasons if reason),
        contradictions=tuple(_contradictions(groups.values(), same_answer)),
        leftover_instructions=tuple(p.row for p in problems if _INSTRUCTION.search(p.text)),
        no_question=tuple(p.row for p in problems if not _QUESTION_WORD.search(p.text)),
        languages=dict(Counter(language_of(problem.text) for problem in problems).most_common()),
        lengths=_histogram([len(problem.text) for problem in problems]),
        overlaps=tuple(texts.overlap(title, asked) for title, asked in benchmarks.items()),
    )


def _contradictions(groups: Iterable[Sequence[Problem]], same_answer: SameAnswer) -> Iterable[Contradiction]:
    for group in groups:
        answers: list[str] = []
        for gold in dict.fromkeys(problem.gold for problem in group):
            if not any(same_answer(known, gold) for known in answers):
                answers.append(gold)
        if len(answers) > 1:
            rows = tuple(problem.row for problem in group)
            yield Contradiction(rows=rows, answers=tuple(answers), problem=group[0].text)


def _histogram(lengths: Sequence[int]) -> dict[str, int]:
    """How many are at most 50, 51 to 100, ... characters long."""
    counts = dict.fromkeys((*(f"<= {bound}" for bound in LENGTH_BOUNDS), f"> {LENGTH_BOUNDS[-1]}"), 0)
    names = list(counts)
    for length in lengths:
        counts[names[sum(length > bound for bound in LENGTH_BOUNDS)]] += 1
    return counts
