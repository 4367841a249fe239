"""Wherever a run fails, the command fails: its exit code is not 0, it says why, and nothing is left running."""

from pathlib import Path

import command_line
import pytest
from command_line import SMALL

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

FAULTS = Path(__file__).parents[1] / "faults"
TRAIN = ["train", *SMALL, "train.steps=2", "checkpoint.every=1", "eval.before=false", "run.dir=run"]


@pytest.mark.parametrize(
    ("fault", "overrides"),
    [
        ("da3po.reward.worker:grade_chunk", []),
        ("da3po.engine.vllm.engine:VllmEngine.start", []),
        ("da3po.learner.megatron.worker:LearnerRank.step", ["parallel=dp2"]),
        ("da3po.data.cursor:Cursor.draw", []),
        ("da3po.eval.during:DuringTraining._evaluate", ["eval.before=true"]),
        ("da3po.learner.megatron.worker:LearnerRank.save", []),
    ],
    ids=["reward", "engine start", "learner rank 1", "data", "evaluation", "save"],
)
def test_a_failure_of_any_part_is_the_commands(fault, overrides, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FAULTS))
    monkeypatch.setenv("DA3PO_TEST_FAULT", fault)
    if "parallel=dp2" in overrides:
        monkeypatch.setenv("DA3PO_TEST_FAULT_RANK", "1")
    command = command_line.run(*TRAIN, *overrides, cwd=tmp_path)
    assert command.process.returncode == 1, command.output()
    assert f"fault in {fault.partition(':')[2]}" in command.output()
    assert command.survivors() == []
