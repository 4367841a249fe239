"""A checkpoint in place of a model directory, as `da3po eval` takes it."""

from __future__ import annotations

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fixtures_hf
import pytest

from da3po import evaluate
from da3po.checkpoint.directory import CheckpointDirectory, write_state
from da3po.config.load import load
from da3po.conversion import cached
from da3po.conversion.cached import exported
from da3po.conversion.convert import Proving, import_model
from da3po.models.locate import locate_model

STRUCTURE = Proving(learner=None)
SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 103}


def make_run(folder: Path, model: Path) -> Path:
    imported = folder.with_name("imported")
    import_model(model, imported, proving=STRUCTURE)
    checkpoints = CheckpointDirectory(folder / "checkpoints", keep=2)
    writing = checkpoints.begin(10)
    shutil.copytree(imported / "learner", writing / "learner", dirs_exist_ok=True)
    write_state(writing, {}, "")
    checkpoints.commit(10, writing)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "myrun", fixtures_hf.make_qwen3(tmp_path / "hf", head_dim=16, **SMALL))


def test_a_model_directory_and_a_hub_name_stay_what_they_are(run: Path) -> None:
    model = str(run.with_name("hf"))
    assert exported(model, STRUCTURE) == model
    assert exported("Qwen/Qwen3-4B", STRUCTURE) == "Qwen/Qwen3-4B"
    assert exported("package:tiny", STRUCTURE) == "package:tiny"


@pytest.mark.parametrize("place", ["", "checkpoints/step_000010"])
def test_a_run_or_a_step_is_exported_beside_its_checkpoints(run: Path, place: str) -> None:
    assert exported(str(run / place), STRUCTURE) == str(run / "exports" / "myrun-step_000010")
    assert not (run / "checkpoints" / "exports").exists()


def test_an_export_is_used_again_until_the_checkpoint_is_another(run: Path) -> None:
    folder = Path(exported(str(run), STRUCTURE))
    first = (folder / "conversion.json").stat().st_mtime_ns
    assert exported(str(run), STRUCTURE) == str(folder)
    assert (folder / "conversion.json").stat().st_mtime_ns == first
    os.utime(run / "checkpoints" / "step_000010" / "learner" / ".metadata")
    exported(str(run), STRUCTURE)
    assert (folder / "conversion.json").stat().st_mtime_ns != first


def test_two_at_once_make_one_export(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def slowly(*arguments: Any, **options: Any) -> None:
        made.append(arguments)
        time.sleep(0.2)
        original(*arguments, **options)

    original = cached.export_model
    monkeypatch.setattr(cached, "export_model", slowly)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(exported, [str(run)] * 2, [STRUCTURE] * 2)
    assert first == second == str(run / "exports" / "myrun-step_000010") and len(made) == 1
    assert [path.name for path in (run / "exports").iterdir()] == ["myrun-step_000010"]


def test_a_closed_run_directory_is_exported_elsewhere(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached.os, "access", lambda *_: False)
    monkeypatch.setattr(cached.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    folder = Path(exported(str(run), STRUCTURE))
    assert folder.name == "myrun-step_000010" and tmp_path / "temporary" in folder.parents
    assert not (run / "exports").exists()


def test_an_evaluation_is_named_after_run_and_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "myrun", locate_model("package:tiny"))
    problems = tmp_path / "problems.jsonl"
    problems.write_text(json.dumps({"problem": "1 + 1 = ?", "answer": "2"}) + "\n")
    monkeypatch.setattr(evaluate, "learner_logprobs", None)
    options = [f"model.path={run}", f"data.eval={problems}", f"run.dir={tmp_path / 'out'}"]
    (task,) = evaluate.prepare(load(options)).tasks
    assert task.model == "myrun-step_000010"
