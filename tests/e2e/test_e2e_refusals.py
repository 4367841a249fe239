"""A command line that cannot work is refused within seconds, before Ray starts, and says what to change."""

import time

import command_line
import pytest

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("algo.lamda=2", "algo.daa.lambda"),
        ("parallel.tp=3", "4"),
        ("train=5", "train.steps"),
        ("data.train=missing.parquet", "missing.parquet"),
        ("model.path=missing", "missing"),
        ("rollout.max_tokens=100000", "positions"),
        ("run.resume=must", "no checkpoint"),
    ],
)
def test_refused_in_time_and_by_name(override, says, tmp_path):
    begun = time.monotonic()
    command = command_line.run("train", "experiment=quickstart", override, cwd=tmp_path)
    assert command.process.returncode == 2
    assert time.monotonic() - begun < 30  # ten seconds on an idle machine
    assert says in command.output()
    assert "Traceback" not in command.output()
    assert command.survivors() == []


def test_an_unknown_command_lists_the_known_ones(tmp_path):
    command = command_line.run("trian", cwd=tmp_path)
    assert command.process.returncode == 2
    assert "train" in command.output()
