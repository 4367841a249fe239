from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from da3po.audit import main
from da3po.config.schema import DataConfig
from da3po.data.audit import Audit, audit
from da3po.data.language import language_of
from da3po.data.overlap import TrainingTexts
from da3po.data.problems import Problem, problem_uid
from da3po.data.sources import scan_problems

SHARED = Path(os.environ.get("DA3PO_SHARED", Path(__file__).parents[3] / "shared")) / "data"
BENCHMARKS = ("aime24", "aime25", "aime26", "amc_83", "minerva", "olympiadbench", "math500")


def problem(text: str, gold: str = "1", row: int = 1) -> Problem:
    return Problem(uid=problem_uid("s", text), text=text, gold=gold, source="s", messages=None, row=row)


def look_at(*problems: Problem) -> Audit:
    return audit(
        "x", problems, check_gold=lambda gold: None, same_answer=lambda a, b: float(a) == float(b), benchmarks={}
    )


def test_copies_are_counted_as_text_and_by_letters() -> None:
    found = look_at(problem("Find $x$."), problem("Find  $x$."), problem(r"Find \(x\)."), problem("Find y."))
    assert (found.num_rows, found.num_distinct, found.num_distinct_normalized) == (4, 3, 2)


def test_contradictions_need_answers_that_differ_in_value() -> None:
    rows = [("Find $x$.", "64"), ("Find y.", "5"), ("find x", "6"), ("Find y", "5.0"), ("Find x!", "64")]
    found = look_at(*(problem(text, gold, row) for row, (text, gold) in enumerate(rows, start=1)))
    [contradiction] = found.contradictions
    assert (contradiction.rows, contradiction.answers) == ((1, 3, 5), ("64", "6"))


def test_odd_rows_are_named() -> None:
    found = look_at(
        problem(r"$\frac{2020}{6063}$", row=1),
        problem(r"求 x。请以“Answer: \boxed{<final_answer>}”的格式输出最终答案。", row=2),
        problem("What is 1 + 1?", row=3),
    )
    assert (found.no_question, found.leftover_instructions) == ((1,), (2,))


def test_lengths_are_counted_in_bins_with_inclusive_bounds() -> None:
    found = look_at(problem("x" * 50), problem("x" * 51), problem("x" * 6000))
    assert {name: count for name, count in found.lengths.items() if count} == {"<= 50": 1, "<= 100": 1, "> 5000": 1}


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Find the value of $x$.", "English"),
        ("设 $x$ 为正整数，求 $x$ 的值。", "Chinese"),
        ("正の整数 n を求めよ。", "Japanese"),
        ("Найдите значение x.", "Russian"),
        ("Trouver le nombre de solutions dans une suite.", "French"),
        ("Bestimme die Zahl der Lösungen und den Wert von n.", "German"),
        (r"$\frac{2020}{6063}$", "formulas only"),
        ("Znajdź wszystkie rozwiązania.", "other Latin"),
    ],
)
def test_languages(text: str, language: str) -> None:
    assert language_of(text) == language


def test_overlap_goes_by_the_first_eighty_characters_whatever_the_notation() -> None:
    long = "Suppose that " + " and ".join(f"$a_{i}$ is {i}" for i in range(30))
    trained = [problem(long.replace("$", r"\(") + " Compute the sum.", row=4), problem("Compute 2 + 3 - 1.", row=5)]
    asked = [problem(long + " What is it?", row=1), problem("Compute 2 + 3.", row=2), problem("compute 2+3-1", row=3)]
    overlap = TrainingTexts(trained).overlap("b", asked)
    assert overlap.rows == ((1, 4), (3, 5))
    assert overlap.alike == (1, 3)
    assert overlap.num_problems == 3


