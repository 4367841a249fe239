from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from da3po.config.schema import DataConfig
from da3po.data.problems import DataError
from da3po.data.sources import DAPO_PREFIX, DAPO_SUFFIX, bare_problem, gold_text, load_problems

PLAIN = DataConfig()


def dapo_row(problem: str, gold: Any) -> dict[str, Any]:
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": f"{DAPO_PREFIX}{problem}{DAPO_SUFFIX}"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": gold, "style": "rule"},
        "extra_info": {"index": "0"},
    }


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_dapo_rows_give_the_bare_problem_and_keep_their_messages(tmp_path: Path) -> None:
    [problem] = load_problems(write_parquet(tmp_path / "d.parquet", [dapo_row("What is 1+1?", "2")]), PLAIN)
    assert (problem.text, problem.gold, problem.source, problem.row) == ("What is 1+1?", "2", "math_dapo", 1)
    assert problem.messages == ({"role": "user", "content": f"{DAPO_PREFIX}What is 1+1?{DAPO_SUFFIX}"},)


def test_dapo_rows_are_recognised_in_jsonl_too(tmp_path: Path) -> None:
    [problem] = load_problems(write_jsonl(tmp_path / "d.jsonl", [dapo_row("What is 1+1?", 2)]), PLAIN)
    assert (problem.text, problem.gold) == ("What is 1+1?", "2")


def test_a_prompt_without_the_wrapper_is_the_problem() -> None:
    assert bare_problem("Compute 3*4.") == "Compute 3*4."


def test_plain_rows_with_mapped_fields(tmp_path: Path) -> None:
    name = write_jsonl(tmp_path / "gsm.jsonl", [{"question": "Q?", "final": "7", "id": "a"}])
    [problem] = load_problems(name, DataConfig(problem_key="question", answer_key="final"))
    assert (problem.text, problem.gold, problem.source, problem.messages) == ("Q?", "7", "gsm", None)


def test_a_missing_field_is_named_with_its_option_and_row(tmp_path: Path) -> None:
    name = write_jsonl(tmp_path / "gsm.jsonl", [{"problem": "Q?", "answer": "7"}, {"question": "Q?", "answer": "7"}])
    with pytest.raises(DataError, match=r"gsm.jsonl, row 2: no field 'problem' \(data.problem_key\).*'question'"):
        load_problems(name, PLAIN)


def test_many_copies_are_counted_and_one_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """D01: 3 prompts x 100."""
    name = write_parquet(tmp_path / "d.parquet", [dapo_row(f"p{i % 3}", "1") for i in range(300)])
    with caplog.at_level(logging.INFO):
        assert [problem.text for problem in load_problems(name, PLAIN)] == ["p0", "p1", "p2"]
    assert "300 rows, 3 unique" in caplog.text


def test_copies_that_contradict_each_other_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"problem": "p", "answer": "64"}, {"problem": "q", "answer": "1"}, {"problem": "p ", "answer": "6"}]
    assert [problem.gold for problem in load_problems(write_jsonl(tmp_path / "d.jsonl", rows), PLAIN)] == ["64", "1"]
    assert "1 problems have copies with different answers" in caplog.text


def test_without_deduplication_every_row_stays(tmp_path: Path) -> None:
    name = write_jsonl(tmp_path / "d.jsonl", [{"problem": "p", "answer": "1"}] * 4)
    assert len(load_problems(name, DataConfig(dedup=False))) == 4


