"""Data sets as lists of problems: DAPO-Math-17K's schema, recognised by itself, or plain {problem, answer} rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from da3po.config.schema import DataConfig
from da3po.data.files import open_rows, short_name
from da3po.data.problems import DataError, Problem, deduplicate, problem_uid

# What the published DAPO-Math-17K puts around every problem. It is taken off to recover the problem, so that every
# template works with every source; the template `dapo` puts it back.
DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'


def load_problems(name: str, config: DataConfig) -> list[Problem]:
    """All problems of a file, of `package:NAME` or of `hub:OWNER/NAME[:SPLIT]`, one copy of each if config.dedup.

    Raises DataError, naming file and row, for a row without a problem or a usable answer, and for an empty file.
    """
    problems = []
    for row in scan_problems(name, config):
        if isinstance(row, DataError):
            raise row
        problems.append(row)
    if not problems:
        raise DataError(f"{name}: no rows")
    return deduplicate(problems, name) if config.dedup else problems


def scan_problems(name: str, config: DataConfig) -> Iterator[Problem | DataError]:
    """Every row of a file as a problem or, if it cannot be used, as the reason why."""
    for number, row in open_rows(name):
        try:
            yield _problem(name, number, row, config)
        except DataError as error:
            yield error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    """What a row says, whatever its schema."""

    text: Any
    gold: Any
    source: Any
    messages: tuple[Mapping[str, str], ...] | None


def _problem(name: str, number: int, row: Mapping[str, Any], config: DataConfig) -> Problem:
    try:
        fields = _dapo_fields(row) if "prompt" in row and "reward_model" in row else _plain_fields(row, config)
        if not isinstance(fields.text, str) or not fields.text.strip():
            raise ValueError(f"no problem text: {fields.text!r}")
        gold = gold_text(fields.gold)
        _require_unicode(fields.text)
        _require_unicode(gold)
    except (ValueError, KeyError, TypeError) as error:
        reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{name}, row {number}: {reason}", row=number) from error
    source = str(fields.source or short_name(name))
    text = fields.text
    uid = problem_uid(source, text)
    return Problem(uid=uid, text=text, gold=gold, source=source, messages=fields.messages, row=number)


def _require_unicode(text: str) -> None:
    """Raises ValueError for text with half a surrogate pair, which no tokenizer and no file can take."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not valid Unicode ({error.reason} at character {error.start})") from None


def _plain_fields(row: Mapping[str, Any], config: DataConfig) -> _Fields:
    for option, key in (("problem_key", config.problem_key), ("answer_key", config.answer_key)):
        if key not in row:
            raise ValueError(f"no field {key!r} (data.{option}); the row has {sorted(row)}")
    return _Fields(text=row[config.problem_key], gold=row[config.answer_key], source=row.get("source"), messages=None)


def _dapo_fields(row: Mapping[str, Any]) -> _Fields:
    if not isinstance(row["prompt"], list) or not isinstance(row["reward_model"], Mapping):
        raise ValueError("`prompt` must be a list of messages and `reward_model` an object with `ground_truth`")
    if any(not isinstance(turn.get("content"), str) for turn in row["prompt"]):
        raise ValueError("the `content` of every message in `prompt` must be text")
    messages = tuple({"role": str(turn["role"]), "content": turn["content"]} for turn in row["prompt"])
    asked = [turn["content"] for turn in messages if turn["role"] == "user"]
    if not asked:
        raise ValueError("`prompt` has no user message")
    gold = row["reward_model"]["ground_truth"]
    return _Fields(text=bare_problem(asked[-1]), gold=gold, source=row.get("data_source"), messages=messages)


def bare_problem(content: str) -> str:
    """The problem inside the DAPO recipe's instructions; other text is returned as it is."""
    if content.startswith(DAPO_PREFIX) and content.endswith(DAPO_SUFFIX):
        return content[len(DAPO_PREFIX) : -len(DAPO_SUFFIX)]
    return content


def gold_text(value: Any) -> str:
    """A reference answer as text: 42, 42.0, '42' and ['42'] are all "42".

    A list of several answers means all of them together ("3, 5"). None, NaN, the empty string and anything else raise
    ValueError.
    """
    convert = _GOLD_TYPES.get(type(value))
    text = convert(value).strip() if convert else ""
    if not text:
        raise ValueError(f"no usable reference answer: {value!r} ({type(value).__name__})")
    return text


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        return ""
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


_GOLD_TYPES: Mapping[type, Callable[[Any], str]] = {
    str: str,
    int: str,
    float: _float_text,
    list: lambda values: ", ".join(gold_text(value) for value in values),
}
