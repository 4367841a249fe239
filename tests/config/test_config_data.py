"""Sources with weights, and benchmarks: options that are lists."""

from __future__ import annotations

import re

import pytest

from da3po.config.load import conf_dir, dump, load, parse_yaml
from da3po.config.rules import EVALUATION, TRAINING, check
from da3po.config.schema import ConfigError, SourceConfig

BENCHMARKS = {
    "aime24": (32, 30),
    "aime25": (32, 30),
    "aime26": (32, 30),
    "amc": (32, 83),
    "minerva": (8, 272),
    "olympiad": (8, 675),
    "math500": (8, 500),
}


def test_one_source_is_a_string_and_several_are_a_list() -> None:
    assert load(["data.train=a.parquet"]).data.sources == (SourceConfig(path="a.parquet"),)
    config = load(["data.train=[{path: a.parquet, weight: 2}, 'b c.jsonl']"])
    assert config.data.sources == (SourceConfig(path="a.parquet", weight=2.0), SourceConfig(path="b c.jsonl"))
    assert parse_yaml(dump(config)) == config


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("data.train=[{pth: a}]", "data.train[0] has no option 'pth'; there are path, weight"),
        ("data.train=[a, {weight: 2}]", "data.train[1] lacks 'path'"),
        ("data.train=[{path: a, weight: two}]", "data.train[0].weight must be a number"),
        ("data.train=[{path: a, weight: 0}]", "the weight of a must be positive"),
        ("data.train=[3]", "data.train[0] must be a section with path, weight, got 3"),
        ("data.train=[]", "data.train must name at least one source"),
        ("data.difficulty.low=0.9", ""),
        ("data.difficulty.high=1.5", "0 <= low <= high <= 1"),
        ("benchmark=amc,aim", "there is no 'aim'; there are all, aime24"),
        ("benchmarks=amc", "benchmarks must be a list"),
    ],
)
def test_a_wrong_list_is_refused_and_says_where(override: str, says: str) -> None:
    if not says:
        load([override])
        return
    with pytest.raises(ConfigError, match=re.escape(says)):
        load([override])


def test_the_benchmarks_are_the_papers() -> None:
    assert {file.stem for file in (conf_dir() / "benchmark").glob("*.yaml")} == set(BENCHMARKS)
    config = load(["benchmark=all"])
    assert {one.name: (one.num_samples, one.num_problems) for one in config.benchmarks} == BENCHMARKS
    assert (config.eval.temperature, config.eval.top_p) == (1.0, 0.95)
    assert parse_yaml(dump(config)) == config


def test_several_benchmarks_and_an_n_of_ones_own() -> None:
    config = load(["benchmark=amc,aime24", "eval.num_samples=4"])
    assert [(one.name, one.num_samples) for one in config.benchmarks] == [("amc", 4), ("aime24", 4)]


def test_a_benchmark_that_is_not_in_the_folder_is_named_before_anything_starts(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"there is no amc_83.jsonl for benchmark amc"):
        check(load(["benchmark=amc", f"data.dir={tmp_path}"]), EVALUATION)
    (tmp_path / "amc_83.jsonl").touch()
    check(load(["benchmark=amc", f"data.dir={tmp_path}", "data.eval=missing.jsonl"]), EVALUATION)


def test_every_source_must_exist(tmp_path) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(ConfigError, match=r"data.train=b.jsonl: there is no such file"):
        check(load([f"data.train=[{tmp_path}/a.jsonl, b.jsonl]"]), TRAINING)
    with pytest.raises(ConfigError, match=r"data.difficulty.record=old: there is no such file or run directory"):
        check(load(["data.difficulty.record=old"]), TRAINING)
    check(load(["data.train=hub:BytedTsinghua-SIA/DAPO-Math-17k"]), TRAINING)