def test_an_untidy_jsonl_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """D07: a byte-order mark, a blank line, U+2028 in a string, a truncated last line."""
    path = tmp_path / "d.jsonl"
    good = [json.dumps({"problem": f"a\u2028b{i}", "answer": str(i)}, ensure_ascii=False) for i in range(3)]
    path.write_text("\ufeff" + good[0] + "\n\n" + good[1] + "\r\n" + good[2] + '\n{"problem": "cut o', encoding="utf-8")
    problems = load_problems(str(path), PLAIN)
    assert [problem.text for problem in problems] == ["a\u2028b0", "a\u2028b1", "a\u2028b2"]
    assert [problem.row for problem in problems] == [1, 3, 4]
    assert "d.jsonl, line 5: not valid JSON" in caplog.text


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"problem": "a", "answer": "1"}\n{"problem": \n{"problem": "b", "answer": "1"}\n')
    with pytest.raises(DataError, match=r"d.jsonl, line 2"):
        load_problems(str(path), PLAIN)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file_says_so(tmp_path: Path, content: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"d.jsonl: no rows"):
        load_problems(str(path), PLAIN)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such data file: nowhere.jsonl"):
        load_problems("nowhere.jsonl", PLAIN)
    with pytest.raises(DataError, match="package:nothing"):
        load_problems("package:nothing", PLAIN)
    (tmp_path / "d.txt").write_text("x")
    with pytest.raises(DataError, match=r"d.txt: expected a file that ends in .parquet or .jsonl"):
        load_problems(str(tmp_path / "d.txt"), PLAIN)
    (tmp_path / "d.parquet").write_text("not parquet")
    with pytest.raises(DataError, match=r"d.parquet: not a parquet file"):
        load_problems(str(tmp_path / "d.parquet"), PLAIN)


@pytest.mark.parametrize("gold", [42, 42.0, "42", ["42"]])
def test_golds_of_any_type_are_text(tmp_path: Path, gold: Any) -> None:
    """R29, through parquet so that the column really is int64, double, string or list."""
    [problem] = load_problems(write_parquet(tmp_path / "d.parquet", [{"problem": "p", "answer": gold}]), PLAIN)
    assert problem.gold == "42"


@pytest.mark.parametrize("gold", [None, float("nan"), "", " ", [], True])
def test_a_row_without_a_usable_gold_is_named(tmp_path: Path, gold: Any) -> None:
    rows = [{"problem": "p", "answer": "1"}, {"problem": "q", "answer": gold}]
    with pytest.raises(DataError, match=r"d.jsonl, row 2: no usable reference answer"):
        load_problems(write_jsonl(tmp_path / "d.jsonl", rows), PLAIN)


def test_gold_text_keeps_fractions_and_joins_lists() -> None:
    assert gold_text(0.5) == "0.5"
    assert gold_text(-3) == "-3"
    assert gold_text(["3", 5]) == "3, 5"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (r'{"problem": "half \ud83d", "answer": "1"}', "not valid Unicode"),
        (r'{"problem": "1 + 1", "answer": "\ud83d"}', "not valid Unicode"),
        ('{"problem": "1", "answer": ' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 100_000 + "]" * 100_000, "not valid JSON"),
        ('{"prompt": "1 + 1", "reward_model": {"ground_truth": "2"}}', "`prompt` must be a list of messages"),
        ('{"prompt": [{"role": "user", "content": "1"}], "reward_model": null}', "an object with `ground_truth`"),
        (
            '{"prompt": [{"role": "user", "content": [{"text": "1"}]}], "reward_model": {"ground_truth": "2"}}',
            "must be text",
        ),
    ],
)
def test_rows_that_cannot_be_problems_are_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(line + '\n{"problem": "1 + 1", "answer": "2"}\n')
    with pytest.raises(DataError, match=rf"d.jsonl, (row|line) 1: .*{says}"):
        load_problems(str(path), DataConfig())


def test_a_parquet_file_with_damaged_pages_is_named(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    rows = [{"problem": f"{i} + {i}", "answer": str(2 * i)} for i in range(1000)]
    write_parquet(path, rows)
    content = bytearray(path.read_bytes())
    content[40:400] = bytes(360)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"d.parquet"):
        load_problems(str(path), DataConfig())


def test_an_ending_in_capitals_is_known(tmp_path: Path) -> None:
    path = tmp_path / "d.JSONL"
    path.write_text('{"problem": "1 + 1", "answer": "2"}\n')
    assert len(load_problems(str(path), DataConfig())) == 1