def test_overlap_as_text_is_blind_to_spelling_alone() -> None:
    """The first 80 characters count without white space, `$`, braces and case; what comes after may differ."""
    opening = r"Let $f(x) = \left( x^{2} + 1 \right)$ for real $x$. Sum its values over those primes "
    opening += "that are congruent to one modulo four, not counting those "
    trained = [problem(opening + "that are below 9.", row=4), problem("Compute $2+3$.", row=5)]
    asked = [
        problem(opening.replace("x^{2}", "x^2").replace("Let", "LET") + "that are up to 8.", row=1),
        problem(opening.replace("$", r"\("), row=2),
        problem("Compute 2 + 3.", row=3),
        problem("Compute 2", row=6),
    ]
    overlap = TrainingTexts(trained).overlap("b", asked)
    assert (overlap.verbatim, overlap.alike) == ((1, 3), (1, 2, 3))
    assert overlap.rows == ((1, 4), (2, 4), (3, 5))


def test_unusable_rows_do_not_end_the_audit(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    rows = [{"problem": "a", "answer": "1"}, {"problem": "b", "answer": None}, {"problem": "", "answer": "2"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = look_at(*scan_problems(str(path), DataConfig()))  # type: ignore[arg-type]
    assert (found.num_rows, [finding.row for finding in found.unusable]) == (3, [2, 3])
    assert "no usable reference answer: None" in found.unusable[0].reason


def test_the_command_writes_json_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, benchmark, out = tmp_path / "train.jsonl", tmp_path / "bench.jsonl", tmp_path / "audit.json"
    train.write_text(
        '{"problem": "How many primes are below 10?", "answer": 4}\n{"problem": "Is it?", "answer": "\\\\frac{"}\n'
    )
    benchmark.write_text('{"problem": "How many primes are below $10$?", "answer": "4"}\n')
    assert main(["audit", str(train), "--against", str(benchmark), "--json", str(out)]) == 0
    [found] = json.loads(out.read_text())
    assert found["overlaps"] == [
        {"benchmark": "bench", "num_problems": 1, "rows": [[1, 1]], "verbatim": [1], "alike": [1]}
    ]
    assert [bad["row"] for bad in found["bad_golds"]] == [2]
    shown = capsys.readouterr().out
    assert "1 of 1 as text, 1 by letters and digits" in shown
    assert r"row 2: '\\frac{' cannot be read" in shown


def test_a_missing_file_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "missing.parquet"]) == 2
    assert "no such data file: missing.parquet" in capsys.readouterr().err


@pytest.mark.skipif(not (SHARED / "dapo-math-17k.parquet").is_file(), reason="no reference data here")
def test_dapo_math_17k(tmp_path: Path) -> None:
    """Every contradiction that is known is found, and every overlap."""
    out = tmp_path / "audit.json"
    benchmarks = [str(SHARED / f"{name}.jsonl") for name in BENCHMARKS]
    assert main(["audit", str(SHARED / "dapo-math-17k.parquet"), "--against", *benchmarks, "--json", str(out)]) == 0
    [found] = json.loads(out.read_text())
    defects = [json.loads(line) for line in (SHARED / "dapo_defects.jsonl").read_text().splitlines()]
    groups = [set(contradiction["rows"]) for contradiction in found["contradictions"]]
    for defect in defects:
        rows = {int(name.rpartition("-")[2]) + 1 for name in defect["ids"]}
        if defect["kind"] == "conflicting_answers_for_same_problem":
            assert any(rows <= group for group in groups), defect
        if defect["kind"] == "residual_answer_format_instruction_in_problem":
            assert rows <= set(found["leftover_instructions"]), defect
        if defect["kind"] == "problem_text_is_only_the_final_value":
            assert rows <= set(found["no_question"]), defect
    assert found["num_rows"] == 17917
    overlaps = {one["benchmark"]: (len(one["verbatim"]), len(one["alike"])) for one in found["overlaps"]}
    assert overlaps == {
        "aime24": (0, 0),
        "aime25": (0, 0),
        "aime26": (1, 1),
        "amc_83": (37, 46),
        "minerva": (0, 0),
        "olympiadbench": (45, 46),
        "math500": (14, 15),
    }
