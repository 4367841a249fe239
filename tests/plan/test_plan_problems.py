"""Each way in which a run cannot work names its numbers and one that would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from da3po.config.load import load, parse_yaml
from da3po.forecast import main, plan_of
from da3po.models.published import find_model_spec

NODE = ("experiment=da3po-qwen3_4b_base-1n8g",)


def problems(*overrides: str) -> str:
    config = load([*NODE, *overrides])
    return "\n".join(plan_of(find_model_spec(config.model.path), config).problems)


@pytest.mark.parametrize(
    ("overrides", "said", "remedy"),
    [
        (["parallel.tp=3"], "parallel.tp=3 does not divide the model's 32 attention heads; 2 or 4", None),
        (["parallel.pp=5"], "parallel.pp=5 does not divide the model's 36 layers; 4 or 6 would do", None),
        (["engine.tp=3"], "engine.tp=3 does not share out the model's 32 attention heads and 8 key/value heads", None),
        (["train.prompts_per_update=100"], "does not divide rollout.num_prompts=512; 128 does", ["128"]),
        (["cluster.gpus_per_node=10"], "10 GPUs, and 4 learner ranks", ["parallel.dp=3"]),
        (["cluster.gpus_per_node=9"], "take 8; engine.num_engines=5 fits", ["engine.num_engines=5"]),
        (["parallel.dp=4"], "take 12; parallel.dp=2 fits", ["parallel.dp=2"]),
        (["cluster.num_nodes=2", "parallel.tp=1", "parallel.sequence_parallel=false"], "parallel.dp=12 fits", None),
        (["precision=mxfp8"], "learner.precision=mxfp8 cannot run on cluster.gpu=h100_sxm_80gb; precision=bf16", None),
        (["rollout.max_tokens=32000"], "the model has 32768 positions; 30720", None),
        (["engine.memory_fraction=0.15"], "the longest sequence has 6144; engine.tp=2 would do", None),
        (["learner.max_tokens_per_micro_batch=1"], "max_tokens_per_micro_batch=1 is less than", ["2 would do"]),
    ],
)
def test_it_is_named(overrides: list[str], said: str, remedy: list[str] | None) -> None:
    found = problems(*overrides)
    assert said in found
    for word in remedy or ():
        assert word in found


def test_the_remedy_for_memory_fits() -> None:
    large = ["parallel.tp=1", "parallel.dp=4", "parallel.sequence_parallel=false"]
    found = problems(*large)
    assert "needs" in found and "in phase 'forward and backward'" in found
    assert "learner.max_tokens_per_micro_batch=8192 would fit" in found or "recomputing all layers" in found
    full = "learner.megatron.transformer."
    frugal = [f"{full}recompute_granularity=full", f"{full}recompute_method=uniform", f"{full}recompute_num_layers=1"]
    assert "needs" not in problems(*large, *frugal)


def test_a_whole_plan_on_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment=quickstart", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["gpu_memory"] is None and tree["time"] is None and tree["host"] is None
    assert tree["work"]["updates"] == 1 and tree["work"]["warmup_updates"] == 2
    assert tree["sequences"] == [256, 524288 // 2060]


def test_measured_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = {
        "engine": {"step": 0.04, "sequence": 1e-4, "context": 0.0, "prompt": 1e-5},
        "learner": {"forward": 1e-5, "train": 4e-5, "micro_batch": 0.01, "update": 0.1},
        "sync": 0.2,
        "grade": 0.001,
        "step": 0.3,
    }
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"rates": rates}))
    assert main(["experiment=quickstart", "--json", f"plan.rates={path}"]) == 0
    time = json.loads(capsys.readouterr().out)["time"]
    assert time["sync"] == 0.2 and time["old_logprobs"] == 0.0
    assert time["total"] == pytest.approx(time["rollout"] + time["learner"] + 0.2 + 0.3)
    del rates["engine"]["step"]
    path.write_text(json.dumps(rates))
    assert main(["experiment=quickstart", f"plan.rates={path}"]) == 2
    assert "engine.step must be a number of seconds, got None" in capsys.readouterr().err


def test_unknown_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment=quickstart", "--jsn"]) == 2
    assert "no option --jsn; usage: da3po plan" in capsys.readouterr().err


def test_search_finds_layouts_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NODE, "--search", "--json", "rollout.num_prompts=64"]) == 0
    found = json.loads(capsys.readouterr().out)
    seconds = [one["plan"]["time"]["total"] for one in found]
    assert len(found) > 1 and seconds == sorted(seconds)
    assert problems(*found[0]["overrides"], "rollout.num_prompts=64") == ""


def test_search_needs_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment=quickstart", "--search"]) == 2
    assert "cluster.gpus_per_node" in capsys.readouterr().err


def test_a_dry_run_shows_plan_and_options_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from da3po import train

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "_train", lambda config: pytest.fail("started"))
    assert train.main(["experiment=quickstart", "--dry-run", "train.steps=7"]) == 0
    said = capsys.readouterr().out
    assert "optimizer updates in a step" in said
    assert parse_yaml(said[said.index("\nrun:\n") :]) == load(["experiment=quickstart", "train.steps=7"])
    assert list(tmp_path.iterdir()) == []
    assert train.main([*NODE, "--dry-run", "parallel.dp=4"]) == 1
    assert "parallel.dp=2 fits" in capsys.readouterr().out
